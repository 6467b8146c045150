"""Updates of variables in NumPy: updates of whole variables, updates of the table rows that a step has read, and guarded updates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from functools import lru_cache
from typing import Any

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.types import Array, DType, bool_, dtype_of
from jobflow.expressions import language
from jobflow.expressions.language import Expression
from jobflow.expressions.on_arrays import functions
from jobflow.expressions.zero_input import where_zero
from jobflow.kernels import registry
from jobflow.kernels.cpu.numpy_calls import CompiledFormula, block_calls, compiled
from jobflow.kernels.cpu.segments import Groups, local_ids
from jobflow.kernels.registry import implements, kernel_call
from jobflow.kernels.target import CPU
from jobflow.ops.guarded_update import CountNotFinite, GuardedUpdate
from jobflow.ops.op import Binder, Call
from jobflow.ops.optimizer_updates import NormUpdate, OptimizerUpdate
from jobflow.ops.row_update import RowUpdate
from jobflow.ops.slices import same_memory

# Whole variables -----------------------------------------------------------------------------------------------------


@implements(OptimizerUpdate)
def formula_in_blocks(op: OptimizerUpdate, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    program = update_program(op, dtype_of(inputs[0].dtype)) if op.elementwise else None
    if program is None:
        return kernel_call(op, device, inputs, outputs)
    elements, operands = inputs[: program.elements], [a.reshape(()) for a in inputs[program.elements :]]
    scalars, first = operands[:1], list[Call]()
    if op.derives:
        scalars = [device.scratch((), dtype_of(inputs[0].dtype)) for _ in range(program.scalars)]
        first = [(_fill, (scalars, op.scalars, elements if isinstance(op, NormUpdate) else (), *operands))]
    return [*first, *block_calls(program, device, elements, scalars, outputs, backwards=True)]


@lru_cache(1024)
def update_program(op: OptimizerUpdate, dtype: DType) -> CompiledFormula | None:
    """Return the compiled formula of an update, which reads its scalars as inputs; None if the formula cannot be compiled."""
    n = op.count + 1
    scalars = [language.number(n + i, dtype) for i in range(len(op.scalars(functions(np), 0.0, 0, *[np.ones((1, 1))] * n)))]
    outputs = op.formula(language, *(language.element(i, dtype) for i in range(n)), *scalars)
    return compiled(outputs, n, len(scalars), {k: (i,) for k, i in op.alias.items()})


def _fill(
    targets: Sequence[Array], compute: Callable[..., tuple[float, ...]], elements: Sequence[Array], rate: Array, step: Array | None = None
) -> None:
    rows = [a.reshape(1, -1) for a in elements]
    for target, number in zip(targets, compute(functions(np), rate.item(), 0 if step is None else step.item(), *rows), strict=True):
        target[()] = np.asarray(number).item()


# Rows of tables ------------------------------------------------------------------------------------------------------
#
# 1. The old values of the rows that a step has read, in the table and its slots, are saved.
# 2. One pass updates all rows as rows without a gradient.  It is omitted if such rows do not change (SGD, Adagrad, lazy updates).
# 3. The rows with a gradient are computed from their old values and written to the table.


@lru_cache(1024)
def without_gradient(op: OptimizerUpdate, dtype: DType) -> tuple[Expression, ...] | None:
    """Return the expressions of the variables' new values for elements with a zero gradient, or None if these elements do not change."""
    n = op.count
    inputs = [language.element(i, dtype) for i in range(n + 1)]
    scalars = [language.number(n + i, dtype) for i in range(len(op.scalars(functions(np), 0.0, 0)))]
    outputs = where_zero(op.formula(language, *inputs, *scalars), n)
    return None if outputs == inputs[:n] else tuple(outputs)


@lru_cache(1024)
def _pass_over_all(op: OptimizerUpdate, dtype: DType) -> CompiledFormula | None:
    outputs = without_gradient(op, dtype)
    scalars = len(op.scalars(functions(np), 0.0, 0))
    return None if outputs is None else compiled(outputs, op.count, scalars, {k: (i,) for k, i in op.alias.items()})


