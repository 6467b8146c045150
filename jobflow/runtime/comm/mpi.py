"""Ranks that are processes: shared windows inside a node, MPI's own collectives between nodes.

In a node, `allocate` hands out parts of MPI shared-memory windows, and the algorithms of `shared.py` run on them.  Ranks meet
by flags: each rank counts the meetings of a group in a cache line of its own, and polls those of the others.  That relies on
stores becoming visible in order, as on x86; other machines meet by MPI barriers.

An operation goes through MPI instead if its ranks are on several nodes, or if shared memory could not be had.  MPI calls never
block: every wait listens to `Control`.
"""

from __future__ import annotations

import gc
import os
import platform
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from jobflow.errors import JobError
from jobflow.layout import Reduction
from jobflow.notices import notice
from jobflow.ops.base import Call
from jobflow.runtime.comm.post import LEAVING, Control, Post
from jobflow.runtime.comm.record import Group, Letter, Place, Record, Recorder, Regions, address
from jobflow.runtime.comm.shared import Channel, Meet, SharedOperations
from jobflow.runtime.comm.solo import copying
from jobflow.runtime.device.cpu import ALIGNMENT, aligned_zeros
from jobflow.types import Array

#: bytes of the first window; each further one is at least as large as all before it, so that there are few
WINDOW = 1 << 20
PAGE = 4096
#: bytes of /dev/shm that are left to others
SPARE = 1 << 20
#: machines on which another core sees stores in the order in which they were made
ORDERED = ("x86_64", "AMD64", "i686", "i386")


class Gate:
    """Meets by flags: `flags[i]` counts the meetings that the i-th other rank has come to."""

    def __init__(self, control: Control, mine: memoryview, ranks: Sequence[int], flags: Sequence[memoryview]) -> None:
        self._control = control
        self._mine = mine
        self._ranks = ranks
        self._flags = flags
        self._count = 0

    def meet(self, what: str) -> None:
        self._count = count = self._count + 1
        self._mine[0] = count
        for flag in self._flags:
            if flag[0] < count:
                self._control.wait(lambda flag=flag: flag[0] >= count, f"{what} (meeting {count})", self._missing)  # type: ignore[misc]

    def _missing(self) -> list[int]:
        return [rank for rank, flag in zip(self._ranks, self._flags, strict=True) if flag[0] < self._count]


class Line:
    """One end of the way between two ranks: each has a count in a cache line of its own."""

    def __init__(self, control: Control, mine: memoryview, theirs: memoryview, peer: int) -> None:
        self._control = control
        self._mine = mine
        self._theirs = theirs
        self._peer = peer
        self.done = 0

    def tell(self) -> int:
        self.done = self._mine[0] = self.done + 1
        return self.done

    def hear(self, count: int, what: str) -> None:
        theirs = self._theirs
        if theirs[0] < count:
            self._control.wait(lambda: theirs[0] >= count, what, lambda: (self._peer,))


