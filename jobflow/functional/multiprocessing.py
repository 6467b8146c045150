"""The namespace `flow.multiprocessing`: Python's multiprocessing, and `spawn`, which starts the processes of a program as ranks.

A process that `spawn` starts is a rank from `import jobflow` on, so that `distributed.init_process_group` finds the other ranks.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import *
from multiprocessing import get_context
from typing import Any

from jobflow.core.errors import ArgumentError, RankError, user_line
from jobflow.runtime.world import environment

#: PyTorch's strategies to share tensors between processes
_STRATEGIES = {"file_descriptor", "file_system"}


class ProcessContext:
    """The processes that `spawn` started."""

    def __init__(self, processes: Sequence[Any]) -> None:
        self.processes = list(processes)

    def pids(self) -> list[int]:
        """Return the process ids."""
        return [process.pid for process in self.processes]

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Wait until all processes have ended, or one has failed; return True if all have ended.

        After a failure, the others are terminated.  Raises: RankError for a failed process.
        """
        from multiprocessing import connection  # needed only here

        left = {process.sentinel: process for process in self.processes}
        while left:
            ended = connection.wait(list(left), timeout)
            if not ended:
                return False
            for sentinel in ended:
                process = left.pop(sentinel)
                process.join()
                if process.exitcode:
                    self._end(left.values())
                    number = self.processes.index(process)
                    raise RankError(number, f"multiprocessing.spawn at {user_line()}: the process ended with exit code {process.exitcode}")
        return True

    def _end(self, others: Any) -> None:
        for process in others:
            process.join(5)  # ranks end by themselves after the failure of another one
            if process.is_alive():
                process.terminate()
                process.join()


def spawn(
    fn: Callable[..., Any], args: Sequence[Any] = (), nprocs: int = 1, join: bool = True, daemon: bool = False, start_method: str = "spawn"
) -> ProcessContext | None:
    """Run fn(rank, *args) in `nprocs` new processes, which are the ranks of one program; wait for their end unless `join` is False.

    MASTER_ADDR and MASTER_PORT default to this machine and a free port.
    Raises: ArgumentError for another start method; RankError for a process that fails.
    """
    what = f"multiprocessing.spawn at {user_line()}"
    if not callable(fn):
        raise ArgumentError(f"{what}: fn must be a function; got {fn!r}")
    if isinstance(nprocs, bool) or not isinstance(nprocs, int) or nprocs < 1:
        raise ArgumentError(f"{what}: nprocs must be an integer of at least 1; got {nprocs!r}")
    if start_method != "spawn":
        raise ArgumentError(f"{what}: start_method must be 'spawn', because a rank must not fork; got {start_method!r}")
    if not isinstance(args, tuple | list):
        raise ArgumentError(f"{what}: args must be a tuple; got {args!r}")
    context = get_context("spawn")
    processes = []
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": _free_port()} if nprocs > 1 else {}
    for rank in range(nprocs):
        process = context.Process(target=_run, args=(fn, rank, tuple(args)), daemon=daemon)
        with _environment(rank, nprocs, address):
            process.start()
        processes.append(process)
    started = ProcessContext(processes)
    if not join:
        return started
    started.join()
    return None


def _run(fn: Callable[..., Any], rank: int, args: tuple[Any, ...]) -> None:
    fn(rank, *args)


def _free_port() -> str:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return str(sock.getsockname()[1])


@contextmanager
def _environment(rank: int, size: int, address: dict[str, str]) -> Iterator[None]:
    """Set the environment variables of rank `rank` inside a `with` block; a new process inherits them."""
    before = dict(os.environ)
    mine = environment.inherited(before) | address
    if size > 1:
        mine |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank)}
        mine |= {name: before[name] for name in ("MASTER_ADDR", "MASTER_PORT") if before.get(name)}
    _replace(mine)
    try:
        yield
    finally:
        _replace(before)


def _replace(variables: dict[str, str]) -> None:
    for name in set(os.environ) - set(variables):
        del os.environ[name]
    os.environ.update(variables)


def get_all_sharing_strategies() -> set[str]:
    """Return the names of PyTorch's strategies to share tensors between processes."""
    return set(_STRATEGIES)


def get_sharing_strategy() -> str:
    """Return "file_system"; tensors are copied between processes."""
    return "file_system"


def set_sharing_strategy(new_strategy: str) -> None:
    """Do nothing; tensors are copied between processes.  Raises: ArgumentError for an unknown strategy."""
    if new_strategy not in _STRATEGIES:
        raise ArgumentError(
            f"multiprocessing.set_sharing_strategy at {user_line()}: new_strategy must be one of {sorted(_STRATEGIES)}; got {new_strategy!r}"
        )
