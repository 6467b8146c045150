"""Process groups, the argument `group=` of collectives and `process_group=` of modules."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jobflow.core.scope as scope
from jobflow.core.errors import ArgumentError, user_line
from jobflow.functional.group_collectives import Group
from jobflow.runtime.world import environment
from jobflow.tensors.state import state


class Backend(str):
    """The name of a communication library.  Every name selects jobflow's communication: shared memory on one machine, MPI between machines.

    Tensors on GPUs use NCCL if each rank of the group has a GPU of its own.

    Raises: ArgumentError for an unknown name.
    """

    UNDEFINED, GLOO, NCCL, MPI, UCC, XCCL = "undefined", "gloo", "nccl", "mpi", "ucc", "xccl"
    __slots__ = ()

    def __new__(cls, name: str) -> Backend:
        parts = [part.rpartition(":")[2] for part in name.lower().split(",")] if isinstance(name, str) else [None]
        if not set(parts) <= {cls.UNDEFINED, cls.GLOO, cls.NCCL, cls.MPI, cls.UCC, cls.XCCL}:
            raise ArgumentError(f'backend at {user_line()}: the backend must be "nccl", "gloo" or "mpi"; got {name!r}')
        return super().__new__(cls, name.lower())


class ProcessGroup:
    """A set of ranks of the program, by default all ranks; collectives accept it as `group=`."""

    def __init__(self, ranks: Iterable[int] | None = None, backend: Backend | None = None) -> None:
        self._ranks = None if ranks is None else tuple(ranks)
        self._backend = backend

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks of the program in the group."""
        return tuple(range(current_size())) if self._ranks is None else self._ranks

    def size(self) -> int:
        """Return the number of ranks in the group."""
        return len(self.ranks)

    def rank(self) -> int:
        """Return the position of this rank in the group; -1 if this rank is not in the group."""
        return self.ranks.index(current_rank()) if current_rank() in self.ranks else -1

    def name(self) -> str:
        """Return the name of the backend."""
        return str(self._backend or current_backend())

    def __repr__(self) -> str:
        return f"ProcessGroup({list(self.ranks)})"


class group:
    """The group of all ranks, `group.WORLD`."""

    WORLD = ProcessGroup()


class GroupMember:
    """The group of all ranks, and `NON_GROUP_MEMBER`, which `new_group` returns on ranks outside of the new group."""

    WORLD = group.WORLD
    NON_GROUP_MEMBER = object()


def ranks_of(what: str, argument: Any, name: str = "group") -> tuple[int, ...]:
    """Return the ranks of a process group, by default all; () for a group without this rank.  Raises: ArgumentError for another argument."""
    if argument is GroupMember.NON_GROUP_MEMBER:
        return ()
    if argument is not None and not isinstance(argument, ProcessGroup):
        raise ArgumentError(f"{what} at {user_line()}: {name} must be a result of new_group, or None for all ranks; got {argument!r}")
    here = state()
    ranks = tuple(range(here.rank.size)) if argument is None else argument.ranks
    return ranks if here.rank.index in ranks else ()


def group_of(what: str, argument: Any) -> Group | None:
    """Return the ranks of the argument `group` for the collective `what` of `distributed`; None if this rank is not in the group."""
    ranks = ranks_of(f"distributed.{what}", argument)
    return Group(f"distributed.{what}", ranks) if ranks else None


def connected() -> Any:
    """Return the state of this rank if it has connected to the other ranks, otherwise None."""
    return scope.current().root.eager


def current_rank() -> int:
    """Return the number of this rank, without connecting to other ranks."""
    here = connected()
    return environment.rank() if here is None else int(here.rank.index)


def current_size() -> int:
    """Return the number of ranks, without connecting to other ranks."""
    here = connected()
    return environment.world_size() if here is None else int(here.rank.size)


def current_backend() -> Backend:
    """Return the backend of `distributed.init_process_group`; "undefined" before."""
    here = connected()
    return Backend.UNDEFINED if here is None or here.process_group is None else here.process_group  # type: ignore[return-value]
