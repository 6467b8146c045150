"""Ranks that are threads of this process: all memory is shared, and waiting is done on locks (spinning would hold the GIL)."""

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
from jobflow.runtime.comm.record import Group, Letter, MemoryRange, Record, Recorder, Regions, address, owner
from jobflow.runtime.comm.shared import Channel, Meet, SharedOperations
from jobflow.runtime.comm.waits import SETTLE, SILENCE, Came, Held, What, complaint, difference, left, standstill, stuck, text_of, waits_in

#: seconds after which a waiting rank says whom it waits for
PATIENCE = 10.0


class Own:
    """The lock that one rank waits on: held by it, and released by whoever lets it go on."""

    __slots__ = ("_lock", "acquire", "release")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self.acquire: Callable[..., bool] = self._lock.acquire
        self.release = self._lock.release

    def observe(self, waited: Waited | None) -> None:
        """See `Communicator.observe`."""
        plain = self._lock.acquire

        def timed(timeout: float = -1) -> bool:
            began = time.perf_counter()
            got = plain(timeout=timeout)
            assert waited is not None
            waited(began, time.perf_counter())
            return got

        self.acquire = plain if waited is None else timed


class ThreadBarrier:
    """A barrier among some ranks of a room, passed again and again."""

    def __init__(self, room: Room, ranks: tuple[int, ...]) -> None:
        self._room = room
        self._ranks = ranks
        self._guard = threading.Lock()
        self._waiting: dict[int, Any] = {}
        self._passed = 0

    def meet(self, rank: int, own: Own, what: What) -> None:
        """Wait for all ranks; `own` is a lock that `rank` holds, and that whoever comes last releases."""
        with self._guard:
            if self._room.reason is not None:
                raise self._room.error()
            number = self._passed
            last = len(self._waiting) + 1 == len(self._ranks)
            if not last:
                self._waiting[rank] = own
            else:
                locks = list(self._waiting.values())
                self._waiting.clear()
                self._passed += 1
        if last:
            for lock in locks:
                lock.release()
            return
        if not own.acquire(timeout=min(SILENCE, PATIENCE)):
            self._room.linger(rank, own, WaitingRank(text_of(what), lambda: self._missing(number), lambda: self._wake([rank]), trouble()))
        if rank in self._room.woken:
            raise self._room.error()

    def _missing(self, number: int) -> list[int]:
        with self._guard:
            return [other for other in self._ranks if other not in self._waiting] if self._passed == number else []

    def _wake(self, ranks: Sequence[int]) -> None:
        """Let those of the ranks that wait raise what the room has for them."""
        with self._guard:
            waiting = {rank: self._waiting.pop(rank) for rank in ranks if rank in self._waiting}
            self._room.woken.update(waiting)
        for lock in waiting.values():
            lock.release()

    def wake(self) -> None:
        self._wake(self._ranks)


class ThreadCount:
    """How much one end of a channel has done, for the other end to wait for."""

    def __init__(self, room: Room) -> None:
        self._room = room
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

    def reach(self, count: int, rank: int, own: Own, peer: int, what: str) -> None:
        """Wait for the other end; `own` is a lock that `rank` holds, and that is released when the count is reached."""
        with self._guard:
            if self._room.reason is not None:
                raise self._room.error()
            if self.done >= count:
                return
            self._waiting = count, rank, own
        if not own.acquire(timeout=min(SILENCE, PATIENCE)):
            self._room.linger(rank, own, WaitingRank(what, lambda: [peer] if self.done < count else [], self.wake, trouble()))
        if rank in self._room.woken:
            raise self._room.error()

    def wake(self) -> None:
        """Let whoever waits raise what the room has for it."""
        with self._guard:
            waiting, self._waiting = self._waiting, None
            if waiting is not None:
                self._room.woken.add(waiting[1])
        if waiting is not None:
            waiting[2].release()


class ThreadLine:
    """One end of the way between two ranks."""

    def __init__(self, mine: ThreadCount, others: ThreadCount, rank: int, peer: int, own: Own) -> None:
        self._mine = mine
        self._others = others
        self._who = rank, own, peer
        self.tell = mine.add

    @property
    def done(self) -> int:
        return self._mine.done

    def hear(self, count: int, what: str) -> None:
        self._others.reach(count, *self._who, what)


class WaitingRank(NamedTuple):
    """A rank that has waited for a while."""

    what: str
    #: the ranks that have not come yet, as of now
    missing: Callable[[], Sequence[int]]
    #: lets it raise what the room has for it
    wake: Callable[[], None]
    #: the error that it has
    error: str


def trouble() -> str:
    """The exception that is on its way through this thread, in a line; "" if none is."""
    error = sys.exception()
    return "" if error is None else in_short(error)


