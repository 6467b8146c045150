"""Elementwise operations with one formula on several tensors, computed by one call.

A training step has such operations for each weight.  Examples: a cast to half precision, weight decay, an update.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TypeVar

from jobflow.core.dataclass import dataclass
from jobflow.core.types import Array, TensorType, Xp
from jobflow.kernels import half
from jobflow.ops.op import Op, types_tuple

T = TypeVar("T")


@dataclass(frozen=True)
class TensorMember:
    """An operation of a multi-tensor call, and its numbers of inputs and outputs.  `over`: the inputs that each output may overwrite."""

    op: Op
    inputs: int
    outputs: int
    over: tuple[tuple[int, tuple[int, ...]], ...] = ()


class MultiTensor(Op):
    """Independent elementwise operations; the inputs of all members come first, then their outputs, both in the order of the members."""

    members: tuple[TensorMember, ...]

    def __str__(self) -> str:
        first = self.members[0].op
        return f"MultiTensor({len(self.members)} x {first})"

    @property
    def alias(self) -> Mapping[int, int]:  # type: ignore[override]
        updates: dict[int, int] = {}
        for member, i, o in self._offsets():
            updates.update({o + output: i + source for output, source in member.op.alias.items()})
        return updates

    @property
    def in_place(self) -> Mapping[int, tuple[int, ...]]:  # type: ignore[override]
        return {o + output: tuple(i + source for source in sources) for member, i, o in self._offsets() for output, sources in member.over}

    def infer(self, *types: TensorType) -> tuple[TensorType, ...]:
        return tuple(type for member, inputs, _ in self.operands(types, ()) for type in types_tuple(member.op.infer(*inputs)))

    def kernel(self, xp: Xp, *arrays: Array) -> None:
        count = sum(member.inputs for member in self.members)
        for member, inputs, outputs in self.operands(arrays[:count], arrays[count:]):
            half.run(member.op, inputs, outputs, xp)

    def operands(self, inputs: Sequence[T], outputs: Sequence[T]) -> Iterator[tuple[TensorMember, Sequence[T], Sequence[T]]]:
        """Yield each member with its inputs and outputs."""
        for member, i, o in self._offsets():
            yield member, inputs[i : i + member.inputs], outputs[o : o + member.outputs]

    def _offsets(self) -> Iterator[tuple[TensorMember, int, int]]:
        """Yield each member with the positions of its first input and output."""
        starts = accumulate(((m.inputs, m.outputs) for m in self.members), lambda a, b: (a[0] + b[0], a[1] + b[1]), initial=(0, 0))
        yield from ((member, i, o) for member, (i, o) in zip(self.members, starts, strict=False))
