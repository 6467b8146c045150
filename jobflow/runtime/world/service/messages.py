"""Messages over a connection: lines of JSON, with limits on length, depth and types."""

from __future__ import annotations

import errno
import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, TypeAlias

#: bytes of a line of an unauthenticated peer, of a line of a rank, and of unread answers
SHORT, LONG, UNREAD = 4096, 1 << 18, 1 << 24
#: characters of the name of a rank, a node or a screen
NAME = 300

#: seconds without an answer after which a connection counts as broken, and the seconds before the first probe and between probes
SILENCE, IDLE, INTERVAL = 25, 10, 5
#: errors of a connection whose peer no longer answers
SILENT = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN)

#: name -> type of each field
Fields: TypeAlias = Mapping[str, type[int] | type[str] | type[bool]]


def record(text: str) -> dict[str, Any]:
    """Return the JSON object in a text; raise ValueError for other texts."""
    try:
        entry = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None
    if not isinstance(entry, dict):
        raise ValueError("not an object")
    return entry


def fields(text: str, needed: Fields, optional: Fields | None = None) -> dict[str, Any]:
    """Return the JSON object in a text; raise ValueError unless it has all `needed` fields, and no other fields than these and `optional`."""
    entry, legal = record(text), {**needed, **(optional or {})}
    if not needed.keys() <= entry.keys() <= legal.keys() or any(type(value) is not legal[name] for name, value in entry.items()):
        raise ValueError("wrong fields")
    return entry


def within(value: int, least: int, most: int) -> int:
    """Return `value`; raise ValueError unless least <= value <= most."""
    if not least <= value <= most:
        raise ValueError(f"the value {value} is not between {least} and {most}")
    return value


def name(text: str) -> str:
    """Return a name for display in one line; raise ValueError if it is too long or not printable."""
    if len(text) > NAME or not text.isprintable():
        raise ValueError("not a name")
    return text


def keep_alive(sock: socket.socket) -> None:
    """Let the system probe a connection, so that the loss of the other machine or of the network raises OSError after SILENCE seconds."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    probes = (SILENCE - IDLE) // INTERVAL
    # bytes in transit are not probed but repeated, for a quarter of an hour without a limit
    options = {"TCP_KEEPIDLE": IDLE, "TCP_KEEPINTVL": INTERVAL, "TCP_KEEPCNT": probes, "TCP_USER_TIMEOUT": 1000 * SILENCE}
    for option, value in options.items():
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


class Connection:
    """A connection with its buffers of received and unsent bytes."""

    def __init__(self, sock: socket.socket, longest: int = SHORT) -> None:
        self.sock = sock
        #: maximal bytes of a line
        self.longest = longest
        self._received = bytearray()
        self.unsent = bytearray()

    def lines(self) -> Iterator[str]:
        """Yield the received lines without blocking; raise EOFError at the end of the connection, ValueError if a line is too long."""
        with suppress(BlockingIOError):
            data = self.sock.recv(1 << 16)
            self._received += data
            if not data:
                raise EOFError
        while b"\n" in self._received:
            line, _, self._received = self._received.partition(b"\n")
            if len(line) > self.longest:
                raise ValueError("line too long")
            yield line.decode(errors="replace").rstrip("\r")
        if len(self._received) > self.longest:
            raise ValueError("line too long")

    def send(self, text: str | Mapping[str, Any]) -> None:
        """Send a line without blocking; raise OSError if the connection has ended or the peer does not read."""
        self.unsent += (text if isinstance(text, str) else json.dumps(text)).encode() + b"\n"
        if len(self.unsent) > UNREAD:
            raise OSError("the peer does not read from this connection")
        self.flush()

    def flush(self) -> None:
        """Send unsent bytes without blocking."""
        with suppress(BlockingIOError):
            while self.unsent:
                del self.unsent[: self.sock.send(self.unsent)]
