"""The interface of a world: its ranks, and the commands of the client to them.

The client passes a command to a world, and every rank executes it: `command(rank, argument)`.  The world does not depend on the meaning of
commands, or on the contents of `rank.memory`.

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
from jobflow.runtime.world.node_map import NodeMap


@dataclass(eq=False)
class Rank:
    """One rank of a world, which is passed to commands."""

    index: int
    size: int
    device: Device
    comm: Communicator
    #: in multi-client mode: raises DivergedError on all ranks unless all of them call the same command
    compare: Callable[[Command], None] | None = None
    #: data of upper floors between commands, such as states and executors; cleared when the world closes
    memory: dict[str, Any] = field(default_factory=dict)
    #: id of the process that created the rank
    pid: int = field(default_factory=os.getpid)
    #: the communicator of tensors on GPUs, which uses `comm` for everything else; None before the first graph that needs it
    gpu_comm: Communicator | None = None

    @property
    def host_comm(self) -> Communicator:
        """The communicator of arrays in the memory of the host, also in a session on GPUs."""
        return self.comm.host

    @property
    def outermost(self) -> Communicator:
        """The communicator whose close, abort and reset also apply to `comm`."""
        return self.comm if self.gpu_comm is None else self.gpu_comm

    def check_process(self) -> None:
        """Raise JobError in a forked child; see `environment.check_process`."""
        if self.size > 1:
            check_process(self.pid)


#: Picklable: a module-level function, or a dataclass instance with `__call__`.
Command: TypeAlias = Callable[[Rank, Any], Any]


class World(Protocol):
    """All ranks, from the client's side."""

    #: number of ranks
    size: int
    #: the ranks of this process
    ranks: Sequence[Rank]
    #: the kind of device of each rank, "cpu" or "gpu"
    tags: Sequence[str]
    #: True if every process calls jobs itself, with its own arguments
    multi: bool
    map: NodeMap

    @property
    def unwinding(self) -> bool:
        """True while an exception propagates through one of several clients; other ranks may not have raised it, and may run other operations."""

    def call(self, command: Command, arguments: Sequence[Any] | None = None) -> list[Any]:
        """Call `command(rank, arguments[rank.index])` on every rank, with None for absent arguments; return the results in rank order.

        If ranks fail, raise the first failure: a JobflowError unchanged, with a note that names the rank, any other error as RankError.
        Solo and threads worlds remain usable afterwards; under MPI the job ends.
        """

    def broadcast(self, item: Any, what: str) -> Any:
        """Return the item of the first client on every client; without several clients, return `item`.

        The first client does not wait for the others, and they do not compare the call: all clients must call this in the same order.
        """

    def close(self) -> None:
        """End the ranks and free their memory; while `unwinding`, keep ranks and memory.  A closed world cannot be called."""


def each_argument(size: int, arguments: Sequence[Any] | None) -> Sequence[Any]:
    """Return `arguments`, one per rank, or `size` times None if it is None; raise ArgumentError for another number of arguments."""
    if arguments is None:
        return (None,) * size
    if len(arguments) != size:
        raise ArgumentError(f"a command for {size} ranks needs one argument per rank; got {len(arguments)}")
    return arguments


def failure(rank: int, size: int, error: BaseException) -> BaseException:
    """Return the exception that the client raises for `error` of `rank`."""
    if not isinstance(error, Exception):
        return error  # KeyboardInterrupt and SystemExit are not failures of a rank
    if isinstance(error, JobflowError):
        if size > 1:
            error.add_note(f"raised on rank {rank} of {size}")
        return error
    wrapped = RankError(rank, f"{type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped
