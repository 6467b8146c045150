"""A job compiled for one set of argument shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from jobflow.compiler.front.trace import RUN_COUNTER
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import JobError, ShapeError, user_line
from jobflow.engine.data_feed import Fed, Sized
from jobflow.graph.training import Watch
from jobflow.program.arguments import check_arguments
from jobflow.program.client import ClientProgram
from jobflow.typing.results import HostResult, Results
from jobflow.typing.signature import Bound


@dataclass(frozen=True)
class Compiled(ClientProgram):
    """A job's program, its results and what it depends on besides shapes."""

    results: Results
    #: the callbacks for the outputs that follow those of `results`
    watches: tuple[Watch, ...]
    #: `tensors` and `modes` of its tracer
    tensors: Mapping[str, Any]
    modes: Mapping[int, Callable[[], Any]]
    #: the arguments that nobody passes, if there are any
    fed: Fed | None = None
    #: the reason why it cannot run
    refused: str = ""
    #: by name, the arguments that a run computes before the rest of it, in the order in which it does
    sized: Mapping[str, Sized] = field(default_factory=dict)

    def read(self, run: int, given: Sequence[Bound], after: str | None = None) -> tuple[list[Bound], dict[str, Any]]:
        """The arguments that nobody passes of a run in which these are, and what no tensor of the job holds of its results.

        Of those that are made of what the run computes, see `sized`, the ones that are made once it has computed `after`.
        """
        if self.fed is None:
            return [], {}
        found, beside = self.fed.bound(run, given, after)
        self.check(found)
        return found, beside

    def with_beside(self, values: Sequence[Any], beside: Mapping[str, Any]) -> list[Any]:
        """All results and what is watched, from those that are tensors of the job and the others."""
        rest = iter(values)
        found = [leaf.take(beside[leaf.name]) if isinstance(leaf, HostResult) else next(rest) for leaf in self.results.leaves]
        return [*found, *rest]

    def check(self, bound: Sequence[Bound]) -> None:
        """Raise an error if an argument holds a value that its reader does not accept."""
        if self.refused:
            raise ShapeError(f"{self.name}(...) at {user_line()}: {self.refused}")
        if self.bounds:
            check_arguments(self.name, self.bounds, {name: value for name, _, value in bound})

    def arguments(self, bound: Sequence[Bound], run: int) -> dict[str, Any]:
        """Return the arguments of run number `run` by name."""
        arguments = {name: value for name, _, value in bound} | {RUN_COUNTER: np.array([run])}
        if absent := [name for name in self.sized if name not in arguments]:
            raise JobError(f"job {self.name} ({self.where}): {absent[0]} is computed before the rest of a run, which only a call of the job does")
        return arguments

    def close(self) -> None:
        """Read no further ahead."""
        if self.fed is not None:
            self.fed.feed.close()

    def show_watched(self, values: Sequence[Any]) -> None:
        """Pass watched tensors to their callbacks."""
        for watch, value in zip(self.watches, values, strict=True):
            try:
                watch.take(value)
            except Exception as error:
                error.add_note(f"while job {self.name} ({self.where}) showed {watch.value.name}, which is watched at {watch.where}")
                raise
