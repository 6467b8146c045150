"""Lines of JSON over a connection, with limits on length, depth and types."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, TypeAlias

#: bytes of a line: of one who has proved nothing yet, of a rank, and of the answers that may wait to be read
SHORT, LONG, UNREAD = 4096, 1 << 18, 1 << 24
#: characters of a name that a rank has for itself, its node or its screen
NAME = 300

#: by name: what a field has to be
Fields: TypeAlias = Mapping[str, type[int] | type[str] | type[bool]]


def record(text: str) -> dict[str, Any]:
    """A JSON object; ValueError if the text is none."""
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None
    if not isinstance(found, dict):
        raise ValueError("not an object")
    return found


def fields(text: str, needed: Fields, optional: Fields | None = None) -> dict[str, Any]:
    """A JSON object with these fields and no others; ValueError if it is none."""
    found, legal = record(text), {**needed, **(optional or {})}
    if not needed.keys() <= found.keys() <= legal.keys() or any(type(value) is not legal[name] for name, value in found.items()):
        raise ValueError("not the fields that were agreed on")
    return found


def within(value: int, least: int, most: int) -> int:
    """The value; ValueError if it is out of range."""
    if not least <= value <= most:
        raise ValueError(f"{value} is not from {least} to {most}")
    return value


def name(text: str) -> str:
    """A text that can be shown in a line; ValueError if it is none, or too long."""
    if len(text) > NAME or not text.isprintable():
        raise ValueError("not a name")
    return text


class Connection:
    """A connection, and what has come and is to go over it."""

    def __init__(self, sock: socket.socket, longest: int = SHORT) -> None:
        self.sock = sock
        #: bytes that a line may have
        self.longest = longest
        self._heard = bytearray()
        self.unsent = bytearray()

    def lines(self) -> Iterator[str]:
        """The lines that have come, read without waiting; EOFError at the end of the connection, ValueError if a line is too long."""
        with suppress(BlockingIOError):
            data = self.sock.recv(1 << 16)
            self._heard += data
            if not data:
                raise EOFError
        while b"\n" in self._heard:
            line, _, self._heard = self._heard.partition(b"\n")
            if len(line) > self.longest:
                raise ValueError("a line that is too long")
            yield line.decode(errors="replace").rstrip("\r")
        if len(self._heard) > self.longest:
            raise ValueError("a line that is too long")

    def say(self, text: str | Mapping[str, Any]) -> None:
        """Send a line, as far as it can be sent at once; OSError if the connection has ended, or nobody reads."""
        self.unsent += (text if isinstance(text, str) else json.dumps(text)).encode() + b"\n"
        if len(self.unsent) > UNREAD:
            raise OSError("nobody reads")
        self.flush()

    def flush(self) -> None:
        """Send what has not been sent, as far as that goes at once."""
        with suppress(BlockingIOError):
            while self.unsent:
                del self.unsent[: self.sock.send(self.unsent)]
