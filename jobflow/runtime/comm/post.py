"""Messages between processes, and waiting for them with a time limit.

`Control` carries single words that concern the whole job - a rank starts a session, leaves, gives up - and is listened to by
everybody who waits for anything.  `Post` carries picklable items; large arrays travel beside the pickle and are not copied.
Every wait of a process goes through `Control.wait`: it polls for a moment, then gives the core away, later sleeps; it ends
with an error when a rank it waits for has left or anybody gave up, and after ten seconds says who waits where for whom.
Who has waited for a tenth of a second tells all others in what, so that ranks which wait for each other in vain find out.
"""

from __future__ import annotations

import os
import pickle
import struct
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jobflow.core.errors import AbortedError, DivergedError, RankError, in_short
from jobflow.core.notices import notice
from jobflow.core.types import Array
from jobflow.runtime.comm.communicator import Waited
from jobflow.runtime.comm.waits import (
    SETTLE,
    SILENCE,
    Held,
    Need,
    Parting,
    Waiting,
    Way,
    WayCount,
    What,
    complaint,
    left,
    standstill,
    stuck,
    text_of,
    waits_in,
)

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
WAITING = "waiting"
GOING_ON = "going on"
DIVERGED = "diverged"

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
        #: what ranks, this one too, wait in for long
        self.waits: dict[int, Waiting] = {}
        #: on which this rank comes to points that others wait for
        self.ways: list[list[Way]] = []
        #: what all ranks raise once some are stuck
        self._standstill: Parting | None = None
        #: since when this rank knows that it is stuck
        self._stuck_since = float("inf")
        #: the exception that was being handled when this began, which is nothing that came up since
        self._amid = id(sys.exception())

    @property
    def passing(self) -> BaseException | None:
        """The exception that is on its way through this thread, or is being handled: other ranks need not have met it."""
        error = sys.exception()
        return None if id(error) == self._amid else error

    def say(self, word: str, text: str = "") -> None:
        """Tell every other rank; returns at once."""
        self.words[self.rank].append(word)
        self._tell(word, text)

    def _tell(self, word: str, text: str = "") -> None:
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
            self._take(status.Get_source(), word, text)
        self._sent = [(request, letter) for request, letter in self._sent if not request.Test()]

    def _take(self, rank: int, word: str, text: str) -> None:
        if word == ABORT:
            self.reason = self.reason or text
        elif word == WAITING:
            self.waits[rank] = Waiting.read(text)
            self._judge()
        elif word == GOING_ON:
            self.waits.pop(rank, None)
        elif word == DIVERGED:
            first, _, text = text.partition("\n")
            self._standstill = self._standstill or Parting(text, int(first) if first else None)
        else:
            self.words[rank].append(word)

    def _judge(self) -> None:
        """Find out whether this rank waits in vain."""
        if self.rank in self.waits and self._stuck_since == float("inf") and self.rank in stuck(self._missing()):
            self._stuck_since = time.monotonic()

    def _missing(self) -> dict[int, list[int]]:
        """For whom those wait that have said so."""
        return {rank: waiting.missing(self.waits) for rank, waiting in self.waits.items()}

    def _give_up(self) -> None:
        """This rank is stuck: one of those that are says it for all, one that has an error if any does; if that does not come, any of them."""
        missing = self._missing()
        held = stuck(missing)
        speaker = next((rank for rank in held if self.waits[rank].error), held[0])
        patience = SETTLE if self.rank == speaker else 3 * SETTLE
        if time.monotonic() > self._stuck_since + patience:
            self._standstill = standstill({rank: Held(self.waits[rank].what, missing[rank], self.waits[rank].error) for rank in held})
            self._tell(DIVERGED, f"{'' if self._standstill.first is None else self._standstill.first}\n{self._standstill.text}")

    def abort(self, reason: str) -> None:
        self.reason = self.reason or reason
        self.say(ABORT, reason)

    @property
    def usable(self) -> bool:
        """False once anybody gave up."""
        return self.reason is None and self._standstill is None

    def check(self, patient: bool = False) -> None:
        """Listen, and raise if anybody gave up."""
        self.listen()
        if self._stuck_since < float("inf") and self._standstill is None:
            self._give_up()
        if self._standstill is not None and not patient:
            raise DivergedError(*self._standstill)
        if self.reason is not None:
            raise AbortedError(self.reason)

    def left(self, rank: int, what: str) -> RankError:
        """The error of waiting for a rank that has come to the end of its script."""
        return left(rank, self.rank, what, self._elsewhere(range(self.size)))

    def _elsewhere(self, ranks: Sequence[int]) -> list[str]:
        """What those of the other ranks wait in that have said so."""
        waiting = [(rank, self.waits[rank]) for rank in ranks if rank in self.waits and rank != self.rank]
        return [waits_in(rank, wait.what, wait.missing(self.waits), wait.error) for rank, wait in waiting]

    def wait(self, ready: Callable[[], Any], what: What, needs: Callable[[], Sequence[Need]], patient: bool = False) -> None:
        """Come back when `ready()`; `needs()` are the points that others must come to for that, `what` says in which operation."""
        for _ in range(self._spins):
            if ready():
                return
        try:
            self._linger(ready, what, needs, patient)
        finally:
            if self.waits.pop(self.rank, None) is not None:
                self._stuck_since = float("inf")
                self._tell(GOING_ON)

    #: The same while MPI moves what is waited for: `observe` does not tell of it.
    carry = wait

    def observe(self, waited: Waited | None) -> None:
        """See `Communicator.observe`.  An attribute of the object hides the method while somebody observes."""
        vars(self).pop("wait", None)
        if waited is None:
            return

        def timed(ready: Callable[[], Any], what: What, needs: Callable[[], Sequence[Need]], patient: bool = False) -> None:
            began = time.perf_counter()
            self.carry(ready, what, needs, patient)
            waited(began, time.perf_counter())

        vars(self)["wait"] = timed

    def _linger(self, ready: Callable[[], Any], what: What, needs: Callable[[], Sequence[Need]], patient: bool) -> None:
        began = time.monotonic()
        lost = float("inf")
        announce, complain = (float("inf"), float("inf")) if patient else (SILENCE, PATIENCE)
        polls = 0
        while not ready():
            polls += 1
            waited = time.monotonic() - began
            if waited < self._alert:
                os.sched_yield()
            else:
                time.sleep(NAP if waited < 1.0 else LONG_NAP)
            if polls % 8 == 0:
                self.check(patient)
                gone = [] if patient else [need.rank for need in needs() if LEAVING in self.words[need.rank]]
                lost = min(lost, waited) if gone else float("inf")
                if waited > lost + LAST_LETTER:
                    raise self.left(gone[0], text_of(what))
            if waited > announce:
                self._announce(what, needs())
                announce = float("inf")
            if waited > complain:
                self._complain(what, needs())
                complain = float("inf")

    def _announce(self, what: What, needs: Sequence[Need]) -> None:
        """Tell everybody in what this rank waits, and for whom."""
        come = {way.name: way.done for ways in self.ways for way in ways if way.done}
        self.waits[self.rank] = waiting = Waiting(text_of(what), tuple(needs), come, self.trouble)
        self._tell(WAITING, waiting.write())
        self._judge()

    @property
    def trouble(self) -> str:
        """`passing` in a line; "" if nothing is."""
        return "" if self.passing is None else in_short(self.passing)

    def _complain(self, what: What, needs: Sequence[Need]) -> None:
        missing = Waiting("", tuple(needs), {}).missing(self.waits)
        notice(complaint(self.rank, PATIENCE, what, missing, self._elsewhere(missing)))


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


