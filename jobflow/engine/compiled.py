"""A job compiled for one set of argument shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jobflow.compiler.front.trace import RUN_COUNTER
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ShapeError, user_line
from jobflow.engine.data_feed import Fed
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
    #: the feed of arguments that no caller passes
    fed: Fed | None
    #: the reason why it cannot run
    refused: str

    @property
    def programs_per_call(self) -> int:
        """Return the largest number of programs that a call uses."""
        return 1

    def read(self, run: int, bound: Sequence[Bound], phase: str | None = None) -> tuple[list[Bound], dict[str, Any]]:
        """Read the arguments that no caller passes, and the results that no tensor of the job holds; `phase` as in `DataFeed.arrays`."""
        if self.fed is None:
            return [], {}
        extra, host_results = self.fed.bound(run, bound, phase)
        self.check(extra)
        return extra, host_results

    def with_host_results(self, values: Sequence[Any], host_results: Mapping[str, Any]) -> list[Any]:
        """Return all results and watched values, from those that are tensors of the job and the others."""
        rest = iter(values)
        results = [leaf.take(host_results[leaf.name]) if isinstance(leaf, HostResult) else next(rest) for leaf in self.results.leaves]
        return [*results, *rest]

    def check(self, bound: Sequence[Bound]) -> None:
        """Raise an error if an argument holds a value that its reader does not accept."""
        if self.refused:
            raise ShapeError(f"{self.name}(...) at {user_line()}: {self.refused}")
        if self.bounds:
            check_arguments(self.name, self.bounds, {name: value for name, _, value in bound})

    def arguments(self, bound: Sequence[Bound], run: int) -> dict[str, Any]:
        """Return the arguments of run number `run` by name."""
        return {name: value for name, _, value in bound} | {RUN_COUNTER: np.array([run])}

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
