"""Execution of bound ops on a CPU, and arrays with equal values in other memory orders."""

from __future__ import annotations

from typing import Any

import numpy as np

from jobflow.kernels import registry
from jobflow.kernels.target import CPU


class CpuDevice:
    """The part of a device that `bind` uses; scratch memory is filled with NaN or ones, because its content is undefined."""

    tag = "cpu"
    xp = np

    def scratch(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return np.full(shape, np.nan if dtype.numpy.kind == "f" else 1, dtype.numpy)


def run_bound(op: Any, *arrays: Any, output: Any, target: Any = CPU) -> Any:
    """Run the bound calls twice, to detect calls that depend on the state of the first run."""
    calls = registry.bind(op, target, CpuDevice(), arrays, (output,))
    for _ in range(2):
        output[...] = np.nan
        for function, arguments in calls:
            function(*arguments)
    return output


def batch_innermost(array: Any) -> Any:
    """Return the same values with axis 0 innermost in memory."""
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 0, -1)), -1, 0)


def spaced(array: Any) -> Any:
    """Return the same values as a window of a larger array, so that no two axes are contiguous."""
    big = np.zeros(tuple(2 * n + 1 for n in array.shape), array.dtype)
    view = big[tuple(slice(1, 2 * n + 1, 2) for n in array.shape)]
    view[...] = array
    return view


ORDERS = {"plain": np.array, "batch_innermost": batch_innermost, "spaced": spaced}
