"""The tier "llvm" of CPUs: operations that have an expression, and regions of them, as compiled loops."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from jobflow.core.dataclass import dataclass
from jobflow.core.types import Array, DType, TensorType, contiguous_strides, type_of
from jobflow.expressions.index_space import LOOKED_UP
from jobflow.kernels import llvm
from jobflow.kernels.loop_operands import expression_of, views_in_space
from jobflow.kernels.operand_copies import operand_copies
from jobflow.kernels.registry import at, register
from jobflow.ops.op import Binder, Call, Op

#: fewest elements; compiling a loop for fewer costs more than its runs save
FEWEST = 64


@dataclass(frozen=True)
class CompiledLoop:
    """An implementation of an operation or region by one compiled loop over its index space."""

    name: str = "llvm"
    #: smallest size of the largest operand for which a loop is compiled; None means FEWEST
    fewest: int | None = None

    def refuses(self, op: Op, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
        if "cpu" not in op.loops_on:
            return "array functions are faster on CPUs"
        most = max((a.size for a in (*inputs, *outputs)), default=0)
        fewest = FEWEST if self.fewest is None else self.fewest
        if most < fewest:
            return f"{most} elements; loops are compiled for at least {fewest}"
        expressions = expression_of(op, inputs)
        if expressions is None:
            return "it has no expression"
        views = views_in_space(op, inputs, outputs)
        return "a row of several axes is not contiguous in memory" if views is None else llvm.refuses(expressions, *views)

    def bind(self, op: Op, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        expressions, views = expression_of(op, inputs), views_in_space(op, inputs, outputs)
        assert expressions is not None and views is not None
        return llvm.bind(expressions, *views, device.scratch)


@dataclass(frozen=True)
class CompiledLoopOnCopies:
    """An implementation of an operation or region by one compiled loop over dense copies of operands whose rows are not contiguous in memory."""

    name: str = "llvm, of copies"

    def refuses(self, op: Op, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
        expressions, space = expression_of(op, inputs), op.index_space(*map(type_of, inputs))
        if expressions is None or space is None or "cpu" not in op.loops_on:
            return "it has no expression over rows"
        if any(LOOKED_UP in places for places in space.operands):
            return "it reads a table, which is not copied"
        if llvm.cheap(expressions):
            return "copying costs more than the computation"
        places = count(1)
        copies = operand_copies(space, inputs, outputs, _dense, lambda shape, dtype: _placeholder(shape, dtype, next(places)))
        return llvm.refuses(expressions, copies.views[: len(inputs)], copies.views[len(inputs) :])

    def bind(self, op: Op, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        expressions, space = expression_of(op, inputs), op.index_space(*map(type_of, inputs))
        assert expressions is not None and space is not None
        copies = operand_copies(space, inputs, outputs, _dense, device.scratch)
        return [*copies.before, *llvm.bind(expressions, copies.views[: len(inputs)], copies.views[len(inputs) :], device.scratch), *copies.after]


def _dense(view: Array) -> bool:
    return bool(view.shape[-1:] == (1,) or view.strides[-1:] == (view.itemsize,))


def _placeholder(shape: tuple[int, ...], dtype: DType, number: int) -> Array:
    return at(TensorType(shape, dtype), contiguous_strides(shape, dtype.itemsize), number << 40)


register(Op, "cpu", "llvm", CompiledLoop())
register(Op, "cpu", "llvm", CompiledLoopOnCopies(), -10)
