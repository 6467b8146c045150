"""The host as a device: NumPy arrays in ordinary memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from jobflow.core.types import Array, DType, Xp
from jobflow.runtime.device.device import Scratch

#: alignment in bytes: a cache line, and the widest vector register
ALIGNMENT = 64


def aligned_zeros(nbytes: int, alignment: int = ALIGNMENT) -> Array:
    """Return a zeroed uint8 array with an address that is a multiple of `alignment`."""
    raw = np.zeros(nbytes + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + nbytes]


class CpuDevice:
    """The CPU as the device of one rank."""

    tag = "cpu"
    identity = ""
    nccl_version = 0

    def __init__(self) -> None:
        self._scratch = Scratch(self, ALIGNMENT)

    @property
    def xp(self) -> Xp:
        return np

    def allocate(self, nbytes: int) -> Array:
        return aligned_zeros(nbytes)

    def require(self, nbytes: int) -> None:
        """Do nothing: the operating system allocates pages when they are written."""

    def scratch(self, shape: tuple[int, ...], dtype: DType) -> Array:
        return self._scratch.take(shape, dtype)

    def begin_instruction(self) -> None:
        self._scratch.rewind()

    def activate(self) -> None:
        """Do nothing: the host is always current."""

    def upload(self, target: Array, value: Array) -> None:
        np.copyto(target, value, casting="unsafe")

    def to_host(self, array: Array) -> Array:
        return np.array(array)

    def start_to_host(self, arrays: Sequence[Array]) -> Callable[[], list[Array]]:
        copies = [np.array(array) for array in arrays]
        return lambda: copies

    def synchronize(self) -> None:
        """Do nothing: NumPy calls have finished when they return."""


def cpu_device(local: int) -> CpuDevice:
    """Return the device of the rank number `local` on its node; all CPU devices are equal."""
    return CpuDevice()
