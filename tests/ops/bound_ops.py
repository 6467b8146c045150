"""What is bound for a CPU, run; and the same values in other orders of memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from jobflow.kernels import registry
from jobflow.kernels.target import CPU


class CpuDevice:
    """The little of a device that bind asks for; scratch comes filled with NaN, or ones, since nothing may rely on its content."""

    tag = "cpu"
    xp = np

    def scratch(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return np.full(shape, np.nan if dtype.numpy.kind == "f" else 1, dtype.numpy)


def run_bound(op: Any, *arrays: Any, output: Any, target: Any = CPU) -> Any:
    """Run twice what bind prepared, so that a call that relies on the first run's state is seen."""
    calls = registry.bind(op, target, CpuDevice(), arrays, (output,))
    for _ in range(2):
        output[...] = np.nan
        for function, arguments in calls:
            function(*arguments)
    return output


def batch_innermost(array: Any) -> Any:
    """The same values, stored with axis 0 innermost."""
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 0, -1)), -1, 0)


def spaced(array: Any) -> Any:
    """The same values as a window on a larger array, so that no two axes are contiguous."""
    big = np.zeros(tuple(2 * n + 1 for n in array.shape), array.dtype)
    view = big[tuple(slice(1, 2 * n + 1, 2) for n in array.shape)]
    view[...] = array
    return view


ORDERS = {"plain": np.array, "batch_innermost": batch_innermost, "spaced": spaced}
