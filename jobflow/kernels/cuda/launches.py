"""Launches of kernels by one call of the driver, with argument addresses that are computed once."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jobflow.core.errors import PlanError
from jobflow.core.types import Array
from jobflow.kernels.argument_block import address

#: bytes of an argument's slot; a kernel reads the first bytes of the slot
_SLOT = 8


class KernelLaunch:
    """A callable that launches a kernel function on the current stream of the thread.

    It keeps the arrays alive whose addresses are arguments of the kernel, and the argument slots, which a captured graph copies.
    """

    #: a graph may capture it: it allocates nothing and waits for nothing
    capturable = True

    def __init__(self, function: Any, arrays: Sequence[Array]) -> None:
        self.function, self.arrays = function, arrays
        self._arguments: Sequence[Any] | None = None
        self._launch: Callable[..., None] = importlib.import_module("cupy_backends.cuda.api.driver").launchKernel
        self._stream: Callable[[], Any] = importlib.import_module("cupy").cuda.get_current_stream

    def __call__(self, grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[Any, ...]) -> None:
        """Launch the kernel with up to three numbers of blocks and of threads.

        Arguments are NumPy integers of 4 or 8 bytes, and arrays, which are passed by address.
        """
        if self._arguments is not arguments:
            self._prepare(grid, block, arguments)
        self._launch(*self._shape, self._stream().ptr, self._address, 0)

    def _prepare(self, grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[Any, ...]) -> None:
        self._slots = np.array([_word(a) for a in arguments], np.int64)
        first = self._slots.ctypes.data
        self._pointers = (ctypes.c_void_p * len(arguments))(*(first + _SLOT * k for k in range(len(arguments))))
        self._address = ctypes.addressof(self._pointers)
        self._shape = (self.function.ptr, *(*grid, 1, 1)[:3], *(*block, 1, 1)[:3], 0)
        self._arguments = arguments


def _word(argument: Any) -> int:
    """Return the 64-bit slot of an argument; a narrower integer is in the first bytes, because GPUs and their hosts are little-endian."""
    if isinstance(argument, np.integer):
        return int(argument)
    if isinstance(argument, np.generic):
        raise PlanError(f"kernel argument {argument!r}: only integers and arrays are passed to printed kernels")
    return address(argument) if isinstance(argument, np.ndarray) else int(argument.data.ptr)


def refused_arrays(arrays: Sequence[Array]) -> str | None:
    """Return the reason kernels that index arrays by elements cannot compute on these arrays, or None."""
    if any(0 in a.shape for a in arrays):
        return "an operand has no elements"
    if any(stride % a.dtype.itemsize for a in arrays for stride in a.strides):
        return "a stride is not a multiple of the element size"
    return None
