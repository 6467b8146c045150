"""Operations that have an expression, and regions of them, as kernels that are compiled for this GPU: the tier "nvrtc"."""

from __future__ import annotations

from collections.abc import Sequence

from jobflow.core.dataclass import dataclass
from jobflow.core.types import Array
from jobflow.kernels.cuda import fused
from jobflow.kernels.loop_operands import expression_of, views_in_space
from jobflow.kernels.region import Region
from jobflow.kernels.registry import bind, register
from jobflow.kernels.sequential import SequentialMembers
from jobflow.kernels.target import target_of
from jobflow.ops.op import Binder, Call, Op


@dataclass(frozen=True)
class FusedKernel:
    """One launch; two where columns are summed."""

    name: str = "nvrtc"

    def refuses(self, op: Op, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
        found = expression_of(op, inputs)
        if found is None:
            return "it has no expression"
        seen = views_in_space(op, fused.lying(inputs), fused.lying(outputs))
        return "a row of several axes does not lie in memory as one" if seen is None else fused.refuses(found, *seen)

    def bind(self, op: Op, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        found, seen = expression_of(op, inputs), views_in_space(op, fused.lying(inputs), fused.lying(outputs))
        assert found is not None and seen is not None
        index = int(outputs[0].device.id)
        return fused.bind(device, index, found, *seen, kept=(*inputs, *outputs))


@dataclass(frozen=True)
class EachAlone:
    """The best implementation of each member of a region that is no kernel."""

    name: str = "nvrtc"

    def refuses(self, op: Op, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
        return None

    def bind(self, op: Op, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        return bind(op, target_of("gpu"), device, inputs, outputs)


register(Op, "cuda", "nvrtc", FusedKernel())
register(Region, "cuda", "nvrtc", SequentialMembers(EachAlone()), rank=-1)
