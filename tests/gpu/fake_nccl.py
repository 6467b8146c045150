"""NCCL for machines without a GPU: ranks on threads or processes exchange bytes through files in a folder.

It has NCCL's checks: each rank of a communicator must call, with a separate GPU. Pointers are read when a call runs.
A call runs at once on the current stream. On another stream, calls run in their order when something waits for them.
Calls between groupStart and groupEnd run together, sends first. A call ends when its messages have been received, so
ranks that call in different orders wait for each other without end.
"""

from __future__ import annotations

import contextlib
import random
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fake_cupy
import fake_streams
import numpy as np
import pytest

#: seconds that a rank waits for another
PATIENCE = 20.0
TYPES = dict(enumerate(("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64")))
WORDS = {f"NCCL_{name.upper()}": number for number, name in TYPES.items()} | {"NCCL_BFLOAT16": 9}
REDUCTIONS = (np.add, np.multiply, np.maximum, np.minimum)
OPERATIONS = {f"NCCL_{name}": number for number, name in enumerate(("SUM", "PROD", "MAX", "MIN"))}


class Gone(Exception):
    """A communicator was aborted: what waits in it ends with nothing, and its caller is not told."""


class Group(threading.local):
    """The calls of this thread since groupStart: sends, what comes after them, and the acknowledgements of the sends."""

    depth = 0

    def __init__(self) -> None:
        self.parts: tuple[list[Callable[[], None]], ...] = ([], [], [])
        self.streams: set[int] = set()
        self.random = random.Random(7)


group = Group()


def start() -> None:
    group.depth += 1


def end() -> None:
    group.depth -= 1
    if group.depth:
        return
    calls, streams = [call for part in group.parts for call in part], group.streams
    group.parts, group.streams = ([], [], []), set()

    def perform() -> None:
        with contextlib.suppress(Gone):
            for call in calls:
                call()

    if calls:
        (stream,) = streams
        launch(perform, stream)


def launch(work: Callable[[], None], stream: int) -> None:
    """Run the work on a stream: now, when something waits for it, or when a captured graph is launched."""
    target = fake_streams.Stream.all[stream]
    if target.captured is not None:
        target.captured.append(work)
    elif stream == fake_cupy.current.stream:
        work()
    else:
        target.under_way[:] = [before for before in target.under_way if not before.over]
        target.under_way.append(fake_streams.Launch(work))
        if Communicator.delay and group.random.random() < 0.3:  # the stream may run before something waits for it
            for each in tuple(target.under_way):
                each.finish()


class Config:
    """The configuration of a communicator."""

    def __init__(self, split_share: int = 0) -> None:
        self.split_share = split_share


