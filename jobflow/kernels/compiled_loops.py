"""Operations that have an expression, and regions of them, as loops that are compiled for this machine: the tier "llvm" of CPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jobflow.core.types import Array, TensorType, dtype_of
from jobflow.expressions.language import Expression
from jobflow.kernels import llvm
from jobflow.kernels.registry import register
from jobflow.ops.op import Binder, Call, Op

#: elements; compiling a loop for fewer takes longer than many runs of it save
FEWEST = 64


@dataclass(frozen=True)
class CompiledLoop:
    """One loop over the index space."""

    name: str = "llvm"

    def refuses(self, op: Op, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
        if max((a.size for a in outputs), default=0) < FEWEST:
            return f"{max((a.size for a in outputs), default=0)} elements; a loop is compiled for {FEWEST} and more"
        found = _expression(op, inputs)
        return "it has no expression" if found is None else llvm.refuses(found, inputs, outputs)

    def bind(self, op: Op, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        found = _expression(op, inputs)
        assert found is not None
        return llvm.bind(found, inputs, outputs)


def _expression(op: Op, inputs: Sequence[Array]) -> tuple[Expression, ...] | None:
    return op.expression(*(TensorType(a.shape, dtype_of(a.dtype)) for a in inputs))


register(Op, "cpu", "llvm", CompiledLoop())