def unsupported_reason(op: RowUpdate, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
    if not all(a.flags.c_contiguous for a in (*inputs[: op.count], *outputs)):
        return "the table's memory is not contiguous"
    return None if update_program(op.op, dtype_of(inputs[0].dtype)) else f"the formula of {op.op.word()} cannot be compiled to NumPy calls"


@implements(RowUpdate, refuses=unsupported_reason)
def updates_of_read_rows(op: RowUpdate, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    over_all = None if op.lazy else _pass_over_all(op.op, dtype_of(inputs[0].dtype))
    return row_calls(op, device, inputs, outputs, lambda scalars: block_calls(over_all, device, outputs, scalars, outputs) if over_all else [])


def row_calls(
    op: RowUpdate, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array], over_all: Callable[[Sequence[Array]], list[Call]]
) -> list[Call]:
    """Return the calls that update the table rows that a step has read.

    `over_all(scalars)` returns calls that first update all rows of the outputs in place, as if their gradients were zero.
    """
    variables, rows, ids, inputs_of_step = op.split(tuple(inputs))
    dtype = dtype_of(variables[0].dtype)
    rate, *step = [a.reshape(()) for a in inputs_of_step]
    scalars: Sequence[Array] = [rate]
    calls: list[Call] = [(np.copyto, (y, x)) for x, y in zip(variables, outputs, strict=True) if not same_memory(x, y)]
    if op.op.derives:
        scalars = [device.scratch((), dtype) for _ in op.op.scalars(functions(np), 0.0, 0)]
        calls.append((_fill, (scalars, op.op.scalars, (), rate, *step)))
    tables = [y.reshape(len(y), -1) for y in outputs]
    formula = update_program(op.op, dtype)
    assert formula is not None
    old = device.scratch((len(tables), ids.size, tables[0].shape[1]), dtype)
    read = _ReadRows(op.offset, tables, rows, ids, old, formula, scalars)
    return [*calls, (read.save_rows, ()), *over_all(scalars), (read.update, ())]


class _Temporary:
    """A device that allocates memory for calls that run immediately."""

    xp: Any = np

    def scratch(self, shape: tuple[int, ...], dtype: DType) -> Array:
        return np.empty(shape, dtype.numpy)


@dataclass
class _ReadRows:
    """The table rows that a step has read, their gradients `rows`, and their values before the update in `old`."""

    offset: int
    tables: Sequence[Array]
    rows: Array
    ids: Array
    old: Array
    formula: CompiledFormula
    scalars: Sequence[Array]
    groups: Groups = field(init=False)

    def save_rows(self) -> None:
        self.groups = Groups.of(local_ids(self.ids, self.offset), len(self.tables[0]))
        for table, old in zip(self.tables, self.old, strict=True):
            np.take(table, self.groups.names, 0, old[: len(self.groups)], "clip")

    def update(self) -> None:
        rows = self.rows.reshape(self.old.shape[1:])  # copies rows that are not contiguous
        for part in self.groups.blocks(rows.shape[1]):
            values = [old[part] for old in self.old]
            gradient = self.groups.sums(rows, part)
            for function, arguments in block_calls(self.formula, _Temporary(), [*values, gradient], self.scalars, values):
                function(*arguments)
            for table, value in zip(self.tables, values, strict=True):
                table[self.groups.names[part]] = value


# Guarded updates -----------------------------------------------------------------------------------------------------


@implements(CountNotFinite)
def count(op: CountNotFinite, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    (x,), (n,) = inputs, outputs
    finite = device.scratch(tuple(x.shape), bool_)
    return [(np.isfinite, (x, finite)), (_count_false, (finite, n))]


def _count_false(finite: Array, n: Array) -> None:
    n[0] = finite.size - np.count_nonzero(finite)


@implements(GuardedUpdate)
def guarded_calls(op: GuardedUpdate, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    *own, bad = inputs
    return [(_unless, (bad, registry.bind(op.op, CPU, device, own, outputs)))]


def _unless(bad: Array, calls: list[Call]) -> None:
    if not bad[0]:
        for function, arguments in calls:
            function(*arguments)
