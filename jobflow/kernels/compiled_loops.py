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
        most = max((a.size for a in (*inputs, *outputs)), default=0)
        if most < FEWEST:
            return f"{most} elements; a loop is compiled for {FEWEST} and more"
        found = _expression(op, inputs)
        if found is None:
            return "it has no expression"
        seen = _seen(op, inputs, outputs)
        return "a row of several axes does not lie in memory as one" if seen is None else llvm.refuses(found, *seen)

    def bind(self, op: Op, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        found, seen = _expression(op, inputs), _seen(op, inputs, outputs)
        assert found is not None and seen is not None
        return llvm.bind(found, *seen)


def _types(arrays: Sequence[Array]) -> list[TensorType]:
    return [TensorType(a.shape, dtype_of(a.dtype)) for a in arrays]


def _seen(op: Op, inputs: Sequence[Array], outputs: Sequence[Array]) -> tuple[list[Array], list[Array]] | None:
    """The arrays as the index space sees them; None where it cannot."""
    space = op.index_space(*_types(inputs))
    if space is None:
        return list(inputs), list(outputs)
    views = [space.view(k, a) for k, a in enumerate((*inputs, *outputs))]
    found = [v for v in views if v is not None]
    return (found[: len(inputs)], found[len(inputs) :]) if len(found) == len(views) else None


def _expression(op: Op, inputs: Sequence[Array]) -> tuple[Expression, ...] | None:
    return op.expression(*_types(inputs))


register(Op, "cpu", "llvm", CompiledLoop())
