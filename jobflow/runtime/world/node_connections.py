"""Connections between the nodes of a job under mpiexec or srun, which detect a node that no longer answers.

Launchers notice the end of a process, but not a machine without power or a broken network: their ranks would wait forever.  So rank 0 listens at a
free port, and each rank of another node connects to it.  A random number that rank 0 has sent through MPI authenticates these ranks.  The system
probes the connections.  If one breaks by silence, rank 0 informs the ranks of all other nodes, and every rank ends with the cause.

Only silence counts.  The regular end of a connection is not an event: the monitor of each rank reports ends of processes.
Ranks without mpiexec have the connections of the rendezvous service instead.
"""

from __future__ import annotations

import hmac
import secrets
import select
import socket
import time
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from typing import Any

import psutil

from jobflow.core.notices import notice
from jobflow.runtime.thread_start import start_thread
from jobflow.runtime.world.node_map import NodeMap
from jobflow.runtime.world.service.messages import SILENCE, SILENT, keep_alive

#: seconds of an attempt to connect to one address, and seconds in which all ranks connect
CONNECT, START = 3.0, 10.0
#: bytes of the random number, and maximum bytes of a text
KEY, LONGEST = 16, 1000


class NodeConnections:
    """The connections of this rank to ranks of other nodes: of rank 0 to all of them, of others to rank 0."""

    def __init__(self, mpi_world: Any, places: NodeMap, ended: Callable[[str], None]) -> None:
        """Connect the nodes; `ended` ends this rank with the cause.  Collective."""
        self._rank: int = mpi_world.Get_rank()
        self._map, self._ended = places, ended
        self._lines: dict[int, socket.socket] = {}
        listener, offer = self._offer() if self._rank == 0 else (None, None)
        key, addresses, port = mpi_world.bcast(offer, 0)
        if listener is not None:
            with listener:
                self._accept(listener, key)
        elif self._rank not in places.ranks_of(0):
            self._connect(key, addresses, port)
        if self._lines:
            start_thread(self._watch, "jobflow nodes")

    def _offer(self) -> tuple[socket.socket, tuple[bytes, list[str], int]]:
        """Return a socket that listens at all addresses of this machine, and the data with which other nodes connect."""
        both = socket.has_dualstack_ipv6()
        listener = socket.create_server(("", 0), family=socket.AF_INET6 if both else socket.AF_INET, dualstack_ipv6=both)
        return listener, (secrets.token_bytes(KEY), own_addresses(), int(listener.getsockname()[1]))

    def _connect(self, key: bytes, addresses: Sequence[str], port: int) -> None:
        reason = "it has no address"
        for address in addresses:
            try:
                sock = socket.create_connection((address, port), CONNECT)
                sock.sendall(key + self._rank.to_bytes(4, "big"))
                sock.settimeout(None)
                keep_alive(sock)
                self._lines[0] = sock
                return
            except OSError as error:
                reason = f"{address} port {port}: {error.strerror or error}"
        self._report(f"{self._map.rank_text(self._rank)} cannot connect to {self._map.rank_text(0)} ({reason})")

    def _accept(self, listener: socket.socket, key: bytes) -> None:
        expected = set(range(len(self._map.nodes))) - set(self._map.ranks_of(0))
        deadline = time.monotonic() + START
        trouble = ""
        while expected - self._lines.keys() and (left := deadline - time.monotonic()) > 0:
            listener.settimeout(left)
            try:
                sock, _ = listener.accept()
            except (TimeoutError, ConnectionError):  # no connection in time, or one that has ended already
                continue
            except OSError as error:  # such as too many open files
                trouble = f" ({error.strerror or error})"
                break
            try:
                self._admit(sock, key, expected)
            except OSError as error:
                sock.close()
                if not isinstance(error, TimeoutError | ConnectionError):
                    trouble = f" ({error.strerror or error})"
        if missing := sorted(expected - self._lines.keys()):
            self._report(f"{', '.join(map(self._map.rank_text, missing))}: no connection to {self._map.rank_text(0)} after {START:g} s{trouble}")

    def _admit(self, sock: socket.socket, key: bytes, expected: Set[int]) -> None:
        """Keep the connection if it sends the key and an expected rank; otherwise close it."""
        sock.settimeout(CONNECT)
        shown = sock.recv(KEY + 4, socket.MSG_WAITALL)
        rank = int.from_bytes(shown[KEY:], "big")
        if hmac.compare_digest(shown[:KEY], key) and rank in expected:
            sock.settimeout(None)
            keep_alive(sock)
            self._lines[rank] = sock
        else:
            sock.close()

    def _report(self, text: str) -> None:
        notice(f"{text}: if a node or the network fails, other ranks wait for it forever; permit TCP connections between the nodes")

    # ---------------------------------------------------------------- the thread

    def _watch(self) -> None:
        """Wait for the silence of a node, or for the text of rank 0 about it; then end this rank."""
        poll = select.poll()
        ranks = {line.fileno(): rank for rank, line in self._lines.items()}
        for number in ranks:
            poll.register(number, select.POLLIN)
        while ranks:
            for number, _ in poll.poll():
                text = self._received(ranks[number])
                if text:
                    self._end(text)
                    return
                poll.unregister(number)  # the rank has ended
                self._lines[ranks.pop(number)].close()

    def _received(self, rank: int) -> str:
        """Return the text from a rank, or the description of its silence; "" if the connection has ended."""
        try:
            return self._lines[rank].recv(LONGEST).decode(errors="replace")
        except OSError as error:
            if error.errno not in SILENT:
                return ""
            here = self._map.hosts[self._rank]
            return f"{self._map.node_text(rank)} has not answered for {SILENCE} s: the machine, or the network between it and {here}, is down"

    def _end(self, text: str) -> None:
        if self._rank == 0:
            for line in self._lines.values():
                with suppress(OSError):
                    line.send(text.encode()[:LONGEST], socket.MSG_DONTWAIT)
        self._ended(text)


def own_addresses() -> list[str]:
    """Return the addresses of this machine at which other machines may reach it: IPv4 addresses first."""
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    entries = [entry for name, listed in psutil.net_if_addrs().items() if name in up for entry in listed]
    families = (socket.AF_INET, socket.AF_INET6)
    usable = [one for one in entries if one.family in families and not one.address.startswith(("127.", "::1", "fe80:"))]
    return [one.address for one in sorted(usable, key=lambda one: one.family != socket.AF_INET)]
