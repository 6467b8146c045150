"""Operations that have an expression, and regions of them, as loops that are compiled for this machine: the tier "llvm" of CPUs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from jobflow.core.dataclass import dataclass
from jobflow.core.types import Array, DType, TensorType, contiguous_strides, type_of
from jobflow.expressions.index_space import LOOKED_UP
from jobflow.kernels import llvm
from jobflow.kernels.loop_operands import expression_of, seen_in_space
from jobflow.kernels.operand_copies import operand_copies
from jobflow.kernels.registry import at, register
from jobflow.ops.op import Binder, Call, Op

#: elements; compiling a loop for fewer takes longer than many runs of it save
FEWEST = 64


@dataclass(frozen=True)
class CompiledLoop:
    """One loop over the index space."""

    name: str = "llvm"
    #: smallest size of the largest operand for which a loop is compiled; None means FEWEST
    fewest: int | None = None

    def refuses(self, op: Op, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
        most = max((a.size for a in (*inputs, *outputs)), default=0)
        fewest = FEWEST if self.fewest is None else self.fewest
        if most < fewest:
            return f"{most} elements; a loop is compiled for {fewest} and more"
        found = expression_of(op, inputs)
        if found is None:
            return "it has no expression"
        seen = seen_in_space(op, inputs, outputs)
        return "a row of several axes does not lie in memory as one" if seen is None else llvm.refuses(found, *seen)

    def bind(self, op: Op, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        found, seen = expression_of(op, inputs), seen_in_space(op, inputs, outputs)
        assert found is not None and seen is not None
        return llvm.bind(found, *seen, device.scratch)


@dataclass(frozen=True)
class CompiledLoopOnCopies:
    """The same where rows do not lie in memory as rows, after copying what does not."""

    name: str = "llvm, of copies"

    def refuses(self, op: Op, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
        found, space = expression_of(op, inputs), op.index_space(*map(type_of, inputs))
        if found is None or space is None:
            return "it has no expression over rows"
        if any(LOOKED_UP in places for places in space.operands):
            return "tables are not copied"
        if llvm.cheap(found):
            return "it computes less than copies cost"
        places = count(1)
        copies = operand_copies(space, inputs, outputs, _dense, lambda shape, dtype: _imagined(shape, dtype, next(places)))
        return llvm.refuses(found, copies.seen[: len(inputs)], copies.seen[len(inputs) :])

    def bind(self, op: Op, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        found, space = expression_of(op, inputs), op.index_space(*map(type_of, inputs))
        assert found is not None and space is not None
        copies = operand_copies(space, inputs, outputs, _dense, device.scratch)
        return [*copies.before, *llvm.bind(found, copies.seen[: len(inputs)], copies.seen[len(inputs) :], device.scratch), *copies.after]


def _dense(view: Array) -> bool:
    return bool(view.shape[-1:] == (1,) or view.strides[-1:] == (view.itemsize,))


def _imagined(shape: tuple[int, ...], dtype: DType, number: int) -> Array:
    return at(TensorType(shape, dtype), contiguous_strides(shape, dtype.itemsize), number << 40)


register(Op, "cpu", "llvm", CompiledLoop())
register(Op, "cpu", "llvm", CompiledLoopOnCopies(), -10)