class Table:
    """What the ranks of one communicator have in common; by their numbers in the world."""

    def __init__(self, room: Room, ranks: tuple[int, ...]) -> None:
        self.ranks = ranks
        #: each rank's allocations by number, for as long as anything points into them: the array all views keep alive, and where to begin in it
        self.regions: dict[int, dict[int, tuple[weakref.ref[Array], int]]] = {rank: {} for rank in ranks}
        self.items: dict[int, Any] = dict.fromkeys(ranks)
        #: what each rank came with to the collectives of even and of odd number that it last agreed on, and how many those were
        self.digests: tuple[dict[int, int], dict[int, int]] = {}, {}
        self.agreed: dict[int, int] = dict.fromkeys(ranks, 0)
        self._room = room
        self._guard = threading.Lock()
        self._gates: dict[tuple[str, tuple[int, ...]], ThreadBarrier] = {}
        #: what the sender has posted, and what the receiver has taken
        self._counts: dict[tuple[int, ...], tuple[ThreadCount, ThreadCount]] = {}

    def counts(self, pair: tuple[int, ...]) -> tuple[ThreadCount, ThreadCount]:
        with self._guard:
            return self._counts.setdefault(pair, (ThreadCount(self._room), ThreadCount(self._room)))

    def gate(self, ranks: tuple[int, ...], kind: str) -> ThreadBarrier:
        """Where these ranks meet for operations of one kind: those that part do not take it for each other's."""
        with self._guard:
            return self._gates.setdefault((kind, ranks), ThreadBarrier(self._room, ranks))

    def wake(self) -> None:
        with self._guard:
            ways: list[ThreadBarrier | ThreadCount] = [*self._gates.values(), *itertools.chain.from_iterable(self._counts.values())]
        for way in ways:
            way.wake()

    def reset(self) -> None:
        for posted, taken in self._counts.values():  # what was posted is not taken any more
            posted.done = taken.done = max(posted.done, taken.done)
        self.agreed = dict.fromkeys(self.ranks, max(self.agreed.values()))