class Windows:
    """This rank's part of the shared windows of its node, handed out first fit; what nobody points into is handed out again."""

    def __init__(self, mpi: Any, node: Any, members: Sequence[int], control: Control) -> None:
        self._mpi = mpi
        self._node = node
        self._members = members
        self._control = control
        self._windows: list[Any] = []
        #: by window and rank: its part, and the array whose references tell whether anything points into it
        self._parts: list[dict[int, Array]] = []
        self._bases: list[list[Array]] = []
        self._regions = Regions()
        #: (window, start, stop) in this rank's parts
        self._free: list[tuple[int, int, int]] = []
        self._returned: list[tuple[int, int, int]] = []
        self._total = 0

    def agree(self, value: int, operation: Any) -> int:
        """The reduction of the node's values."""
        mine, all_of_them = np.array([value]), np.zeros(1, np.int64)
        request = self._node.Iallreduce(mine, all_of_them, operation)
        others = [rank for rank in self._members if rank != self._control.rank]
        self._control.wait(request.Test, "an allocation of shared memory", lambda: others)
        return int(all_of_them[0])

    def allocate(self, nbytes: int) -> Array | None:
        """`nbytes` of this rank, zeroed; None if the node has too little shared memory.  Collective over the node."""
        wanted = -(-nbytes // ALIGNMENT) * ALIGNMENT
        # after this the peers have finished all earlier operations, so that what was returned may be used again
        largest = self.agree(wanted if self._fit(wanted) is None else 0, self._mpi.MAX)
        if largest > 0 and not self._open(wanted, largest):
            return None
        return self._take(nbytes, wanted) if nbytes else aligned_zeros(0)

    def _fit(self, wanted: int) -> int | None:
        """Which of the free stretches is long enough."""
        if self._returned:
            self._free = _merged([*self._free, *self._returned])
            self._returned.clear()
        return next((i for i, (_, start, stop) in enumerate(self._free) if stop - start >= wanted), None if wanted else -1)

    def _take(self, nbytes: int, wanted: int) -> Array:
        i = self._fit(wanted)
        assert i is not None
        window, start, stop = self._free.pop(i)
        if stop - start > wanted:
            self._free.append((window, start + wanted, stop))
        mine = memoryview(self._parts[window][self._control.rank])
        array = np.frombuffer(mine[start : start + nbytes], np.uint8)  # an array of its own, which its views keep alive
        array[:] = 0
        self._regions.add(Place(window, start, nbytes), array, partial(self._returned.append, (window, start, start + wanted)))
        return array

    def _open(self, wanted: int, largest: int) -> bool:
        """A new window; a generous one if there is room."""
        generous = max(largest, self._total, WINDOW)
        for size in (generous, wanted):
            size = -(-size // PAGE) * PAGE
            needed = self.agree(size, self._mpi.SUM)
            if self.agree(_free_shared_memory(), self._mpi.MIN) >= needed + SPARE:
                self._create(size)
                return True
        return False

    def _create(self, size: int) -> None:
        window = self._mpi.Win.Allocate_shared(size + ALIGNMENT, 1, comm=self._node)
        window.Lock_all(self._mpi.MODE_NOCHECK)
        bases = [np.frombuffer(window.Shared_query(i)[0], np.uint8) for i in range(len(self._members))]
        # pages are mapped whole, so that all processes skip the same number of bytes
        parts = {rank: base[-address(base) % ALIGNMENT :][:size] for rank, base in zip(self._members, bases, strict=True)}
        self._free.append((len(self._parts), 0, size))
        self._windows.append(window)
        self._parts.append(parts)
        self._bases.append(bases)
        self._total += size

    def locate(self, array: Array) -> Place | None:
        return self._regions.locate(array)

    def look(self, rank: int, place: Place) -> Array:
        return self._parts[place.region][rank][place.offset : place.offset + place.nbytes]

    def sync(self) -> None:
        """Order memory accesses, where the machine does not."""
        for window in self._windows:
            window.Sync()

    def close(self) -> None:
        """Free the windows into which no array of any rank points any more; the others last as long as the process."""
        gc.collect()
        self._regions.clear()
        self._parts.clear()
        self._free.clear()
        while self._windows:
            window, bases = self._windows.pop(), self._bases.pop()
            used = any(sys.getrefcount(base) > 3 for base in bases)  # the list, the loop, the call
            if self.agree(int(used), self._mpi.MAX):
                _kept.append(window)
            else:
                bases.clear()
                window.Unlock_all()
                window.Free()


def _merged(stretches: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """In order, neighbours joined."""
    merged: list[tuple[int, int, int]] = []
    for window, start, stop in sorted(stretches):
        if merged and merged[-1][0] == window and merged[-1][2] == start:
            merged[-1] = window, merged[-1][1], stop
        else:
            merged.append((window, start, stop))
    return merged


#: windows that cannot be freed since arrays still point into them
_kept: list[Any] = []


def _free_shared_memory() -> int:
    """Bytes; where there is no /dev/shm, MPI puts windows elsewhere and nothing is known."""
    try:
        found = os.statvfs("/dev/shm")
    except OSError:
        return sys.maxsize
    return found.f_bavail * found.f_frsize


class MpiCommunicator(Recorder):
    """One of the processes of a job.

    `shared=False` sends everything through MPI.  `nodes[rank]` says which node each rank is on, where that should not be
    found out from the machine.
    """

    def __init__(self, mpi: Any, world: Any, control: Control, post: Post, shared: bool = True, nodes: Sequence[int] | None = None) -> None:
        super().__init__()
        self.rank = control.rank
        self.size = control.size
        self._mpi = mpi
        self._world = world.Dup()
        self._control = control
        self._post = post
        node = self._world.Split_type(mpi.COMM_TYPE_SHARED) if nodes is None else self._world.Split(nodes[self.rank], self.rank)
        self._members: list[int] = node.allgather(self.rank)
        self._windows = Windows(mpi, node, self._members, control) if shared and len(self._members) > 1 else None
        self._operations = SharedOperations(self, self.rank)
        self._groups: dict[tuple[int, ...], Any] = {}
        self._lines: list[Array] = []
        self._comms = [self._world, node]

    def allocate(self, nbytes: int) -> Array:
        array = None if self._windows is None else self._windows.allocate(nbytes)
        if array is None and self._windows is not None:
            wanted = f"{nbytes / 2**20:.1f} MiB for rank {self.rank}"
            notice(f"too little shared memory in /dev/shm ({wanted} and the like for its peers): ranks exchange tensors by MPI messages instead")
        return aligned_zeros(nbytes) if array is None else array

    def allocate_common(self, nbytes: int) -> Array | None:
        if self._windows is None or len(self._members) < self.size or platform.machine() not in ORDERED:
            return None
        mine = self._windows.allocate(nbytes if self.rank == 0 else 0)
        place: Place | None = self.exchange(None if mine is None or self.rank else self._windows.locate(mine))[0]
        if place is None:
            return None
        return mine if self.rank == 0 else self.look(0, place)

    def locate(self, array: Array) -> Place | None:
        return None if self._windows is None else self._windows.locate(array)

    def look(self, rank: int, place: Place) -> Array:
        assert self._windows is not None
        return self._windows.look(rank, place)

    def gates(self, groups: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], Meet]:
        """A group has a gate if all its ranks are in this node and have shared memory."""
        found: dict[tuple[int, ...], Meet] = {}
        for group, lines in self._common_lines(groups).items():
            others = [rank for rank in group if rank != self.rank]
            if platform.machine() in ORDERED:
                found[group] = Gate(self._control, lines[self.rank], others, [lines[rank] for rank in others]).meet
            else:
                found[group] = partial(self._barrier_of, self._communicator(group), group)
        return found

    def channels(self, pairs: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], Channel]:
        """The same; where stores are not ordered, transfers go through MPI."""
        found: dict[tuple[int, ...], Channel] = {}
        for pair, lines in (self._common_lines(pairs) if platform.machine() in ORDERED else {}).items():
            (peer,) = (rank for rank in pair if rank != self.rank)
            found[pair] = Line(self._control, lines[self.rank], lines[peer], peer)
        return found

    def _common_lines(self, groups: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], dict[int, memoryview]]:
        """A number in a cache line of its own for each rank of each group of this rank, if all of the group can look at them."""
        lines = self.allocate(len(groups) * ALIGNMENT)
        self._lines.append(lines)  # peers read them as long as the communicator lasts
        places: list[Place | None] = self.exchange(self.locate(lines))
        found: dict[tuple[int, ...], dict[int, memoryview]] = {}
        for i, group in enumerate(groups):
            near = [(rank, places[rank]) for rank in group if rank in self._members]
            starts = {rank: Place(place.region, place.offset + i * ALIGNMENT, 8) for rank, place in near if place is not None}
            if self.rank in group and len(starts) == len(group):
                found[group] = {rank: memoryview(self.look(rank, start).view(np.int64)) for rank, start in starts.items()}
        return found

    def _barrier_of(self, comm: Any, group: tuple[int, ...], what: str) -> None:
        assert self._windows is not None
        self._windows.sync()
        self._finish(comm.Ibarrier(), group, what)
        self._windows.sync()

    def _write(self, records: Sequence[Record]) -> list[Letter]:
        return super()._write(records) if self._windows is None else self._operations.write(records)

    def _prepare(self, groups: dict[Group, list[list[Letter]]]) -> None:
        self._operations.prepare(groups)
        for group in sorted(groups):
            if self.rank in group.ranks and not self._by_windows(group, groups[group]):
                self._communicator(group.ranks)

    def _by_windows(self, group: Group, operations: Sequence[Sequence[Letter]]) -> bool:
        """The same answer on all ranks of the group, which know the same letters and gates."""
        readable = all(letter.source is not None or letter.nbytes == 0 for letters in operations for letter in letters)
        return readable and self._operations.can_meet(group)

    def _complete(self, record: Record, letters: Sequence[Letter]) -> None:
        if len(record.ranks) == 1:
            record.operation.fill(copying(record.source, record.target))
        elif self._by_windows(record.group, [letters]):
            self._operations.complete(record, letters)
        elif not any(letter.nbytes for letter in letters):
            record.operation.fill([])
            record.wait.fill([])
        elif record.kind == "transfer":
            message = Message(self._start(record, record.source, record.target), self._finish, record)
            record.operation.fill([(message.post, ())])
            record.wait.fill([(message.wait, ())])
        else:
            record.operation.fill(self._messages(record))

    def _communicator(self, ranks: tuple[int, ...]) -> Any:
        """Of `ranks`, in that order; they all ask for their communicators in one order."""
        if ranks not in self._groups:
            group = self._world.Get_group().Incl(list(ranks))
            self._groups[ranks] = self._world.Create_group(group)
            self._comms.append(self._groups[ranks])
        return self._groups[ranks]

    def _messages(self, record: Record) -> list[Call]:
        """The calls of an operation that goes through MPI."""
        source, target, before, after = _compatible(record)
        start = self._start(record, source, target)
        return [*before, (self._perform, (start, record.ranks, record.label)), *after]

    def _start(self, record: Record, source: Array, target: Array) -> Callable[[], Any]:
        comm = self._communicator(record.ranks)
        width = source.itemsize
        byte = self._mpi.BYTE
        if record.kind == "transfer":
            if record.ranks[0] == self.rank:
                return partial(comm.Isend, [source.view(np.uint8), byte], 1)
            return partial(comm.Irecv, [target.view(np.uint8), byte], 0)
        if record.kind == "all_gather":
            into = [target.view(np.uint8), [n * width for n in record.counts], None, byte]
            return partial(comm.Iallgatherv, [source.view(np.uint8), byte], into)
        if record.kind == "all_to_all":
            give = [source.view(np.uint8), [n * width for n in record.counts], None, byte]
            into = [target.view(np.uint8), [n * width for n in record.receives], None, byte]
            return partial(comm.Ialltoallv, give, into)
        assert record.reduce is not None
        operation = {Reduction.SUM: self._mpi.SUM, Reduction.MAX: self._mpi.MAX, Reduction.MIN: self._mpi.MIN}[record.reduce]
        if record.kind == "all_reduce":
            return partial(comm.Iallreduce, source, target, operation)
        return partial(comm.Ireduce_scatter, source, target, list(record.counts), operation)

    def _perform(self, start: Callable[[], Any], ranks: Sequence[int], what: str) -> None:
        self._finish(start(), ranks, what)

    def _finish(self, request: Any, ranks: Sequence[int], what: str) -> None:
        others = [rank for rank in ranks if rank != self.rank]
        self._control.wait(request.Test, what, lambda: others)

    def barrier(self) -> None:
        everybody = tuple(range(self.size))
        meet = self._operations.meeting(everybody)
        if meet is not None:
            meet("a barrier of all ranks")
            return
        self._finish(self._world.Ibarrier(), range(self.size), "a barrier of all ranks")

    def exchange(self, item: Any) -> list[Any]:
        return self._post.exchange(item, "an exchange among all ranks")

    def check(self) -> None:
        self._control.check()
        for rank, words in enumerate(self._control.words):
            if LEAVING in words and rank != self.rank:
                raise self._control.left(rank, "work of its device")

    def abort(self, reason: str) -> None:
        self._control.abort(reason)

    def reset(self) -> None:
        raise JobError("an aborted communicator of processes cannot be used again: the job has to end")

    def close(self) -> None:
        self._records.clear()
        self._operations = SharedOperations(self, self.rank)
        self._lines.clear()
        if self._control.reason is not None:
            return
        if self._windows is not None:
            self._windows.close()
        self.barrier()
        while self._comms:
            self._comms.pop().Free()


