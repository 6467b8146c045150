"""PyTorch's process groups: `init_process_group`, `new_group` and queries of groups.

The ranks of a program are those of its launcher: mpiexec, `jobflow launch`, torchrun's variables, or `multiprocessing.spawn`.  A process group
is a set of these ranks.  `init_process_group` compares its arguments with the launcher's, and connects the ranks.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from jobflow.core.errors import ArgumentError, JobError, counted, user_line
from jobflow.functional.devices import checked_device
from jobflow.functional.group_arguments import Backend as Backend
from jobflow.functional.group_arguments import GroupMember as GroupMember
from jobflow.functional.group_arguments import ProcessGroup as ProcessGroup
from jobflow.functional.group_arguments import connected, current_rank, current_size
from jobflow.functional.group_arguments import group as group
from jobflow.functional.group_collectives import Group
from jobflow.functional.switches import checked_bool
from jobflow.runtime.world import environment, rendezvous
from jobflow.tensors.state import state

# -------------------------------------------------------------------- the program


def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: timedelta | None = None,
    world_size: int = -1,
    rank: int = -1,
    store: Any = None,
    group_name: str = "",
    pg_options: Any = None,
    device_id: Any = None,
) -> None:
    """Connect the ranks of the program.

    The launcher determines the ranks and their addresses.  `world_size` and `rank` are only compared with the launcher's, and other arguments have
    no effect.
    Raises: JobError for a second call, and for a number of ranks or a rank that is not the launcher's; ArgumentError for other values.
    """
    what = f"distributed.init_process_group at {user_line()}"
    name = Backend("mpi" if backend is None else backend)
    _check_arguments(what, init_method, timeout, world_size, rank)
    checked_device("distributed.init_process_group", device_id)
    size = environment.world_size() if environment.launched() is not None else current_size()
    if world_size not in (-1, size):
        raise JobError(
            f"{what}: world_size is {world_size}, but the program has {counted(size, 'rank')}; start {world_size} processes: "
            f"jobflow launch --nproc_per_node {world_size} script.py"
        )
    here = state()
    if rank not in (-1, here.rank.index):
        raise JobError(f"{what}: rank is {rank}, but the launcher started this process as rank {here.rank.index}; omit rank")
    if here.process_group is not None:
        raise JobError(f"{what}: the process group is initialized already; call destroy_process_group() first")
    Group("distributed.init_process_group").barrier()
    here.process_group = name


def _check_arguments(what: str, init_method: Any, timeout: Any, world_size: Any, rank: Any) -> None:
    methods = ("env://", "tcp://", "file://")
    if init_method is not None and not (isinstance(init_method, str) and init_method.startswith(methods)):
        raise ArgumentError(f"{what}: init_method must start with {', '.join(methods)}; got {init_method!r}")
    if timeout is not None and not isinstance(timeout, timedelta):
        raise ArgumentError(f"{what}: timeout must be a datetime.timedelta; got {timeout!r}")
    for name, value in (("world_size", world_size), ("rank", rank)):
        if isinstance(value, bool) or not isinstance(value, int) or value < -1:
            raise ArgumentError(f"{what}: {name} must be an integer of at least 0, or -1; got {value!r}")


def destroy_process_group(group: Any = None) -> None:
    """End the use of a group, by default of all groups; the ranks remain connected."""
    here = connected()
    if here is not None and (group is None or group is GroupMember.WORLD):
        here.process_group = None


def is_available() -> bool:
    """Return True."""
    return True


def is_initialized() -> bool:
    """Return True after `init_process_group`."""
    here = connected()
    return here is not None and here.process_group is not None


def is_torchelastic_launched() -> bool:
    """Return True if torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def is_nccl_available() -> bool:
    """Return True: the name "nccl" selects jobflow's communication."""
    return True


def is_gloo_available() -> bool:
    """Return True: the name "gloo" selects jobflow's communication."""
    return True


def is_mpi_available() -> bool:
    """Return True: the name "mpi" selects jobflow's communication."""
    return True


# -------------------------------------------------------------------- groups