class Room:
    """What the ranks of one world of threads have in common: a table for each communicator, and who waits, fails and leaves."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.reason: str | None = None
        #: ranks that were let go while they waited
        self.woken: set[int] = set()
        #: ranks whose part of the present command is over
        self.ended: set[int] = set()
        self._diverged = False
        #: the rank that parted from the others because of an error of its own
        self._first: int | None = None
        self._stuck_since = float("inf")
        self._waits: dict[int, WaitingRank] = {}
        self._guard = threading.Lock()
        self._tables: dict[tuple[int, ...], Table] = {}

    def table(self, ranks: tuple[int, ...]) -> Table:
        with self._guard:
            return self._tables.setdefault(ranks, Table(self, ranks))

    def error(self) -> JobflowError:
        """Why nobody can go on."""
        return DivergedError(self.reason or "", self._first) if self._diverged else AbortedError(self.reason)

    def linger(self, rank: int, own: Own, waiting: WaitingRank) -> None:
        """The patient part of a wait: everybody may know of it, and it ends if it is in vain."""
        began = time.monotonic()
        complain = began + PATIENCE - SILENCE
        with self._guard:
            self._waits[rank] = waiting
        try:
            while not own.acquire(timeout=min(SILENCE, PATIENCE)):
                self._judge()
                gone = sorted(self.ended.intersection(waiting.missing()))
                if gone and self.reason is None:
                    self._withdraw(rank, own, waiting)
                    raise left(gone[0], rank, waiting.what, self._elsewhere(rank))
                if time.monotonic() >= complain:
                    notice(complaint(rank, PATIENCE, waiting.what, waiting.missing(), self._elsewhere(rank)))
                    complain = float("inf")
        finally:
            with self._guard:
                del self._waits[rank]

    def _withdraw(self, rank: int, own: Own, waiting: WaitingRank) -> None:
        """Wait no more."""
        waiting.wake()
        own.acquire()
        if self.reason is None:
            self.woken.discard(rank)

    def _look(self) -> tuple[dict[int, WaitingRank], dict[int, Sequence[int]]]:
        """Who has waited for a while, and for whom."""
        with self._guard:
            waits = dict(self._waits)
        return waits, {rank: waiting.missing() for rank, waiting in waits.items()}

    def _judge(self) -> None:
        """Let all go if some wait for each other in vain."""
        waits, missing = self._look()
        held = stuck(missing)
        if held:
            self._stuck_since = min(self._stuck_since, time.monotonic())
            if time.monotonic() > self._stuck_since + SETTLE:
                parting = standstill({rank: Held(waits[rank].what, missing[rank], waits[rank].error) for rank in held})
                self._end(parting.text, diverged=True, first=parting.first)

    def _elsewhere(self, rank: int) -> list[str]:
        """What other ranks wait in."""
        waits, missing = self._look()
        return [waits_in(other, waits[other].what, missing[other], waits[other].error) for other in sorted(waits) if other != rank]

    def abort(self, reason: str) -> None:
        self._end(reason, diverged=False)

    def _end(self, reason: str, diverged: bool, first: int | None = None) -> None:
        with self._guard:
            if self.reason is None:
                self._diverged, self._first = diverged, first
                self.reason = reason
            tables = list(self._tables.values())
        for table in tables:
            table.wake()

    def reset(self) -> None:
        """Forget an abort, once no rank is inside a call any more."""
        self.reason = None
        self.woken.clear()
        self._diverged = False
        self._stuck_since = float("inf")
        for table in self._tables.values():
            table.reset()


def forget(regions: dict[int, Any], number: int) -> None:
    regions.pop(number, None)


class ThreadsCommunicator(Recorder):
    """One of the ranks of a room, or of some ranks of it: `rank` is its number in the room."""

    def __init__(
        self,
        room: Room,
        rank: int,
        allocate: Callable[[int], Array],
        members: tuple[int, ...] | None = None,
        world: ThreadsCommunicator | None = None,
    ) -> None:
        super().__init__(members or tuple(range(room.size)), rank, allocate, world)
        self._room = room
        self._table = room.table(self.members)
        self._regions = Regions()
        self._count = 0
        self._mine = Own()
        self._operations = SharedOperations(self, rank)
        self._agree, self._barrier, self._exchange = (self._meeting(self.members, kind) for kind in ("agree", "barrier", "exchange"))

    def _make_group(self, members: tuple[int, ...]) -> Communicator:
        return ThreadsCommunicator(self._room, self._me, self._local, members, self)

    def agree(self, digest: int, what: Callable[[], str]) -> None:
        if self.size == 1:
            return
        table, me = self._table, self._me
        table.agreed[me] = number = table.agreed[me] + 1
        digests = table.digests[number % 2]
        digests[me] = digest
        self._agree(lambda: f"collective {number} of ranks {list(self.members)}: {what()}")
        # nobody can have come to the next collective of this parity, for which this rank is needed
        if any(digests[rank] != digest for rank in self.members):
            raise DivergedError(*difference(number, self.members, self.exchange(Came(digest, what(), trouble()))))

    def allocate(self, nbytes: int) -> Array:
        array = self._local(nbytes)
        if nbytes:
            number, mine = self._count, self._table.regions[self._me]
            self._count += 1
            mine[number] = weakref.ref(owner(array)), address(array) - address(owner(array))
            self._regions.add(MemoryRange(number, 0, nbytes), array, lambda: forget(mine, number))
        return array

    def allocate_common(self, nbytes: int) -> Array | None:
        return self.exchange(self._local(nbytes) if self.rank == 0 else None)[0]

    def locate(self, array: Array) -> MemoryRange | None:
        return self._regions.locate(array)

    def look(self, rank: int, place: MemoryRange) -> Array:
        whole, start = self._table.regions[rank][place.region]
        array = whole()
        assert array is not None, "the rank that has bound it keeps it"
        return array[start + place.offset :][: place.nbytes]

    def gates(self, groups: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], Meet]:
        return {group: self._meeting(group) for group in groups}

    def channels(self, pairs: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], Channel]:
        found: dict[tuple[int, ...], Channel] = {}
        for pair in pairs:
            if self._me in pair:
                me = pair.index(self._me)
                counts = self._table.counts(pair)
                found[pair] = ThreadLine(counts[me], counts[1 - me], self._me, pair[1 - me], self._mine)
        return found

    def _meeting(self, ranks: tuple[int, ...], kind: str = "tensors") -> Callable[[What], None]:
        gate, rank, own = self._table.gate(ranks, kind), self._me, self._mine
        return lambda what: gate.meet(rank, own, what)

    def _write(self, records: Sequence[Record]) -> list[Letter]:
        return self._operations.write(records)

    def _prepare(self, groups: dict[Group, list[list[Letter]]]) -> None:
        self._operations.prepare(groups)

    def _complete(self, record: Record, letters: Sequence[Letter]) -> None:
        self._operations.complete(record, letters)

    def barrier(self) -> None:
        self._barrier(f"a barrier of {self._named}")

    def exchange(self, item: Any) -> list[Any]:
        items = self._table.items
        items[self._me] = item
        what = f"an exchange among {self._named}"
        self._exchange(what)
        result = [items[rank] for rank in self.members]
        self._exchange(what)  # nobody may write the next item before all have read this one
        return result

    def check(self) -> None:
        if self._room.reason is not None:
            raise self._room.error()

    def observe(self, waited: Waited | None) -> None:
        self._mine.observe(waited)

    def abort(self, reason: str) -> None:
        self._room.abort(reason)

    def reset(self) -> None:
        """Called for every rank of the room, by one thread, while none runs."""
        self._room.reset()
        self.rewind()

    def close(self) -> None:
        for group in self._groups.values():
            group.close()
        self._groups.clear()
        self._table.regions[self._me].clear()
        self._regions.clear()
