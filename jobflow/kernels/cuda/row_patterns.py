"""Reductions of rows for which a kernel has a cheaper form than a pass over all elements.

An online sum is the maximum of a row and the sum of the exponentials of its elements relative to the maximum.  One pass is enough: the sum is
scaled whenever the maximum grows.  A lookup is the element of a row at an index.  Only the vector that contains the index is compared with it.

    online sum    row_max(a), row_sum(exp(a - row_max(a)))
    lookup        row_sum(where(index(-1) == label, x, 0))
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from jobflow.core.dataclass import dataclass
from jobflow.expressions.language import Expression, in_order
from jobflow.kernels.row_phases import Phase


@dataclass(frozen=True)
class OnlineSum:
    """The maximum of a row, and the sum of the exponentials of its elements relative to the maximum."""

    most: Expression
    total: Expression

    @property
    def exponential(self) -> Expression:
        return self.total.arguments[0]


def online_sum(passes: Sequence[Phase]) -> OnlineSum | None:
    """Return the sum of the second pass over a row if the first pass can compute it too."""
    if len(passes) < 2 or len(passes[1].reductions) != 1:
        return None
    first, second = passes[:2]
    (total,) = second.reductions
    exponential = total.arguments[0]
    if total.primitive != "row_sum" or exponential.primitive != "exp" or exponential.arguments[0].primitive != "subtract":
        return None
    shifted = exponential.arguments[0]
    a, most = shifted.arguments
    if most.primitive != "row_max" or most not in first.reductions or most.arguments[0] != a or a.dtype is not a.dtype.arithmetic:
        return None
    if first.columns or second.columns or set(second.elements) - set(first.elements) != {shifted, exponential}:
        return None
    return OnlineSum(most, total)


@dataclass(frozen=True)
class Lookup:
    """A sum with at most one element that is not 0: the element of the row at the index `label`."""

    total: Expression
    #: the element of an index operand, its value for index 0, and the requested index
    counter: Expression
    base: Expression
    label: Expression


def lookups(phase: Phase, counted: Iterable[int]) -> list[Lookup]:
    """Return the sums of a phase that look up an element; `counted` are the inputs that are index operands."""
    operands = frozenset(counted)
    results = (_lookup(x, phase, operands) for x in phase.reductions)
    return [x for x in results if x is not None]


def _lookup(total: Expression, phase: Phase, counted: frozenset[int]) -> Lookup | None:
    chosen = total.arguments[0]
    if total.primitive != "row_sum" or chosen.primitive != "where" or chosen.arguments[0].primitive != "equal":
        return None
    equal, _, other = chosen.arguments
    index, label = equal.arguments
    if other.primitive != "constant" or other.attribute != 0 or index.primitive != "subtract" or label in phase.elements:
        return None
    counter, base = index.arguments
    if counter.primitive != "element" or counter.attribute not in counted or counter not in phase.elements or base.primitive != "constant":
        return None
    return Lookup(total, counter, base, label)


def restricted(phase: Phase, reductions: Sequence[Expression], stored: Sequence[Expression] = ()) -> Phase:
    """Return the phase with these reductions only, and with the elements that they and the outputs `stored` need."""
    needed = set(in_order([*(x.arguments[0] for x in reductions), *stored]))
    return replace(phase, reductions=tuple(reductions), elements=tuple(x for x in phase.elements if x in needed))
