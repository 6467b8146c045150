"""Memory of a GPU: slabs for small buffers, so that a program makes few allocations, and an error with sizes when the memory is full."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from jobflow.core.types import Array
from jobflow.runtime.device.cuda_facts import free_memory
from jobflow.runtime.device.current_stream import current_stream
from jobflow.runtime.device.device import ADVICE, OutOfMemory

#: alignment in bytes for the widest vectorised loads and library kernels
ALIGNMENT = 256
#: bytes below which a buffer is part of a slab, and bytes of a slab
SMALL, SLAB = 1 << 20, 8 << 20
GIB = 1 << 30


class CudaMemory:
    """The allocator of a GPU's buffers, on CuPy's memory pool.

    A slab is freed with the last buffer in it.  Its memory is used once, so it is zero.
    """

    def __init__(self, cupy: Any, index: int, stream: Any, lock: AbstractContextManager[Any]) -> None:
        """`lock` is held while work is enqueued on `stream`."""
        self._cupy, self._index, self._stream, self._lock = cupy, index, stream, lock
        self._slab: Array | None = None
        self._used = 0

    def take(self, nbytes: int) -> Array:
        """Return a zeroed uint8 array, aligned to 256 bytes, that any stream can use.

        Raises: OutOfMemory.
        """
        if nbytes >= SMALL:
            return self._zeros(nbytes)
        if self._slab is None or self._used + nbytes > SLAB:
            self._slab, self._used = self._zeros(SLAB), 0
        start = self._used
        self._used = -(-(start + max(nbytes, 1)) // ALIGNMENT) * ALIGNMENT
        return self._slab[start : start + nbytes]

    def _zeros(self, nbytes: int) -> Array:
        try:
            # CuPy's pool has one free list per stream: a block is reused in stream order only
            with self._lock, current_stream(self._cupy, self._index, self._stream):
                array = self._cupy.zeros(nbytes, "uint8")
                done = self._cupy.cuda.Event(disable_timing=True)
                done.record(self._stream)
        except self._cupy.cuda.memory.OutOfMemoryError as error:
            raise self._error(nbytes) from error
        done.synchronize()
        return array

    def require(self, nbytes: int) -> None:
        """Raise OutOfMemory if fewer than `nbytes` bytes are free."""
        if nbytes > free_memory(self._index).free:
            raise self._error(nbytes)

    def _error(self, nbytes: int) -> OutOfMemory:
        return OutOfMemory(
            f"allocation on gpu {self._index}: {size_text(nbytes)} are needed, and {free_text(self._index)}; "
            f"{ADVICE}, or end other programs on this GPU"
        )


def free_text(index: int) -> str:
    """Return the free and the total memory of GPU number `index` as text, such as "2.00 GiB of 80.00 GiB are free"."""
    free, total, limit = free_memory(index)
    limited = f" under the limit of {size_text(limit)} by cuda.set_per_process_memory_fraction" if 0 < limit < total else ""
    return f"{size_text(free)} of {size_text(total)} are free{limited}"


def size_text(nbytes: int) -> str:
    """Return a number of bytes as text, in GiB, or in MiB below 1 GiB."""
    return f"{nbytes / GIB:.2f} GiB" if nbytes >= GIB else f"{nbytes / 2**20:.2f} MiB"
