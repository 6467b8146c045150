"""Ranks that are processes: shared windows inside a node, MPI's own collectives between nodes.

In a node, `allocate` hands out parts of MPI shared-memory windows, and the algorithms of `shared.py` run on them; ranks meet by
flags, or on machines that may show stores to others in another order than they were made in, by MPI barriers.

An operation goes through MPI instead if its ranks are on several nodes, or if shared memory could not be had.  MPI calls never
block: every wait listens to `Control`.

A group is an MPI communicator, and windows, of its own.  Making these blocks, so its ranks call each other by letters first.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, TypeAlias

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import DivergedError, JobError
from jobflow.core.layout import Reduction
from jobflow.core.notices import notice
from jobflow.core.types import Array
from jobflow.ops.op import Call
from jobflow.runtime.comm import shared_memory
from jobflow.runtime.comm.communicator import Communicator, Waited
from jobflow.runtime.comm.flags import ORDERED, Accord, Ballot, FlagBarrier, FlagLine
from jobflow.runtime.comm.post import LEAVING, Control, Post
from jobflow.runtime.comm.record import Group, Letter, MemoryRange, Record, Recorder, address
from jobflow.runtime.comm.shared import Channel, Meet, SharedOperations
from jobflow.runtime.comm.shared_windows import SMALL_WINDOW, WINDOW, Windows
from jobflow.runtime.comm.waits import Came, Need, Way, WayCount, What, difference
from jobflow.runtime.device.numpy_device import ALIGNMENT, aligned_zeros

#: of the letters by which the ranks of a group call each other, beside which nothing else is sent from rank to rank of a communicator
_CALL = 3
_DIGEST = (1 << 64) - 1

#: the name of a way, and a number on it
Point: TypeAlias = tuple[str, int]


@dataclass(frozen=True)
class Site:
    """What the communicators of one world have in common.

    `shared=False` sends everything through MPI.  `nodes[rank]` says which node each rank is on, where that should not be
    found out from the machine.  `name` is the same on all ranks, and another one for the next world.
    """

    mpi: Any
    control: Control
    name: str
    shared: bool = True
    nodes: Sequence[int] | None = None


class MpiCommunicator(Recorder):
    """One of the processes of a job, among all of them or some; usable when it has been opened, which a group does by itself."""

    def __init__(self, site: Site, members: tuple[int, ...], world: MpiCommunicator | None = None) -> None:
        super().__init__(members, site.control.rank, aligned_zeros, world)
        self._site = site
        self._control = site.control
        self._name = site.name if world is None else f"{site.name}.{'.'.join(map(str, members))}"
        self._others = [rank for rank in members if rank != self._me]
        self._operations = SharedOperations(self, self._me)
        self._ways: list[Way] = []
        self._counts: dict[str, WayCount] = {}
        self._comms: dict[tuple[int, ...], Any] = {}
        self._lines: list[Array] = []
        self._windows: Windows | None = None
        self._accord: Accord | Ballot | None = None
        self._control.ways.append(self._ways)
        self._comm: Any = None
        #: of a world: the members of groups who have called the others
        self._callers: dict[tuple[int, ...], set[int]] = {}
        self._calls: list[Any] = []

    def open(self, comm: Any, post: Post) -> None:
        """`comm` is MPI's communicator of the members, for this object alone; collective."""
        mpi, nodes = self._site.mpi, self._site.nodes
        self._comm, self._post = comm, post
        node = comm.Split_type(mpi.COMM_TYPE_SHARED) if nodes is None else comm.Split(nodes[self._me], self.rank)
        self._near: list[int] = node.allgather(self._me)
        self._owned = [comm, node]
        if self._site.shared and len(self._near) > 1:
            first = WINDOW if self._all is self else SMALL_WINDOW
            self._windows = Windows(mpi, node, self._near, self._control, self._count("memory"), first)
        self._accord = self._make_accord()
        self._ways.append(self._accord)

    def _make_group(self, members: tuple[int, ...]) -> Communicator:
        return MpiCommunicator(self._site, members, self)

    def _meet_first(self, what: What) -> None:
        """Open this group."""
        world = self._all
        assert isinstance(world, MpiCommunicator)
        here = world._call(self.members)
        way = self._count("first meeting")
        way.done = 1
        done = partial(world._all_called, here, set(self._others))
        self._control.wait(done, what, lambda: [Need(rank, way.name, 1) for rank in self._others if rank not in here])
        comm = world._comm.Create_group(world._comm.Get_group().Incl(list(self.members)))
        post = Post(self._site.mpi, comm, self._control, self._name, self.members)
        self.open(comm, post)
        self._ways += post.ways

    def _call(self, members: tuple[int, ...]) -> set[int]:
        """Call the other members of a group; who of them has called so far."""
        letter = np.array(members, np.int64)
        self._calls += [self._comm.Isend(letter, rank, _CALL) for rank in members if rank != self._me]
        return self._callers.setdefault(members, set())

    def _all_called(self, here: set[int], others: set[int]) -> bool:
        """Listen to calls; those of groups that this rank will come to later are remembered."""
        mpi = self._site.mpi
        status = mpi.Status()
        while self._comm.Iprobe(mpi.ANY_SOURCE, _CALL, status):
            letter = np.empty(status.Get_count(mpi.INT64_T), np.int64)
            self._comm.Recv(letter, status.Get_source(), _CALL)
            self._callers.setdefault(tuple(letter.tolist()), set()).add(status.Get_source())
        self._calls = [request for request in self._calls if not request.Test()]
        return here >= others and not self._calls

    def _count(self, kind: str) -> WayCount:
        """A way of this communicator."""
        if kind not in self._counts:
            self._counts[kind] = WayCount(f"{self._name} {kind}")
            self._ways.append(self._counts[kind])
        return self._counts[kind]

    def _make_accord(self) -> Accord | Ballot:
        """By flags if all ranks are in one node and share memory, else by MPI; the same on all of them."""
        name = f"{self._name} agreed"
        if self._windows is not None and len(self._near) == self.size and platform.machine() in ORDERED:
            lines = self.allocate(2 * ALIGNMENT)
            self._lines.append(lines)
            places = dict(zip(self.members, self.exchange(self.locate(lines)), strict=True))
            if None not in places.values():
                turns = {rank: (place._replace(nbytes=16), MemoryRange(place.region, place.offset + ALIGNMENT, 16)) for rank, place in places.items()}
                seen = {rank: [memoryview(self.look(rank, place).view(np.uint64)) for place in pair] for rank, pair in turns.items()}
                return Accord(self._control, name, seen[self._me], {rank: seen[rank] for rank in self._others})
        self._owned.append(self._comm.Dup())
        return Ballot(self._control, name, self._owned[-1], self._site.mpi.MAX, self._others)

    def agree(self, digest: int, what: Callable[[], str]) -> None:
        if self._accord is None:
            self._meet_first(lambda: f"collective 1 of ranks {list(self.members)}: {what()}")
            assert self._accord is not None
        accord = self._accord
        if not accord.agree(digest & _DIGEST, lambda: f"collective {accord.done} of ranks {list(self.members)}: {what()}"):
            came = Came(digest & _DIGEST, what(), self._control.trouble)
            raise DivergedError(*difference(accord.done, self.members, self.exchange(came)))

    def _opened(self, what: str) -> None:
        if self._comm is None:
            self._meet_first(what)

    def allocate(self, nbytes: int) -> Array:
        self._opened(f"the first allocation of {self._named}")
        array = None if self._windows is None else self._windows.allocate(nbytes)
        if array is None and self._windows is not None:
            self._report_shortage()
        return aligned_zeros(nbytes) if array is None else array

    def allocate_common(self, nbytes: int) -> Array | None:
        self._opened(f"the first allocation of {self._named}")
        if self._windows is None or len(self._near) < self.size or platform.machine() not in ORDERED:
            return None
        mine = self._windows.allocate(nbytes if self.rank == 0 else 0)
        if mine is None:
            self._report_shortage()
        place: MemoryRange | None = self.exchange(None if mine is None or self.rank else self._windows.locate(mine))[0]
        if place is None:
            return None
        return mine if self.rank == 0 else self.look(self.members[0], place)

    def _report_shortage(self) -> None:
        """Print one notice on each node."""
        if self._near[0] == self._me:
            notice(f"{shared_memory.shortage()}. Ranks exchange some tensors by MPI messages instead, which is slower")

    def locate(self, array: Array) -> MemoryRange | None:
        return None if self._windows is None else self._windows.locate(array)

    def near(self, rank: int) -> bool:
        """True if `look` can see what that rank allocates, as far as it has a place."""
        return self._windows is not None and rank in self._near

    def look(self, rank: int, place: MemoryRange) -> Array:
        assert self._windows is not None
        return self._windows.look(rank, place)

    def gates(self, groups: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], Meet]:
        """A group has a gate if all its ranks are in this node and have shared memory."""
        found: dict[tuple[int, ...], Meet] = {}
        for group, lines in self._common_lines(groups).items():
            flags = {rank: line for rank, line in lines.items() if rank != self._me}
            if platform.machine() in ORDERED:
                gate = FlagBarrier(self._control, f"{self._name} meetings of {group}", lines[self._me], flags)
                self._ways.append(gate)
                found[group] = gate.meet
            else:
                found[group] = partial(self._barrier_of, self._communicator(group), group)
        return found

    def channels(self, pairs: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], Channel]:
        """The same; where stores are not ordered, transfers go through MPI."""
        found: dict[tuple[int, ...], Channel] = {}
        for pair, lines in (self._common_lines(pairs) if platform.machine() in ORDERED else {}).items():
            (peer,) = (rank for rank in pair if rank != self._me)
            found[pair] = line = FlagLine(self._control, f"{self._name} line {pair}", lines[self._me], lines[peer], peer)
            self._ways.append(line)
        return found

    def _common_lines(self, groups: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], dict[int, memoryview]]:
        """A number in a cache line of its own for each rank of each group of this rank, if all of the group can look at them."""
        lines = self.allocate(len(groups) * ALIGNMENT)
        self._lines.append(lines)  # peers read them as long as the communicator lasts
        places: dict[int, MemoryRange | None] = dict(zip(self.members, self.exchange(self.locate(lines)), strict=True))
        found: dict[tuple[int, ...], dict[int, memoryview]] = {}
        for i, group in enumerate(groups):
            near = [(rank, places[rank]) for rank in group if rank in self._near]
            starts = {rank: MemoryRange(place.region, place.offset + i * ALIGNMENT, 8) for rank, place in near if place is not None}
            if self._me in group and len(starts) == len(group):
                found[group] = {rank: memoryview(self.look(rank, start).view(np.int64)) for rank, start in starts.items()}
        return found

    def _barrier_of(self, comm: Any, group: tuple[int, ...], what: str) -> None:
        assert self._windows is not None
        self._windows.sync()
        self._perform(comm.Ibarrier, self._count(f"collectives of {group}"), group, what)
        self._windows.sync()

    def _write(self, records: Sequence[Record]) -> list[Letter]:
        return super()._write(records) if self._windows is None else self._operations.write(records)

    def _prepare(self, groups: dict[Group, list[list[Letter]]]) -> None:
        self._operations.prepare(groups)
        for group in sorted(groups):
            if self._me in group.ranks and not self._by_windows(group, groups[group]):
                self._communicator(group.ranks)

    def _by_windows(self, group: Group, operations: Sequence[Sequence[Letter]]) -> bool:
        """The same answer on all ranks of the group, which know the same letters and gates."""
        readable = all(letter.readable for letters in operations for letter in letters)
        return readable and self._operations.can_meet(group)

    def _complete(self, record: Record, letters: Sequence[Letter]) -> None:
        if self._by_windows(record.group, [letters]):
            self._operations.complete(record, letters)
        elif record.kind == "transfer":
            way = self._count(f"transfers {record.ranks}")
            message = Message(self._start(record, record.source, record.target), self._finish, way, record)
            record.operation.fill([(message.post, ())])
            record.wait.fill([(message.wait, ())])
        else:
            record.operation.fill(self._messages(record))

    def _communicator(self, ranks: tuple[int, ...]) -> Any:
        """Of `ranks`, in that order; they all ask for their communicators in one order."""
        if ranks not in self._comms:
            group = self._comm.Get_group().Incl([self.members.index(rank) for rank in ranks])
            self._comms[ranks] = self._comm.Create_group(group)
            self._owned.append(self._comms[ranks])
        return self._comms[ranks]

    def _messages(self, record: Record) -> list[Call]:
        """The calls of an operation that goes through MPI."""
        source, target, before, after = _compatible(record)
        start = self._start(record, source, target)
        way = self._count(f"collectives of {record.ranks}")
        return [*before, (self._perform, (start, way, record.ranks, record.label)), *after]

    def _start(self, record: Record, source: Array, target: Array) -> Callable[[], Any]:
        comm = self._communicator(record.ranks)
        width = source.itemsize
        mpi = self._site.mpi
        byte = mpi.BYTE
        if record.kind == "transfer":
            if record.ranks[0] == self._me:
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
        operation = _operation(mpi, record.reduce, source.dtype)
        if record.kind == "all_reduce":
            return partial(comm.Iallreduce, source, target, operation)
        return partial(comm.Ireduce_scatter, source, target, list(record.counts), operation)

    def _perform(self, start: Callable[[], Any], way: WayCount, ranks: Sequence[int], what: str) -> None:
        request = start()
        way.done += 1
        self._finish(request, (way.name, way.done), ranks, what)

    def _finish(self, request: Any, point: Point, ranks: Sequence[int], what: str) -> None:
        needs = [Need(rank, *point) for rank in ranks if rank != self._me]
        self._control.carry(request.Test, what, lambda: needs)

    def barrier(self) -> None:
        what = f"a barrier of {self._named}"
        self._opened(what)
        meet = self._operations.meeting(self.members)
        if meet is not None:
            meet(what)
        else:
            self._perform(self._comm.Ibarrier, self._count("barriers"), self.members, what)

    def exchange(self, item: Any) -> list[Any]:
        what = f"an exchange among {self._named}"
        self._opened(what)
        return self._post.exchange(item, what)

    def seal(self) -> None:
        self._opened(f"the first binding of {self._named}")
        super().seal()

    def check(self) -> None:
        self._control.check()
        for rank in self._others:
            if LEAVING in self._control.words[rank]:
                raise self._control.left(rank, "work of its device")

    def observe(self, waited: Waited | None) -> None:
        self._control.observe(waited)

    def abort(self, reason: str) -> None:
        self._control.abort(reason)

    def reset(self) -> None:
        raise JobError("an aborted communicator of processes cannot be used again: the job has to end")

    def close(self) -> None:
        for _, group in sorted(self._groups.items()):  # in one order on all ranks
            group.close()
        self._groups.clear()
        self._records.clear()
        self._operations = SharedOperations(self, self._me)
        self._lines.clear()
        self._accord = None
        self._ways[:] = [way for way in self._ways if isinstance(way, WayCount)]  # no other holds on to windows
        if self._comm is not None and self._control.usable:
            if self._windows is not None:
                self._windows.close()
            self.barrier()
            while self._owned:
                self._owned.pop().Free()
        self._comm = None
        self._control.ways[:] = [ways for ways in self._control.ways if ways is not self._ways]


class Message:
    """One end of a transfer that goes through MPI."""

    def __init__(self, start: Callable[[], Any], finish: Callable[[Any, Point, Sequence[int], str], None], way: WayCount, record: Record) -> None:
        self._start = start
        self._finish = finish
        self._way = way
        self._about = record.ranks, record.label
        self._request: Any = None
        self._number = 0

    def post(self) -> None:
        self._request = self._start()
        self._way.done = self._number = self._way.done + 1

    def wait(self) -> None:
        self._finish(self._request, (self._way.name, self._number), *self._about)


@lru_cache
def _operation(mpi: Any, reduce: Reduction, dtype: np.dtype[Any]) -> Any:
    """MPI's own, but for extremes of floats: MPI may lose a NaN, and not on all ranks."""
    if reduce is Reduction.SUM or dtype.kind != "f":
        return {Reduction.SUM: mpi.SUM, Reduction.MAX: mpi.MAX, Reduction.MIN: mpi.MIN}[reduce]

    def combine(mine: Any, total: Any, _: Any) -> None:
        into = np.frombuffer(total, dtype)
        reduce.ufunc(np.frombuffer(mine, dtype), into, out=into)

    return mpi.Op.Create(combine, commute=True)


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
