"""The tiers "nvrtc" and "exact" of GPUs: operations that have an expression, and regions of them, as compiled kernels."""

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
    """An implementation by one kernel, or by up to three if rows and columns are reduced; see `kernel_stages`."""

    name: str = "nvrtc"
    #: True if products are rounded before they are added
    exact: bool = False

    def refuses(self, op: Op, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
        expressions = expression_of(op, inputs)
        if expressions is None:
            return "it has no expression"
        views = views_in_space(op, fused.placeholders(inputs), fused.placeholders(outputs))
        return "a row of several axes is not contiguous in memory" if views is None else fused.refuses(expressions, *views)

    def bind(self, op: Op, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        expressions, views = expression_of(op, inputs), views_in_space(op, fused.placeholders(inputs), fused.placeholders(outputs))
        assert expressions is not None and views is not None
        index = int(outputs[0].device.id)
        return fused.bind(device, index, expressions, *views, arrays=(*inputs, *outputs), exact=self.exact)


@dataclass(frozen=True)
class EachAlone:
    """An implementation for the members of a region without a fused kernel: each member runs by the best implementation on GPUs."""

    name: str = "nvrtc"
    #: value of the option `kernels`
    setting: str = "auto"

    def refuses(self, op: Op, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
        return None

    def bind(self, op: Op, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        return bind(op, target_of("gpu", self.setting), device, inputs, outputs)


register(Op, "cuda", "nvrtc", FusedKernel())
register(Op, "cuda", "exact", FusedKernel("exact", exact=True))
register(Region, "cuda", "nvrtc", SequentialMembers(EachAlone()), rank=-1)
register(Region, "cuda", "exact", SequentialMembers(EachAlone("exact", "exact")), rank=-1)
