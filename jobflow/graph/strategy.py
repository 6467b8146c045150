"""Protocols that strategies of parallelism implement for the compiler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from jobflow.core.layout import Placement
    from jobflow.core.scope import View
    from jobflow.graph.ir import Value
    from jobflow.graph.traced import Traced


class Distribution(Protocol):
    """A transformation of a traced program into a parallel one."""

    def distribute(self, program: Traced, outputs: Sequence[Value]) -> tuple[Traced, Sequence[Value]]:
        """Return the distributed program, and the values in it that replace `outputs`."""
        ...


@runtime_checkable
class Strategy(Distribution, Protocol):
    """The parallelism of a job: the placement of its nodes, the stored layouts of variables, and the layouts in which values are read.

    Layout inference chooses the remaining layouts.
    """

    @property
    def view(self) -> View | None:
        """The view in which the job's body is traced; None for the view of the job's configuration."""
        ...

    @property
    def microbatches(self) -> int | None:
        """The number of microbatches; None for the number of the job's configuration."""
        ...

    @property
    def schedule(self) -> str | None:
        """The name of the pipeline schedule; None without a pipeline."""
        ...

    def placement(self, ranks: Placement) -> Placement:
        """Return the device mesh of the job, built from its ranks."""
        ...
