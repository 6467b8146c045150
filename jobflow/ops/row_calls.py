"""Formulas over rows as NumPy calls in place, on blocks of rows that stay in the cache from one call to the next.

Every value has a level, which says how large its array is:

    FULL  [rows, columns]     ROW  [rows, 1]     COLUMN  [1, columns]

`compiled_rows` brings expressions into steps of one level each and gives each value a place: that of an output, as far as nothing there is
still read, or a scratch array.  `row_calls` makes of that the calls for one block after another; what has one value per column is computed
once, before them.  Sums are products with ones, or of two vectors, where that is what they are: BLAS reads memory once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from jobflow.core.types import Array, DType, dtype_of, int64
from jobflow.expressions.index_space import IndexSpace
from jobflow.expressions.language import Expression, constant, in_order, make
from jobflow.expressions.on_arrays import evaluate
from jobflow.ops.blocks import BLOCK
from jobflow.ops.broadcast import lead_sum_calls
from jobflow.ops.numpy_calls import FUNCTIONS, SIMPLER
from jobflow.ops.op import Binder, Call

FIXED, ROW, COLUMN, FULL = range(4)
#: up to this length a row's maximum is found faster than it is reduced to
SHORT_ROW = 1024
_TO_ROW = {"row_sum", "row_max", "row_dot", "row_pick"}
_TO_COLUMN = {"column_sum", "column_dot"}
_APART = {name: SIMPLER[name] for name in ("sigmoid", "softplus", "rsqrt", "erf")}

#: a place: ("input", 0), ("output", 0), ("scratch", 0), ("known", 0)
Place = tuple[str, int]


@dataclass(frozen=True)
class RowStep:
    primitive: str
    level: int
    reads: tuple[Place, ...]
    writes: Place


@dataclass(frozen=True)
class RowProgram:
    steps: tuple[RowStep, ...]
    #: level and element type of each scratch array
    scratch: tuple[tuple[int, DType], ...]
    #: what is known when arrays are
    known: tuple[Expression, ...]
    #: outputs that are sums of columns
    sums: tuple[int, ...]


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
            case name if name in _TO_ROW:
                levels[x] = ROW
            case name if name in _TO_COLUMN:
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
    first = [k for k, x in enumerate(results) if x.primitive in _TO_COLUMN]  # after them an output may lie over what they read
    order = in_order([results[k] for k in (*first, *(k for k in range(len(results)) if k not in first))])
    levels = _levels(order, inputs)
    if any(x.primitive in ("number", "philox", "weighted_sum") or (x.primitive == "index" and x.attribute != -1) for x in order):
        return None
    if any(levels[x] == FIXED or levels[x] | level != level for x, level in zip(results, targets, strict=True)):
        return None
    sums = [x for x in order if x.primitive in _TO_COLUMN]
    if any(x not in results or targets[results.index(x)] != COLUMN or any(x in y.arguments for y in order) for x in sums):
        return None
    return _Places(results, order, levels, targets, dict(over)).program()


class _Places:
    def __init__(
        self,
        results: list[Expression],
        order: list[Expression],
        levels: dict[Expression, int],
        targets: Sequence[int],
        over: Mapping[int, Sequence[int]],
    ) -> None:
        self.results, self.levels, self.targets = results, levels, targets
        fixed = {x for x in order if levels[x] == FIXED or x.primitive == "index"}
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
        sums = tuple(k for k, x in enumerate(self.results) if x.primitive in _TO_COLUMN)
        return RowProgram(tuple(steps), tuple(self.scratch), tuple(self.known), sums)

    def _place(self, i: int, x: Expression) -> Place:
        kind = (self.levels[x], x.dtype)
        elementwise = x.primitive not in _TO_ROW | _TO_COLUMN | {"where", "row_put"}
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
            spare = self._kind(place) == kind and y.primitive not in _TO_COLUMN and self.free[k] <= ready
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


# Calls --------------------------------------------------------------------------------------------------------------


def row_calls(
    device: Binder,
    made: tuple[Expression, ...],
    space: IndexSpace,
    over: Mapping[int, Sequence[int]],
    inputs: Sequence[Array],
    outputs: Sequence[Array],
) -> list[Call] | None:
    """The calls for NumPy arrays; None where the arrays are no matrices, rows or columns in this space, or are empty."""
    seen = [_matrix(space.view(k, a), space) for k, a in enumerate((*inputs, *outputs))]
    if not math.prod(space.sizes) or any(a is None for a in seen):
        return None
    arrays = [a for a in seen if a is not None]
    read, written = arrays[: len(inputs)], arrays[len(inputs) :]
    columns = space.shape[-1]
    rows = math.prod(space.shape[:-1])
    levels = tuple(ROW * (a.shape[0] == rows) | COLUMN * (a.shape[1] == columns) for a in arrays)
    program = compiled_rows(made, levels[: len(inputs)], levels[len(inputs) :], tuple((k, tuple(v)) for k, v in over.items()))
    return None if program is None else _Blocks(device, program, space, rows, columns).calls(read, written)


def _matrix(x: Array | None, space: IndexSpace) -> Array | None:
    """A view as [rows or 1, columns or 1]."""
    if x is None or not space.sizes:
        return None
    lead = math.prod(x.shape[:-1])
    if lead not in (1, math.prod(space.shape[:-1])):
        return None
    try:
        return x.reshape(lead, x.shape[-1], copy=False)
    except ValueError:
        return None


@lru_cache(1024)
def _known(program: RowProgram, shape: tuple[int, ...]) -> list[Array]:
    values = evaluate(program.known, [], np, shape)
    return [np.asarray(value).reshape((1, -1) if np.ndim(value) else ()) for value in values]


class _Blocks:
    def __init__(self, device: Binder, program: RowProgram, space: IndexSpace, rows: int, columns: int) -> None:
        self.device, self.program, self.rows, self.columns = device, program, rows, columns
        self.step = min(rows, max(1, BLOCK // columns))
        self.scratch = [
            device.scratch((self.step if level & ROW else 1, columns if level & COLUMN else 1), dtype) for level, dtype in program.scratch
        ]
        self.known = _known(program, space.shape)

    def calls(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        starts = range(0, self.rows, self.step)
        sums = {k: self.device.scratch((len(starts), self.columns), dtype_of(outputs[k].dtype)) for k in self.program.sums}
        once = [step for step in self.program.steps if not step.level & ROW and step.primitive not in _TO_COLUMN]
        later = [step for step in self.program.steps if step not in once] if once else self.program.steps
        calls: list[Call] = []
        for number, start in enumerate(starts):
            stop = min(start + self.step, self.rows)
            arrays: dict[str, Sequence[Array]] = {"known": self.known}
            for name, whole in (("input", inputs), ("output", outputs)):
                arrays[name] = [a[start:stop] if len(a) == self.rows != 1 else a for a in whole]
            arrays["output"] = [sums[k][number] if k in sums else a for k, a in enumerate(arrays["output"])]
            arrays["scratch"] = [a[: stop - start] for a in self.scratch]
            for step in later if number else self.program.steps:
                calls += self._step(step, [arrays[where][k] for where, k in (*step.reads, step.writes)], stop - start)
        for k, parts in sums.items():
            calls += lead_sum_calls(self.device, parts, outputs[k][0])
        return calls

    def _step(self, step: RowStep, arrays: list[Array], rows: int) -> list[Call]:
        x, y = arrays[0], arrays[-1]
        match step.primitive:
            case "row_sum":
                if x.flags.c_contiguous and len(x) == rows and self.columns > 1:
                    return [_product(x, _ones(self.columns, x.dtype), y[:, 0])]
                return [(np.add.reduce, (self._full(x, rows), 1, None, y[:, 0]))]
            case "row_dot":
                if len(arrays[1]) == 1 != rows:
                    return [_product(x, arrays[1][0], y[:, 0])]
                return [(np.vecdot, (x, arrays[1], y[:, 0]))]
            case "row_max":
                return row_max_calls(self._full(x, rows), y[:, 0])
            case "row_pick":
                return self._pick(self._full(x, rows), arrays[1][:, 0], y[:, 0])
            case "column_sum":
                return [_product(_ones(rows, x.dtype), self._full(x, rows), y)]
            case "column_dot":
                return [_product(x[:, 0], arrays[1], y)]
            case "row_put":
                return [(np.copyto, (y, x)), (_put, (y, arrays[2][:, 0], arrays[1].reshape(-1), np.arange(rows)))]
            case "where":
                return [(np.copyto, (y, arrays[2])), (np.copyto, (y, arrays[1], "same_kind", x))]
            case name:
                return [(FUNCTIONS.get(name) or getattr(np, name), tuple(arrays))]

    def _full(self, x: Array, rows: int) -> Array:
        return x if x.shape == (rows, self.columns) else np.broadcast_to(x, (rows, self.columns))

    def _pick(self, x: Array, at: Array, y: Array) -> list[Call]:
        if not x.flags.c_contiguous:
            return [(_pick_rows, (x, at, y))]
        index = self.device.scratch((len(x),), int64)
        return [(_pick, (x.reshape(-1), at, np.arange(0, x.size, x.shape[1]), x.shape[1], index, y))]


@lru_cache(256)
def _ones(count: int, dtype: Any) -> Array:
    return np.ones(count, dtype)


def _product(a: Array, b: Array, y: Array) -> Call:
    return (np.dot if all(each.flags.c_contiguous for each in (a, b, y)) else np.matmul), (a, b, y)


def row_max_calls(x: Array, y: Array) -> list[Call]:
    """y[i] = max_j x[i,j].  NumPy finds where a maximum is in less than half the time it takes to reduce many short rows to it."""
    if not x.flags.c_contiguous or x.shape[1] > SHORT_ROW:
        return [(np.maximum.reduce, (x, 1, None, y))]
    index, starts = np.zeros(len(x), np.intp), np.arange(0, x.size, x.shape[1])
    return [(x.argmax, (1, index)), (np.add, (index, starts, index)), (x.reshape(-1).take, (index, None, y, "clip"))]


def _pick(x: Array, at: Array, starts: Array, columns: int, index: Array, y: Array) -> None:
    """y[i] = x[i, at[i]], 0 where there is no such column."""
    np.add(starts, at, index)
    x.take(index, out=y, mode="clip")
    if at.size and (at.min() < 0 or at.max() >= columns):
        y[(at < 0) | (at >= columns)] = 0


def _put(y: Array, at: Array, value: Array, rows: Array) -> None:
    """y[i, at[i]] = value[i], where there is such a column."""
    if at.size and (at.min() < 0 or at.max() >= y.shape[1]):
        inside = (at >= 0) & (at < y.shape[1])
        at, rows, value = at[inside], rows[inside], value[inside] if value.size > 1 else value
    y[rows, at] = value


def _pick_rows(x: Array, at: Array, y: Array) -> None:
    inside = (at >= 0) & (at < x.shape[1])
    y[...] = np.where(inside, np.take_along_axis(x, np.where(inside, at, 0)[:, None], 1)[:, 0], 0)
