"""Lowering of row-wise formulas to steps of one or two calls, with a buffer slot for each value.

Every value has a level, which determines the shape of its array:

    FULL  [rows, columns]     ROW  [rows, 1]     COLUMN  [1, columns]

`compiled_rows` lowers expressions to steps of one level each, and assigns each value a slot.  A slot is an output whose memory no later step
reads, or else a scratch array.  Plain sums and dot products become BLAS calls, which read their operands once.
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
#: primitives left to the kernels
_NOT_HERE = {"looked_up", "number", "philox", "weighted_sum", "row_product"}
TO_ROW = {"row_sum", "row_max", "row_dot", "row_pick"}
TO_COLUMN = {"column_sum", "column_dot"}
_FORMULAS = {name: SIMPLER[name] for name in ("sigmoid", "softplus", "rsqrt", "erf")}

#: a slot: ("input", 0), ("output", 0), ("scratch", 0), ("known", 0)
Slot = tuple[str, int]


@dataclass(frozen=True)
class RowStep:
    primitive: str
    level: int
    reads: tuple[Slot, ...]
    writes: Slot


@dataclass(frozen=True, eq=False)  # a key of caches, and one object per case, so compared by identity
class RowProgram:
    steps: tuple[RowStep, ...]
    #: level and element type of each scratch array
    scratch: tuple[tuple[int, DType], ...]
    #: expressions that depend on the shape only
    known: tuple[Expression, ...]
    #: outputs that are sums of columns
    sums: tuple[int, ...]
    #: levels of inputs and outputs
    inputs: tuple[int, ...]
    targets: tuple[int, ...]

    def level(self, slot: Slot) -> int:
        where, k = slot
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
    """Lower expressions to primitives of one call each; `inputs` has the level of each input.

    An output that is an input or an earlier output becomes a copy.
    """
    order = in_order(outputs)
    readers = Counter(y for x in order for y in x.arguments)
    levels = _levels(order, inputs)
    new: dict[Expression, Expression] = {}
    for x in order:
        arguments = tuple(new[y] for y in x.arguments)
        product = _as_product(x, readers, levels)
        if product is not None:
            new[x] = make(product[0], tuple(new.get(y, y) for y in product[1]), x.dtype)
        elif x.primitive in _FORMULAS:
            new[x] = _FORMULAS[x.primitive](*arguments)
        else:
            new[x] = make(x.primitive, arguments, x.dtype, x.attribute)
    results: list[Expression] = []
    for x in outputs:
        y = new[x]
        results.append(y if y.arguments and y not in results else make("positive", (y,), y.dtype))
    return results


def _as_product(x: Expression, readers: Mapping[Expression, int], levels: Mapping[Expression, int]) -> tuple[str, Sequence[Expression]] | None:
    """Return the row function, such as "row_dot", that computes x in one call, and its arguments; None if no function does.

    These functions compute sums of products, sums of one element per row, and values that differ in one column of each row.
    """
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
    """Return the index, one per row, of the only column in which x differs; None if x does not compare the column with an index."""
    hit = x.arguments[0] if x.primitive in ("where", "cast") else x
    if hit.primitive != "equal" or readers[hit] != 1 or hit.arguments[0].primitive != "index" or levels[hit.arguments[1]] != ROW:
        return None
    return hit.arguments[1] if hit.arguments[0].attribute == -1 else None


# Slots -------------------------------------------------------------------------------------------------------------


@lru_cache(1024)
def compiled_rows(
    outputs: tuple[Expression, ...], inputs: tuple[int, ...], targets: tuple[int, ...], over: tuple[tuple[int, tuple[int, ...]], ...]
) -> RowProgram | None:
    """Compile expressions for inputs with the levels `inputs` and outputs with the levels `targets`.

    The result is None if a primitive has no call, or if a result has no axis or an axis that its output lacks.  It is also None if a sum of columns
    is an operand, or is not an output.

    Output k may share memory with the inputs that `over` lists for k, and with no other input.
    """
    results = _lowered(outputs, inputs)
    first = [k for k, x in enumerate(results) if x.primitive in TO_COLUMN]  # after them an output may share memory with their inputs
    order = in_order([results[k] for k in (*first, *(k for k in range(len(results)) if k not in first))])
    levels = _levels(order, inputs)
    if any(x.primitive in _NOT_HERE or (x.primitive == "index" and x.attribute != -1) for x in order):
        return None
    if any(levels[x] == FIXED or levels[x] | level != level for x, level in zip(results, targets, strict=True)):
        return None
    sums = [x for x in order if x.primitive in TO_COLUMN]
    if any(x not in results or targets[results.index(x)] != COLUMN or any(x in y.arguments for y in order) for x in sums):
        return None
    return _SlotAssignment(results, order, levels, inputs, targets, dict(over)).program()


class _SlotAssignment:
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
        # values per column are computed once and read by all blocks
        self.last |= {x: len(self.steps) + 1 for x in self.steps if levels[x] == COLUMN}
        self.slots: dict[Expression, Slot] = {x: ("known", i) for i, x in enumerate(self.known)}
        self.slots |= {x: ("input", int(str(x.attribute))) for x in order if x.primitive == "element"}
        read = {slot[1]: self.last[x] for x, slot in self.slots.items() if slot[0] == "input" and x in self.last}
        #: the step from which the memory of an output may be written, and the step that computes it
        self.free = [max((read.get(i, -1) for i in over.get(k, ())), default=-1) for k in range(len(results))]
        self.due = [self.steps.index(x) for x in results]
        self.holder: dict[Slot, Expression] = {}
        self.scratch: list[tuple[int, DType]] = []

    def program(self) -> RowProgram:
        steps: list[RowStep] = []
        for i, x in enumerate(self.steps):
            self.slots[x] = slot = self._slot(i, x)
            self.holder[slot] = x
            steps.append(RowStep(x.primitive, self.levels[x], tuple(self.slots[y] for y in x.arguments), slot))
        for k, x in enumerate(self.results):
            if self.slots[x] != ("output", k):
                steps.append(RowStep("positive", self.targets[k], (self.slots[x],), ("output", k)))
        sums = tuple(k for k, x in enumerate(self.results) if x.primitive in TO_COLUMN)
        return RowProgram(tuple(steps), tuple(self.scratch), tuple(self.known), sums, self.inputs, self.targets)

    def _slot(self, i: int, x: Expression) -> Slot:
        kind = (self.levels[x], x.dtype)
        elementwise = x.primitive not in TO_ROW | TO_COLUMN | {"where", "row_put"}
        ready = i if elementwise else i - 1
        if x in self.results:
            k = self.results.index(x)
            if self.targets[k] == kind[0] and self.free[k] <= ready and self._empty(("output", k), i, elementwise):
                return "output", k
        for y in x.arguments if elementwise else ():
            slot = self.slots[y]
            if self.last[y] == i and slot in self.holder and self._kind(slot) == kind and self._ends_before_output(slot, x):
                return slot
        for k, y in enumerate(self.results):  # an output's memory is scratch until its value is computed
            slot = ("output", k)
            spare = self._kind(slot) == kind and y.primitive not in TO_COLUMN and self.free[k] <= ready
            if spare and self._empty(slot, i, False) and self._ends_before_output(slot, x):
                return slot
        for j in range(len(self.scratch)):
            if self.scratch[j] == kind and self._empty(("scratch", j), i, False):
                return "scratch", j
        self.scratch.append(kind)
        return "scratch", len(self.scratch) - 1

    def _kind(self, slot: Slot) -> tuple[int, DType]:
        where, k = slot
        return self.scratch[k] if where == "scratch" else (self.targets[k], self.results[k].dtype)

    def _empty(self, slot: Slot, i: int, elementwise: bool) -> bool:
        """Return True if step i may write a slot: no later step reads its value, nor does step i itself unless it is elementwise."""
        held = self.holder.get(slot)
        return held is None or self.last[held] < i or (elementwise and self.last[held] == i)

    def _ends_before_output(self, slot: Slot, x: Expression) -> bool:
        """Return True if the slot is not an output, or if x is not read any more when the output of the slot is computed."""
        where, k = slot
        return where != "output" or self.last[x] <= self.due[k]
