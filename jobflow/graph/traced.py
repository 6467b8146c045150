"""A traced program: the record of a job's body or of a graph's `build`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import NOWHERE, SourceLine
from jobflow.core.layout import Placement
from jobflow.core.types import DType
from jobflow.graph.ir import Graph, Node, Value, Variable
from jobflow.graph.training import ArgumentBounds, Microbatches, Training, Watch

if TYPE_CHECKING:
    from jobflow.graph.strategy import Distribution


@dataclass(frozen=True)
class Traced:
    """A program as traced, before differentiation and without layouts.

    A pass returns a new program.  `Tracer.onward` records additions to a program.
    """

    name: str
    #: the default placement of nodes
    placement: Placement
    nodes: tuple[Node, ...]
    inputs: Mapping[str, Value]
    variables: Mapping[str, Variable]
    #: variables that other jobs have declared; their storage is shared and fixed
    known: Mapping[str, Variable]
    reads: Mapping[str, Value]
    #: the new values of variables
    updates: Mapping[str, Value]
    training: Training | None
    #: the arguments of `add_loss`
    losses: tuple[Value, ...]
    watches: tuple[Watch, ...]
    #: the valid values of arguments
    bounds: tuple[ArgumentBounds, ...]
    #: mirrored view only: the length of the first axis of each rank's arguments, if the ranks' shapes differ
    rows: tuple[int, ...]
    #: the names in use, with the lines that use them, and the number of names per prefix
    names: Mapping[str, SourceLine]
    counts: Mapping[str, int]
    #: the line that declares the program
    where: SourceLine = NOWHERE
    #: the kind of program, for messages
    kind: Literal["job", "graph"] = "job"
    #: the type in which products and convolutions are computed; None for the types of their inputs
    half: DType | None = None
    #: variables with lazy updates: only the rows that a step reads
    lazily: tuple[str, ...] = ()
    #: the strategy; None leaves parallelism to the body and to layout inference
    strategy: Distribution | None = None
    #: the microbatches; the body is then traced for one microbatch, for the longer size if there are two
    microbatches: Microbatches | None = None
    #: the pipeline schedule by name; None leaves it to the compiler
    schedule: str | None = None
    #: the body traced for the shorter microbatches, and its outputs; None if all sizes are equal
    tail: tuple[Traced, Sequence[Value]] | None = None
    #: the body traced for the whole batch, and its outputs, if results must equal those of the batch; None for gradient accumulation
    whole: tuple[Traced, Sequence[Value]] | None = None
    #: in a job: the tensor of the user's program, by variable
    tensors: Mapping[str, Any] = field(default_factory=dict)
    #: the state on which the trace of a called object depends, by id of the object
    modes: Mapping[int, Callable[[], Any]] = field(default_factory=dict)
    #: in a job: the sources of arguments that the body reads from files
    feed: Any = None
    #: the arguments that an earlier phase of the run computes, by name
    phases: Mapping[str, Any] = field(default_factory=dict)
    #: the reason why the program cannot run with arguments as large as declared
    refused: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"

    def graph(self, outputs: Sequence[Value] = ()) -> Graph:
        """Return the program as a `Graph` with the outputs `outputs`; the graph has no training, microbatches or strategy."""
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
