"""Communicators of ranks that are threads of this process: all memory is shared, and waits use locks, because spinning would hold the GIL."""

from __future__ import annotations

import itertools
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from jobflow.core.errors import AbortedError, DivergedError, JobflowError, in_short
from jobflow.core.notices import notice
from jobflow.core.types import Array
from jobflow.runtime.comm.communicator import Communicator, Waited
from jobflow.runtime.comm.record import BindingMessage, Group, MemoryRange, Record, Recorder, Regions, address, owner
from jobflow.runtime.comm.shared import Barrier, Channel, SharedOperations
from jobflow.runtime.comm.waits import SETTLE, SILENCE, Arrival, StuckRank, What, deadlock, divergence, exited, stuck, text_of, wait_notice, waits_in

#: seconds after which a waiting rank prints the ranks for which it waits
PATIENCE = 10.0


class RankLock:
    """The lock on which one rank waits: the rank holds it, and another rank releases it to end the wait."""

    __slots__ = ("_lock", "acquire", "release")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self.acquire: Callable[..., bool] = self._lock.acquire
        self.release = self._lock.release

    def observe(self, waited: Waited | None) -> None:
        """Report waits on this lock to `waited` from now on; None ends the reports."""
        plain = self._lock.acquire

        def timed(timeout: float = -1) -> bool:
            began = time.perf_counter()
            got = plain(timeout=timeout)
            assert waited is not None
            waited(began, time.perf_counter())
            return got

        self.acquire = plain if waited is None else timed


class ThreadBarrier:
    """A reusable barrier among some ranks of a world of threads."""

    def __init__(self, state: ThreadsState, ranks: tuple[int, ...]) -> None:
        self._state = state
        self._ranks = ranks
        self._guard = threading.Lock()
        self._waiting: dict[int, Any] = {}
        self._passed = 0

    def wait(self, rank: int, rank_lock: RankLock, what: What) -> None:
        """Wait for all ranks; `rank` holds its lock `rank_lock`, and the last rank to arrive releases it."""
        with self._guard:
            if self._state.reason is not None:
                raise self._state.error()
            number = self._passed
            last = len(self._waiting) + 1 == len(self._ranks)
            if not last:
                self._waiting[rank] = rank_lock
            else:
                locks = list(self._waiting.values())
                self._waiting.clear()
                self._passed += 1
        if last:
            for lock in locks:
                lock.release()
            return
        if not rank_lock.acquire(timeout=min(SILENCE, PATIENCE)):
            self._state.wait_long(
                rank, rank_lock, WaitingRank(text_of(what), lambda: self._missing(number), lambda: self._wake([rank]), current_error())
            )
        if rank in self._state.woken:
            raise self._state.error()

    def _missing(self, number: int) -> list[int]:
        with self._guard:
            return [other for other in self._ranks if other not in self._waiting] if self._passed == number else []

    def _wake(self, ranks: Sequence[int]) -> None:
        """Wake the waiting ranks among `ranks`, so that they raise the error of the world."""
        with self._guard:
            waiting = {rank: self._waiting.pop(rank) for rank in ranks if rank in self._waiting}
            self._state.woken.update(waiting)
        for lock in waiting.values():
            lock.release()

    def wake(self) -> None:
        self._wake(self._ranks)


class ThreadCount:
    """The number of completed operations of one end of a channel, for which the other end waits."""

    def __init__(self, state: ThreadsState) -> None:
        self._state = state
        self._guard = threading.Lock()
        self._waiting: tuple[int, int, Any] | None = None
        self.done = 0

    def add(self) -> int:
        with self._guard:
            self.done += 1
            waiting = self._waiting
            if waiting is None or waiting[0] > self.done:
                return self.done
            self._waiting = None
        waiting[2].release()
        return self.done

    def reach(self, count: int, rank: int, rank_lock: RankLock, peer: int, what: str) -> None:
        """Let `rank`, at the other end, wait on its lock `rank_lock` until `count` operations are complete; `add` then releases the lock."""
        with self._guard:
            if self._state.reason is not None:
                raise self._state.error()
            if self.done >= count:
                return
            self._waiting = count, rank, rank_lock
        if not rank_lock.acquire(timeout=min(SILENCE, PATIENCE)):
            self._state.wait_long(rank, rank_lock, WaitingRank(what, lambda: [peer] if self.done < count else [], self.wake, current_error()))
        if rank in self._state.woken:
            raise self._state.error()

    def wake(self) -> None:
        """Wake the rank that waits for this count, if there is one, so that it raises the error of the world."""
        with self._guard:
            waiting, self._waiting = self._waiting, None
            if waiting is not None:
                self._state.woken.add(waiting[1])
        if waiting is not None:
            waiting[2].release()


