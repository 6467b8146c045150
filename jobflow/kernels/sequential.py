"""Sequential execution of a region, member by member: correct on every target, and the fallback of faster implementations."""

from __future__ import annotations

from collections.abc import Sequence

from jobflow.core.dataclass import dataclass
from jobflow.core.types import Array, TensorType, dtype_of
from jobflow.kernels import registry
from jobflow.kernels.region import MemberOutput, Region
from jobflow.kernels.registry import KINDS, PLAIN_KERNEL, Implementation, register
from jobflow.kernels.target import Target
from jobflow.ops.op import Binder, Call, Op


@dataclass(frozen=True)
class BestOf:
    """An implementation that runs each operation by the best implementation on a target."""

    target: Target

    @property
    def name(self) -> str:
        return self.target.tier

    def refuses(self, op: Op, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
        return None

    def bind(self, op: Op, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        return registry.bind(op, self.target, device, inputs, outputs)


@dataclass(frozen=True)
class SequentialMembers:
    """An implementation that computes each member with the implementation `each`; intermediate values are in scratch memory."""

    each: Implementation

    @property
    def name(self) -> str:
        return f"{self.each.name}, members sequentially"

    def refuses(self, op: Op, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
        return None

    def bind(self, op: Op, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        assert isinstance(op, Region)
        before, after = list[Call](), list[Call]()
        results: dict[MemberOutput, Array] = {}
        for k, (out, target) in enumerate(zip(op.outputs, outputs, strict=True)):
            if k in op.alias or not any(device.xp.may_share_memory(target, a) for a in inputs):
                results[out] = target
            else:  # later members may still read this input
                results[out] = device.scratch(tuple(target.shape), dtype_of(target.dtype))
                after.append((device.xp.copyto, (target, results[out])))
        old: dict[int, Array] = {}
        calls: list[Call] = []
        types = op.types(*(TensorType(a.shape, dtype_of(a.dtype)) for a in inputs))
        for i, (member, result_types) in enumerate(zip(op.members, types, strict=True)):
            for j, type in enumerate(result_types):
                if (i, j) not in results:
                    results[i, j] = device.scratch(type.shape, type.dtype)
            read = [results[r] if isinstance(r, tuple) else old.get(r, inputs[r]) for r in member.reads]
            calls += self.each.bind(member.op, device, read, [results[i, j] for j in range(len(result_types))])
            for k in {op.alias[k] for k, out in enumerate(op.outputs) if out[0] == i and k in op.alias}:
                if any(k in later.reads for later in op.members[i + 1 :]):
                    old[k] = device.scratch(tuple(inputs[k].shape), dtype_of(inputs[k].dtype))
                    before.append((device.xp.copyto, (old[k], inputs[k])))
        return [*before, *calls, *after]


for _kind in KINDS:
    register(Region, _kind, "numpy", SequentialMembers(BestOf(Target(_kind, "numpy"))))
    register(Region, _kind, "reference", SequentialMembers(PLAIN_KERNEL))
