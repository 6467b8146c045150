"""Connections that have not yet proved that they belong to the job.

There are never more than so many of them: whoever comes beyond that takes the place of the one that has waited longest.  Each has little time.
Who shows something wrong is refused after a delay, in which others are served.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from .lines import Connection, fields, record
from .proof import RANK, SERVICE, VERSION, challenge, is_proof, proof

#: how many there may be beside as many as there are ranks
MOST = 64
#: seconds to show that one belongs to the job, and until one that shows something wrong is refused
TIME, DELAY = 10.0, 1.0
WRONG = (
    "this process does not know the secret of the job at that address: export the same JOBFLOW_SECRET for all of its ranks, "
    "or choose another MASTER_PORT if it is another job"
)


class NotProvedError(ValueError):
    """A proof is wrong."""


@dataclass(eq=False)
class Stranger:
    """A connection of which nobody knows whose it is."""

    line: Connection
    #: in time.monotonic(): when it is closed
    until: float = field(default_factory=lambda: time.monotonic() + TIME)
    #: it has shown something wrong
    wrong: bool = False
    _theirs: str = ""
    _ours: str = ""

    def hear(self, secret: bytes, text: str) -> str | None:
        """What it says of itself, once it has proved that it knows the secret; ValueError if it says anything else than it must."""
        if not self._ours:
            found = record(text)
            if found.get("jobflow") != VERSION or type(found.get("challenge")) is not str:
                raise ValueError("not a rank of this version")
            self._theirs, self._ours = found["challenge"], challenge()
            self.line.say({"jobflow": VERSION, "challenge": self._ours})
            return None
        said = fields(text, {"about": str, "proof": str})
        if not said["proof"].isascii() or not is_proof(said["proof"], secret, RANK, self._theirs, self._ours, said["about"]):
            raise NotProvedError
        return said["about"]

    def welcome(self, secret: bytes, ticket: int) -> None:
        """Give it its ticket, and show that this is the service of its job."""
        self.line.say({"ticket": ticket, "proof": proof(secret, SERVICE, self._theirs, self._ours, str(ticket))})


class Strangers:
    """All of them, in the order in which they came."""

    def __init__(self, size: int) -> None:
        self.most = MOST + size
        self._all: dict[Connection, Stranger] = {}

    def add(self, sock: socket.socket) -> tuple[Stranger, Connection | None]:
        """A new one, and whose connection is to be closed for it."""
        found = Stranger(Connection(sock))
        self._all[found.line] = found
        return found, next(iter(self._all)) if len(self._all) > self.most else None

    def remove(self, line: Connection) -> None:
        """It is gone, or none any more."""
        self._all.pop(line, None)

    def distrust(self, stranger: Stranger) -> None:
        """It has shown something wrong."""
        stranger.wrong, stranger.until = True, time.monotonic() + DELAY

    def late(self) -> Iterator[Stranger]:
        """Those whose time is over."""
        now = time.monotonic()
        yield from [stranger for stranger in self._all.values() if stranger.until <= now]

    @property
    def next(self) -> list[float]:
        """When the time of the first is over; empty if there are none."""
        return [min(stranger.until for stranger in self._all.values())] if self._all else []
