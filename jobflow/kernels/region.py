"""Regions: several operations computed as one, without memory for intermediate values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

from jobflow.core.dataclass import dataclass
from jobflow.core.types import Array, TensorType, Xp, dtype_of
from jobflow.expressions.index_space import IndexSpace
from jobflow.expressions.language import Expression, in_order, make
from jobflow.kernels import half
from jobflow.ops.op import Op, types_tuple

#: output j of member i
MemberOutput: TypeAlias = tuple[int, int]


@lru_cache(4096)
def expression_on(op: Op, *types: TensorType) -> tuple[Expression, ...] | None:
    """Return the cached expressions of an operation for inputs of these types, one per output; None if it has none."""
    return op.expression(*types)


@lru_cache(4096)
def space_on(op: Op, *types: TensorType) -> IndexSpace | None:
    """Return the cached index space of an operation, or None if inputs and outputs broadcast."""
    return op.index_space(*types)


@dataclass(frozen=True)
class RegionMember:
    """An operation of a region and its operands: k for input k of the region, (i, j) for output j of member i."""

    op: Op
    reads: tuple[int | MemberOutput, ...]


class Region(Op):
    """Elementwise operations, and sums of rows and columns, on one index space; members are in topological order.

    Only the member outputs listed in `outputs` are stored in memory.
    """

    members: tuple[RegionMember, ...]
    outputs: tuple[MemberOutput, ...]
    #: pairs of an output and the inputs of its type whose memory it may reuse
    over: tuple[tuple[int, tuple[int, ...]], ...] = ()
    #: None if all operands broadcast
    space: IndexSpace | None = None

    def __str__(self) -> str:
        parts = (f"{member.op}({', '.join(map(_read, member.reads))})" for member in self.members)
        return f"Region({'; '.join(parts)} -> {', '.join(map(_read, self.outputs))})"

    @property
    def inputs(self) -> int:
        """The number of inputs."""
        return 1 + max((read for member in self.members for read in member.reads if isinstance(read, int)), default=-1)

    @property
    def alias(self) -> Mapping[int, int]:  # type: ignore[override]
        """The inputs that are updated in place: index of the region's output -> index of the region's input that it overwrites."""
        updates: dict[int, int] = {}
        for k, (i, j) in enumerate(self.outputs):
            source = self.members[i].op.alias.get(j)
            read = None if source is None else self.members[i].reads[source]
            if isinstance(read, int):
                updates[k] = read
        return updates

    @property
    def in_place(self) -> Mapping[int, tuple[int, ...]]:  # type: ignore[override]
        return dict(self.over)

    def types(self, *types: TensorType) -> list[tuple[TensorType, ...]]:
        """Return the output types of each member for inputs of these types."""
        results: list[tuple[TensorType, ...]] = []
        for member in self.members:
            results.append(types_tuple(member.op.infer(*_operands(member, types, results))))
        return results

    def infer(self, *types: TensorType) -> tuple[TensorType, ...]:
        results = self.types(*types)
        return tuple(results[i][j] for i, j in self.outputs)

    def kernel(self, xp: Xp, *arrays: Array) -> None:
        inputs, outputs = arrays[: self.inputs], arrays[self.inputs :]
        types = self.types(*(TensorType(a.shape, dtype_of(a.dtype)) for a in inputs))
        results: list[tuple[Array, ...]] = []
        for member, result_types in zip(self.members, types, strict=True):
            results.append(tuple(xp.empty(t.shape, t.dtype.numpy) for t in result_types))
            half.run(member.op, _operands(member, inputs, results), results[-1], xp)
        for (i, j), output in zip(self.outputs, outputs, strict=True):
            output[...] = results[i][j]

    def index_space(self, *types: TensorType) -> IndexSpace | None:
        return self.space

    def expression(self, *types: TensorType) -> tuple[Expression, ...] | None:
        """Return the expressions of the outputs, with the members' expressions substituted; None if a member has no expression.

        Casts between members remain, so rounding is unchanged.
        """
        results: list[tuple[TensorType, ...]] = []
        known: list[tuple[Expression, ...]] = []
        for member in self.members:
            operand_types = _operands(member, types, results)
            member_outputs = expression_on(member.op, *operand_types)
            if member_outputs is None:
                return None
            results.append(types_tuple(member.op.infer(*operand_types)))
            known.append(_with_operands(member_outputs, [read if isinstance(read, int) else known[read[0]][read[1]] for read in member.reads]))
        return tuple(known[i][j] for i, j in self.outputs)


def _operands(member: RegionMember, inputs: Sequence[Any], results: Sequence[Sequence[Any]]) -> list[Any]:
    return [inputs[read] if isinstance(read, int) else results[read[0]][read[1]] for read in member.reads]


def _with_operands(outputs: Sequence[Expression], operands: Sequence[int | Expression]) -> tuple[Expression, ...]:
    """Replace input k of the expressions by `operands[k]`, which is the number of another input or an expression."""
    new: dict[Expression, Expression] = {}
    for x in in_order(outputs):
        if x.primitive in ("element", "looked_up", "number"):
            assert isinstance(x.attribute, int)
            operand = operands[x.attribute]
            arguments = tuple(new[y] for y in x.arguments)
            new[x] = make(x.primitive, arguments, x.dtype, operand) if isinstance(operand, int) else operand
        else:
            new[x] = make(x.primitive, tuple(new[y] for y in x.arguments), x.dtype, x.attribute)
    return tuple(new[x] for x in outputs)


def _read(read: int | MemberOutput) -> str:
    return f"${read}" if isinstance(read, int) else f"%{read[0]}.{read[1]}"
