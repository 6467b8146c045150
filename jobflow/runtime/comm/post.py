"""Words and letters between processes, and the patience to wait for them.

`Control` carries single words that concern the whole job - a rank starts a session, leaves, gives up - and is listened to by
everybody who waits for anything.  `Post` carries picklable items; large arrays travel beside the pickle and are not copied.
Every wait of a process goes through `Control.wait`: it polls for a moment, then gives the core away, later sleeps; it ends
with an error when a rank it waits for has left or anybody gave up, and after ten seconds says who waits where for whom.
"""

from __future__ import annotations

import os
import pickle
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jobflow.errors import AbortedError, RankError
from jobflow.notices import notice
from jobflow.types import Array

#: seconds without an answer after which a rank says whom it waits for
PATIENCE = 10.0
#: polls before the core is given away for the first time: about 20 us
SPINS = 100
#: seconds of polling with the core given away in between; then sleeping begins
ALERT = 0.005
ALERT_CROWDED = 0.0003
#: seconds; how long a sleep is, at first and after a second without an answer
NAP = 20e-6
LONG_NAP = 500e-6
#: bytes; smaller arrays are pickled with the rest
BESIDE = 64 * 1024

#: seconds in which what a rank sent before it left may still arrive
LAST_LETTER = 0.3

LEAVING = "leaving"
ABORT = "abort"

_COMMAND, _WORD = 1, 2


class Control:
    """The words of every rank, and waiting that listens for more."""

    def __init__(self, mpi: Any, comm: Any, crowded: bool) -> None:
        self._mpi = mpi
        self._comm = comm
        self._sent: list[Any] = []
        self._spins = 0 if crowded else SPINS
        self._alert = ALERT_CROWDED if crowded else ALERT
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        #: what each rank has said, in order: a rank may begin and leave before another looks
        self.words: list[list[str]] = [[] for _ in range(self.size)]
        self.reason: str | None = None

    def say(self, word: str, text: str = "") -> None:
        """Tell every other rank; returns at once."""
        self.words[self.rank].append(word)
        letter = f"{word}\n{text}".encode()
        for rank in range(self.size):
            if rank != self.rank:
                self._sent.append((self._comm.Isend([letter, self._mpi.BYTE], rank, _WORD), letter))

    def listen(self) -> None:
        """Take in all words that have arrived."""
        status = self._mpi.Status()
        while self._comm.Iprobe(self._mpi.ANY_SOURCE, _WORD, status):
            letter = bytearray(status.Get_count(self._mpi.BYTE))
            self._comm.Recv([letter, self._mpi.BYTE], status.Get_source(), _WORD)
            word, _, text = letter.decode().partition("\n")
            if word == ABORT:
                self.reason = self.reason or text
            else:
                self.words[status.Get_source()].append(word)
        self._sent = [(request, letter) for request, letter in self._sent if not request.Test()]

    def abort(self, reason: str) -> None:
        self.reason = self.reason or reason
        self.say(ABORT, reason)

    def check(self) -> None:
        """Listen, and raise if anybody gave up."""
        self.listen()
        if self.reason is not None:
            raise AbortedError(self.reason)

    def left(self, rank: int, what: str) -> RankError:
        """The error of waiting for a rank that has come to the end of its script."""
        return RankError(rank, f"ended its script while rank {self.rank} waited for it in {what}")

    def wait(self, ready: Callable[[], Any], what: str, missing: Callable[[], Sequence[int]], patient: bool = False) -> None:
        """Come back when `ready()`; `missing()` are the ranks it depends on, `what` says in which operation."""
        for _ in range(self._spins):
            if ready():
                return
        began = time.monotonic()
        lost = float("inf")
        complain = began + PATIENCE
        polls = 0
        while not ready():
            polls += 1
            waited = time.monotonic() - began
            if waited < self._alert:
                os.sched_yield()
            else:
                time.sleep(NAP if waited < 1.0 else LONG_NAP)
            if polls % 8 == 0:
                self.check()
                gone = [] if patient else [rank for rank in missing() if LEAVING in self.words[rank]]
                lost = min(lost, waited) if gone else float("inf")
                if waited > lost + LAST_LETTER:
                    raise self.left(gone[0], what)
            if not patient and began + waited > complain:
                notice(f"rank {self.rank} has waited {PATIENCE:g} s in {what} for ranks {list(missing())}")
                complain = float("inf")


def _unpack(head: bytearray) -> tuple[tuple[int, ...], memoryview]:
    (count,) = struct.unpack_from("<q", head)
    return struct.unpack_from(f"<{count}q", head, 8), memoryview(head)[8 + 8 * count :]


def write(item: Any) -> list[Any]:
    """`item` as a head (the pickle, and the sizes of what follows) and the large buffers beside it."""
    beside: list[Any] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < BESIDE:
            return True
        beside.append(raw)
        return False

    body = pickle.dumps(item, protocol=5, buffer_callback=keep)
    sizes = [raw.nbytes for raw in beside]
    return [struct.pack(f"<q{len(sizes)}q", len(sizes), *sizes) + body, *beside]


class Post:
    """Letters between two processes, in the order in which they were sent."""

    def __init__(self, mpi: Any, comm: Any, control: Control) -> None:
        self._mpi = mpi
        self._comm = comm
        self._control = control

    def hand_over(self, parts: dict[int, list[Any]], what: str) -> None:
        """Send each rank what `write` made for it; comes back when the memory may be used again."""
        requests = [self._comm.Isend([part, self._mpi.BYTE], rank, _COMMAND) for rank, row in parts.items() for part in row]
        self._finish(requests, what, list(parts))

    def send(self, rank: int, item: Any, what: str) -> None:
        self.hand_over({rank: write(item)}, what)

    def receive(self, rank: int, what: str, patient: bool = False) -> Any:
        """The next item from `rank`."""
        found: list[Any] = []

        def arrived() -> bool:
            message = self._comm.Improbe(rank, _COMMAND, status)
            if message is not None:
                found.append(message)
            return message is not None

        status = self._mpi.Status()
        self._control.wait(arrived, what, lambda: (rank,), patient)
        head = bytearray(status.Get_count(self._mpi.BYTE))
        found[0].Recv([head, self._mpi.BYTE])
        sizes, body = _unpack(head)
        buffers: list[Array] = [np.empty(size, np.uint8) for size in sizes]
        self._finish([self._comm.Irecv([buffer, self._mpi.BYTE], rank, _COMMAND) for buffer in buffers], what, [rank])
        return pickle.loads(body, buffers=buffers)

    def exchange(self, item: Any, what: str) -> list[Any]:
        """Every rank's item, in rank order; collective over the world."""
        me, size = self._control.rank, self._control.size
        others = [(me + step) % size for step in range(1, size)]
        parts = write(item)
        requests = [self._comm.Isend([part, self._mpi.BYTE], rank, _COMMAND) for rank in others for part in parts]
        items: list[Any] = [None] * size
        items[me] = item
        for rank in reversed(others):
            items[rank] = self.receive(rank, what)
        self._finish(requests, what, others)
        return items

    def _finish(self, requests: list[Any], what: str, ranks: Sequence[int]) -> None:
        if requests:
            self._control.wait(lambda: self._mpi.Request.Testall(requests), what, lambda: ranks)
