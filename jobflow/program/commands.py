"""Commands from the client to the ranks, which can be pickled."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

from jobflow.core.cache_folder import choose_cache_folder
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import JobflowError
from jobflow.core.layout import Layout
from jobflow.core.types import Array
from jobflow.graph.wire import Wire, physical_from_wire
from jobflow.kernels.target import CPU, Target
from jobflow.plan.traffic import Traffic
from jobflow.program.program import ALONE, Program, StorageChoice, state_of
from jobflow.program.shared_buffers import ClientBuffers
from jobflow.runtime.executor import Executor
from jobflow.runtime.world.world import Rank


def executors_of(rank: Rank) -> dict[int, Executor]:
    """Return the executors of the rank's programs by number."""
    return rank.memory.setdefault("executors", {})


def client_buffers_of(rank: Rank) -> dict[int, ClientBuffers]:
    """Return the shared I/O buffers of the rank's programs by number; programs without such buffers are absent."""
    return rank.memory.setdefault("client_buffers", {})


@dataclass(frozen=True)
class Bind:
    """The command that binds a program; later commands refer to the program by `number`.

    Raises: PlanError if the plans of the ranks do not match.
    """

    number: int
    storage: StorageChoice = ALONE
    target: Target = CPU
    #: the folder for compiled loops, if the user has set one
    cache_folder: str | None = None

    def __call__(self, rank: Rank, table: Wire) -> None:
        choose_cache_folder(self.cache_folder)
        bound = Program(physical_from_wire(table), self.storage, self.target).bind(rank)
        executors_of(rank)[self.number] = bound.executor
        if bound.buffers is not None:
            client_buffers_of(rank)[self.number] = bound.buffers
        elif rank.compare is not None:
            bound.executor.begin = partial(rank.compare, Run(self.number, bound.plan.job))


@dataclass(frozen=True)
class Unbind:
    """The command that releases a program, if it is bound, and the listed variables."""

    number: int
    variables: tuple[str, ...] = ()

    def __call__(self, rank: Rank, _: Any) -> None:
        executors_of(rank).pop(self.number, None)
        client_buffers_of(rank).pop(self.number, None)
        state_of(rank).forget(self.variables)


@dataclass(frozen=True)
class Run:
    """The command that runs a program once, with the rank's parts of the arguments, and returns the rank's parts of the outputs.

    If the arguments are None, arguments and outputs are in the shared I/O buffers.  An error that all ranks raise together is returned, see
    `ClientProgram.run_on_ranks`.
    """

    number: int
    job: str = ""
    #: False for a rank in the thread of the client: return the function of `Executor.start` instead, which waits for the outputs
    waits: bool = True
    #: ranks compare the command inside the run, so that the run includes the time of the comparison
    compares: ClassVar[bool] = True

    def __str__(self) -> str:
        return f"a call of job {self.job}"

    def __call__(self, rank: Rank, feeds: Mapping[str, Array] | None) -> Any:
        try:
            executor = executors_of(rank)[self.number]
            return executor.run(feeds) if self.waits or feeds is None else executor.start(feeds)
        except JobflowError as error:
            if not error.everywhere:
                raise
            return error


@dataclass(frozen=True)
class ReadVariables:
    """The command that returns the rank's parts of variables, by name.

    Without `copies`, a variable that is whole on every rank is sent only by the first rank of its placement.
    """

    names: tuple[str, ...]
    copies: bool = False

    def __call__(self, rank: Rank, _: Any) -> dict[str, Array]:
        state = state_of(rank)
        sends = {name: self.copies or _sends(state.variables[name].layout, rank) for name in self.names if name in state.slots}
        return {name: state.read(name) for name, send in sends.items() if send}


@dataclass(frozen=True)
class WriteVariables:
    """The command that overwrites the rank's parts of variables."""

    def __call__(self, rank: Rank, values: Mapping[str, Array]) -> None:
        state = state_of(rank)
        for name, value in values.items():
            state.write(name, value)


@dataclass(frozen=True)
class Initialize:
    """The command that resets variables to their initial values."""

    names: tuple[str, ...]

    def __call__(self, rank: Rank, _: Any) -> None:
        state = state_of(rank)
        state.initialize([name for name in self.names if name in state.slots])


def _sends(layout: Layout, rank: Rank) -> bool:
    return not layout.is_whole or layout.placement.ranks[0] == rank.index


@dataclass(frozen=True)
class ExchangeItems:
    """The command that returns one item per rank, so that clients can compare them."""

    item: Any
    about: str = "items of the clients"

    def __str__(self) -> str:
        return f"a comparison of {self.about}"

    def __call__(self, rank: Rank, _: Any) -> Any:
        return self.item


@dataclass(frozen=True)
class Sent:
    """The command that returns the number of communications and bytes that the rank has sent since its world began, by kind."""

    def __call__(self, rank: Rank, _: Any) -> dict[str, Traffic]:
        return rank.comm.sent()


@dataclass(frozen=True)
class Barrier:
    """The command that waits until every rank executes it."""

    def __call__(self, rank: Rank, _: Any) -> None:
        return None
