"""Formulas over rows as in-place NumPy calls, on blocks of rows that stay in the cache from one call to the next.

`row_calls` turns the steps of a `RowProgram` into calls for one block after another.  Values per column are computed once, with the first block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from operator import itemgetter, methodcaller
from typing import Any

import numpy as np

from jobflow.core.types import Array, dtype_of, int64, type_of
from jobflow.expressions.index_space import IndexSpace
from jobflow.expressions.language import Expression
from jobflow.expressions.on_arrays import evaluate
from jobflow.kernels.cpu.blocks import BLOCK, lead_sum_calls
from jobflow.kernels.cpu.numpy_calls import FUNCTIONS
from jobflow.kernels.cpu.row_program import COLUMN, FULL, ROW, TO_COLUMN, RowProgram, RowStep, Slot, compiled_rows
from jobflow.kernels.operand_copies import operand_copies
from jobflow.kernels.registry import implements, kernel_call
from jobflow.ops.indexed import Indexed, facts_of
from jobflow.ops.op import Binder, Call

#: longest row for which argmax is faster than maximum
SHORT_ROW = 1024


@implements(Indexed)
def calls_over_rows(op: Indexed, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    """Prepare calls over rows; if the operation has none, prepare the call of its kernel."""
    formulas, space = facts_of(op, *map(type_of, inputs))
    calls = row_calls(device, formulas, space, op.in_place, inputs, outputs)
    return kernel_call(op, device, inputs, outputs) if calls is None else calls


def row_calls(
    device: Binder,
    formulas: tuple[Expression, ...],
    space: IndexSpace,
    over: Mapping[int, Sequence[int]],
    inputs: Sequence[Array],
    outputs: Sequence[Array],
) -> list[Call] | None:
    """Return the calls for NumPy arrays, or None if the index space is empty or the formulas cannot be compiled to NumPy calls.

    Arrays that have no view as matrix, row or column of this space are copied.  Output k may share memory with the inputs over[k].
    """
    copies = operand_copies(space, inputs, outputs, lambda view: _matrix(view, space) is not None, device.scratch)
    compiled = _program(formulas, space, over, copies.views, len(inputs))
    if compiled is None:
        return None
    program, read, written = compiled
    return [*copies.before, *_Blocks(device, program, space).calls(read, written), *copies.after]


def _program(
    formulas: tuple[Expression, ...], space: IndexSpace, over: Mapping[int, Sequence[int]], views: Sequence[Array | None], n: int
) -> tuple[RowProgram, list[Array], list[Array]] | None:
    """Return the compiled program, the inputs (the first `n` views) and the outputs (the other views) as matrices.

    The result is None if the space is empty, if a view is missing, or if the formulas cannot be compiled.
    """
    matrices = [_matrix(view, space) for view in views]
    if not math.prod(space.sizes) or any(a is None for a in matrices):
        return None
    arrays = [a for a in matrices if a is not None]
    rows, columns = _rows_and_columns(space)
    levels = tuple([ROW * (a.shape[0] == rows) | COLUMN * (a.shape[1] == columns) for a in arrays])
    program = compiled_rows(formulas, levels[:n], levels[n:], tuple([(k, tuple(v)) for k, v in over.items()]))
    return None if program is None else (program, arrays[:n], arrays[n:])


def _rows_and_columns(space: IndexSpace) -> tuple[int, int]:
    return math.prod(space.shape[:-1]), space.shape[-1]


def _matrix(x: Array | None, space: IndexSpace) -> Array | None:
    """Return a view as [rows or 1, columns or 1], or None if x has no such view."""
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
    def __init__(self, device: Binder, program: RowProgram, space: IndexSpace) -> None:
        self.device, self.program = device, program
        self.rows, self.columns = rows, columns = _rows_and_columns(space)
        self.step = min(rows, max(1, BLOCK // columns))
        self.scratch = [
            device.scratch((self.step if level & ROW else 1, columns if level & COLUMN else 1), dtype) for level, dtype in program.scratch
        ]
        self.known = _known(program, space.shape)

    def calls(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        starts = range(0, self.rows, self.step)
        sums = {k: self.device.scratch((len(starts), self.columns), dtype_of(outputs[k].dtype)) for k in self.program.sums}
        dense = (tuple([a.flags.c_contiguous for a in inputs]), tuple([a.flags.c_contiguous for a in outputs]))
        types = (tuple([a.dtype for a in inputs]), tuple([a.dtype for a in outputs]))
        indices = self.device.scratch((self.step,), int64)
        calls: list[Call] = []
        for number, start in enumerate(starts):
            stop = min(start + self.step, self.rows)
            block = _block_calls(self.program, stop - start, self.columns, dense, types, number == 0)
            arrays: dict[str, Sequence[Array]] = {"known": self.known, "input": inputs, "output": outputs, "scratch": self.scratch}
            if self.step < self.rows:
                for name in ("input", "output"):
                    arrays[name] = [a[start:stop] if len(a) == self.rows else a for a in arrays[name]]
                arrays["scratch"] = [a[: stop - start] for a in self.scratch]
            arrays["indices"] = [indices[: stop - start]]
            if sums:
                arrays["output"] = [sums[k][number] if k in sums else a for k, a in enumerate(arrays["output"])]
            calls += block.of(arrays)
        for k, parts in sums.items():
            calls += lead_sum_calls(self.device, parts, outputs[k][0])
        return calls


#: a function that returns a view of the array of a slot
ViewFunction = Callable[[Array], Array]
#: a function and the numbers of its arguments: views from 0 up, values from -1 down
_Numbered = tuple[Callable[..., Any], tuple[int, ...]]
_FIRST_COLUMN: ViewFunction = itemgetter((slice(None), 0))
_FIRST_ROW: ViewFunction = itemgetter(0)
_FLAT: ViewFunction = methodcaller("reshape", -1)


class _BlockCalls:
    """The calls for one block of `rows` rows, prepared without arrays; `of` binds the calls to arrays."""

    def __init__(
        self,
        program: RowProgram,
        rows: int,
        columns: int,
        dense: tuple[tuple[bool, ...], tuple[bool, ...]],
        types: tuple[tuple[Any, ...], tuple[Any, ...]],
        first: bool,
    ) -> None:
        self.program, self.rows, self.columns, self.dense, self.types = program, rows, columns, dense, types
        self._broadcast: ViewFunction = partial(np.broadcast_to, shape=(rows, columns))
        #: arguments of calls: views of arrays, and values
        self.views: list[tuple[Slot, ViewFunction | None]] = []
        self._values: list[Any] = []
        steps = (step for step in program.steps if first or step.level & ROW or step.primitive in TO_COLUMN)
        calls = [call for step in steps for call in self._step(step)]
        self._calls = [(f, itemgetter(*(n if n >= 0 else len(self.views) - 1 - n for n in arguments))) for f, arguments in calls]

    def of(self, arrays: Mapping[str, Sequence[Array]]) -> list[Call]:
        values = [arrays[where][k] if view is None else view(arrays[where][k]) for (where, k), view in self.views] + self._values
        return [(function, arguments(values)) for function, arguments in self._calls]

    def _step(self, step: RowStep) -> list[_Numbered]:
        x, *others = step.reads
        y, at, value = step.writes, self._at, self._value
        match step.primitive:
            case "row_sum":
                if self._is_contiguous(x) and self.columns > 1:
                    return [self._product(at(x), value(_ones(self.columns, self._type(x))), at(y, _FIRST_COLUMN), self._dense(y))]
                return [(np.add.reduce, (self._full(x), value(1), value(None), at(y, _FIRST_COLUMN)))]
            case "row_dot":
                (b,) = others
                if not self.program.level(b) & ROW and self.rows != 1:
                    return [self._product(at(x), at(b, _FIRST_ROW), at(y, _FIRST_COLUMN), all(map(self._dense, (x, b, y))))]
                return [(np.vecdot, (at(x), at(b), at(y, _FIRST_COLUMN)))]
            case "row_max":
                return self._row_max(x, y)
            case "row_pick":
                return self._pick(x, others[0], y)
            case "column_sum":
                return [self._product(value(_ones(self.rows, self._type(x))), self._full(x), at(y), self._is_contiguous(x))]
            case "column_dot":
                return [self._product(at(x, _FIRST_COLUMN), at(others[0]), at(y), self._dense(x) and self._dense(others[0]))]
            case "row_put":
                put, column = others
                operands = (at(y), at(column, _FIRST_COLUMN), at(put, _FLAT), value(np.arange(self.rows)))
                return [(np.copyto, (at(y), at(x))), (_put, operands)]
            case "where":
                return [(np.copyto, (at(y), at(others[1]))), (np.copyto, (at(y), at(others[0]), value("same_kind"), at(x)))]
            case name:
                return [(FUNCTIONS.get(name) or getattr(np, name), tuple(map(at, (x, *others, y))))]

    def _row_max(self, x: Slot, y: Slot) -> list[_Numbered]:
        """Return the calls for y[i] = max_j x[i,j].

        For many short rows, NumPy's argmax takes less than half the time of its maximum.
        """
        at, value = self._at, self._value
        if not self._is_contiguous(x) or self.columns > SHORT_ROW:
            return [(np.maximum.reduce, (self._full(x), value(1), value(None), at(y, _FIRST_COLUMN)))]
        index = at(("indices", 0))
        return [
            (np.ndarray.argmax, (at(x), value(1), index)),
            (np.add, (index, value(self._row_starts()), index)),
            (np.ndarray.take, (at(x, _FLAT), index, value(None), at(y, _FIRST_COLUMN), value("clip"))),
        ]

    def _pick(self, x: Slot, column: Slot, y: Slot) -> list[_Numbered]:
        at, value = self._at, self._value
        if not self._is_contiguous(x):
            return [(_pick_rows, (self._full(x), at(column, _FIRST_COLUMN), at(y, _FIRST_COLUMN)))]
        starts, index = value(self._row_starts()), at(("indices", 0))
        return [(_pick, (at(x, _FLAT), at(column, _FIRST_COLUMN), starts, value(self.columns), index, at(y, _FIRST_COLUMN)))]

    def _row_starts(self) -> Array:
        return np.arange(0, self.rows * self.columns, self.columns)

    def _product(self, a: int, b: int, y: int, dense: bool) -> _Numbered:
        return (np.dot if dense else np.matmul), (a, b, y)

    def _at(self, slot: Slot, view: ViewFunction | None = None) -> int:
        """Return the index of a view in the list of arguments; append the view if it is new."""
        if (slot, view) not in self.views:
            self.views.append((slot, view))
        return self.views.index((slot, view))

    def _value(self, value: Any) -> int:
        """Add an argument that does not depend on the bound arrays; return its index, counted down from -1."""
        self._values.append(value)
        return -len(self._values)

    def _full(self, x: Slot) -> int:
        return self._at(x, None if self._is_full(x) else self._broadcast)

    def _is_full(self, x: Slot) -> bool:
        level = self.program.level(x)
        return level == FULL or (level == COLUMN and self.rows == 1) or (level == ROW and self.columns == 1)

    def _is_contiguous(self, x: Slot) -> bool:
        """Return True if x is a whole block in row-major order."""
        return self._is_full(x) and self._dense(x)

    def _dense(self, x: Slot) -> bool:
        where, k = x
        if where not in ("input", "output") or (where == "output" and k in self.program.sums):
            return True
        return self.dense[where == "output"][k]

    def _type(self, x: Slot) -> Any:
        where, k = x
        match where:
            case "input" | "output":
                return self.types[where == "output"][k]
            case "scratch":
                return self.program.scratch[k][1].numpy
        return self.program.known[k].dtype.numpy


_block_calls = lru_cache(1024)(_BlockCalls)


@lru_cache(256)
def _ones(count: int, dtype: Any) -> Array:
    return np.ones(count, dtype)


def row_max_calls(x: Array, y: Array) -> list[Call]:
    """Return the calls for y[i] = max_j x[i,j].

    For many short rows, NumPy's argmax takes less than half the time of its maximum.
    """
    if not x.flags.c_contiguous or x.shape[1] > SHORT_ROW:
        return [(np.maximum.reduce, (x, 1, None, y))]
    index, starts = np.zeros(len(x), np.intp), np.arange(0, x.size, x.shape[1])
    return [(x.argmax, (1, index)), (np.add, (index, starts, index)), (x.reshape(-1).take, (index, None, y, "clip"))]


def _pick(x: Array, at: Array, starts: Array, columns: int, index: Array, y: Array) -> None:
    """Compute y[i] = x[i, at[i]] for a flat, row-major x, or 0 if column at[i] does not exist.

    `starts` has the flat index at which each row of x begins, and `index` is scratch.
    """
    np.add(starts, at, index)
    x.take(index, out=y, mode="clip")
    if at.size and (at.min() < 0 or at.max() >= columns):
        y[(at < 0) | (at >= columns)] = 0


def _put(y: Array, at: Array, value: Array, rows: Array) -> None:
    """Write value[i], or the only value, to y[i, at[i]] for each row i in `rows`; skip columns that do not exist."""
    if at.size and (at.min() < 0 or at.max() >= y.shape[1]):
        inside = (at >= 0) & (at < y.shape[1])
        at, rows, value = at[inside], rows[inside], value[inside] if value.size > 1 else value
    y[rows, at] = value


def _pick_rows(x: Array, at: Array, y: Array) -> None:
    inside = (at >= 0) & (at < x.shape[1])
    y[...] = np.where(inside, np.take_along_axis(x, np.where(inside, at, 0)[:, None], 1)[:, 0], 0)
