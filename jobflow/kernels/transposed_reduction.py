"""Transposed reductions: sums of columns as sums of rows, if the elements of a column are contiguous in memory.

    images stored [c, h, w, n], and the gradient of a bias: space [n, h, w, c], column_sum  ->  [c, (h w n)], row_sum

A loop with c innermost would gather each element from another cache line.  The transposed sum adds in the order of a row sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from jobflow.core.dataclass import dataclass
from jobflow.core.types import Array
from jobflow.expressions.language import Expression, replaced, row_sum
from jobflow.kernels.loop_operands import facts, loop_shape
from jobflow.kernels.row_phases import COLUMNS, REDUCTIONS


@dataclass(frozen=True)
class TransposedLoop:
    outputs: tuple[Expression, ...]
    inputs: tuple[Array, ...]
    targets: tuple[Array, ...]


def has_strided_columns(outputs: Sequence[Expression], inputs: Sequence[Array], targets: Sequence[Array]) -> bool:
    """Return True if the outputs include sums of columns, and an operand with the shape of the loop is not contiguous along its last axis."""
    known = facts(tuple(outputs))
    try:
        shape = loop_shape(known, inputs, targets)
    except ValueError:
        return False
    read, has_sums = [inputs[k] for k in known.elements], any(x.primitive == COLUMNS for x in known.order)
    return has_sums and len(shape) > 1 and any(a.shape == shape and a.strides[-1] != a.itemsize for a in (*read, *targets) if shape[-1] > 1)


def transposed_reduction(outputs: Sequence[Expression], inputs: Sequence[Array], targets: Sequence[Array]) -> TransposedLoop | None:
    """Return a loop that computes the sums of columns as sums of rows.

    The result is None if no operand has strided columns, or if an operand has no transposed view.  The result is also None if the expressions read
    tables or indices, or use row primitives.
    """
    known = facts(tuple(outputs))
    has_rows = bool(known.tables) or any(x.primitive in (*REDUCTIONS, "columns", "index") for x in known.order)
    if has_rows or not has_strided_columns(outputs, inputs, targets):
        return None
    shape = loop_shape(known, inputs, targets)
    largest = next(a for a in (*(inputs[k] for k in known.elements), *targets) if a.shape == shape and a.strides[-1] != a.itemsize)
    axes = (len(shape) - 1, *sorted(range(len(shape) - 1), key=lambda axis: -abs(largest.strides[axis])))
    per_operand = [
        _transposed_view(a, axes, math.prod(shape[:-1])) if k in known.elements or k not in known.types else a
        for k, a in enumerate((*inputs, *targets))
    ]
    if any(a is None for a in per_operand):
        return None
    sums = {x: row_sum(x.arguments[0]) for x in known.order if x.primitive == COLUMNS}
    views = tuple(a for a in per_operand if a is not None)
    return TransposedLoop(tuple(replaced(y, sums) for y in outputs), views[: len(inputs)], views[len(inputs) :])


def _transposed_view(a: Array, axes: tuple[int, ...], length: int) -> Array | None:
    """Return a view as [columns, elements of a column], or None if the array has no such view."""
    wide = a.reshape((1,) * (len(axes) - a.ndim) + a.shape).transpose(axes)
    width = math.prod(wide.shape[1:])
    if width not in (1, length):
        return None
    try:
        return wide.reshape((wide.shape[0], width), copy=False)
    except ValueError:
        return None
