"""The process that owns a lock or an unfinished checkpoint, as files name it; and whether it is still running."""

from __future__ import annotations

import os
import socket
from functools import cache
from pathlib import Path
from typing import Any

from jobflow.core.dataclass import dataclass
from jobflow.runtime.world.service.members import node_name
from jobflow.storage.untrusted import whole


@dataclass(frozen=True)
class Owner:
    """A process: numbers of processes are used again, so `start` says when it began, in ticks since the machine did ("0": not known).

    `space` is where its number counts: the start of the machine, and the container.
    """

    host: str
    pid: int
    start: str
    space: str = ""

    @classmethod
    def here(cls) -> Owner:
        """This process."""
        return cls(host(), os.getpid(), start_of(os.getpid()), node_name())

    @classmethod
    def of(cls, tree: Any) -> Owner:
        """What a file of JSON says.  ValueError, KeyError or TypeError if it does not say it."""
        return cls(str(tree["host"]), whole(tree["pid"]), str(tree["start"]), str(tree["space"]))

    @property
    def is_alive(self) -> bool | None:
        """Whether it still runs; None if that cannot be seen from here."""
        if self.space != node_name() or self.host != host():
            return None
        return is_alive(self.pid, self.start)


def is_alive(pid: int, start: str | None) -> bool:
    """Whether a process of this machine runs that began then; `start` None: whenever it began."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    state, *_, began = _status(pid)
    return state not in ("Z", "X") and start in (None, began)


def start_of(pid: int) -> str:
    """When a process began, in ticks since the machine did; "0" where that is not known."""
    return _status(pid)[-1]


def _status(pid: int) -> list[str]:
    """State, then what Linux tells of a process, up to when it began."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[:20]
    except OSError:
        return ["?", "0"]


@cache
def host() -> str:
    """What this machine is called, as part of the name of a file."""
    return socket.gethostname().replace("/", "-") or "localhost"
