"""The program of one rank before addresses are assigned: instructions over values.  `lower` builds it, `memory` plans it."""

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
class LocalValue:
    """A tensor on this rank, compared by identity; `slot` is set if its memory is fixed, as for variables."""

    type: TensorType
    name: str
    slot: Slot | None = None

    def __str__(self) -> str:
        return f"%{self.name}"


@dataclass(frozen=True, slots=True)
class Collect:
    """A collective operation, or its start if it is `concurrent`; see `plan.Collective`.

    An operation `in_place` writes its result to the memory of its input.
    """

    kind: Kind
    ranks: tuple[int, ...]
    counts: tuple[int, ...]
    receives: tuple[int, ...]
    reduce: Reduction
    order: int
    concurrent: bool = False
    in_place: bool = False

    def __str__(self) -> str:
        how = f" {self.reduce.value}" if self.kind in ("all_reduce", "reduce_scatter") else ""
        return f"{self.kind}{how} {list(self.ranks)} #{self.order}"


@dataclass(frozen=True, slots=True)
class Send:
    """A posted send; see `plan.Transfer`."""

    peer: int
    order: int

    def __str__(self) -> str:
        return f"send to {self.peer} #{self.order}"


@dataclass(frozen=True, slots=True)
class Receive:
    """A posted receive; see `plan.Transfer`."""

    peer: int
    order: int

    def __str__(self) -> str:
        return f"receive from {self.peer} #{self.order}"


@dataclass(frozen=True, slots=True)
class Join:
    """A concatenation into flat memory, input i at byte offsets[i]; free if the inputs are computed there."""

    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WaitFor:
    """A wait for the completion of a communication.

    The input of a wait for a transfer is the transferred value.  The inputs of a wait for a collective are its input and its incomplete output; the
    output is the complete one, in the same memory.
    """

    transfer: Send | Receive | Collect

    def __str__(self) -> str:
        return f"wait for {self.transfer}"


Action: TypeAlias = Op | Collect | Send | Receive | WaitFor | Join


@dataclass(frozen=True, eq=False, slots=True)
class LocalInstruction:
    """An instruction of this rank: an action with its inputs and outputs."""

    action: Action
    inputs: tuple[LocalValue, ...]
    outputs: tuple[LocalValue, ...]
    name: str
    where: SourceLine = NOWHERE
    phase: Phase = "forward"
    microbatch: int | None = None

    def __str__(self) -> str:
        outputs = ", ".join(f"{value}: {value.type}" for value in self.outputs)
        return f"{outputs + ' = ' if outputs else ''}{self.action}({', '.join(map(str, self.inputs))})"


@dataclass(frozen=True)
class Argument:
    """An argument of the job on this rank: its name, its value on the rank, and the box of the value in the whole argument."""

    key: str
    value: LocalValue
    box: Box


@dataclass(frozen=True)
class RankProgram:
    """The program of one rank: the instructions of a run, in order."""

    job: str
    rank: int
    steps: tuple[LocalInstruction, ...]
    arguments: tuple[Argument, ...]
    #: (index of the job's output, this rank's part)
    fetches: tuple[tuple[int, LocalValue], ...]
    #: variables before the run
    reads: dict[str, LocalValue]
    #: their new values
    updates: dict[str, LocalValue]
    schedule: tuple[Announced, ...] = ()
    #: this rank's parts of all outputs, including those that another rank returns
    results: tuple[LocalValue, ...] = ()
    #: the device and its tables
    target: Target = CPU
    #: the rows of the target's patterns that were applied, once per application
    hits: tuple[str, ...] = ()
    #: slots of half-precision copies of variables, by variable name
    shadows: dict[str, Slot] = field(default_factory=dict)

    def __str__(self) -> str:
        return "\n".join([f"job {self.job}, rank {self.rank}", *(f"  {step}" for step in self.steps)])


#: the type of a tensor and the box that a rank holds
Piece: TypeAlias = tuple[TensorType, Box]


def on_rank(
    op: Op, rank: int, inputs: Sequence[Piece], outputs: Sequence[Piece], *, cuts: bool = True, where: str = ""
) -> tuple[Op, tuple[TensorType, ...]]:
    """Return the op that `rank` runs on its pieces of the inputs, and the types of its pieces of the outputs.

    Without `cuts` the op is unchanged, because every rank has separate tensors.
    Raises: PlanError if the types differ from the types of the pieces in `outputs`.
    """
    local = op.localize(tuple([box for _, box in inputs]), tuple([box for _, box in outputs])) if cuts else op
    local_inputs, required = (tuple([type.with_shape(box.shape) for type, box in pieces]) for pieces in (inputs, outputs))
    inferred = types_tuple(local.infer(*local_inputs))
    if inferred != required:
        raise PlanError(
            f"{op}{where}: rank {rank} would compute {', '.join(map(str, inferred))}, "
            f"but its layout needs {', '.join(map(str, required))}; correct the layout rule or `localize` of the op"
        )
    return local, required


@dataclass
class Builder:
    """The list of instructions of one rank while nodes are lowered."""

    rank: int
    steps: list[LocalInstruction] = field(default_factory=list)
    name: str = ""
    where: SourceLine = NOWHERE
    phase: Phase = "forward"
    microbatch: int | None = None

    def compute(self, op: Op, *inputs: LocalValue, name: str | None = None) -> LocalValue:
        """Append an op with one output; return the output."""
        (output,) = self.computes(op, inputs, name)
        return output

    def computes(
        self, op: Op, inputs: tuple[LocalValue, ...], name: str | None = None, types: tuple[TensorType, ...] | None = None
    ) -> tuple[LocalValue, ...]:
        types = types or types_tuple(op.infer(*(value.type for value in inputs)))
        label = name or self.name
        outputs = tuple(LocalValue(type, label if len(types) == 1 else f"{label}.{i}") for i, type in enumerate(types))
        self.append(op, inputs, outputs)
        return outputs

    def flatten(self, x: LocalValue) -> LocalValue:
        """Flatten a value to one axis."""
        return self.compute(PackPieces(0, (x.type.shape[0] if x.type.shape else 1,)), x, name=f"{x.name}.flat")

    def unflatten(self, flat: LocalValue, shape: tuple[int, ...]) -> LocalValue:
        """Restore the shape of a flattened value."""
        return self.compute(UnpackPieces(0, (shape[0] if shape else 1,), shape), flat)

    def append(self, action: Action, inputs: tuple[LocalValue, ...], outputs: tuple[LocalValue, ...]) -> None:
        self.steps.append(LocalInstruction(action, inputs, outputs, self.name, self.where, self.phase, self.microbatch))
