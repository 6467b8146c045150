"""Elements at computed indices: the formulas of operations that copy elements to other positions.

    y[i, j] = x[i - 2, j] if 0 <= i - 2 < n else 0        the index along axis 0 differs, so axis 0 of x is a lookup axis

The axes of an operand from the first to the last axis with another index form one lookup table, in C order.  A dense operand always has such a
view.  Indices are limited to the table, because a compiled loop reads both operands of `where`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from jobflow.core.types import TensorType, int64
from jobflow.expressions import language as f
from jobflow.expressions.index_space import LOOKED_UP, IndexSpace, Places
from jobflow.expressions.language import Expression


def lookup_axes(changed: Sequence[bool]) -> range:
    """Return the axes of the lookup table: from the first axis i with changed[i] to the last one."""
    axes = [i for i, other in enumerate(changed) if other]
    return range(axes[0], axes[-1] + 1) if axes else range(0)


def table_places(changed: Sequence[bool]) -> Places:
    """Return the places of an operand that has the axes of the space, and is read at other indices along the axes i with changed[i]."""
    table = lookup_axes(changed)
    return tuple(LOOKED_UP if i in table else i for i in range(len(changed)))


def space_of_copies(y: TensorType, *changed: Sequence[bool]) -> IndexSpace:
    """Return the index space of an output y, for inputs with as many axes as y; changed[k] has one entry per axis of input k."""
    everywhere = tuple(range(y.ndim))
    return IndexSpace(y.shape or (1,), (*map(table_places, changed), everywhere))


def element_at(position: int, x: TensorType, at: Mapping[int, Expression]) -> Expression:
    """Return the element of input `position`, of type x, at index at[i] along each axis i in `at`.

    Along other axes, the element has the index of the space.
    """
    table = lookup_axes([i in at for i in range(x.ndim)])
    if not table:
        return f.element(position, x.dtype)
    flat: Expression = f.constant(0, int64)
    for i in table:
        step = math.prod(x.shape[i + 1 : table.stop])
        flat = flat + at.get(i, f.index(i - x.ndim)) * step
    return f.looked_up(position, x.dtype, flat)


def index_in_window(index: Expression, start: int, step: int, count: int) -> tuple[Expression, Expression]:
    """Return q with index = start + q step, limited to [0, count), and a truth value: False if no such q exists in the range."""
    offset = index - start
    limited = f.clip(offset, 0, (count - 1) * step)
    if step == 1:
        return limited, f.equal(limited, offset)
    q = f.quotient(limited, f.constant(step, int64))
    return q, f.equal(q * step, offset)


def all_of(conditions: Sequence[Expression]) -> Expression:
    """Return the conjunction of truth values; True for an empty sequence."""
    result = conditions[0] if conditions else f.equal(f.constant(0, int64), f.constant(0, int64))
    for condition in conditions[1:]:
        result = f.logical_and(result, condition)
    return result