class Message:
    """One end of a transfer that goes through MPI."""

    def __init__(self, start: Callable[[], Any], finish: Callable[[Any, Sequence[int], str], None], record: Record) -> None:
        self._start = start
        self._finish = finish
        self._about = record.ranks, record.label
        self._request: Any = None

    def post(self) -> None:
        self._request = self._start()

    def wait(self) -> None:
        self._finish(self._request, *self._about)


def _compatible(record: Record) -> tuple[Array, Array, list[Call], list[Call]]:
    """Source and target that MPI takes, and the copies before and after: no overlap, and a type that it can add up."""
    source, target = record.source, record.target
    before: list[Call] = []
    after: list[Call] = []
    reduces = record.reduce is not None
    if reduces and source.dtype == np.bool_:
        source, target = source.view(np.uint8), target.view(np.uint8)
        # the sum of truth values is "or", as NumPy has it
        record.reduce = Reduction.MAX if record.reduce is Reduction.SUM else record.reduce
    elif reduces and source.dtype.kind in "fV" and source.itemsize == 2:
        wide = np.empty(source.size, np.float32), np.empty(target.size, np.float32)
        before.append((partial(np.copyto, casting="unsafe"), (wide[0], source)))
        after.append((partial(np.copyto, casting="unsafe"), (target, wide[1])))
        source, target = wide
    (start, stop), (first, last) = ((address(a), address(a) + a.nbytes) for a in (source, target))
    if start == first or (start < last and first < stop):  # MPI refuses one address even for no elements
        copy = np.empty_like(source)
        before.append((np.copyto, (copy, source)))
        source = copy
    return source, target, before, after
