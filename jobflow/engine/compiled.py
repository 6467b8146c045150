"""A job compiled for one set of argument shapes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from jobflow.compiler.front.trace import RUN_COUNTER
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ShapeError, user_line
from jobflow.engine.data_feed import Fed
from jobflow.graph.training import Watch
from jobflow.program.arguments import check_arguments
from jobflow.program.client import ClientProgram
from jobflow.runtime.world.world import World
from jobflow.typing.results import HostResult, Results
from jobflow.typing.signature import Bound


@dataclass(frozen=True)
class Compiled(ClientProgram):
    """A compiled job: its program, its results, and the state that it depends on in addition to argument shapes."""

    results: Results
    #: the callbacks for the outputs that follow `results`
    watches: tuple[Watch, ...]
    #: `tensors` and `modes` of its tracer
    tensors: Mapping[str, Any]
    modes: Mapping[int, Callable[[], Any]]
    #: the feed of arguments that are read from files
    fed: Fed | None
    #: the reason why the program cannot run, or ""
    refused: str

    @property
    def programs_per_call(self) -> int:
        """Return the largest number of programs that a call uses."""
        return 1

    def read(self, run: int, bound: Sequence[Bound], phase: str | None = None) -> tuple[list[Bound], dict[str, Any]]:
        """Read the arguments that come from files, and the results of the host pipeline, for run number `run`.

        `bound` are the caller's arguments; `phase` has the meaning of `DataFeed.arrays`.  Raises the errors of `check`.
        """
        if self.fed is None:
            return [], {}
        extra, host_results = self.fed.bound(run, bound, phase)
        self.check(extra)
        return extra, host_results

    def start_run(
        self, world: World, arguments: Mapping[str, Any], here: Collection[int] | None, host_results: Mapping[str, Any]
    ) -> Callable[[], list[Any]]:
        """Run once; return a function that returns the merged results.

        Calls that return a future or a function do not wait for a GPU, unless callbacks of `watch` receive values.
        """
        if self.results.mode in ("callback", "future") and not self.watches:
            values = self.start(world, arguments, here)
            return lambda: self.with_host_results(values(), host_results)
        results = self.with_host_results(self.run(world, arguments, here), host_results)
        return lambda: results

    def with_host_results(self, values: Sequence[Any], host_results: Mapping[str, Any]) -> list[Any]:
        """Merge the values of a run with the results of the host pipeline, in the order of `results`; watched values follow."""
        rest = iter(values)
        results = [leaf.take(host_results[leaf.name]) if isinstance(leaf, HostResult) else next(rest) for leaf in self.results.leaves]
        return [*results, *rest]

    def check(self, bound: Sequence[Bound]) -> None:
        """Raise ShapeError if the arguments are too large for the program; raise the error of `check_arguments` for a value outside its bounds."""
        if self.refused:
            raise ShapeError(f"{self.name}(...) at {user_line()}: {self.refused}")
        if self.bounds:
            check_arguments(self.name, self.bounds, {name: value for name, _, value in bound})

    def arguments(self, bound: Sequence[Bound], run: int) -> dict[str, Any]:
        """Return the arguments of run number `run` by name, including the run counter."""
        return {name: value for name, _, value in bound} | {RUN_COUNTER: np.array([run])}

    def close(self) -> None:
        """Stop reading data for later runs."""
        if self.fed is not None:
            self.fed.feed.close()

    def show_watched(self, values: Sequence[Any]) -> None:
        """Pass watched tensors to their callbacks."""
        for watch, value in zip(self.watches, values, strict=True):
            try:
                watch.take(value)
            except Exception as error:
                error.add_note(f"while job {self.name} ({self.where}) passed {watch.value.name} to the callback of watch at {watch.where}")
                raise
