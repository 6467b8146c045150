"""The ranks of a job, and their processes.

A rank describes itself by {"rank": .., "size": .., "pid": .., "node": .., "host": .., "memory": .., "screen": ..}.  `rank` is its number and `size`
its number of ranks.  `pid` is its process id in the namespace `node`, and `host` the name of the machine.  `memory` is the file system of its shared
memory, and `screen` the terminal with its output.

Ranks are on one node, and share memory, if `node`, `host`, `memory` and the address of their connections are equal.  Each of these alone may be
equal on two nodes.  Containers may have one host name, and copies of a virtual machine one boot.

The process of a rank is monitored and ended through a pidfd, which is opened when the rank joins.  The process must belong
to this user and hold the other end of the connection over which the rank reports its number.  Signals are never sent to a bare process id.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from .messages import Connection, fields, name, within

_ABOUT = {"rank": int, "size": int, "pid": int, "node": str, "host": str, "memory": str, "screen": str}
#: the file system of shared memory
MEMORY = "/dev/shm"
#: maximum number of ranks of a job, and maximum process id
MOST, PIDS = 1 << 20, 1 << 31


@dataclass(frozen=True)
class About:
    """The description that a rank sends.  `second` is True for a second process with RANK=0, which requests the identity of the first."""

    rank: int
    size: int
    pid: int
    node: str
    host: str
    memory: str
    screen: str
    second: bool = False

    @classmethod
    def read(cls, text: str) -> About:
        """Parse a description; raise ValueError if a field is invalid."""
        values: dict[str, Any] = fields(text, _ABOUT, {"second": bool})
        within(values["size"], 1, MOST)
        within(values["rank"], 0, MOST)
        within(values["pid"], 1, PIDS)
        for key in ("node", "host", "memory", "screen"):
            name(values[key])
        return cls(**values)


@dataclass(eq=False)
class Member:
    """A rank that has joined."""

    about: About
    line: Connection
    #: the ticket of its MPI library; 0 after its use
    ticket: int = 0
    #: the pidfd of its process
    watch: int | None = None
    pmi: Connection | None = None
    needs: bool = False
    left: bool = False
    #: True if its process or connection has ended
    gone: bool = False
    finalized: bool = False
    #: the address of the machine, as the service sees it
    address: str = ""

    @property
    def location(self) -> tuple[str, ...]:
        """The node of the rank: ranks with equal locations share memory."""
        return (self.about.node, self.about.host, self.about.memory, self.address)

    @property
    def rank(self) -> int:
        return self.about.rank

    def __str__(self) -> str:
        return f"pid {self.about.pid} on {self.about.host}"

    def signal(self, number: int) -> None:
        """Send a signal to the process of the rank, if the process is monitored."""
        if self.watch is not None and not self.gone:
            with suppress(OSError):  # the process has ended meanwhile
                signal.pidfd_send_signal(self.watch, number)


def node_name() -> str:
    """Return an identifier of the namespace of process ids: the machine's boot and process namespace, or its host name if these are unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as boot:
            return f"{boot.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def memory_name() -> str:
    """Return an identifier of the file system of shared memory; "" without one."""
    try:
        status = os.stat(MEMORY)
    except OSError:
        return ""
    return f"{status.st_dev} {status.st_ino}"


def watch(sock: socket.socket, pid: int) -> int | None:
    """Return a pidfd of process `pid`, after a check that the process holds the other end of the connection.

    Return None if the process has ended, if the system has no pidfds, or if the holder cannot be determined.

    Raises: ValueError if another process, or a process of another user, holds the other end.
    """
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return None  # the process has ended, so its connection closes
    try:
        is_holder = holds(sock, pid)
    except ValueError:
        os.close(process)
        raise
    if not is_holder:
        os.close(process)
        return None
    return process


def holds(sock: socket.socket, pid: int) -> bool:
    """Return True if process `pid` holds the other end of the connection, and False if that cannot be determined.

    Raises: ValueError if another process, or a process of another user, holds the other end.
    """
    entry = other_end(sock)
    if entry is None:
        return False
    owner, inode = entry
    if owner != os.getuid():
        raise ValueError(f"user {owner} holds this connection, not user {os.getuid()} of the service")
    held = f"socket:[{inode}]"
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False
    for number in descriptors:
        with suppress(OSError):
            if os.readlink(f"/proc/{pid}/fd/{number}") == held:
                return True
    raise ValueError(f"process {pid} does not hold this connection")


def other_end(sock: socket.socket) -> tuple[int, int] | None:
    """Return the user id and the inode of the socket at the other end of a connection.

    Return None if the socket is on another machine, or if the system does not list it.
    """
    try:
        ends = f"{_hex(sock.family, sock.getpeername())} {_hex(sock.family, sock.getsockname())}"
        with open("/proc/self/net/tcp6" if sock.family == socket.AF_INET6 else "/proc/self/net/tcp", encoding="ascii") as table:
            for row in table:
                words = row.split()
                if f"{words[1]} {words[2]}" == ends:
                    return int(words[7]), int(words[9])
    except OSError:
        return None
    return None


def _hex(family: int, address: tuple[Any, ...]) -> str:
    packed = socket.inet_pton(family, address[0].partition("%")[0])
    return f"{''.join(f'{word:08X}' for (word,) in struct.iter_unpack('=I', packed))}:{address[1]:04X}"


def is_own(sock: socket.socket) -> bool:
    """Return True for a connection from a process of this user on this machine.

    If the user cannot be determined, return False on Linux and True on other systems.
    """
    entry = other_end(sock)
    if entry is not None:
        return entry[0] == os.getuid()
    return not sys.platform.startswith("linux")
