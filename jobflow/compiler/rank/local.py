"""The program of one rank before it has addresses: steps over items.  Made by `lower`, consumed by `memory`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import TypeAlias

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import NOWHERE, PlanError, SourceLine
from jobflow.core.layout import Box, Reduction
from jobflow.core.types import TensorType
from jobflow.graph.ir import Phase
from jobflow.kernels.target import CPU, Target
from jobflow.ops.layout_ops import PackPieces, UnpackPieces
from jobflow.ops.op import Op, types_tuple
from jobflow.plan.plan import Announced, Kind, Slot


@dataclass(frozen=True, eq=False, slots=True)
class Item:
    """One tensor on this rank; compared by identity.  `slot` is set where the place is given: variables."""

    type: TensorType
    name: str
    slot: Slot | None = None

    def __str__(self) -> str:
        return f"%{self.name}"


@dataclass(frozen=True, slots=True)
class Collect:
    """A collective operation; see `plan.Collective`."""

    kind: Kind
    ranks: tuple[int, ...]
    counts: tuple[int, ...]
    receives: tuple[int, ...]
    reduce: Reduction
    order: int

    def __str__(self) -> str:
        how = f" {self.reduce.value}" if self.kind in ("all_reduce", "reduce_scatter") else ""
        return f"{self.kind}{how} {list(self.ranks)} #{self.order}"


@dataclass(frozen=True, slots=True)
class Send:
    """Post a send; see `plan.Transfer`."""

    peer: int
    order: int

    def __str__(self) -> str:
        return f"send to {self.peer} #{self.order}"


@dataclass(frozen=True, slots=True)
class Receive:
    """Post a receive; see `plan.Transfer`."""

    peer: int
    order: int

    def __str__(self) -> str:
        return f"receive from {self.peer} #{self.order}"


@dataclass(frozen=True, slots=True)
class Join:
    """The output is flat memory in which input i lies offsets[i] bytes from the start; free where inputs can be made there."""

    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WaitFor:
    """Until the transfer of this order is complete; the input is what is sent or received."""

    post: Send | Receive

    def __str__(self) -> str:
        return f"wait for {self.post}"


Action: TypeAlias = Op | Collect | Send | Receive | WaitFor | Join


@dataclass(frozen=True, eq=False, slots=True)
class Step:
    """One thing this rank does."""

    action: Action
    inputs: tuple[Item, ...]
    outputs: tuple[Item, ...]
    name: str
    where: SourceLine = NOWHERE
    phase: Phase = "forward"
    microbatch: int | None = None

    def __str__(self) -> str:
        outputs = ", ".join(f"{item}: {item.type}" for item in self.outputs)
        return f"{outputs + ' = ' if outputs else ''}{self.action}({', '.join(map(str, self.inputs))})"


@dataclass(frozen=True)
class Argument:
    """An argument of the job on this rank."""

    key: str
    item: Item
    box: Box


@dataclass(frozen=True)
class RankProgram:
    """All that one rank does in a run, in order."""

    job: str
    rank: int
    steps: tuple[Step, ...]
    arguments: tuple[Argument, ...]
    #: (position among the outputs of the job, this rank's part)
    fetches: tuple[tuple[int, Item], ...]
    #: variables as they are before the run
    reads: dict[str, Item]
    #: what they become
    updates: dict[str, Item]
    schedule: tuple[Announced, ...] = ()
    #: this rank's parts of all outputs, whichever rank hands them out
    results: tuple[Item, ...] = ()
    #: what it is for
    target: Target = CPU
    #: the rows of the target's patterns that were used, once for each time
    hits: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join([f"job {self.job}, rank {self.rank}", *(f"  {step}" for step in self.steps)])


#: a tensor, and the part of it that a rank holds
Piece: TypeAlias = tuple[TensorType, Box]


def on_rank(
    op: Op, rank: int, inputs: Sequence[Piece], outputs: Sequence[Piece], *, cuts: bool = True, where: str = ""
) -> tuple[Op, tuple[TensorType, ...]]:
    """The op that `rank` runs on its pieces of the inputs, and the types of its pieces of the outputs.

    Without `cuts` it is the same op: every rank has tensors of its own.
    """
    local = op.localize(tuple([box for _, box in inputs]), tuple([box for _, box in outputs])) if cuts else op
    held, made = (tuple([type.with_shape(box.shape) for type, box in pieces]) for pieces in (inputs, outputs))
    inferred = types_tuple(local.infer(*held))
    if inferred != made:
        raise PlanError(f"{op}{where}: rank {rank} would make {', '.join(map(str, inferred))} but holds {', '.join(map(str, made))}")
    return local, made


@dataclass
class Builder:
    """Collects the steps of one rank while a node is lowered."""

    rank: int
    steps: list[Step] = field(default_factory=list)
    name: str = ""
    where: SourceLine = NOWHERE
    phase: Phase = "forward"
    microbatch: int | None = None

    def compute(self, op: Op, *inputs: Item, name: str | None = None) -> Item:
        """Append an op of one output; its output."""
        (output,) = self.computes(op, inputs, name)
        return output

    def computes(self, op: Op, inputs: tuple[Item, ...], name: str | None = None, types: tuple[TensorType, ...] | None = None) -> tuple[Item, ...]:
        types = types or types_tuple(op.infer(*(item.type for item in inputs)))
        label = name or self.name
        outputs = tuple(Item(type, label if len(types) == 1 else f"{label}.{i}") for i, type in enumerate(types))
        self.append(op, inputs, outputs)
        return outputs

    def flatten(self, x: Item) -> Item:
        """An item as one axis."""
        return self.compute(PackPieces(0, (x.type.shape[0] if x.type.shape else 1,)), x, name=f"{x.name}.flat")

    def unflatten(self, flat: Item, shape: tuple[int, ...]) -> Item:
        """What was made one axis, in its shape again."""
        return self.compute(UnpackPieces(0, (shape[0] if shape else 1,), shape), flat)

    def append(self, action: Action, inputs: tuple[Item, ...], outputs: tuple[Item, ...]) -> None:
        self.steps.append(Step(action, inputs, outputs, self.name, self.where, self.phase, self.microbatch))
