"""Memory of a GPU: slabs for small buffers, so that a program makes few allocations, and an error with sizes when the memory is full."""

from __future__ import annotations

from typing import Any

from jobflow.core.types import Array
from jobflow.runtime.device.current_stream import current_stream
from jobflow.runtime.device.device import OutOfMemory

#: alignment in bytes for the widest vectorised loads and library kernels
ALIGNMENT = 256
#: bytes below which a buffer is part of a slab, and bytes of a slab
SMALL, SLAB = 1 << 20, 8 << 20
GIB = 1 << 30


class CudaMemory:
    """The allocator of a GPU's buffers, on CuPy's memory pool.

    A slab is freed with the last buffer in it.  Its memory is used once, so it is zero.
    """

    def __init__(self, cupy: Any, index: int, stream: Any) -> None:
        self._cupy, self._index, self._stream = cupy, index, stream
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
            with current_stream(self._cupy, self._index, self._stream):
                array = self._cupy.zeros(nbytes, "uint8")
        except self._cupy.cuda.memory.OutOfMemoryError as error:
            with self._cupy.cuda.Device(self._index):
                free, total = self._cupy.cuda.runtime.memGetInfo()
            raise OutOfMemory(
                f"allocation on gpu {self._index}: {size_text(nbytes)} are needed, and {size_text(free)} of {size_text(total)} are free; "
                "use smaller batches, activation checkpointing or ZeRO, or end other programs on this GPU"
            ) from error
        self._stream.synchronize()
        return array


def size_text(nbytes: int) -> str:
    """Return a number of bytes as text, in GiB, or in MiB below 1 GiB."""
    return f"{nbytes / GIB:.2f} GiB" if nbytes >= GIB else f"{nbytes / 2**20:.2f} MiB"
