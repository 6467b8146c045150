"""The process that owns a lock or an unfinished checkpoint, as recorded in files, and a test that it still runs."""

from __future__ import annotations

import hashlib
import os
import socket
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from jobflow.core.dataclass import dataclass
from jobflow.runtime.world.service.members import node_name
from jobflow.storage.untrusted import whole

#: the namespace of process ids outside of containers
INITIAL_SPACE = "pid:[4026531836]"
#: the file with the identifier of the installed system
MACHINE_ID = Path("/etc/machine-id")


@dataclass(frozen=True)
class Owner:
    """A process on a machine.

    Process numbers are reused, so `start` is its start time in clock ticks since boot ("0": unknown). `space` identifies the
    boot of the machine and the container, in which process numbers are unique.
    """

    host: str
    pid: int
    start: str
    space: str = ""

    @classmethod
    def here(cls) -> Owner:
        """Return the owner for the calling process."""
        return cls(host(), os.getpid(), start_of(os.getpid()), node_name())

    @classmethod
    def of(cls, tree: Any) -> Owner:
        """Read an owner from a JSON tree; raise ValueError, KeyError or TypeError if a field is missing or invalid."""
        return cls(str(tree["host"]), whole(tree["pid"]), str(tree["start"]), str(tree["space"]))

    @property
    def is_alive(self) -> bool | None:
        """True if the process runs; None if this cannot be determined from this machine or container."""
        if self.space != node_name() or self.host != host():
            return None
        return is_alive(self.pid, self.start)


def is_alive(pid: int, start: str | None) -> bool:
    """Return True if a process of this machine with this start time runs; `start=None` accepts any start time."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    state, *_, began = _status(pid)
    return state not in ("Z", "X") and start in (None, began)


def start_of(pid: int) -> str:
    """Return the start time of a process in clock ticks since boot; "0" if unknown."""
    return _status(pid)[-1]


def _status(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state of a process to its start time; ["?", "0"] if the file cannot be read."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[:20]
    except OSError:
        return ["?", "0"]


@cache
def machine() -> str:
    """Return a name of this machine and container in which process ids are unique, for file names.

    Several machines or containers that share a directory may have one host name.
    """
    space = ""
    with suppress(OSError):
        space = os.readlink("/proc/self/ns/pid")
    identity = ""
    if space in ("", INITIAL_SPACE):  # stays the same when the machine is started again
        with suppress(OSError):
            identity = MACHINE_ID.read_text(encoding="ascii", errors="replace").strip()
    return f"{host()}-{hashlib.blake2b((identity or node_name()).encode(), digest_size=4).hexdigest()}"


def file_time(folder: Path) -> float:
    """Return the current time of a file system, which may differ from the clock of this machine."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".time.") as file:
        return os.stat(file.name).st_mtime


@cache
def host() -> str:
    """Return the name of this machine, as used in file names."""
    return socket.gethostname().replace("/", "-") or "localhost"
