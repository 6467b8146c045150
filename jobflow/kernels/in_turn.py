"""A region computed member by member: what is right on every target, and fastest on none."""

from __future__ import annotations

from collections.abc import Sequence

from jobflow.core.dataclass import dataclass
from jobflow.core.types import Array, TensorType, dtype_of
from jobflow.kernels import registry
from jobflow.kernels.region import Made, Region
from jobflow.kernels.registry import KINDS, PLAIN_KERNEL, Implementation, register
from jobflow.kernels.target import Target
from jobflow.ops.op import Binder, Call, Op


@dataclass(frozen=True)
class BestOf:
    """What computes an operation best on a target."""

    target: Target

    @property
    def name(self) -> str:
        return self.target.tier

    def refuses(self, op: Op, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
        return None

    def bind(self, op: Op, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        return registry.bind(op, self.target, device, inputs, outputs)


@dataclass(frozen=True)
class InTurn:
    """Each member as `each` computes it; what no one reads outside lies in scratch memory."""

    each: Implementation

    @property
    def name(self) -> str:
        return f"{self.each.name}, members in turn"

    def refuses(self, op: Op, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
        return None

    def bind(self, op: Op, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        assert isinstance(op, Region)
        before, after = list[Call](), list[Call]()
        made: dict[Made, Array] = {}
        for k, (out, target) in enumerate(zip(op.outputs, outputs, strict=True)):
            if k in op.alias or not any(device.xp.may_share_memory(target, a) for a in inputs):
                made[out] = target
            else:  # later members may read what lies there now
                made[out] = device.scratch(tuple(target.shape), dtype_of(target.dtype))
                after.append((device.xp.copyto, (target, made[out])))
        old: dict[int, Array] = {}
        calls: list[Call] = []
        types = op.types(*(TensorType(a.shape, dtype_of(a.dtype)) for a in inputs))
        for i, (member, given) in enumerate(zip(op.members, types, strict=True)):
            for j, type in enumerate(given):
                if (i, j) not in made:
                    made[i, j] = device.scratch(type.shape, type.dtype)
            read = [made[r] if isinstance(r, tuple) else old.get(r, inputs[r]) for r in member.reads]
            calls += self.each.bind(member.op, device, read, [made[i, j] for j in range(len(given))])
            for k in {op.alias[k] for k, out in enumerate(op.outputs) if out[0] == i and k in op.alias}:
                if any(k in later.reads for later in op.members[i + 1 :]):
                    old[k] = device.scratch(tuple(inputs[k].shape), dtype_of(inputs[k].dtype))
                    before.append((device.xp.copyto, (old[k], inputs[k])))
        return [*before, *calls, *after]


for _kind in KINDS:
    register(Region, _kind, "numpy", InTurn(BestOf(Target(_kind, "numpy"))))
    register(Region, _kind, "reference", InTurn(PLAIN_KERNEL))