class Communicator:
    """One rank of a group; `folder` is where all of them meet."""

    folder: Path
    #: the longest random delay of a call, in seconds
    delay = 0.0
    #: an error that the library detects outside of calls
    error: Exception | None = None

    def __init__(self, ndev: int, commId: bytes, rank: int, config: Config | None = None) -> None:
        assert isinstance(commId, bytes) and 0 <= rank < ndev
        self._config, self._splits, self._random = config, 0, random.Random(rank)
        self._name, self._rank, self._size = commId.decode(), rank, ndev
        self._device = fake_cupy.current.device
        self._counts: dict[tuple[int, bool], int] = {}
        self.aborted = False
        for peer in range(ndev):
            self._put(peer, str(self._device).encode())
        devices = [self._take(peer).decode() for peer in range(ndev)]
        if len(set(devices)) != ndev:
            raise RuntimeError(f"NCCL_ERROR_INVALID_USAGE: Duplicate GPU detected: {devices}")

    def commSplit(self, color: int, key: int, config: Any = None) -> Communicator | None:
        assert self._config is not None and self._config.split_share == 1, "the groups do not share the resources of the communicator"
        self._splits += 1
        for peer in range(self._size):
            self._put(peer, f"{color} {key}".encode())
        colors = [tuple(map(int, self._take(peer).split())) for peer in range(self._size)]
        mine = sorted((key, peer) for peer, (other, key) in enumerate(colors) if other == color)
        if color < 0:
            return None
        rank = [peer for _, peer in mine].index(self._rank)
        return Communicator(len(mine), f"{self._name}.{self._splits}.{color}".encode(), rank, self._config)

    def _file(self, peer: int, giving: bool) -> Path:
        number = self._counts[peer, giving] = self._counts.get((peer, giving), 0) + 1
        source, target = (self._rank, peer) if giving else (peer, self._rank)
        return self.folder / f"{self._name}-{source}-{target}-{number}"

    def _put(self, peer: int, content: bytes) -> Path:
        path = self._file(peer, giving=True)
        part = path.with_name(f"{path.name}.part")
        part.write_bytes(content)
        part.rename(path)
        return path

    def _until(self, happened: Callable[[], bool], peer: int) -> None:
        deadline = time.monotonic() + PATIENCE
        while not happened():
            if self.aborted:
                raise Gone
            if time.monotonic() > deadline:
                raise RuntimeError(f"rank {self._rank} waits for rank {peer} of {self._name}")
            time.sleep(50e-6)

    def _take(self, peer: int) -> bytes:
        path = self._file(peer, giving=False)
        self._until(path.exists, peer)
        content = path.read_bytes()
        path.unlink()
        return content

    def _perform(self, sends: list[tuple[int, Callable[[], bytes]]], rest: list[Callable[[], None]], stream: int) -> None:
        assert self._device == fake_cupy.current.device, "the call is made with another device current"
        if self.aborted:
            raise RuntimeError("NCCL_ERROR_INVALID_ARGUMENT: the communicator was aborted")
        files: list[tuple[int, Path]] = []

        def give() -> None:
            time.sleep(self.delay * self._random.random())
            for peer, content in sends:
                files.append((peer, self._put(peer, content())))

        def received() -> None:
            while files:
                peer, path = files.pop()
                self._until(lambda path=path: not path.exists(), peer)

        start()
        for part, calls in zip(group.parts, ([give], rest, [received]), strict=True):
            part += calls
        group.streams.add(stream)
        end()

    def _give(self, peer: int, buffer: int, count: int, kind: int) -> tuple[int, Callable[[], bytes]]:
        return peer, lambda: fake_cupy.memory_at(buffer, count, TYPES[kind]).tobytes()

    def _get(self, peer: int, buffer: int, count: int, kind: int) -> Callable[[], None]:
        def get() -> None:
            fake_cupy.memory_at(buffer, count, TYPES[kind])[:] = np.frombuffer(self._take(peer), TYPES[kind])

        return get

    def _combine(self, buffer: int, count: int, kind: int, op: int) -> Callable[[], None]:
        def combine() -> None:
            total = fake_cupy.memory_at(buffer, count, TYPES[kind])
            parts = [np.frombuffer(self._take(peer), TYPES[kind]) for peer in range(self._size)]
            total[:] = parts[0]
            for part in parts[1:]:
                REDUCTIONS[op](total, part, out=total)

        return combine

    def send(self, sendbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        self._perform([self._give(peer, sendbuf, count, datatype)], [], stream)

    def recv(self, recvbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        self._perform([], [self._get(peer, recvbuf, count, datatype)], stream)

    def allReduce(self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, stream: int) -> None:
        sends = [self._give(peer, sendbuf, count, datatype) for peer in range(self._size)]
        self._perform(sends, [self._combine(recvbuf, count, datatype, op)], stream)

    def broadcast(self, sendbuff: int, recvbuff: int, count: int, datatype: int, root: int, stream: int) -> None:
        sends = [self._give(peer, sendbuff, count, datatype) for peer in range(self._size)] if root == self._rank else []
        self._perform(sends, [self._get(root, recvbuff, count, datatype)], stream)

    def reduce(self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, root: int, stream: int) -> None:
        rest = [self._combine(recvbuf, count, datatype, op)] if root == self._rank else []
        self._perform([self._give(root, sendbuf, count, datatype)], rest, stream)

    def reduceScatter(self, sendbuf: int, recvbuf: int, recvcount: int, datatype: int, op: int, stream: int) -> None:
        width = recvcount * np.dtype(TYPES[datatype]).itemsize
        sends = [self._give(peer, sendbuf + peer * width, recvcount, datatype) for peer in range(self._size)]
        self._perform(sends, [self._combine(recvbuf, recvcount, datatype, op)], stream)

    def allGather(self, sendbuf: int, recvbuf: int, count: int, datatype: int, stream: int) -> None:
        width = count * np.dtype(TYPES[datatype]).itemsize
        sends = [self._give(peer, sendbuf, count, datatype) for peer in range(self._size)]
        self._perform(sends, [self._get(peer, recvbuf + peer * width, count, datatype) for peer in range(self._size)], stream)

    def check_async_error(self) -> None:
        """Raise the error that a test has planted."""
        if self.error is not None:
            raise self.error

    def destroy(self) -> None:
        """Wait for the other ranks, as NCCL does."""
        assert not self.aborted, "an aborted communicator is destroyed"
        for peer in range(self._size):
            self._put(peer, b"")
        for peer in range(self._size):
            self._take(peer)

    def abort(self) -> None:
        self.aborted = True


def install(folder: Path) -> None:
    """Give the pretended CuPy an NCCL whose ranks meet in `folder`."""
    Communicator.folder = folder
    names = {"get_unique_id": lambda: uuid.uuid4().hex.encode(), "NcclCommunicator": Communicator, "groupStart": start, "groupEnd": end}
    names |= {"NcclConfig": Config, "get_version": lambda: 22809}
    vars(sys.modules["cupy.cuda.nccl"]).update(available=True, **names, **WORDS, **OPERATIONS)


@contextlib.contextmanager
def gpus(monkeypatch: pytest.MonkeyPatch, folder: Path, count: int, delay: float = 0.0) -> Iterator[None]:
    """Simulate a machine with GPUs and NCCL, whose collectives take random times of at most `delay` seconds."""
    for name, module in fake_cupy.modules(count).items():
        monkeypatch.setitem(sys.modules, name, module)
    install(folder)
    monkeypatch.setattr(Communicator, "delay", delay)
    before = fake_cupy.current.device
    yield
    fake_cupy.current.device = before
    fake_cupy.current.streams.clear()
