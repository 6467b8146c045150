"""Compiled loops in place of calls that are common to many operations: the tier "llvm" of CPUs.

These calls are replaced:

    products of matrices                               `product_loops.py`
    copies between float32 and half precision          before and after half-precision operations (`kernels/half.py`)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jobflow.core.types import Array, dtype_of
from jobflow.expressions import language as f
from jobflow.kernels import half, llvm
from jobflow.kernels.compiled_loops import FEWEST
from jobflow.kernels.llvm.product_loops import about, product_in_loops
from jobflow.ops.op import Call

__all__ = ["about", "in_loops"]


def in_loops(calls: Sequence[Call]) -> list[Call]:
    """Replace the calls that a compiled loop can run; return all calls in order."""
    return [replacement for call in calls for replacement in product_in_loops(call) or _copied(call) or [call]]


def _copied(call: Call) -> list[Call]:
    function, arguments = call
    if function not in (np.copyto, half.rounded) or len(arguments) != 2:
        return []
    target, source = arguments
    return _converted(target, source) if isinstance(source, np.ndarray) and half.is_half(source) != half.is_half(target) else []


def _converted(target: Array, source: Array) -> list[Call]:
    outputs = (f.cast(f.element(0, dtype_of(source.dtype)), dtype_of(target.dtype)),)
    few = target.size < FEWEST
    return [] if few or llvm.refuses(outputs, [source], [target]) else llvm.bind(outputs, [source], [target])
