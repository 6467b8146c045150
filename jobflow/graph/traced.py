"""A traced program: what the body of a job, or `build` of a graph, has recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import NOWHERE, SourceLine
from jobflow.core.layout import Placement
from jobflow.core.types import DType
from jobflow.graph.ir import Graph, Node, Value, Variable
from jobflow.graph.training import Microbatches, Training, ValidRange, Watch

if TYPE_CHECKING:
    from jobflow.graph.strategy import Distribution


@dataclass(frozen=True)
class Traced:
    """A program as its body wrote it: not yet differentiated, and nothing decided about layouts.

    A pass takes one and gives another one; what it adds it records with `Tracer.onward`.
    """

    name: str
    #: where it runs unless its body says otherwise
    placement: Placement
    nodes: tuple[Node, ...]
    inputs: Mapping[str, Value]
    variables: Mapping[str, Variable]
    #: those that other jobs have declared: their storage is shared and stays as it is
    known: Mapping[str, Variable]
    reads: Mapping[str, Value]
    #: the values that variables take
    updates: Mapping[str, Value]
    training: Training | None
    #: what `add_loss` was called with
    losses: tuple[Value, ...]
    watches: tuple[Watch, ...]
    #: what arguments may hold
    limits: tuple[ValidRange, ...]
    #: mirrored view only: the length of the first axis of each rank's arguments, if the ranks' shapes differ
    rows: tuple[int, ...]
    #: names that are taken, with the lines that took them, and how many there are of each prefix
    names: Mapping[str, SourceLine]
    counts: Mapping[str, int]
    #: where it is declared
    where: SourceLine = NOWHERE
    #: who wrote it, for messages
    kind: Literal["job", "graph"] = "job"
    #: in which products and convolutions are computed; None leaves them as they are
    half: DType | None = None
    #: variables of which a step updates the rows that it has read, and no others
    lazily: tuple[str, ...] = ()
    #: how it is parallel; None leaves it to its body and to layout inference
    strategy: Distribution | None = None
    #: how the batch is cut, if it is: the body is then that of one microbatch, of the longer ones if there are two sizes
    microbatches: Microbatches | None = None
    #: the order of the stages of a pipeline by name; None leaves it to the compiler
    schedule: str | None = None
    #: the same body for the shorter microbatches, if there are any, and its outputs
    tail: tuple[Traced, Sequence[Value]] | None = None
    #: the same body for the whole batch, and its outputs, if the program gives the numbers of the batch; None: by the rule of accumulation steps
    whole: tuple[Traced, Sequence[Value]] | None = None
    #: of a job: by variable, the tensor of the program that it is
    tensors: Mapping[str, Any] = field(default_factory=dict)
    #: by id of an object that the body calls: what tells whether it would still record the same
    modes: Mapping[int, Callable[[], Any]] = field(default_factory=dict)
    #: of a job: what gives the arguments that its body reads from files
    feed: Any = None
    #: by name, the arguments that a run computes before the rest of it
    sized: Mapping[str, Any] = field(default_factory=dict)
    #: why it cannot run: arguments as large as the job declares are too large
    refused: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"

    def graph(self, outputs: Sequence[Value] = ()) -> Graph:
        """The program without what is to be done with it."""
        return Graph(
            self.name,
            self.placement,
            self.nodes,
            tuple(self.inputs.values()),
            tuple(outputs),
            dict(self.variables),
            dict(self.reads),
            dict(self.updates),
            self.rows,
            self.kind,
        )
