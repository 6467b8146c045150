"""Phases of a row loop: expressions computed once per loop, once per row, or per element in one of the passes over a row.

A row is read once per level of `row_sum`, `row_product` and `row_max`, and once more for the outputs.  Every pass recomputes elements; the first
pass stores expensive ones in a scratch row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from jobflow.core.dataclass import dataclass
from jobflow.core.layout import MAX
from jobflow.expressions import language as f
from jobflow.expressions.language import Expression, element, in_order

REDUCTIONS = ("row_sum", "row_product", "row_max")
COLUMNS = "column_sum"


@dataclass(frozen=True)
class Phase:
    """A pass over the elements of a row, with the expressions that are computed in it."""

    #: computed once before the pass, from values per row and results of earlier passes
    row: tuple[Expression, ...]
    #: computed per element, arguments first
    elements: tuple[Expression, ...]
    #: read from a scratch row, and written to one
    read: tuple[Expression, ...]
    written: tuple[Expression, ...]
    #: reduced over the row
    reductions: tuple[Expression, ...]
    #: added to the running sums of columns
    columns: tuple[Expression, ...]


@dataclass(frozen=True)
class Phases:
    #: computed once: scalars and expressions of scalars
    once: tuple[Expression, ...]
    passes: tuple[Phase, ...]
    #: expressions with a row of scratch memory, in the order of the rows
    scratch: tuple[Expression, ...]
    #: sums over all rows, one for each column, and expressions computed from them after the last row
    columns: tuple[Expression, ...]
    per_column: tuple[Expression, ...]


def phases(
    outputs: Sequence[Expression], stored: Sequence[Expression], splat: Callable[[Expression], bool], expensive: Collection[Expression]
) -> Phases:
    """Return the phases of a loop.

    `stored` are the outputs with one value per element.  `splat` returns True for an element that has one value per row.  `expensive` expressions
    are stored in scratch rows if several passes need them.
    """
    order = in_order(outputs)
    once: set[Expression] = set()
    row: set[Expression] = set()
    level: dict[Expression, int] = {}
    columns = tuple(x for x in order if x.primitive == COLUMNS)
    per_column = of_columns(order)
    for x in order:
        if x in per_column:
            continue
        level[x] = max((level[y] for y in x.arguments), default=0) + (x.primitive in REDUCTIONS)
        if x.primitive in REDUCTIONS or (x.primitive == "element" and splat(x)):
            row.add(x)
        elif x.primitive not in ("element", "looked_up") and all(y in once for y in x.arguments):
            once.add(x)
        elif x.primitive != "element" and all(y in once or y in row for y in x.arguments) and (x.primitive != "looked_up" or splat(x)):
            row.add(x)
    last = max(level.values(), default=0)
    passes: list[Phase] = []
    earlier: set[Expression] = set()
    scratch: dict[Expression, None] = {}
    for number in range(last + 1):
        reductions = [x for x in level if x.primitive in REDUCTIONS and level[x] == number + 1]
        added = [x for x in columns if level[x.arguments[0]] == number]
        targets = [x.arguments[0] for x in (*reductions, *added)] + (list(stored) if number == last else [])
        read = {x for x in _needed(order, targets, once | row | (earlier & set(expensive))) if x in earlier and x in expensive}
        known = once | row | read
        needed = _needed(order, targets, known) - known
        elements = [x for x in order if x in needed]
        scratch.update(dict.fromkeys(x for x in order if x in read))
        earlier |= set(elements)
        at_row = tuple(x for x in order if x in row and level[x] == number and x.primitive not in REDUCTIONS)
        passes.append(Phase(at_row, tuple(elements), tuple(x for x in order if x in read), (), tuple(reductions), tuple(added)))
    return Phases(tuple(x for x in order if x in once), tuple(_with_scratch_writes(passes, scratch)), tuple(scratch), columns, per_column)


def start(x: Expression) -> float:
    """Return the initial value of a reduction; -0.0 for sums, so that a sum of negative zeros keeps its sign as in the reference."""
    started: dict[str, float] = {"row_sum": -0.0, "row_product": 1.0}
    return started[x.primitive] if x.primitive in started else float(MAX.identity(x.dtype.arithmetic.numpy))


def combined(x: Expression) -> Expression:
    """Return the expression that combines two partial results of a reduction, elements 0 and 1."""
    joins = {"row_product": f.multiply, "row_max": f.maximum}
    return joins.get(x.primitive, f.add)(element(0, x.dtype), element(1, x.dtype))


def compensated(x: Expression) -> tuple[Expression, Expression]:
    """Return a compensated addition: the new total, and its rounding error.

    Element 0 is the sum of a column, element 1 the sum of the next block, and element 2 the previous rounding error.  The formula is the same as in
    `on_arrays.compensated`; infinities have no rounding error.
    """
    total, block, before = (element(n, x.dtype) for n in range(3))
    term = block - before
    after = total + term
    lost = (after - total) - term
    return after, f.where(f.equal(lost, lost), lost, f.constant(0, x.dtype))


def position(x: Expression) -> int:
    """Return the index of the input that an element or scalar refers to."""
    assert isinstance(x.attribute, int)
    return x.attribute


def of_columns(order: Sequence[Expression]) -> tuple[Expression, ...]:
    """Return the sums of columns and the expressions computed from them."""
    result: dict[Expression, None] = {}
    for x in order:
        if x.primitive == COLUMNS or any(y in result for y in x.arguments):
            result[x] = None
    return tuple(result)


def _needed(order: Sequence[Expression], targets: Iterable[Expression], known: Collection[Expression]) -> set[Expression]:
    """Return the expressions required to compute the targets; the search stops at known expressions."""
    needed = set(targets)
    for x in reversed(order):
        if x in needed and x not in known:
            needed.update(x.arguments)
    return needed


def _with_scratch_writes(passes: Sequence[Phase], scratch: Collection[Expression]) -> Iterable[Phase]:
    """Yield the passes; the first pass that computes the elements of a scratch row also writes the row."""
    left = set(scratch)
    for phase in passes:
        written = tuple(x for x in phase.elements if x in left)
        left -= set(written)
        yield replace(phase, written=written)
