"""Sums of columns as sums of rows, where the elements of a column lie side by side in memory.

    images stored [c, h, w, n], and the gradient of a bias: space [n, h, w, c], column_sum  ->  [c, (h w n)], row_sum

A loop whose innermost axis is c would gather each element from another line of memory.  The order of the sum is that of a row then.
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
class Turned:
    outputs: tuple[Expression, ...]
    inputs: tuple[Array, ...]
    targets: tuple[Array, ...]


def columns_apart(outputs: Sequence[Expression], inputs: Sequence[Array], targets: Sequence[Array]) -> bool:
    """Are there sums of columns that do not lie next to each other?"""
    known = facts(tuple(outputs))
    try:
        shape = loop_shape(known, inputs, targets)
    except ValueError:
        return False
    read, has_sums = [inputs[k] for k in known.elements], any(x.primitive == COLUMNS for x in known.order)
    return has_sums and len(shape) > 1 and any(a.shape == shape and a.strides[-1] != a.itemsize for a in (*read, *targets) if shape[-1] > 1)


def columns_as_rows(outputs: Sequence[Expression], inputs: Sequence[Array], targets: Sequence[Array]) -> Turned | None:
    """The loop over rows; None where columns do not lie in memory as rows, or rows mean something to the expressions."""
    known = facts(tuple(outputs))
    has_rows = bool(known.tables) or any(x.primitive in (*REDUCTIONS, "columns", "index") for x in known.order)
    if has_rows or not columns_apart(outputs, inputs, targets):
        return None
    shape = loop_shape(known, inputs, targets)
    largest = next(a for a in (*(inputs[k] for k in known.elements), *targets) if a.shape == shape and a.strides[-1] != a.itemsize)
    axes = (len(shape) - 1, *sorted(range(len(shape) - 1), key=lambda axis: -abs(largest.strides[axis])))
    seen = [_seen(a, axes, math.prod(shape[:-1])) if k in known.elements or k not in known.types else a for k, a in enumerate((*inputs, *targets))]
    if any(a is None for a in seen):
        return None
    sums = {x: row_sum(x.arguments[0]) for x in known.order if x.primitive == COLUMNS}
    views = tuple(a for a in seen if a is not None)
    return Turned(tuple(replaced(y, sums) for y in outputs), views[: len(inputs)], views[len(inputs) :])


def _seen(a: Array, axes: tuple[int, ...], length: int) -> Array | None:
    """As [columns, elements of a column], in the same memory."""
    wide = a.reshape((1,) * (len(axes) - a.ndim) + a.shape).transpose(axes)
    width = math.prod(wide.shape[1:])
    if width not in (1, length):
        return None
    try:
        return wide.reshape((wide.shape[0], width), copy=False)
    except ValueError:
        return None