def new_group(
    ranks: Iterable[int] | None = None,
    timeout: Any = None,
    backend: str | None = None,
    pg_options: Any = None,
    use_local_synchronization: bool = False,
    group_desc: Any = None,
    device_id: Any = None,
    sort_ranks: bool = True,
) -> Any:
    """Return the group of `ranks`, or GroupMember.NON_GROUP_MEMBER on other ranks.

    All ranks of the program must call this function, or with `use_local_synchronization` the ranks of the group.
    Raises: ArgumentError for ranks that do not exist, are equal or are not in ascending order without `sort_ranks`.
    """
    for argument, value in (("use_local_synchronization", use_local_synchronization), ("sort_ranks", sort_ranks)):
        checked_bool("distributed.new_group", argument, value)
    every = Group("distributed.new_group")
    chosen = every.ranks if ranks is None else tuple(every.rank(rank) for rank in _listed(ranks))
    ordered = tuple(sorted(set(chosen)))
    if len(ordered) != len(chosen) or not chosen or (not sort_ranks and ordered != chosen):
        raise ArgumentError(f"distributed.new_group at {user_line()}: ranks must be different numbers in ascending order; got {list(chosen)}")
    name = None if backend is None else Backend(backend)
    member = every.me in ordered
    if not use_local_synchronization or member:
        meeting = Group("distributed.new_group", ordered) if use_local_synchronization else every
        text = f"distributed.new_group({list(ordered)})"
        with meeting.meet(text, zlib.crc32(text.encode())):
            pass
    return ProcessGroup(ordered, name) if member else GroupMember.NON_GROUP_MEMBER


def _listed(ranks: Any) -> list[Any]:
    if isinstance(ranks, str) or not isinstance(ranks, Iterable):
        raise ArgumentError(f"distributed.new_group at {user_line()}: ranks must be a list of integers; got {ranks!r}")
    return list(ranks)


def get_rank(group: Any = None) -> int:
    """Return the rank of this process, or its position in `group`; -1 if it is not in the group."""
    if group is GroupMember.NON_GROUP_MEMBER:
        return -1
    return current_rank() if group is None else _members("get_rank", group).rank()


def get_world_size(group: Any = None) -> int:
    """Return the number of ranks of the program, or of `group`; -1 if this rank is not in the group."""
    if group is GroupMember.NON_GROUP_MEMBER:
        return -1
    return current_size() if group is None else _members("get_world_size", group).size()


def get_backend(group: Any = None) -> str:
    """Return the name of the backend that `init_process_group` or `new_group` received; "undefined" before."""
    return (GroupMember.WORLD if group is None else _members("get_backend", group)).name()


def get_process_group_ranks(group: Any) -> list[int]:
    """Return the ranks of the program in the group."""
    return list((GroupMember.WORLD if group is None else _members("get_process_group_ranks", group)).ranks)


def get_group_rank(group: Any, global_rank: int) -> int:
    """Return the position of a rank of the program in the group.  Raises: ArgumentError for a rank that is not in the group."""
    ranks = _members("get_group_rank", group).ranks
    return ranks.index(Group("distributed.get_group_rank", ranks).rank(global_rank))


def get_global_rank(group: Any, group_rank: int) -> int:
    """Return the rank of the program at a position in the group.  Raises: ArgumentError for another position."""
    ranks = _members("get_global_rank", group).ranks
    return ranks[Group("distributed.get_global_rank", range(len(ranks))).rank(group_rank, "group_rank")]


def _members(what: str, argument: Any) -> ProcessGroup:
    if not isinstance(argument, ProcessGroup):
        raise ArgumentError(f"distributed.{what} at {user_line()}: group must be a result of new_group, or None for all ranks; got {argument!r}")
    return argument


def get_node_local_rank(fallback_rank: int | None = None) -> int:
    """Return the number of this process on its machine; `fallback_rank` if no launcher states it."""
    if fallback_rank is not None and environment.local_rank_from_launcher() is None:
        return fallback_rank
    return rendezvous.local_rank()


def get_local_rank() -> int:
    """Return the number of this process on its machine, from 0."""
    return rendezvous.local_rank()


def get_node_size() -> int:
    """Return the number of machines of the program."""
    return rendezvous.node_size()
