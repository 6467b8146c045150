"""A pool of freed buffers, so that the operating system need not map and clear new memory for every large tensor.

    take = allocator(type)      once per operation
    array = take()              an uninitialised NumPy array

An array of the pool has a `Lease` as its base.  Views, memoryviews and DLPack capsules keep the array alive, and the array keeps the lease alive.
When the lease is deleted, in any thread, its memory returns to the free list of its size class.  Appending to a list and popping from it are
atomic, so finalizers need no lock.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from jobflow.core.errors import ShapeError, called_function, user_line
from jobflow.core.types import Array, TensorType

#: bytes; smaller arrays come from malloc, which reuses memory of this size by itself
SMALLEST = 64 * 1024
#: alignment of the first element in bytes: a cache line
ALIGNMENT = 64
#: size classes per power of two, so that at most an eighth of a buffer of the right class is unused
STEPS = 8
#: the maximal ratio of the size of a reused buffer to the request
LARGER = 4


class _PoolMemory(np.ndarray[Any, Any]):
    """The bytes of one buffer of the pool.

    This is a subclass because NumPy would replace an ordinary array, as the base of a view, by the owner of its memory.
    """

    __slots__ = ()


class Lease(np.ndarray[Any, Any]):
    """An array over a buffer in use; its deletion returns the buffer to the free list."""

    __slots__ = ("size_class",)
    size_class: SizeClass

    def __del__(self) -> None:
        size_class = getattr(self, "size_class", None)
        if size_class is not None:  # a view of a lease has none, and keeps the lease alive
            size_class.give(self.base)


class SizeClass:
    """The free buffers of one size."""

    __slots__ = ("free", "nbytes", "pool")

    def __init__(self, pool: BufferPool, nbytes: int) -> None:
        self.pool, self.nbytes = pool, nbytes
        self.free: list[Any] = []

    def array(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return an uninitialised array in a buffer of this class."""
        source = self
        try:
            memory = self.free.pop()
            self.pool.held -= self.nbytes
        except IndexError:
            source, memory = self.pool.larger_or_new(self)
        lease = memory.view(Lease)
        lease.size_class = source
        return np.ndarray(shape, dtype, lease)

    def give(self, memory: Any) -> None:
        """Add the buffer `memory` to the free list; drop it if the pool has reached its limit of free bytes."""
        if self.pool.held < self.pool.limit:
            self.pool.held += self.nbytes
            self.free.append(memory)


class BufferPool:
    """Size classes, with a limit on the free bytes of all classes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.classes: dict[int, SizeClass] = {}
        #: free bytes; concurrent updates may be lost, so `new` computes it again
        self.held = 0

    def allocator(self, type: TensorType) -> Callable[[], Array]:
        """Return a function that returns uninitialised arrays of this type, from the pool unless the arrays are small."""
        dtype: Any = type.dtype.numpy
        nbytes = type.size * type.dtype.itemsize
        if nbytes < SMALLEST:
            return partial(np.empty, type.shape, dtype)
        return partial(self.size_class(nbytes).array, type.shape, dtype)

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return an uninitialised array, from the pool unless the array is small."""
        nbytes = math.prod(shape) * dtype.itemsize
        return np.empty(shape, dtype) if nbytes < SMALLEST else self.size_class(nbytes).array(shape, dtype)

    def size_class(self, nbytes: int) -> SizeClass:
        """Return the class with the smallest buffers of at least `nbytes` bytes."""
        step = max(1, (1 << (nbytes - 1).bit_length()) // (2 * STEPS))
        size = -(-nbytes // step) * step
        return self.classes.get(size) or self.classes.setdefault(size, SizeClass(self, size))

    def larger_or_new(self, size_class: SizeClass) -> tuple[SizeClass, Any]:
        """Return a size class and a buffer of that class: a free buffer of a larger class if possible, or else a new buffer.

        Without larger buffers, the first pass of a program would map memory for every size class, while buffers of other classes are free.
        """
        nbytes = size_class.nbytes
        for larger in sorted((each for each in list(self.classes.values()) if nbytes < each.nbytes <= LARGER * nbytes), key=lambda each: each.nbytes):
            if larger.free:
                try:
                    memory = larger.free.pop()
                except IndexError:  # another thread was faster
                    continue
                self.held -= larger.nbytes
                return larger, memory
        return size_class, self.new(nbytes)

    def new(self, nbytes: int) -> Any:
        """Return a new buffer; release all free buffers first if the pool is nearly full, because the sizes in use have changed."""
        self.held = sum(each.nbytes * len(each.free) for each in list(self.classes.values()))
        if self.held + nbytes > self.limit:
            self.clear()
        try:
            memory = np.empty(nbytes + ALIGNMENT, np.uint8)
        except (MemoryError, ValueError):  # NumPy raises ValueError for sizes beyond the address space
            raise ShapeError(
                f"{called_function() or 'allocation'} at {user_line()}: a tensor of {nbytes / 2**30:.4g} GiB exceeds the memory; use smaller sizes"
            ) from None
        start = -memory.ctypes.data % ALIGNMENT
        return memory[start : start + nbytes].view(_PoolMemory)

    def clear(self) -> None:
        """Return all free buffers to the operating system."""
        for each in list(self.classes.values()):
            each.free.clear()
        self.held = 0


def _limit() -> int:
    """Return an eighth of the memory of this machine in bytes, or 1 GiB if the memory is unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 8
    except (ValueError, OSError, AttributeError):  # not every platform reports it
        return 1 << 30


#: the pool of this process: ranks that are threads share it, as they share the memory
POOL = BufferPool(_limit())


def owns_memory(array: Array) -> bool:
    """Return True if the array is not a view of another array, or if it is an array of the pool."""
    return array.base is None or type(array.base) is Lease
