"""Connections whose peers have not authenticated yet.

The number of these connections is limited: a new connection beyond the limit replaces the oldest one.  Each connection has a deadline.  A peer
with a wrong signature is refused after a delay, in which other peers are served.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from .authentication import RANK, SERVICE, VERSION, challenge, is_signature, signature
from .messages import Connection, fields, record

#: maximal number of connections, in addition to the number of ranks
MOST = 64
#: seconds to authenticate, and seconds before a wrong signature is refused
TIME, DELAY = 10.0, 1.0
WRONG = (
    "this process does not have the secret of the job at that address; export the same JOBFLOW_SECRET for all of its ranks, "
    "or choose another MASTER_PORT if it is another job"
)


OTHER_VERSION = (
    "this process runs another version of jobflow (protocol {}) than the process with RANK=0 on {} (protocol {}); install one version on all nodes"
)


class AuthenticationError(ValueError):
    """A wrong signature or ticket."""


@dataclass(eq=False)
class Peer:
    """An unauthenticated connection."""

    line: Connection
    #: deadline in time.monotonic(), when the connection is closed
    until: float = field(default_factory=lambda: time.monotonic() + TIME)
    #: True after a wrong signature
    rejected: bool = False
    _theirs: str = ""
    _ours: str = ""

    def authenticate(self, secret: bytes, text: str) -> str | None:
        """Process a line of the peer; return the description of the rank once its signature is verified, and None before.

        Raises: AuthenticationError for a wrong signature; ValueError for any other message.
        """
        if not self._ours:
            request = record(text)
            version = request.get("jobflow")
            if type(version) is int and version != VERSION:
                self.line.send({"refused": OTHER_VERSION.format(version, socket.gethostname(), VERSION)})
            if version != VERSION or type(request.get("challenge")) is not str:
                raise ValueError(f"authentication: the peer is not a rank of protocol version {VERSION}")
            self._theirs, self._ours = request["challenge"], challenge()
            self.line.send({"jobflow": VERSION, "challenge": self._ours})
            return None
        answer = fields(text, {"about": str, "proof": str})
        if not answer["proof"].isascii() or not is_signature(answer["proof"], secret, RANK, self._theirs, self._ours, answer["about"]):
            raise AuthenticationError
        return answer["about"]

    def accept(self, secret: bytes, ticket: int) -> None:
        """Send the ticket with the signature of the service."""
        self.line.send({"ticket": ticket, "proof": signature(secret, SERVICE, self._theirs, self._ours, str(ticket))})


class UnauthenticatedPeers:
    """All unauthenticated connections, oldest first."""

    def __init__(self, size: int) -> None:
        self.most = MOST + size
        self._all: dict[Connection, Peer] = {}

    def add(self, sock: socket.socket) -> tuple[Peer, Connection | None]:
        """Add a connection; return its peer, and the oldest connection if that must be closed because there are too many."""
        peer = Peer(Connection(sock))
        self._all[peer.line] = peer
        return peer, next(iter(self._all)) if len(self._all) > self.most else None

    def remove(self, line: Connection) -> None:
        """Remove a closed or authenticated connection."""
        self._all.pop(line, None)

    def reject(self, peer: Peer) -> None:
        """Mark a peer with a wrong signature, to be refused after the delay."""
        peer.rejected, peer.until = True, time.monotonic() + DELAY

    def expired(self) -> Iterator[Peer]:
        """Yield the peers whose deadline has passed."""
        now = time.monotonic()
        yield from [peer for peer in self._all.values() if peer.until <= now]

    @property
    def next(self) -> list[float]:
        """The earliest deadline, in seconds of the monotonic clock, as a list; empty if there are no connections."""
        return [min(peer.until for peer in self._all.values())] if self._all else []
