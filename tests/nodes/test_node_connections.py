"""Connections between nodes under mpiexec, among threads of this process."""

from __future__ import annotations

import queue
import socket
import threading
from contextlib import suppress
from typing import Any

import pytest

from jobflow.runtime.world import node_connections
from jobflow.runtime.world.node_connections import NodeConnections
from jobflow.runtime.world.node_map import NodeMap

PLACES = NodeMap(["a", "b", "b"], [0, 1, 1])


class World:
    """A communicator whose rank 0 sends objects to the other ranks."""

    def __init__(self, rank: int, sent: list[queue.Queue[Any]]) -> None:
        self.rank, self.sent = rank, sent

    def Get_rank(self) -> int:
        return self.rank

    def bcast(self, item: Any, root: int) -> Any:
        if self.rank > 0:
            return self.sent[self.rank].get(timeout=10)
        for one in self.sent[1:]:
            one.put(item)
        return item


def connected(monkeypatch: pytest.MonkeyPatch, ranks: range, first: Any = lambda offer: None) -> tuple[list[NodeConnections], queue.Queue[str]]:
    """Return the connections of these ranks, and the texts with which they end; `first` gets the offer of rank 0 before them."""
    monkeypatch.setattr(node_connections, "own_addresses", lambda: ["127.0.0.1"])
    monkeypatch.setattr(node_connections, "START", 0.3)
    offers: list[queue.Queue[Any]] = [queue.Queue() for _ in range(4)]
    ends: queue.Queue[str] = queue.Queue()
    results: dict[int, NodeConnections] = {}

    def connect(rank: int) -> None:
        results[rank] = NodeConnections(World(rank, offers), PLACES, lambda text: ends.put(f"{rank}: {text}"))

    threads = [threading.Thread(target=connect, args=(rank,)) for rank in ranks]
    threads[0].start()
    first(offers[3].get(timeout=10))
    for thread in threads[1:]:
        thread.start()
    for thread in threads:
        thread.join(10)
    return [results[rank] for rank in ranks], ends


def close(connections: list[NodeConnections]) -> None:
    lines = [line for one in connections for line in one._lines.values()]
    for line in lines:
        with suppress(OSError):
            line.shutdown(socket.SHUT_RDWR)
    for thread in threading.enumerate():
        if thread.name == "jobflow nodes":
            thread.join(5)
    for line in lines:
        line.close()


def test_rank_0_informs_all_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    connections, ends = connected(monkeypatch, range(3))
    connections[0]._end("node b is silent")
    assert sorted(ends.get(timeout=5) for _ in range(3)) == [f"{rank}: node b is silent" for rank in range(3)]
    close(connections)


def test_the_regular_end_of_a_connection_is_no_event(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    connections, ends = connected(monkeypatch, range(3))
    close(connections)
    assert ends.empty() and capsys.readouterr().err == ""


def test_a_missing_connection_is_one_notice_with_the_nodes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def intrude(offer: Any) -> None:
        with socket.create_connection(("127.0.0.1", offer[2])) as sock:
            sock.sendall(b"?" * node_connections.KEY + (2).to_bytes(4, "big"))

    connections, _ = connected(monkeypatch, range(2), intrude)
    assert "rank 2 on b: no connection to rank 0 on a after 0.3 s: if a node or the network fails" in capsys.readouterr().err
    assert list(connections[0]._lines) == [1]
    close(connections)


def test_the_silence_of_a_node_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    connections, _ = connected(monkeypatch, range(3))

    class Silent:
        def recv(self, size: int) -> bytes:
            raise TimeoutError(110, "Connection timed out")

    lines = dict(connections[0]._lines)
    connections[0]._lines[2] = Silent()  # type: ignore[assignment]
    assert connections[0]._received(2) == "b (ranks 1, 2) has not answered for 25 s: the machine, or the network between it and a, is down"
    connections[0]._lines = lines
    close(connections)