class ThreadChannel:
    """One end of a channel between two ranks."""

    def __init__(self, mine: ThreadCount, others: ThreadCount, rank: int, peer: int, rank_lock: RankLock) -> None:
        self._mine = mine
        self._others = others
        self._who = rank, rank_lock, peer
        self.advance = mine.add

    @property
    def done(self) -> int:
        return self._mine.done

    def wait_for(self, count: int, what: str) -> None:
        self._others.reach(count, *self._who, what)


class WaitingRank(NamedTuple):
    """A rank in a long wait: its operation, the ranks for which it waits, and its pending error."""

    what: str
    #: returns the ranks that have not arrived yet
    missing: Callable[[], Sequence[int]]
    #: ends the wait, so that the rank raises the error of the world
    wake: Callable[[], None]
    #: the pending error of the rank
    error: str


def current_error() -> str:
    """Return the exception that propagates in this thread, in one line; "" if no exception propagates."""
    error = sys.exception()
    return "" if error is None else in_short(error)


class GroupState:
    """The shared state of the ranks of one communicator, by their numbers in the world."""

    def __init__(self, state: ThreadsState, ranks: tuple[int, ...]) -> None:
        self.ranks = ranks
        #: each rank's live allocations by number: the array that all views keep alive, and the offset in it
        self.regions: dict[int, dict[int, tuple[weakref.ref[Array], int]]] = {rank: {} for rank in ranks}
        self.items: dict[int, Any] = dict.fromkeys(ranks)
        #: the digests of each rank at its last even and its last odd collective, and the number of collectives
        self.digests: tuple[dict[int, int], dict[int, int]] = {}, {}
        self.agreed: dict[int, int] = dict.fromkeys(ranks, 0)
        self._state = state
        self._guard = threading.Lock()
        self._barriers: dict[tuple[str, tuple[int, ...]], ThreadBarrier] = {}
        #: transfers started by the sender, and completed by the receiver
        self._counts: dict[tuple[int, ...], tuple[ThreadCount, ThreadCount]] = {}

    def counts(self, pair: tuple[int, ...]) -> tuple[ThreadCount, ThreadCount]:
        with self._guard:
            return self._counts.setdefault(pair, (ThreadCount(self._state), ThreadCount(self._state)))

    def barrier(self, ranks: tuple[int, ...], kind: str) -> ThreadBarrier:
        """Return the barrier of these ranks for one kind of operation, so that diverged ranks do not meet at each other's barriers."""
        with self._guard:
            return self._barriers.setdefault((kind, ranks), ThreadBarrier(self._state, ranks))

    def wake(self) -> None:
        with self._guard:
            waiting_points: list[ThreadBarrier | ThreadCount] = [*self._barriers.values(), *itertools.chain.from_iterable(self._counts.values())]
        for counter in waiting_points:
            counter.wake()

    def reset(self) -> None:
        for started, received in self._counts.values():  # drops transfers that were started and not received
            started.done = received.done = max(started.done, received.done)
        self.agreed = dict.fromkeys(self.ranks, max(self.agreed.values()))


class ThreadsState:
    """The shared state of a world of threads: one state per communicator, waits, failures, and ranks that have left."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.reason: str | None = None
        #: ranks whose wait was ended by an error
        self.woken: set[int] = set()
        #: ranks that have finished the current command
        self.ended: set[int] = set()
        self._diverged = False
        #: the rank that diverged because of an error
        self._first: int | None = None
        self._stuck_since = float("inf")
        self._waits: dict[int, WaitingRank] = {}
        self._guard = threading.Lock()
        self._group_states: dict[tuple[int, ...], GroupState] = {}

    def group_state(self, ranks: tuple[int, ...]) -> GroupState:
        with self._guard:
            return self._group_states.setdefault(ranks, GroupState(self, ranks))

    def error(self) -> JobflowError:
        """Return the error that every waiting rank raises: DivergedError if ranks diverged, otherwise AbortedError."""
        return DivergedError(self.reason or "", self._first) if self._diverged else AbortedError(self.reason)

    def wait_long(self, rank: int, rank_lock: RankLock, waiting: WaitingRank) -> None:
        """Continue a long wait: publish it to the other ranks, and end it in a deadlock."""
        began = time.monotonic()
        notify = began + PATIENCE - SILENCE
        with self._guard:
            self._waits[rank] = waiting
        try:
            while not rank_lock.acquire(timeout=min(SILENCE, PATIENCE)):
                self._check_deadlock()
                gone = sorted(self.ended.intersection(waiting.missing()))
                if gone and self.reason is None:
                    self._withdraw(rank, rank_lock, waiting)
                    raise exited(gone[0], rank, waiting.what, self._other_waits(rank))
                if time.monotonic() >= notify:
                    notice(wait_notice(rank, PATIENCE, waiting.what, waiting.missing(), self._other_waits(rank)))
                    notify = float("inf")
        finally:
            with self._guard:
                del self._waits[rank]

    def _withdraw(self, rank: int, rank_lock: RankLock, waiting: WaitingRank) -> None:
        """Cancel the long wait of `rank`, whose lock remains held for its next wait."""
        waiting.wake()
        rank_lock.acquire()
        if self.reason is None:
            self.woken.discard(rank)

    def _long_waits(self) -> tuple[dict[int, WaitingRank], dict[int, Sequence[int]]]:
        """Return the long waits by rank, and the ranks for which each waiting rank waits."""
        with self._guard:
            waits = dict(self._waits)
        return waits, {rank: waiting.missing() for rank, waiting in waits.items()}

    def _check_deadlock(self) -> None:
        """Wake all ranks if some of them are in a deadlock."""
        waits, missing = self._long_waits()
        held = stuck(missing)
        if held:
            self._stuck_since = min(self._stuck_since, time.monotonic())
            if time.monotonic() > self._stuck_since + SETTLE:
                divergence = deadlock({rank: StuckRank(waits[rank].what, missing[rank], waits[rank].error) for rank in held})
                self._end(divergence.text, diverged=True, first=divergence.first)

    def _other_waits(self, rank: int) -> list[str]:
        """Return the descriptions of the long waits of ranks other than `rank`."""
        waits, missing = self._long_waits()
        return [waits_in(other, waits[other].what, missing[other], waits[other].error) for other in sorted(waits) if other != rank]

    def abort(self, reason: str) -> None:
        self._end(reason, diverged=False)

    def _end(self, reason: str, diverged: bool, first: int | None = None) -> None:
        with self._guard:
            if self.reason is None:
                self._diverged, self._first = diverged, first
                self.reason = reason
            groups = list(self._group_states.values())
        for group in groups:
            group.wake()

    def reset(self) -> None:
        """Clear an abort, after all ranks have left their calls."""
        self.reason = None
        self.woken.clear()
        self._diverged = False
        self._stuck_since = float("inf")
        for group in self._group_states.values():
            group.reset()


def forget(regions: dict[int, Any], number: int) -> None:
    regions.pop(number, None)


class ThreadsCommunicator(Recorder):
    """The communicator of a rank of a world of threads, or of a group; `rank` is its number in the world."""

    def __init__(
        self,
        state: ThreadsState,
        rank: int,
        allocate: Callable[[int], Array],
        members: tuple[int, ...] | None = None,
        world: ThreadsCommunicator | None = None,
    ) -> None:
        super().__init__(members or tuple(range(state.size)), rank, allocate, world)
        self._state = state
        self._group_state = state.group_state(self.members)
        self._regions = Regions()
        self._count = 0
        self._mine = RankLock()
        self._operations = SharedOperations(self, rank)
        self._agree, self._barrier, self._exchange = (self._barrier_of(self.members, kind) for kind in ("agree", "barrier", "exchange"))

    def _make_group(self, members: tuple[int, ...]) -> Communicator:
        return ThreadsCommunicator(self._state, self._me, self._local, members, self)

    def compare_digests(self, digest: int, what: Callable[[], str]) -> None:
        if self.size == 1:
            return
        group, me = self._group_state, self._me
        group.agreed[me] = number = group.agreed[me] + 1
        digests = group.digests[number % 2]
        digests[me] = digest
        self._agree(lambda: f"collective {number} of ranks {list(self.members)}: {what()}")
        # no rank can be at the next collective of this parity, because it needs this rank
        if any(digests[rank] != digest for rank in self.members):
            raise DivergedError(*divergence(number, self.members, self.exchange(Arrival(digest, what(), current_error()))))

    def allocate(self, nbytes: int) -> Array:
        array = self._local(nbytes)
        if nbytes:
            number, mine = self._count, self._group_state.regions[self._me]
            self._count += 1
            mine[number] = weakref.ref(owner(array)), address(array) - address(owner(array))
            self._regions.add(MemoryRange(number, 0, nbytes), array, lambda: forget(mine, number))
        return array

    def allocate_common(self, nbytes: int) -> Array | None:
        return self.exchange(self._local(nbytes) if self.rank == 0 else None)[0]

    def locate(self, array: Array) -> MemoryRange | None:
        return self._regions.locate(array)

    def peer_view(self, rank: int, location: MemoryRange) -> Array:
        whole, start = self._group_state.regions[rank][location.region]
        array = whole()
        assert array is not None, "the rank that bound the operation keeps its memory alive"
        return array[start + location.offset :][: location.nbytes]

    def barriers(self, groups: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], Barrier]:
        return {group: self._barrier_of(group) for group in groups}

    def channels(self, pairs: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], Channel]:
        channels: dict[tuple[int, ...], Channel] = {}
        for pair in pairs:
            if self._me in pair:
                me = pair.index(self._me)
                counts = self._group_state.counts(pair)
                channels[pair] = ThreadChannel(counts[me], counts[1 - me], self._me, pair[1 - me], self._mine)
        return channels

    def _barrier_of(self, ranks: tuple[int, ...], kind: str = "tensors") -> Callable[[What], None]:
        barrier, rank, rank_lock = self._group_state.barrier(ranks, kind), self._me, self._mine
        return lambda what: barrier.wait(rank, rank_lock, what)

    def _write(self, records: Sequence[Record]) -> list[BindingMessage]:
        return self._operations.write(records)

    def _prepare(self, groups: dict[Group, list[list[BindingMessage]]]) -> None:
        self._operations.prepare(groups)

    def _complete(self, record: Record, messages: Sequence[BindingMessage]) -> None:
        self._operations.complete(record, messages)

    def barrier(self) -> None:
        self._barrier(f"a barrier of {self._named}")

    def exchange(self, item: Any) -> list[Any]:
        items = self._group_state.items
        items[self._me] = item
        what = f"an exchange among {self._named}"
        self._exchange(what)
        result = [items[rank] for rank in self.members]
        self._exchange(what)  # no rank may write the next item before all have read this one
        return result

    def check(self) -> None:
        if self._state.reason is not None:
            raise self._state.error()

    def observe(self, waited: Waited | None) -> None:
        self._mine.observe(waited)

    def abort(self, reason: str) -> None:
        self._state.abort(reason)

    def reset(self) -> None:
        """Reset every rank; called by one thread while no rank runs."""
        self._state.reset()
        self.rewind()

    def close(self) -> None:
        for group in self._groups.values():
            group.close()
        self._groups.clear()
        self._group_state.regions[self._me].clear()
        self._regions.clear()
