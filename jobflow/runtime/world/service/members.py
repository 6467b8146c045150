"""The ranks of a job, and their processes.

A rank says of itself {"rank": .., "size": .., "pid": .., "node": .., "host": .., "screen": ..}: its number and how many it takes there to be, its
process and the node on which that number means this process, the name of the machine, and the screen that shows what it prints.

A process is watched, and ended, through a descriptor that was opened when it joined, and that is opened only for the process that holds the
other end of the very connection over which it says its number, and that belongs to this user.  Nothing is ever sent to a bare number.
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

_ABOUT = {"rank": int, "size": int, "pid": int, "node": str, "host": str, "screen": str}
#: ranks that a job may have, and the largest number of a process
MOST, PIDS = 1 << 20, 1 << 31


@dataclass(frozen=True)
class About:
    """What a rank says of itself.  `second`: it finds another with its number, and asks who that is."""

    rank: int
    size: int
    pid: int
    node: str
    host: str
    screen: str
    second: bool = False

    @classmethod
    def read(cls, text: str) -> About:
        """ValueError if anything is not as it must be."""
        found: dict[str, Any] = fields(text, _ABOUT, {"second": bool})
        within(found["size"], 1, MOST)
        within(found["rank"], 0, MOST)
        within(found["pid"], 1, PIDS)
        for key in ("node", "host", "screen"):
            name(found[key])
        return cls(**found)


@dataclass(eq=False)
class Member:
    """A rank that has come."""

    about: About
    line: Connection
    #: what its MPI library shows, once; 0 afterwards
    ticket: int = 0
    #: the descriptor of its process
    watch: int | None = None
    pmi: Connection | None = None
    needs: bool = False
    left: bool = False
    #: its process has ended, or nothing more is heard of it
    gone: bool = False
    finalized: bool = False

    @property
    def rank(self) -> int:
        return self.about.rank

    def __str__(self) -> str:
        return f"pid {self.about.pid} on {self.about.host}"

    def signal(self, number: int) -> None:
        """Send its process a signal, if that is watched."""
        if self.watch is not None and not self.gone:
            with suppress(OSError):  # it has ended meanwhile
                signal.pidfd_send_signal(self.watch, number)


def node_name() -> str:
    """Where a process number means a process: one running system, and one name space of processes in it."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as boot:
            return f"{boot.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def watch(sock: socket.socket, pid: int) -> int | None:
    """A descriptor of the process that holds the other end of a connection, if its number is `pid`; None where that cannot be seen.

    ValueError if it can be seen that the other end is held by another process, or that one belongs to somebody else.
    """
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        found = os.pidfd_open(pid)
    except OSError:
        return None  # it has ended already; then its connection closes
    try:
        seen = holds(sock, pid)
    except ValueError:
        os.close(found)
        raise
    if not seen:
        os.close(found)
        return None
    return found


def holds(sock: socket.socket, pid: int) -> bool:
    """True if process `pid` holds the other end; False where that cannot be seen; ValueError if it does not."""
    entry = other_end(sock)
    if entry is None:
        return False
    owner, inode = entry
    if owner != os.getuid():
        raise ValueError("a process of another user")
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
    """The user and the inode of the socket at the other end, if that is on this machine; None if it is not, or the system does not say."""
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
    """True if a connection comes from a process of this user on this machine; where the system does not say, of anybody on this machine."""
    entry = other_end(sock)
    if entry is not None:
        return entry[0] == os.getuid()
    return not sys.platform.startswith("linux")
