"""Commands that the client sends to the ranks; picklable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from jobflow.core.cache_folder import choose_cache_folder
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import JobflowError
from jobflow.core.layout import Layout
from jobflow.core.types import Array
from jobflow.engine.binding import ALONE, Loaded, StorageChoice, state_of
from jobflow.engine.shared_buffers import Opening
from jobflow.graph.wire import Wire, physical_from_wire
from jobflow.kernels.target import CPU, Target
from jobflow.plan.traffic import Traffic
from jobflow.runtime.executor import Executor
from jobflow.runtime.world.world import Rank, World


def executors_of(rank: Rank) -> dict[int, Executor]:
    return rank.memory.setdefault("executors", {})


def openings_of(rank: Rank) -> dict[int, Opening]:
    """The shared I/O buffers of jobs that have them."""
    return rank.memory.setdefault("openings", {})


@dataclass(frozen=True)
class Bind:
    """Bring a job's program onto its ranks; `number` is what later commands call it.  PlanError if the ranks' plans do not fit together."""

    number: int
    storage: StorageChoice = ALONE
    target: Target = CPU
    #: where the rank keeps compiled loops, if the program said
    cache_folder: str | None = None

    def __call__(self, rank: Rank, table: Wire) -> None:
        choose_cache_folder(self.cache_folder)
        ready = Loaded(physical_from_wire(table), self.storage, self.target).bind(rank)
        executors_of(rank)[self.number] = ready.executor
        if ready.opening is not None:
            openings_of(rank)[self.number] = ready.opening
        elif rank.compare is not None:
            ready.executor.begin = partial(rank.compare, Run(self.number, ready.plan.job))


@dataclass(frozen=True)
class Unbind:
    """Forget a job's plan and its memory, as far as there are any, and these variables."""

    number: int
    variables: tuple[str, ...] = ()

    def __call__(self, rank: Rank, _: Any) -> None:
        executors_of(rank).pop(self.number, None)
        openings_of(rank).pop(self.number, None)
        state_of(rank).forget(self.variables)


@dataclass(frozen=True)
class Run:
    """One step: the rank's parts of the arguments in, of the outputs out; through the shared I/O buffers if no arguments are given.

    What the ranks refuse together is an answer too, see `performed`.
    """

    number: int
    job: str = ""
    #: ranks compare it in the run, so that the time this takes is the run's
    compares: ClassVar[bool] = True

    def __str__(self) -> str:
        return f"a call of job {self.job}"

    def __call__(self, rank: Rank, feeds: Mapping[str, Array] | None) -> list[tuple[int, Array]] | JobflowError:
        try:
            return executors_of(rank)[self.number].run(feeds)
        except JobflowError as error:
            if not error.everywhere:
                raise
            return error


def performed(world: World, run: Run, feeds: Sequence[Mapping[str, Array]] | None = None) -> list[list[tuple[int, Array]]]:
    """The ranks' parts of the outputs of one step.  What they refused is raised; nothing has changed then."""
    answers = world.call(run, feeds)
    if isinstance(answers[0], JobflowError):
        raise answers[0]
    return answers


@dataclass(frozen=True)
class ReadVariables:
    """The rank's parts of variables, by name; of what every rank holds whole, only the first sends it."""

    names: tuple[str, ...]

    def __call__(self, rank: Rank, _: Any) -> dict[str, Array]:
        state = state_of(rank)
        return {name: state.read(name) for name in self.names if name in state.slots and _gives(state.variables[name].layout, rank)}


@dataclass(frozen=True)
class WriteVariables:
    """Overwrite the rank's parts of variables."""

    def __call__(self, rank: Rank, values: Mapping[str, Array]) -> None:
        state = state_of(rank)
        for name, value in values.items():
            state.write(name, value)


@dataclass(frozen=True)
class Initialize:
    """Give variables their first values again."""

    names: tuple[str, ...]

    def __call__(self, rank: Rank, _: Any) -> None:
        state = state_of(rank)
        state.initialize([name for name in self.names if name in state.slots])


def _gives(layout: Layout, rank: Rank) -> bool:
    return not layout.is_whole or layout.placement.ranks[0] == rank.index


@dataclass(frozen=True)
class Tell:
    """Every rank's own item, so that clients can compare."""

    item: Any
    about: str = "what the clients have"

    def __str__(self) -> str:
        return f"a comparison of {self.about}"

    def __call__(self, rank: Rank, _: Any) -> Any:
        return self.item


@dataclass(frozen=True)
class Sent:
    """What the rank has handed to others since its world began, by kind of communication."""

    def __call__(self, rank: Rank, _: Any) -> dict[str, Traffic]:
        return rank.comm.sent()


@dataclass(frozen=True)
class Meet:
    """Do nothing, together."""

    def __call__(self, rank: Rank, _: Any) -> None:
        return None
