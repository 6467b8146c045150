"""The interface of a world: its ranks, and how the client sends them commands.

The client hands a world a command, and every rank performs it: `command(rank, argument)`.  What commands mean, and what the
upper floors keep in `rank.memory`, is not known here.

    SoloWorld       one rank, in the calling thread
    ThreadsWorld    one thread of this process per rank
    MpiWorld        one process per rank
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, Protocol, TypeAlias

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ArgumentError, JobflowError, RankError
from jobflow.runtime.comm.communicator import Communicator
from jobflow.runtime.device.device import Device
from jobflow.runtime.world.environment import check_process


@dataclass(eq=False)
class Rank:
    """One rank, as a command sees it."""

    index: int
    size: int
    device: Device
    comm: Communicator
    #: where several clients call: see that all of them call this; DivergedError on all ranks if they do not
    compare: Callable[[Command], None] | None = None
    #: whatever upper floors keep between commands: states, executors; emptied when the world closes
    memory: dict[str, Any] = field(default_factory=dict)
    #: the process in which it was made
    pid: int = field(default_factory=os.getpid)

    def check_process(self) -> None:
        """See the function."""
        if self.size > 1:
            check_process(self.pid)


#: Picklable: a module-level function, or a dataclass instance with `__call__`.
Command: TypeAlias = Callable[[Rank, Any], Any]


class World(Protocol):
    """All ranks, from the client's side."""

    #: number of ranks
    size: int
    #: those that live in this process
    ranks: Sequence[Rank]
    #: True if every process calls jobs itself, with its own arguments
    multi: bool

    @property
    def parting(self) -> bool:
        """True while an exception passes through one of several clients: others need not have met it, and may be at something else."""

    def call(self, command: Command, arguments: Sequence[Any] | None = None) -> list[Any]:
        """The ranks' results, in rank order, of `command(rank, arguments[rank.index])` (None without arguments).

        If ranks fail, the first failure is raised: a JobflowError as it is, with a note that names the rank, anything else
        as RankError.  Solo and threads stay usable afterwards; under MPI the job ends.
        """

    def close(self) -> None:
        """End the ranks and give their memory back; while `parting`, leave both as they are.  A closed world cannot be called."""


def each_argument(size: int, arguments: Sequence[Any] | None) -> Sequence[Any]:
    """One argument per rank; ArgumentError if there are fewer or more."""
    if arguments is None:
        return (None,) * size
    if len(arguments) != size:
        raise ArgumentError(f"a command for {size} ranks was given {len(arguments)} arguments, one per rank is needed")
    return arguments


def failure(rank: int, size: int, error: BaseException) -> BaseException:
    """What the client raises for `error` of `rank`."""
    if not isinstance(error, Exception):
        return error  # KeyboardInterrupt and SystemExit are not failures of a rank
    if isinstance(error, JobflowError):
        if size > 1:
            error.add_note(f"raised on rank {rank} of {size}")
        return error
    wrapped = RankError(rank, f"{type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped
