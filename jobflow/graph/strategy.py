"""The interface of a strategy, as the compiler sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from jobflow.core.layout import Placement
from jobflow.core.scope import View
from jobflow.graph.ir import Value
from jobflow.graph.traced import Traced


class Distribution(Protocol):
    """What the compiler asks for a parallel program."""

    def distribute(self, program: Traced, outputs: Sequence[Value]) -> tuple[Traced, Sequence[Value]]:
        """The program as the strategy has it, and its outputs as they are then."""
        ...


@runtime_checkable
class Strategy(Distribution, Protocol):
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
