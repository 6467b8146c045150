"""Ranks that are threads of this process: all memory is shared, and waiting is done on locks (spinning would hold the GIL)."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from jobflow.errors import AbortedError
from jobflow.notices import notice
from jobflow.runtime.comm.record import Group, Letter, Place, Record, Recorder, Regions, address, owner
from jobflow.runtime.comm.shared import Channel, Meet, SharedOperations
from jobflow.runtime.comm.solo import copying
from jobflow.types import Array

#: seconds after which a waiting rank says whom it waits for
PATIENCE = 10.0


class Gate:
    """A barrier among some ranks of a room, passed again and again."""

    def __init__(self, room: Room, ranks: tuple[int, ...]) -> None:
        self._room = room
        self._ranks = ranks
        self._guard = threading.Lock()
        self._waiting: dict[int, Any] = {}

    def meet(self, rank: int, own: Any, what: str) -> None:
        """Wait for all ranks; `own` is a lock that `rank` holds, and that whoever comes last releases."""
        with self._guard:
            if self._room.reason is not None:
                raise AbortedError(self._room.reason)
            last = len(self._waiting) + 1 == len(self._ranks)
            if not last:
                self._waiting[rank] = own
            else:
                locks = list(self._waiting.values())
                self._waiting.clear()
        if last:
            for lock in locks:
                lock.release()
            return
        while not own.acquire(timeout=PATIENCE):
            self._complain(rank, what)
        if self._room.reason is not None and rank in self._room.woken:
            raise AbortedError(self._room.reason)

    def _complain(self, rank: int, what: str) -> None:
        with self._guard:
            missing = [other for other in self._ranks if other not in self._waiting]
        notice(f"rank {rank} has waited {PATIENCE:g} s in {what} for ranks {missing}")

    def wake(self) -> None:
        """Let everybody who waits raise AbortedError."""
        with self._guard:
            waiting = dict(self._waiting)
            self._waiting.clear()
            self._room.woken.update(waiting)
        for lock in waiting.values():
            lock.release()


class Count:
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

    def reach(self, count: int, rank: int, own: Any, peer: int, what: str) -> None:
        """Wait for the other end; `own` is a lock that `rank` holds, and that is released when the count is reached."""
        with self._guard:
            if self._room.reason is not None:
                raise AbortedError(self._room.reason)
            if self.done >= count:
                return
            self._waiting = count, rank, own
        while not own.acquire(timeout=PATIENCE):
            notice(f"rank {rank} has waited {PATIENCE:g} s in {what} for ranks {[peer]}")
        if self._room.reason is not None and rank in self._room.woken:
            raise AbortedError(self._room.reason)

    def wake(self) -> None:
        """Let whoever waits raise AbortedError."""
        with self._guard:
            waiting, self._waiting = self._waiting, None
            if waiting is not None:
                self._room.woken.add(waiting[1])
        if waiting is not None:
            waiting[2].release()


class Line:
    """One end of the way between two ranks."""

    def __init__(self, mine: Count, others: Count, rank: int, peer: int, own: Any) -> None:
        self._mine = mine
        self._others = others
        self._who = rank, own, peer
        self.tell = mine.add

    @property
    def done(self) -> int:
        return self._mine.done

    def hear(self, count: int, what: str) -> None:
        self._others.reach(count, *self._who, what)


class Room:
    """What the ranks of one world of threads have in common."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.reason: str | None = None
        #: ranks that an abort has let go while they waited
        self.woken: set[int] = set()
        #: each rank's allocations by number, for as long as anything points into them: the array all views keep alive, and where to begin in it
        self.regions: list[dict[int, tuple[weakref.ref[Array], int]]] = [{} for _ in range(size)]
        self.items: list[Any] = [None] * size
        self._guard = threading.Lock()
        self._gates: dict[tuple[int, ...], Gate] = {}
        #: what the sender has posted, and what the receiver has taken
        self._counts: dict[tuple[int, ...], tuple[Count, Count]] = {}

    def counts(self, pair: tuple[int, ...]) -> tuple[Count, Count]:
        with self._guard:
            return self._counts.setdefault(pair, (Count(self), Count(self)))

    def gate(self, ranks: tuple[int, ...]) -> Gate:
        with self._guard:
            return self._gates.setdefault(ranks, Gate(self, ranks))

    def abort(self, reason: str) -> None:
        with self._guard:
            if self.reason is None:
                self.reason = reason
            gates, counts = list(self._gates.values()), list(itertools.chain.from_iterable(self._counts.values()))
        for gate in gates:
            gate.wake()
        for count in counts:
            count.wake()

    def reset(self) -> None:
        """Forget an abort, once no rank is inside a call any more."""
        self.reason = None
        self.woken.clear()
        for posted, taken in self._counts.values():  # what was posted is not taken any more
            posted.done = taken.done = max(posted.done, taken.done)


