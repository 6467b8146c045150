"""When what is computed: once for the loop, once for a row, or at each element in one of the passes over a row.

A row is gone over once for each level of `row_sum`, `row_product` and `row_max`, and once more for the outputs.  Elements are computed anew in every
pass; where that is dear, the first pass leaves them in a scratch row.
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
    """A pass over a row."""

    #: computed once before it, from rows and what passes before it gave
    row: tuple[Expression, ...]
    #: computed for sixteen elements at a time, arguments first
    elements: tuple[Expression, ...]
    #: read from a scratch row where they are needed, and written there
    read: tuple[Expression, ...]
    written: tuple[Expression, ...]
    #: summed up over the row
    reductions: tuple[Expression, ...]
    #: added to what the columns have so far
    columns: tuple[Expression, ...]


@dataclass(frozen=True)
class Phases:
    #: computed once: numbers and what is made of them
    once: tuple[Expression, ...]
    passes: tuple[Phase, ...]
    #: what has a row of scratch memory, by position
    scratch: tuple[Expression, ...]
    #: sums over all rows, one for each column, and what is made of them after the last row
    columns: tuple[Expression, ...]
    per_column: tuple[Expression, ...]


def phases(outputs: Sequence[Expression], stored: Sequence[Expression], splat: Callable[[Expression], bool], dear: Collection[Expression]) -> Phases:
    """The phases of a loop; `stored` are the outputs that have a value at each element, `splat` elements that have one for a row."""
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
        wanted = [x.arguments[0] for x in (*reductions, *added)] + (list(stored) if number == last else [])
        read = {x for x in _needed(order, wanted, once | row | (earlier & set(dear))) if x in earlier and x in dear}
        known = once | row | read
        needed = _needed(order, wanted, known) - known
        elements = [x for x in order if x in needed]
        scratch.update(dict.fromkeys(x for x in order if x in read))
        earlier |= set(elements)
        at_row = tuple(x for x in order if x in row and level[x] == number and x.primitive not in REDUCTIONS)
        passes.append(Phase(at_row, tuple(elements), tuple(x for x in order if x in read), (), tuple(reductions), tuple(added)))
    return Phases(tuple(x for x in order if x in once), tuple(_writing(passes, scratch)), tuple(scratch), columns, per_column)


def start(x: Expression) -> float:
    """What a reduction has before its first element; zeros without a sign are added to -0 only where they are in the reference."""
    started: dict[str, float] = {"row_sum": -0.0, "row_product": 1.0}
    return started[x.primitive] if x.primitive in started else float(MAX.identity(x.dtype.arithmetic.numpy))


def together(x: Expression) -> Expression:
    """Two partial results of a reduction as one: of elements 0 and 1."""
    joins = {"row_product": f.multiply, "row_max": f.maximum}
    return joins.get(x.primitive, f.add)(element(0, x.dtype), element(1, x.dtype))


def compensated(x: Expression) -> tuple[Expression, Expression]:
    """A sum of columns (element 0) with those of another block (1), and what is lost, of which what was lost before (2) is made up for.

    As `on_arrays.compensated` does; infinities lose nothing.
    """
    total, block, before = (element(n, x.dtype) for n in range(3))
    term = block - before
    after = total + term
    lost = (after - total) - term
    return after, f.where(f.equal(lost, lost), lost, f.constant(0, x.dtype))


def position(x: Expression) -> int:
    """Which input an element or a number is of."""
    assert isinstance(x.attribute, int)
    return x.attribute


def of_columns(order: Sequence[Expression]) -> tuple[Expression, ...]:
    """Sums of columns, and what is made of them."""
    found: dict[Expression, None] = {}
    for x in order:
        if x.primitive == COLUMNS or any(y in found for y in x.arguments):
            found[x] = None
    return tuple(found)


def _needed(order: Sequence[Expression], wanted: Iterable[Expression], known: Collection[Expression]) -> set[Expression]:
    """What is needed for what is wanted, not looking behind what is known."""
    needed = set(wanted)
    for x in reversed(order):
        if x in needed and x not in known:
            needed.update(x.arguments)
    return needed


def _writing(passes: Sequence[Phase], scratch: Collection[Expression]) -> Iterable[Phase]:
    """Each scratch row is written by the first pass that computes what is in it."""
    left = set(scratch)
    for phase in passes:
        written = tuple(x for x in phase.elements if x in left)
        left -= set(written)
        yield replace(phase, written=written)