def read(head: bytes) -> Any:
    """The item of which `write` made nothing but this head."""
    return pickle.loads(memoryview(head)[8:])


class Post:
    """Letters between processes, in the order in which they were sent.

    Ranks are those of the communicator `comm`; `members` are their numbers in the world, `name` is the same on all of them.
    """

    def __init__(self, mpi: Any, comm: Any, control: Control, name: str, members: Sequence[int]) -> None:
        self._mpi = mpi
        self._comm = comm
        self._control = control
        self._rank: int = comm.Get_rank()
        self._members = members
        everybody = range(len(members))
        #: letters to each rank, and those from each rank that this one has taken
        self._sent = [WayCount(f"{name} {self._rank}>{rank}") for rank in everybody]
        self._taken = [WayCount(f"{name} {rank}>{self._rank} taken") for rank in everybody]
        #: the same at the other ends
        self._theirs = [(f"{name} {rank}>{self._rank}", f"{name} {self._rank}>{rank} taken") for rank in everybody]
        self.ways: list[Way] = [*self._sent, *self._taken]

    def hand_over(self, parts: dict[int, list[Any]], what: str) -> None:
        """Send each rank what `write` made for it; comes back when the memory may be used again."""
        self._await(self._send(parts), what, list(parts))

    def _send(self, parts: dict[int, list[Any]]) -> list[Any]:
        for rank in parts:
            self._sent[rank].done += 1
        return [self._comm.Isend([part, self._mpi.BYTE], rank, _COMMAND) for rank, row in parts.items() for part in row]

    def _await(self, requests: list[Any], what: What, ranks: Sequence[int]) -> None:
        """Wait until the ranks have taken what was sent."""
        needs = [Need(self._members[rank], self._theirs[rank][1], self._sent[rank].done) for rank in ranks]
        if requests:
            self._control.wait(lambda: self._mpi.Request.Testall(requests), what, lambda: needs)

    def send(self, rank: int, item: Any, what: str) -> None:
        self.hand_over({rank: write(item)}, what)

    def waiting(self, rank: int) -> bool:
        """True if a letter from `rank` has arrived."""
        return bool(self._comm.Iprobe(rank, _COMMAND))

    def receive(self, rank: int, what: What, patient: bool = False) -> Any:
        """The next item from `rank`."""
        found: list[Any] = []

        def arrived() -> bool:
            message = self._comm.Improbe(rank, _COMMAND, status)
            if message is not None:
                found.append(message)
            return message is not None

        status = self._mpi.Status()
        need = (Need(self._members[rank], self._theirs[rank][0], self._taken[rank].done + 1),)
        self._control.wait(arrived, what, lambda: need, patient)
        self._taken[rank].done += 1
        head = bytearray(status.Get_count(self._mpi.BYTE))
        found[0].Recv([head, self._mpi.BYTE])
        sizes, body = _unpack(head)
        buffers: list[Array] = [np.empty(size, np.uint8) for size in sizes]
        requests = [self._comm.Irecv([buffer, self._mpi.BYTE], rank, _COMMAND) for buffer in buffers]
        if requests:
            self._control.wait(lambda: self._mpi.Request.Testall(requests), what, lambda: need)
        return pickle.loads(body, buffers=buffers)

    def exchange(self, item: Any, what: What) -> list[Any]:
        """Every rank's item, in rank order; collective."""
        me, size = self._rank, len(self._members)
        others = [(me + step) % size for step in range(1, size)]
        requests = self._send(dict.fromkeys(others, write(item)))
        items: list[Any] = [None] * size
        items[me] = item
        for rank in reversed(others):
            items[rank] = self.receive(rank, what)
        self._await(requests, what, others)
        return items