def forget(regions: dict[int, Any], number: int) -> None:
    regions.pop(number, None)


class ThreadsCommunicator(Recorder):
    """One of the ranks of a room."""

    def __init__(self, room: Room, rank: int, allocate: Callable[[int], Array]) -> None:
        super().__init__()
        self.rank = rank
        self.size = room.size
        self._room = room
        self._allocate = allocate
        self._regions = Regions()
        self._count = 0
        self._lock = threading.Lock()
        self._lock.acquire()
        self._operations = SharedOperations(self, rank)
        self._everybody = self._meeting(tuple(range(room.size)))

    def allocate(self, nbytes: int) -> Array:
        array = self._allocate(nbytes)
        if nbytes:
            number, mine = self._count, self._room.regions[self.rank]
            self._count += 1
            mine[number] = weakref.ref(owner(array)), address(array) - address(owner(array))
            self._regions.add(Place(number, 0, nbytes), array, lambda: forget(mine, number))
        return array

    def allocate_common(self, nbytes: int) -> Array | None:
        common: Array = self.exchange(self._allocate(nbytes) if self.rank == 0 else None)[0]
        return common

    def locate(self, array: Array) -> Place | None:
        return self._regions.locate(array)

    def look(self, rank: int, place: Place) -> Array:
        whole, start = self._room.regions[rank][place.region]
        array = whole()
        assert array is not None, "the rank that has bound it keeps it"
        return array[start + place.offset :][: place.nbytes]

    def gates(self, groups: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], Meet]:
        return {group: self._meeting(group) for group in groups}

    def channels(self, pairs: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], Channel]:
        found: dict[tuple[int, ...], Channel] = {}
        for pair in pairs:
            if self.rank in pair:
                me = pair.index(self.rank)
                counts = self._room.counts(pair)
                found[pair] = Line(counts[me], counts[1 - me], self.rank, pair[1 - me], self._lock)
        return found

    def _meeting(self, ranks: tuple[int, ...]) -> Meet:
        gate, rank, own = self._room.gate(ranks), self.rank, self._lock
        return lambda what: gate.meet(rank, own, what)

    def _write(self, records: Sequence[Record]) -> list[Letter]:
        return self._operations.write(records)

    def _prepare(self, groups: dict[Group, list[list[Letter]]]) -> None:
        self._operations.prepare(groups)

    def _complete(self, record: Record, letters: Sequence[Letter]) -> None:
        if len(record.ranks) == 1:
            record.operation.fill(copying(record.source, record.target))
        else:
            self._operations.complete(record, letters)

    def barrier(self) -> None:
        self._everybody("a barrier of all ranks")

    def exchange(self, item: Any) -> list[Any]:
        items = self._room.items
        items[self.rank] = item
        self._everybody("an exchange among all ranks")
        result = list(items)
        self._everybody("an exchange among all ranks")  # nobody may write the next item before all have read this one
        return result

    def check(self) -> None:
        if self._room.reason is not None:
            raise AbortedError(self._room.reason)

    def abort(self, reason: str) -> None:
        self._room.abort(reason)

    def reset(self) -> None:
        """Called for every rank of the room, by one thread, while none runs."""
        self._room.reset()
        self.rewind()

    def close(self) -> None:
        self._room.regions[self.rank].clear()
        self._regions.clear()
