"""What a strategy is to a job, and what it may ask of the traced program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from jobflow.core.layout import Placement
from jobflow.core.scope import View
from jobflow.core.types import Tensor
from jobflow.graph.ir import Node, Origin, Value, Variable
from jobflow.graph.rewrite import Take
from jobflow.ops.base import Op


class Program(Protocol):
    """A job's program as its body wrote it: not yet differentiated, and nothing decided about layouts."""

    name: str
    placement: Placement
    inputs: dict[str, Value]
    #: a strategy may replace how a variable that is not `known` is stored
    variables: dict[str, Variable]
    #: those that other jobs have declared: their storage is shared and stays as it is
    known: dict[str, Variable]

    @property
    def nodes(self) -> Sequence[Node]: ...
    def apply(self, op: Op, inputs: Sequence[Tensor], name: str | None) -> tuple[Any, ...]: ...
    def rewritten(self, outputs: Sequence[Value], rewrite: Take) -> list[Value]: ...
    def again(
        self, node: Node, inputs: Sequence[Value], *, op: Op | None = None, placement: Placement | None = None, origin: Origin | None = None
    ) -> tuple[Value, ...]: ...


@runtime_checkable
class Strategy(Protocol):
    """Decides how a job is parallel, by saying where its nodes run, how its variables are stored, and in which layouts values are read.

    All else follows from layout inference, which a strategy never touches.
    """

    @property
    def view(self) -> View | None:
        """The view that the job's body is traced in; None leaves it to the job."""
        ...

    @property
    def microbatches(self) -> int | None:
        """In how many parts the batch passes through the program; None leaves it to the job."""
        ...

    @property
    def schedule(self) -> str | None:
        """The order of the stages of a pipeline by name; None if there is no pipeline."""
        ...

    def placement(self, given: Placement) -> Placement:
        """The mesh that the job runs on, made of the ranks that it is given."""
        ...

    def distribute(self, program: Program, outputs: Sequence[Value]) -> list[Value]:
        """Change the program; its outputs as they are then."""
        ...
