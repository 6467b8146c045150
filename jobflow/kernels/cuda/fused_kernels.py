"""Operations that have an expression, and regions of them, as kernels that are compiled for this GPU: the tier "nvrtc"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jobflow.core.types import Array, TensorType, dtype_of
from jobflow.expressions.language import Expression
from jobflow.kernels.cuda import fused
from jobflow.kernels.registry import register
from jobflow.ops.op import Binder, Call, Op


@dataclass(frozen=True)
class FusedKernel:
    """One launch; two where columns are summed."""

    name: str = "nvrtc"

    def refuses(self, op: Op, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
        found = _expression(op, inputs)
        return "it has no expression" if found is None else fused.refuses(found, inputs, outputs)

    def bind(self, op: Op, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        found = _expression(op, inputs)
        assert found is not None
        return fused.bind(device, found, inputs, outputs)


def _expression(op: Op, inputs: Sequence[Array]) -> tuple[Expression, ...] | None:
    return op.expression(*(TensorType(tuple(a.shape), dtype_of(a.dtype)) for a in inputs))


register(Op, "cuda", "nvrtc", FusedKernel())
