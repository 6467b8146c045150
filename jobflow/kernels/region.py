"""Operations that are computed together: one operation made of several, whose intermediate values have no memory."""

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
Made: TypeAlias = tuple[int, int]


@lru_cache(4096)
def expression_on(op: Op, *types: TensorType) -> tuple[Expression, ...] | None:
    """What an operation computes of inputs of these types, written down once."""
    return op.expression(*types)


@lru_cache(4096)
def space_on(op: Op, *types: TensorType) -> IndexSpace | None:
    """On which index space; None where inputs and outputs broadcast."""
    return op.index_space(*types)


@dataclass(frozen=True)
class RegionMember:
    """One of the operations of a region, and what it reads: input k of the region as k, what another member makes as (i, j)."""

    op: Op
    reads: tuple[int | Made, ...]


class Region(Op):
    """Operations on one index space, elementwise ones and sums of its rows and columns, each after those that it reads; `outputs` go out."""

    members: tuple[RegionMember, ...]
    outputs: tuple[Made, ...]
    #: output -> inputs of its type that it may be written over, as pairs
    over: tuple[tuple[int, tuple[int, ...]], ...] = ()
    #: None where all broadcast
    space: IndexSpace | None = None

    def __str__(self) -> str:
        parts = (f"{member.op}({', '.join(map(_read, member.reads))})" for member in self.members)
        return f"Region({'; '.join(parts)} -> {', '.join(map(_read, self.outputs))})"

    @property
    def inputs(self) -> int:
        """How many inputs it has."""
        return 1 + max((read for member in self.members for read in member.reads if isinstance(read, int)), default=-1)

    @property
    def alias(self) -> Mapping[int, int]:  # type: ignore[override]
        """The variables that members update."""
        found: dict[int, int] = {}
        for k, (i, j) in enumerate(self.outputs):
            source = self.members[i].op.alias.get(j)
            read = None if source is None else self.members[i].reads[source]
            if isinstance(read, int):
                found[k] = read
        return found

    @property
    def in_place(self) -> Mapping[int, tuple[int, ...]]:  # type: ignore[override]
        return dict(self.over)

    def types(self, *types: TensorType) -> list[tuple[TensorType, ...]]:
        """What each member makes of inputs of these types."""
        made: list[tuple[TensorType, ...]] = []
        for member in self.members:
            made.append(types_tuple(member.op.infer(*_operands(member, types, made))))
        return made

    def infer(self, *types: TensorType) -> tuple[TensorType, ...]:
        made = self.types(*types)
        return tuple(made[i][j] for i, j in self.outputs)

    def kernel(self, xp: Xp, *arrays: Array) -> None:
        inputs, outputs = arrays[: self.inputs], arrays[self.inputs :]
        types = self.types(*(TensorType(a.shape, dtype_of(a.dtype)) for a in inputs))
        made: list[tuple[Array, ...]] = []
        for member, given in zip(self.members, types, strict=True):
            made.append(tuple(xp.empty(t.shape, t.dtype.numpy) for t in given))
            half.run(member.op, _operands(member, inputs, made), made[-1], xp)
        for (i, j), output in zip(self.outputs, outputs, strict=True):
            output[...] = made[i][j]

    def index_space(self, *types: TensorType) -> IndexSpace | None:
        return self.space

    def expression(self, *types: TensorType) -> tuple[Expression, ...] | None:
        """The members' expressions put into each other; what is rounded between members stays rounded."""
        made: list[tuple[TensorType, ...]] = []
        known: list[tuple[Expression, ...]] = []
        for member in self.members:
            given = _operands(member, types, made)
            found = expression_on(member.op, *given)
            if found is None:
                return None
            made.append(types_tuple(member.op.infer(*given)))
            known.append(_with_operands(found, [read if isinstance(read, int) else known[read[0]][read[1]] for read in member.reads]))
        return tuple(known[i][j] for i, j in self.outputs)


def _operands(member: RegionMember, inputs: Sequence[Any], made: Sequence[Sequence[Any]]) -> list[Any]:
    return [inputs[read] if isinstance(read, int) else made[read[0]][read[1]] for read in member.reads]


def _with_operands(outputs: Sequence[Expression], operands: Sequence[int | Expression]) -> tuple[Expression, ...]:
    """The expressions with other inputs: numbered otherwise, or made by another expression."""
    new: dict[Expression, Expression] = {}
    for x in in_order(outputs):
        if x.primitive in ("element", "looked_up", "number"):
            assert isinstance(x.attribute, int)
            operand = operands[x.attribute]
            given = tuple(new[y] for y in x.arguments)
            new[x] = make(x.primitive, given, x.dtype, operand) if isinstance(operand, int) else operand
        else:
            new[x] = make(x.primitive, tuple(new[y] for y in x.arguments), x.dtype, x.attribute)
    return tuple(new[x] for x in outputs)


def _read(read: int | Made) -> str:
    return f"${read}" if isinstance(read, int) else f"%{read[0]}.{read[1]}"
