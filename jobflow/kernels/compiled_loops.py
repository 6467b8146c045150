"""Operations that have an expression, and regions of them, as loops that are compiled for this machine: the tier "llvm" of CPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jobflow.core.types import Array
from jobflow.kernels import llvm
from jobflow.kernels.loop_operands import expression_of, seen_in_space
from jobflow.kernels.registry import register
from jobflow.ops.op import Binder, Call, Op

#: elements; compiling a loop for fewer takes longer than many runs of it save
FEWEST = 64


@dataclass(frozen=True)
class CompiledLoop:
    """One loop over the index space."""

    name: str = "llvm"

    def refuses(self, op: Op, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
        most = max((a.size for a in (*inputs, *outputs)), default=0)
        if most < FEWEST:
            return f"{most} elements; a loop is compiled for {FEWEST} and more"
        found = expression_of(op, inputs)
        if found is None:
            return "it has no expression"
        seen = seen_in_space(op, inputs, outputs)
        return "a row of several axes does not lie in memory as one" if seen is None else llvm.refuses(found, *seen)

    def bind(self, op: Op, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        found, seen = expression_of(op, inputs), seen_in_space(op, inputs, outputs)
        assert found is not None and seen is not None
        return llvm.bind(found, *seen)


register(Op, "cpu", "llvm", CompiledLoop())
