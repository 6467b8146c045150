"""NCCL for machines without a GPU: ranks on threads or processes exchange bytes through files in a folder.

It has NCCL's checks: each rank of a communicator must call, with a separate GPU. Pointers are read when a call runs.
A call runs at once on the current stream. On another stream it runs at a random time, with a random delay, and at the latest when
something waits for the stream. Only the sends of transfers run at once.
Calls between groupStart and groupEnd run together, sends first.
"""

from __future__ import annotations

import contextlib
import random
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fake_cupy
import fake_streams
import numpy as np

#: seconds that a rank waits for another
PATIENCE = 20.0
TYPES = dict(enumerate(("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64")))
WORDS = {f"NCCL_{name.upper()}": number for number, name in TYPES.items()} | {"NCCL_BFLOAT16": 9}
REDUCTIONS = (np.add, np.multiply, np.maximum, np.minimum)
OPERATIONS = {f"NCCL_{name}": number for number, name in enumerate(("SUM", "PROD", "MAX", "MIN"))}


class Gone(Exception):
    """A communicator was aborted: what waits in it ends with nothing, and its caller is not told."""


class Group(threading.local):
    """The calls of this thread since groupStart: sends, and what comes after them; and their stream."""

    depth = 0

    def __init__(self) -> None:
        self.sends: list[Callable[[], None]] = []
        self.rest: list[Callable[[], None]] = []
        self.stream = 0
        #: decides on delays; None for none
        self.random = random.Random(DELAYS.seed) if DELAYS.seed is not None else None


class DELAYS:
    """The seed of the delays of collectives on streams of their own; None for none."""

    seed: int | None = None
    #: seconds of the longest delay
    longest = 1e-3


group = Group()


def start() -> None:
    group.depth += 1


def end() -> None:
    group.depth -= 1
    if not group.depth:
        calls, stream, group.sends, group.rest = [*group.sends, *group.rest], group.stream, [], []
        fake_streams.run_or_capture(lambda: enqueue(calls, stream))


def enqueue(calls: list[Callable[[], None]], stream: int) -> None:
    """Run calls that belong together on a stream: at once on the current one."""

    def work() -> None:
        if group.random is not None and stream != fake_cupy.current.stream:
            time.sleep(group.random.random() * DELAYS.longest)
        for call in calls:
            with contextlib.suppress(Gone):
                call()

    if stream == fake_cupy.current.stream:
        work()
        return
    launch = fake_streams.Launch(work)
    before = fake_streams.Stream.all[stream].under_way
    before.append(launch)
    if group.random is not None and group.random.random() < 0.3:
        for each in tuple(before):
            each.finish()


class Communicator:
    """One rank of a group; `folder` is where all of them meet."""

    folder: Path

    def __init__(self, ndev: int, commId: bytes, rank: int, config: Any = None) -> None:
        assert isinstance(commId, bytes) and 0 <= rank < ndev
        self._name, self._rank, self._size = commId.decode(), rank, ndev
        self._device = fake_cupy.current.device
        self._counts: dict[tuple[int, bool], int] = {}
        self.aborted = False
        for peer in range(ndev):
            self._put(peer, str(self._device).encode())
        devices = [self._take(peer) for peer in range(ndev)]
        if len(set(devices)) != ndev:
            raise RuntimeError(f"NCCL_ERROR_INVALID_USAGE: Duplicate GPU detected: {devices}")

    def _file(self, peer: int, giving: bool) -> Path:
        number = self._counts[peer, giving] = self._counts.get((peer, giving), 0) + 1
        source, target = (self._rank, peer) if giving else (peer, self._rank)
        return self.folder / f"{self._name}-{source}-{target}-{number}"

    def _put(self, peer: int, content: bytes) -> None:
        path = self._file(peer, giving=True)
        path.with_suffix(".part").write_bytes(content)
        path.with_suffix(".part").rename(path)

    def _take(self, peer: int) -> bytes:
        path, deadline = self._file(peer, giving=False), time.monotonic() + PATIENCE
        while not path.exists():
            if self.aborted:
                raise Gone
            if time.monotonic() > deadline:
                raise RuntimeError(f"rank {self._rank} waits for rank {peer} of {self._name}")
            time.sleep(50e-6)
        content = path.read_bytes()
        path.unlink()
        return content

    def _perform(self, sends: list[Callable[[], None]], rest: list[Callable[[], None]], stream: int) -> None:
        assert self._device == fake_cupy.current.device, "the call is made with another device current"
        start()
        group.stream = stream
        group.sends += sends
        group.rest += rest
        end()

    def _give(self, peer: int, buffer: int, count: int, kind: int) -> Callable[[], None]:
        return lambda: self._put(peer, fake_cupy.memory_at(buffer, count, TYPES[kind]).tobytes())

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
        alone = not group.depth
        self._perform([self._give(peer, sendbuf, count, datatype)], [], fake_cupy.current.stream if alone else stream)

    def recv(self, recvbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        get = self._get(peer, recvbuf, count, datatype)
        if stream == fake_cupy.current.stream or group.depth:
            self._perform([], [get], stream)
            return
        launches = fake_streams.Stream.all[stream].under_way

        def receive() -> None:
            with contextlib.suppress(Gone):
                get()

        launches.append(fake_streams.Launch(receive))

    def allReduce(self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, stream: int) -> None:
        sends = [self._give(peer, sendbuf, count, datatype) for peer in range(self._size)]
        self._perform(sends, [self._combine(recvbuf, count, datatype, op)], stream)

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
        """None can happen: calls have finished when they return."""

    def destroy(self) -> None:
        """Nothing is kept."""

    def abort(self) -> None:
        self.aborted = True


def install(folder: Path) -> None:
    """Give the pretended CuPy an NCCL whose ranks meet in `folder`."""
    Communicator.folder = folder
    names = {"get_unique_id": lambda: uuid.uuid4().hex.encode(), "NcclCommunicator": Communicator, "groupStart": start, "groupEnd": end}
    vars(sys.modules["cupy.cuda.nccl"]).update(available=True, **names, **WORDS, **OPERATIONS)
