"""Kernels that return at once while a flag in device memory is set, so the host launches them without reading the flag."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from jobflow.core.types import Array
from jobflow.kernels.cuda.compiled_text import compiler
from jobflow.kernels.cuda.launches import KernelLaunch
from jobflow.ops.op import Call

#: the head of a kernel: attributes, name and parameters
_HEAD = re.compile(r'(extern "C" __global__ void [^;{}]*?\b\w+\([^()]*)\) \{')
#: sets the flag if one of `count` numbers, `step` words apart, is not 0
_HALT = """extern "C" __global__ void __launch_bounds__(32) halt(
    const long long *results, int count, int step, long long *halted) {
  if (blockIdx.x == 0 && threadIdx.x == 0)
    for (int k = 0; k < count; ++k)
      if (results[k * step]) *halted = 1;
}
"""


@lru_cache(1024)
def guarded_text(text: str) -> str | None:
    """Return the text of kernels with the flag as one more parameter; None if the head of a kernel has another form."""
    result, count = _HEAD.subn(r"\1, const long long *halted) {\n  if (*halted) return;", text)
    return result if count == text.count("__global__") else None


def guarded(calls: Sequence[Call], flag: Array) -> list[Call] | None:
    """Return launches that do nothing while `flag`, an int64 array of one element, is not 0.

    The result is None if a call launches no printed kernel, or a kernel that cannot get the flag.
    """
    launches: list[Call] = []
    for launch, arguments in calls:
        if not isinstance(launch, KernelLaunch):
            return None
        grid, block, values = arguments
        function = launch.function
        text = guarded_text(function.text)
        if text is None:
            return None
        module = compiler(function.index).module(text)
        launches.append((KernelLaunch(module.function(function.name), (*launch.arrays, flag)), (grid, block, (*values, flag))))
    return launches


def halt(index: int, results: Array, count: int, step: int, flag: Array) -> Call:
    """Return the launch on GPU `index` that sets `flag` if one of `count` int64 numbers in `results`, `step` words apart, is not 0."""
    function = compiler(index).module(_HALT).function("halt")
    return KernelLaunch(function, (results, flag)), ((1,), (32,), (results, np.int32(count), np.int32(step), flag))
