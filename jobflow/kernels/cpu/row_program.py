"""Formulas over rows as steps, each of which is a call or two, with a place for what it makes.

Every value has a level, which says how large its array is:

    FULL  [rows, columns]     ROW  [rows, 1]     COLUMN  [1, columns]

`compiled_rows` brings expressions into steps of one level each and gives each value a place: that of an output, as far as nothing there is
still read, or a scratch array.  Sums are products with ones, or of two vectors, where that is what they are: BLAS reads memory once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache

from jobflow.core.dataclass import dataclass
from jobflow.core.types import DType
from jobflow.expressions.language import Expression, constant, in_order, make
from jobflow.kernels.cpu.numpy_formulas import SIMPLER

FIXED, ROW, COLUMN, FULL = range(4)
#: left to the kernels
_NOT_HERE = {"looked_up", "number", "philox", "weighted_sum", "row_product"}
TO_ROW = {"row_sum", "row_max", "row_dot", "row_pick"}
TO_COLUMN = {"column_sum", "column_dot"}
_APART = {name: SIMPLER[name] for name in ("sigmoid", "softplus", "rsqrt", "erf")}

#: a place: ("input", 0), ("output", 0), ("scratch", 0), ("known", 0)
Place = tuple[str, int]


@dataclass(frozen=True)
class RowStep:
    primitive: str
    level: int
    reads: tuple[Place, ...]
    writes: Place


@dataclass(frozen=True, eq=False)  # made once for each case, and a key: compared by identity
class RowProgram:
    steps: tuple[RowStep, ...]
    #: level and element type of each scratch array
    scratch: tuple[tuple[int, DType], ...]
    #: what is known when arrays are
    known: tuple[Expression, ...]
    #: outputs that are sums of columns
    sums: tuple[int, ...]
    #: levels of inputs and outputs
    inputs: tuple[int, ...]
    targets: tuple[int, ...]

    def level(self, place: Place) -> int:
        where, k = place
        match where:
            case "input":
                return self.inputs[k]
            case "output":
                return self.targets[k]
            case "scratch":
                return self.scratch[k][0]
        return COLUMN if self.known[k].primitive == "index" else FIXED


# Expressions of primitives that are a call each ---------------------------------------------------------------------


def _levels(order: Sequence[Expression], inputs: Sequence[int]) -> dict[Expression, int]:
    levels: dict[Expression, int] = {}
    for x in order:
        match x.primitive:
            case "element":
                levels[x] = inputs[int(str(x.attribute))]
            case "index":
                levels[x] = COLUMN
            case "row_put":
                levels[x] = FULL
            case name if name in TO_ROW:
                levels[x] = ROW
            case name if name in TO_COLUMN:
                levels[x] = COLUMN
            case _:
                levels[x] = 0
                for y in x.arguments:
                    levels[x] |= levels[y]
    return levels


def _lowered(outputs: Sequence[Expression], inputs: Sequence[int]) -> list[Expression]:
    """The same, of primitives that are a call each; an output that is one before, or an input, is a copy."""
    order = in_order(outputs)
    readers = Counter(y for x in order for y in x.arguments)
    levels = _levels(order, inputs)
    new: dict[Expression, Expression] = {}
    for x in order:
        arguments = tuple(new[y] for y in x.arguments)
        made = _as_product(x, readers, levels)
        if made is not None:
            new[x] = make(made[0], tuple(new.get(y, y) for y in made[1]), x.dtype)
        elif x.primitive in _APART:
            new[x] = _APART[x.primitive](*arguments)
        else:
            new[x] = make(x.primitive, arguments, x.dtype, x.attribute)
    results: list[Expression] = []
    for x in outputs:
        y = new[x]
        results.append(y if y.arguments and y not in results else make("positive", (y,), y.dtype))
    return results


def _as_product(x: Expression, readers: Mapping[Expression, int], levels: Mapping[Expression, int]) -> tuple[str, Sequence[Expression]] | None:
    """A sum of products, or what is something else in one column of a row, by the name of its function and what that takes."""
    at = _column_of(x, readers, levels)
    if at is not None and x.primitive == "where" and levels[x.arguments[1]] in (FIXED, ROW) and levels[x.arguments[2]] in (FIXED, FULL):
        return "row_put", (x.arguments[2], x.arguments[1], at)
    if at is not None and x.primitive == "cast":
        return "row_put", (constant(0, x.dtype), constant(1, x.dtype), at)
    if x.primitive not in ("row_sum", "column_sum") or readers[x.arguments[0]] != 1:
        return None
    (y,) = x.arguments
    if y.primitive == "multiply":
        a, b = y.arguments if levels[y.arguments[0]] == FULL else y.arguments[::-1]
        if x.primitive == "row_sum" and levels[a] == FULL and levels[b] in (FULL, COLUMN):
            return "row_dot", (a, b)
        if x.primitive == "column_sum" and levels[a] == FULL and levels[b] == ROW:
            return "column_dot", (b, a)
    if x.primitive == "row_sum" and y.primitive == "where" and y.arguments[2].primitive == "constant" and y.arguments[2].attribute == 0:
        at = _column_of(y, readers, levels)
        return None if at is None else ("row_pick", (y.arguments[1], at))
    return None


def _column_of(x: Expression, readers: Mapping[Expression, int], levels: Mapping[Expression, int]) -> Expression | None:
    """The column, one for a row, in which x is not what it is in the others."""
    hit = x.arguments[0] if x.primitive in ("where", "cast") else x
    if hit.primitive != "equal" or readers[hit] != 1 or hit.arguments[0].primitive != "index" or levels[hit.arguments[1]] != ROW:
        return None
    return hit.arguments[1] if hit.arguments[0].attribute == -1 else None


# Places -------------------------------------------------------------------------------------------------------------


@lru_cache(1024)
def compiled_rows(
    outputs: tuple[Expression, ...], inputs: tuple[int, ...], targets: tuple[int, ...], over: tuple[tuple[int, tuple[int, ...]], ...]
) -> RowProgram | None:
    """Expressions of inputs of these levels for outputs of these; output k may lie over the inputs `over` says, and over no others."""
    results = _lowered(outputs, inputs)
    first = [k for k, x in enumerate(results) if x.primitive in TO_COLUMN]  # after them an output may lie over what they read
    order = in_order([results[k] for k in (*first, *(k for k in range(len(results)) if k not in first))])
    levels = _levels(order, inputs)
    if any(x.primitive in _NOT_HERE or (x.primitive == "index" and x.attribute != -1) for x in order):
        return None
    if any(levels[x] == FIXED or levels[x] | level != level for x, level in zip(results, targets, strict=True)):
        return None
    sums = [x for x in order if x.primitive in TO_COLUMN]
    if any(x not in results or targets[results.index(x)] != COLUMN or any(x in y.arguments for y in order) for x in sums):
        return None
    return _Places(results, order, levels, inputs, targets, dict(over)).program()


class _Places:
    def __init__(
        self,
        results: list[Expression],
        order: Sequence[Expression],
        levels: dict[Expression, int],
        inputs: tuple[int, ...],
        targets: tuple[int, ...],
        over: Mapping[int, Sequence[int]],
    ) -> None:
        self.results, self.levels, self.inputs, self.targets = results, levels, inputs, targets
        fixed: set[Expression] = set()
        for x in order:
            if x.primitive == "index" or (x.primitive != "element" and levels[x] == FIXED and fixed.issuperset(x.arguments)):
                fixed.add(x)
        self.steps = [x for x in order if x.arguments and x not in fixed]
        self.known = [x for x in order if x in fixed and (x in results or any(x in y.arguments for y in self.steps))]
        self.last = {y: i for i, x in enumerate(self.steps) for y in x.arguments} | dict.fromkeys(results, len(self.steps))
        # what is computed once stays
        self.last |= {x: len(self.steps) + 1 for x in self.steps if levels[x] == COLUMN}
        self.places: dict[Expression, Place] = {x: ("known", i) for i, x in enumerate(self.known)}
        self.places |= {x: ("input", int(str(x.attribute))) for x in order if x.primitive == "element"}
        read = {place[1]: self.last[x] for x, place in self.places.items() if place[0] == "input" and x in self.last}
        #: from which step on the memory of an output may be written, and when its value is made
        self.free = [max((read.get(i, -1) for i in over.get(k, ())), default=-1) for k in range(len(results))]
        self.due = [self.steps.index(x) for x in results]
        self.holder: dict[Place, Expression] = {}
        self.scratch: list[tuple[int, DType]] = []

    def program(self) -> RowProgram:
        steps: list[RowStep] = []
        for i, x in enumerate(self.steps):
            self.places[x] = place = self._place(i, x)
            self.holder[place] = x
            steps.append(RowStep(x.primitive, self.levels[x], tuple(self.places[y] for y in x.arguments), place))
        for k, x in enumerate(self.results):
            if self.places[x] != ("output", k):
                steps.append(RowStep("positive", self.targets[k], (self.places[x],), ("output", k)))
        sums = tuple(k for k, x in enumerate(self.results) if x.primitive in TO_COLUMN)
        return RowProgram(tuple(steps), tuple(self.scratch), tuple(self.known), sums, self.inputs, self.targets)

    def _place(self, i: int, x: Expression) -> Place:
        kind = (self.levels[x], x.dtype)
        elementwise = x.primitive not in TO_ROW | TO_COLUMN | {"where", "row_put"}
        ready = i if elementwise else i - 1
        if x in self.results:
            k = self.results.index(x)
            if self.targets[k] == kind[0] and self.free[k] <= ready and self._empty(("output", k), i, elementwise):
                return "output", k
        for y in x.arguments if elementwise else ():
            place = self.places[y]
            if self.last[y] == i and place in self.holder and self._kind(place) == kind and self._lasts(place, x):
                return place
        for k, y in enumerate(self.results):  # an output's memory serves until its value is made
            place = ("output", k)
            spare = self._kind(place) == kind and y.primitive not in TO_COLUMN and self.free[k] <= ready
            if spare and self._empty(place, i, False) and self._lasts(place, x):
                return place
        for j in range(len(self.scratch)):
            if self.scratch[j] == kind and self._empty(("scratch", j), i, False):
                return "scratch", j
        self.scratch.append(kind)
        return "scratch", len(self.scratch) - 1

    def _kind(self, place: Place) -> tuple[int, DType]:
        where, k = place
        return self.scratch[k] if where == "scratch" else (self.targets[k], self.results[k].dtype)

    def _empty(self, place: Place, i: int, elementwise: bool) -> bool:
        """Is what a place holds not read any more from step i on, or after it?"""
        held = self.holder.get(place)
        return held is None or self.last[held] < i or (elementwise and self.last[held] == i)

    def _lasts(self, place: Place, x: Expression) -> bool:
        """Is x not read any more when an output's value is to be made in this place?"""
        where, k = place
        return where != "output" or self.last[x] <= self.due[k]
