"""Memory of a GPU that other processes of the machine can open, by CUDA's interprocess handles."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from jobflow.core.types import Array


def process() -> int:
    """Return the number of this process."""
    return os.getpid()


class WindowHandle(NamedTuple):
    """The description of a window for other ranks."""

    #: the process, and the GPU and the address in it
    process: int
    gpu: int
    address: int
    handle: bytes
    nbytes: int


class OwnWindow:
    """Memory of a rank that its peers read; it is a separate allocation, because a handle names a whole allocation."""

    def __init__(self, cupy: Any, index: int, nbytes: int) -> None:
        with cupy.cuda.Device(index):
            memory = cupy.cuda.Memory(nbytes)
            self.array: Array = cupy.ndarray((nbytes,), "uint8", memptr=cupy.cuda.MemoryPointer(memory, 0))
            handle = bytes(cupy.cuda.runtime.ipcGetMemHandle(memory.ptr))
        self.handle = WindowHandle(process(), index, int(memory.ptr), handle, nbytes)


class PeerWindow:
    """The window of another rank, opened by this rank."""

    def __init__(self, cupy: Any, index: int, handle: WindowHandle) -> None:
        self._cupy, self._opened = cupy, 0
        address = handle.address
        if handle.process != process():
            with cupy.cuda.Device(index):
                address = self._opened = cupy.cuda.runtime.ipcOpenMemHandle(handle.handle)
        elif handle.gpu != index:
            raise ValueError(f"gpu {handle.gpu} of the same process cannot be opened for gpu {index}")
        memory = cupy.cuda.UnownedMemory(address, handle.nbytes, self, index)
        self.array: Array = cupy.ndarray((handle.nbytes,), "uint8", memptr=cupy.cuda.MemoryPointer(memory, 0))

    def close(self) -> None:
        if self._opened:
            self._cupy.cuda.runtime.ipcCloseMemHandle(self._opened)
            self._opened = 0
