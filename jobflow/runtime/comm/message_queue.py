"""Messages between processes, and waits with a time limit.

`Control` transports status words for the whole job: a rank starts a session, leaves, or aborts.  Every waiting rank polls them.  `MessageQueue`
transports picklable items; large arrays are sent separately from the pickle, without a copy.

Every wait of a process uses `Control.wait`.  A wait first polls, then yields the core, and later sleeps.  An error is raised when an awaited
rank has left or any rank has aborted.  After ten seconds, the waits of all ranks are printed.  After a tenth of a second a rank broadcasts its
wait, so that ranks in a deadlock detect it.
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
    Counter,
    Divergence,
    PlainCounter,
    StuckRank,
    WaitEdge,
    Waiting,
    What,
    deadlock,
    exited,
    stuck,
    text_of,
    wait_notice,
    waits_in,
)

#: seconds without an answer after which a rank prints the ranks for which it waits
PATIENCE = 10.0
#: polls before the first yield of the core: about 20 us
SPINS = 100
#: seconds of polling with yields; then the process sleeps between polls
ALERT = 0.005
ALERT_CROWDED = 0.0003
#: seconds of a sleep, at first and after a second without an answer
NAP = 20e-6
LONG_NAP = 500e-6
#: bytes; smaller arrays are part of the pickle
SEPARATE = 64 * 1024

#: seconds in which the last messages of a rank that has left may still arrive
LAST_MESSAGE = 0.3

LEAVING = "leaving"
ABORT = "abort"
WAITING = "waiting"
GOING_ON = "going on"
DIVERGED = "diverged"

_COMMAND, _WORD = 1, 2


class Control:
    """The status words of every rank, and waits that poll them."""

    def __init__(self, mpi: Any, comm: Any, crowded: bool) -> None:
        self._mpi = mpi
        self._comm = comm
        self._sent: list[Any] = []
        self._spins = 0 if crowded else SPINS
        self._alert = ALERT_CROWDED if crowded else ALERT
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        #: status words of each rank, in order: a rank may begin and leave before another polls
        self.words: list[list[str]] = [[] for _ in range(self.size)]
        self.reason: str | None = None
        #: long waits by rank, including this one
        self.waits: dict[int, Waiting] = {}
        #: the counters of points of this rank for which others may wait
        self.counters: list[list[Counter]] = []
        #: the error of all ranks after a deadlock
        self._deadlock: Divergence | None = None
        #: time at which this rank detected its deadlock
        self._stuck_since = float("inf")
        #: id of the exception that was being handled at the start of MPI, which is not an error of the job
        self._amid = id(sys.exception())

    @property
    def active_exception(self) -> BaseException | None:
        """The exception that propagates or is handled in this thread; None without an exception, or if it was already handled at the start of MPI."""
        error = sys.exception()
        return None if id(error) == self._amid else error

    def say(self, word: str, text: str = "") -> None:
        """Send the status word `word`, with `text`, to every other rank, and return immediately."""
        self.words[self.rank].append(word)
        self._broadcast(word, text)

    def _broadcast(self, word: str, text: str = "") -> None:
        message = f"{word}\n{text}".encode()
        for rank in range(self.size):
            if rank != self.rank:
                self._sent.append((self._comm.Isend([message, self._mpi.BYTE], rank, _WORD), message))

    def listen(self) -> None:
        """Process all status words that have arrived."""
        status = self._mpi.Status()
        while self._comm.Iprobe(self._mpi.ANY_SOURCE, _WORD, status):
            message = bytearray(status.Get_count(self._mpi.BYTE))
            self._comm.Recv([message, self._mpi.BYTE], status.Get_source(), _WORD)
            word, _, text = message.decode().partition("\n")
            self._take(status.Get_source(), word, text)
        self._sent = [(request, message) for request, message in self._sent if not request.Test()]

    def _take(self, rank: int, word: str, text: str) -> None:
        if word == ABORT:
            self.reason = self.reason or text
        elif word == WAITING:
            self.waits[rank] = Waiting.read(text)
            self._check_deadlock()
        elif word == GOING_ON:
            self.waits.pop(rank, None)
        elif word == DIVERGED:
            first, _, text = text.partition("\n")
            self._deadlock = self._deadlock or Divergence(text, int(first) if first else None)
        else:
            self.words[rank].append(word)

    def _check_deadlock(self) -> None:
        """Record the time at which this rank is first detected in a deadlock."""
        if self.rank in self.waits and self._stuck_since == float("inf") and self.rank in stuck(self._missing()):
            self._stuck_since = time.monotonic()

    def _missing(self) -> dict[int, list[int]]:
        """Return, for each waiting rank, the ranks for which it waits."""
        return {rank: waiting.missing(self.waits) for rank, waiting in self.waits.items()}

    def _report_deadlock(self) -> None:
        """Report the deadlock of this rank to all ranks.

        One stuck rank reports for all, preferably a rank with an error.  If its report does not arrive in time, any stuck rank reports.
        """
        missing = self._missing()
        held = stuck(missing)
        speaker = next((rank for rank in held if self.waits[rank].error), held[0])
        patience = SETTLE if self.rank == speaker else 3 * SETTLE
        if time.monotonic() > self._stuck_since + patience:
            self._deadlock = deadlock({rank: StuckRank(self.waits[rank].what, missing[rank], self.waits[rank].error) for rank in held})
            self._broadcast(DIVERGED, f"{'' if self._deadlock.first is None else self._deadlock.first}\n{self._deadlock.text}")

    def abort(self, reason: str) -> None:
        self.reason = self.reason or reason
        self.say(ABORT, reason)

    @property
    def usable(self) -> bool:
        """True until any rank aborts or reports a deadlock."""
        return self.reason is None and self._deadlock is None

    def check(self, patient: bool = False) -> None:
        """Process status words; raise AbortedError if any rank has aborted, and DivergedError after a deadlock unless `patient`."""
        self.listen()
        if self._stuck_since < float("inf") and self._deadlock is None:
            self._report_deadlock()
        if self._deadlock is not None and not patient:
            raise DivergedError(*self._deadlock)
        if self.reason is not None:
            raise AbortedError(self.reason)

    def left(self, rank: int, what: str) -> RankError:
        """Return the error of this rank, which waits in the operation `what` for `rank`, whose script has ended."""
        return exited(rank, self.rank, what, self._other_waits(range(self.size)))

    def _other_waits(self, ranks: Sequence[int]) -> list[str]:
        """Describe the waits of other ranks, as far as they have reported them."""
        waiting = [(rank, self.waits[rank]) for rank in ranks if rank in self.waits and rank != self.rank]
        return [waits_in(rank, wait.what, wait.missing(self.waits), wait.error) for rank, wait in waiting]

    def wait(self, ready: Callable[[], Any], what: What, needs: Callable[[], Sequence[WaitEdge]], patient: bool = False) -> None:
        """Wait until `ready()`; `needs()` returns the points that other ranks must reach first, and `what` describes the operation.

        With `patient`, the wait is not reported to other ranks, and continues if awaited ranks have left.
        """
        for _ in range(self._spins):
            if ready():
                return
        try:
            self._wait_long(ready, what, needs, patient)
        finally:
            if self.waits.pop(self.rank, None) is not None:
                self._stuck_since = float("inf")
                self._broadcast(GOING_ON)

    #: The same for operations of MPI, which `observe` does not report.
    carry = wait

    def observe(self, waited: Waited | None) -> None:
        """Report waits to `waited`, as in `Communicator.observe`.

        Meanwhile, an attribute `wait` of the object hides the method.
        """
        vars(self).pop("wait", None)
        if waited is None:
            return

        def timed(ready: Callable[[], Any], what: What, needs: Callable[[], Sequence[WaitEdge]], patient: bool = False) -> None:
            began = time.perf_counter()
            self.carry(ready, what, needs, patient)
            waited(began, time.perf_counter())

        vars(self)["wait"] = timed

    def _wait_long(self, ready: Callable[[], Any], what: What, needs: Callable[[], Sequence[WaitEdge]], patient: bool) -> None:
        began = time.monotonic()
        lost = float("inf")
        announce, notify = (float("inf"), float("inf")) if patient else (SILENCE, PATIENCE)
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
                if waited > lost + LAST_MESSAGE:
                    raise self.left(gone[0], text_of(what))
            if waited > announce:
                self._announce(what, needs())
                announce = float("inf")
            if waited > notify:
                self._print_notice(what, needs())
                notify = float("inf")

    def _announce(self, what: What, needs: Sequence[WaitEdge]) -> None:
        """Broadcast the wait of this rank: its operation, and the ranks for which this rank waits."""
        self.waits[self.rank] = waiting = self.here(text_of(what), needs)
        self._broadcast(WAITING, waiting.write())
        self._check_deadlock()

    def here(self, what: str = "", needs: Sequence[WaitEdge] = ()) -> Waiting:
        """Return a wait of this rank in the operation `what`, with the awaited points `needs` and the points that this rank has reached."""
        come = {counter.name: counter.done for counters in self.counters for counter in counters if counter.done}
        return Waiting(what, tuple(needs), come, self.current_error)

    @property
    def current_error(self) -> str:
        """`active_exception` in one line; "" if it is None."""
        return "" if self.active_exception is None else in_short(self.active_exception)

    def _print_notice(self, what: What, needs: Sequence[WaitEdge]) -> None:
        missing = Waiting("", tuple(needs), {}).missing(self.waits)
        notice(wait_notice(self.rank, PATIENCE, what, missing, self._other_waits(missing)))


def _unpack(head: bytearray) -> tuple[tuple[int, ...], memoryview]:
    (count,) = struct.unpack_from("<q", head)
    return struct.unpack_from(f"<{count}q", head, 8), memoryview(head)[8 + 8 * count :]


def write(item: Any) -> list[Any]:
    """Serialize `item` as a head (the pickle, and the sizes of the buffers) followed by its large buffers."""
    buffers: list[Any] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < SEPARATE:
            return True
        buffers.append(raw)
        return False

    body = pickle.dumps(item, protocol=5, buffer_callback=keep)
    sizes = [raw.nbytes for raw in buffers]
    return [struct.pack(f"<q{len(sizes)}q", len(sizes), *sizes) + body, *buffers]


def read(head: bytes) -> Any:
    """Deserialize an item that `write` serialized as a head without buffers."""
    return pickle.loads(memoryview(head)[8:])


class MessageQueue:
    """Messages between processes, in the order of sending.

    Ranks are numbers in the communicator `comm`; `members` are their numbers in the world; `name` is the same on all ranks.
    """

    def __init__(self, mpi: Any, comm: Any, control: Control, name: str, members: Sequence[int]) -> None:
        self._mpi = mpi
        self._comm = comm
        self._control = control
        self._rank: int = comm.Get_rank()
        self._members = members
        all_ranks = range(len(members))
        #: messages sent to each rank, and messages received from each rank
        self._sent = [PlainCounter(f"{name} {self._rank}>{rank}") for rank in all_ranks]
        self._received = [PlainCounter(f"{name} {rank}>{self._rank} taken") for rank in all_ranks]
        #: the names of the same counters on the other ranks
        self._theirs = [(f"{name} {rank}>{self._rank}", f"{name} {self._rank}>{rank} taken") for rank in all_ranks]
        self.counters: list[Counter] = [*self._sent, *self._received]

    def hand_over(self, parts: dict[int, list[Any]], what: str) -> None:
        """Send `parts[rank]`, an output of `write`, to each rank; return when the memory of the parts may be used again."""
        self._await(self._send(parts), what, list(parts))

    def _send(self, parts: dict[int, list[Any]]) -> list[Any]:
        for rank in parts:
            self._sent[rank].done += 1
        return [self._comm.Isend([part, self._mpi.BYTE], rank, _COMMAND) for rank, row in parts.items() for part in row]

    def _await(self, requests: list[Any], what: What, ranks: Sequence[int]) -> None:
        """Wait until the send `requests` to these ranks are complete."""
        needs = [WaitEdge(self._members[rank], self._theirs[rank][1], self._sent[rank].done) for rank in ranks]
        if requests:
            self._control.wait(lambda: self._mpi.Request.Testall(requests), what, lambda: needs)

    def send(self, rank: int, item: Any, what: str) -> None:
        self.hand_over({rank: write(item)}, what)

    def waiting(self, rank: int) -> bool:
        """Return True if a message from `rank` has arrived."""
        return bool(self._comm.Iprobe(rank, _COMMAND))

    def receive(self, rank: int, what: What, patient: bool = False) -> Any:
        """Wait for the next item from `rank` and return it; `what` and `patient` have the meaning of `Control.wait`."""
        matched: list[Any] = []

        def arrived() -> bool:
            message = self._comm.Improbe(rank, _COMMAND, status)
            if message is not None:
                matched.append(message)
            return message is not None

        status = self._mpi.Status()
        need = (WaitEdge(self._members[rank], self._theirs[rank][0], self._received[rank].done + 1),)
        self._control.wait(arrived, what, lambda: need, patient)
        self._received[rank].done += 1
        head = bytearray(status.Get_count(self._mpi.BYTE))
        matched[0].Recv([head, self._mpi.BYTE])
        sizes, body = _unpack(head)
        buffers: list[Array] = [np.empty(size, np.uint8) for size in sizes]
        requests = [self._comm.Irecv([buffer, self._mpi.BYTE], rank, _COMMAND) for buffer in buffers]
        if requests:
            self._control.wait(lambda: self._mpi.Request.Testall(requests), what, lambda: need)
        return pickle.loads(body, buffers=buffers)

    def exchange(self, item: Any, what: What) -> list[Any]:
        """Return every rank's item, in rank order; collective."""
        me, size = self._rank, len(self._members)
        others = [(me + step) % size for step in range(1, size)]
        requests = self._send(dict.fromkeys(others, write(item)))
        items: list[Any] = [None] * size
        items[me] = item
        for rank in reversed(others):
            items[rank] = self.receive(rank, what)
        self._await(requests, what, others)
        return items
