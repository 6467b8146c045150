"""Communicators of ranks that are processes: shared windows inside a node, MPI's own collectives between nodes.

In a node, `allocate` returns parts of MPI shared-memory windows, and the algorithms of `shared.py` run on them.  Ranks synchronize by flags, or by
MPI barriers on machines that may reorder stores.

An operation uses MPI instead if its ranks are on several nodes, or if shared memory is not available.  MPI calls never block: every wait polls
`Control`.

A group has its own MPI communicator and windows.  Their creation blocks, so its ranks send each other a message first.
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
from jobflow.runtime.comm.flags import ORDERED, FlagBarrier, FlagChannel, FlagComparison, MpiComparison
from jobflow.runtime.comm.message_queue import LEAVING, Control, MessageQueue
from jobflow.runtime.comm.record import BindingMessage, Group, MemoryRange, Record, Recorder, address
from jobflow.runtime.comm.shared import Barrier, Channel, SharedOperations
from jobflow.runtime.comm.shared_windows import SMALL_WINDOW, WINDOW, Windows
from jobflow.runtime.comm.waits import Arrival, Counter, PlainCounter, WaitEdge, What, divergence
from jobflow.runtime.device.numpy_device import ALIGNMENT, aligned_zeros

#: MPI tag of the calls by which the ranks of a group open it, the only point-to-point messages on this MPI communicator
_CALL = 3
_DIGEST = (1 << 64) - 1

#: the name of a counter, and a value
Point: TypeAlias = tuple[str, int]


@dataclass(frozen=True)
class MpiSettings:
    """The settings shared by the communicators of one world.

    `shared=False` sends everything through MPI.  `nodes[rank]` overrides the node of each rank, which is otherwise detected.  `name` is the same
    on all ranks and differs between worlds.
    """

    mpi: Any
    control: Control
    name: str
    shared: bool = True
    nodes: Sequence[int] | None = None


class MpiCommunicator(Recorder):
    """The communicator of a process, among all ranks or a group.  It must be opened before use; a group opens at its first operation."""

    def __init__(self, settings: MpiSettings, members: tuple[int, ...], world: MpiCommunicator | None = None) -> None:
        super().__init__(members, settings.control.rank, aligned_zeros, world)
        self._settings = settings
        self._control = settings.control
        self._name = settings.name if world is None else f"{settings.name}.{'.'.join(map(str, members))}"
        self._others = [rank for rank in members if rank != self._me]
        self._operations = SharedOperations(self, self._me)
        self._counters: list[Counter] = []
        self._counts: dict[str, PlainCounter] = {}
        self._comms: dict[tuple[int, ...], Any] = {}
        self._lines: list[Array] = []
        self._windows: Windows | None = None
        self._comparison: FlagComparison | MpiComparison | None = None
        self._control.counters.append(self._counters)
        self._comm: Any = None
        #: in a world: by group, the members whose calls have arrived
        self._callers: dict[tuple[int, ...], set[int]] = {}
        self._calls: list[Any] = []

    def open(self, comm: Any, queue: MessageQueue) -> None:
        """Open the communicator; `comm` is MPI's communicator of the members, used by this object only.  Collective."""
        mpi, nodes = self._settings.mpi, self._settings.nodes
        self._comm, self._queue = comm, queue
        node = comm.Split_type(mpi.COMM_TYPE_SHARED) if nodes is None else comm.Split(nodes[self._me], self.rank)
        self._near: list[int] = node.allgather(self._me)
        self._owned = [comm, node]
        if self._settings.shared and len(self._near) > 1:
            first = WINDOW if self._all is self else SMALL_WINDOW
            self._windows = Windows(mpi, node, self._near, self._control, self._count("memory"), first)
        self._comparison = self._make_comparison()
        self._counters.append(self._comparison)

    def _make_group(self, members: tuple[int, ...]) -> Communicator:
        return MpiCommunicator(self._settings, members, self)

    def _open_group(self, what: What) -> None:
        """Announce to the other members that this rank opens the group, wait for their announcements, and open the group."""
        world = self._all
        assert isinstance(world, MpiCommunicator)
        here = world._call(self.members)
        counter = self._count("first meeting")
        counter.done = 1
        done = partial(world._all_called, here, set(self._others))
        self._control.wait(done, what, lambda: [WaitEdge(rank, counter.name, 1) for rank in self._others if rank not in here])
        comm = world._comm.Create_group(world._comm.Get_group().Incl(list(self.members)))
        queue = MessageQueue(self._settings.mpi, comm, self._control, self._name, self.members)
        self.open(comm, queue)
        self._counters += queue.counters

    def _call(self, members: tuple[int, ...]) -> set[int]:
        """Announce to the other members of a group that this rank opens it.

        Return the set of members whose announcements have arrived; the set grows when further announcements arrive.
        """
        message = np.array(members, np.int64)
        self._calls += [self._comm.Isend(message, rank, _CALL) for rank in members if rank != self._me]
        return self._callers.setdefault(members, set())

    def _all_called(self, here: set[int], others: set[int]) -> bool:
        """Receive announcements, also for groups that this rank opens later.

        Return True when all `others` have announced this group, and the announcements of this rank have been sent.
        """
        mpi = self._settings.mpi
        status = mpi.Status()
        while self._comm.Iprobe(mpi.ANY_SOURCE, _CALL, status):
            message = np.empty(status.Get_count(mpi.INT64_T), np.int64)
            self._comm.Recv(message, status.Get_source(), _CALL)
            self._callers.setdefault(tuple(message.tolist()), set()).add(status.Get_source())
        self._calls = [request for request in self._calls if not request.Test()]
        return here >= others and not self._calls

    def _count(self, kind: str) -> PlainCounter:
        """Return this communicator's counter of operations of one kind, created at the first call."""
        if kind not in self._counts:
            self._counts[kind] = PlainCounter(f"{self._name} {kind}")
            self._counters.append(self._counts[kind])
        return self._counts[kind]

    def _make_comparison(self) -> FlagComparison | MpiComparison:
        """Return a comparison by flags if all ranks share memory in one node, or else by MPI; the choice is the same on all ranks."""
        name = f"{self._name} agreed"
        if self._windows is not None and len(self._near) == self.size and platform.machine() in ORDERED:
            lines = self.allocate(2 * ALIGNMENT)
            self._lines.append(lines)
            locations = dict(zip(self.members, self.exchange(self.locate(lines)), strict=True))
            if None not in locations.values():
                ranges = {
                    rank: (location._replace(nbytes=16), MemoryRange(location.region, location.offset + ALIGNMENT, 16))
                    for rank, location in locations.items()
                }
                slots = {rank: [memoryview(self.peer_view(rank, location).view(np.uint64)) for location in pair] for rank, pair in ranges.items()}
                return FlagComparison(self._control, name, slots[self._me], {rank: slots[rank] for rank in self._others})
        self._owned.append(self._comm.Dup())
        return MpiComparison(self._control, name, self._owned[-1], self._settings.mpi.MAX, self._others)

    def compare_digests(self, digest: int, what: Callable[[], str]) -> None:
        if self._comparison is None:
            self._open_group(lambda: f"collective 1 of ranks {list(self.members)}: {what()}")
            assert self._comparison is not None
        comparison = self._comparison
        if not comparison.compare(digest & _DIGEST, lambda: f"collective {comparison.done} of ranks {list(self.members)}: {what()}"):
            came = Arrival(digest & _DIGEST, what(), self._control.current_error)
            raise DivergedError(*divergence(comparison.done, self.members, self.exchange(came)))

    def _opened(self, what: str) -> None:
        if self._comm is None:
            self._open_group(what)

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
        location: MemoryRange | None = self.exchange(None if mine is None or self.rank else self._windows.locate(mine))[0]
        if location is None:
            return None
        return mine if self.rank == 0 else self.peer_view(self.members[0], location)

    def _report_shortage(self) -> None:
        """Print one notice per node that there is too little shared memory."""
        if self._near[0] == self._me:
            notice(f"{shared_memory.shortage()}. Ranks exchange some tensors by MPI messages instead, which is slower")

    def locate(self, array: Array) -> MemoryRange | None:
        return None if self._windows is None else self._windows.locate(array)

    def can_read(self, rank: int) -> bool:
        """Return True if this rank can read the shared allocations of that rank."""
        return self._windows is not None and rank in self._near

    def peer_view(self, rank: int, location: MemoryRange) -> Array:
        assert self._windows is not None
        return self._windows.peer_view(rank, location)

    def barriers(self, groups: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], Barrier]:
        """Return the barriers of groups whose ranks are all in this node and have shared memory."""
        barriers: dict[tuple[int, ...], Barrier] = {}
        for group, lines in self._common_lines(groups).items():
            flags = {rank: line for rank, line in lines.items() if rank != self._me}
            if platform.machine() in ORDERED:
                barrier = FlagBarrier(self._control, f"{self._name} meetings of {group}", lines[self._me], flags)
                self._counters.append(barrier)
                barriers[group] = barrier.wait
            else:
                barriers[group] = partial(self._barrier_of, self._communicator(group), group)
        return barriers

    def channels(self, pairs: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], Channel]:
        """Return the channels of pairs whose ranks are in this node; none if stores are not ordered, because transfers then use MPI."""
        channels: dict[tuple[int, ...], Channel] = {}
        for pair, lines in (self._common_lines(pairs) if platform.machine() in ORDERED else {}).items():
            (peer,) = (rank for rank in pair if rank != self._me)
            channels[pair] = channel = FlagChannel(self._control, f"{self._name} line {pair}", lines[self._me], lines[peer], peer)
            self._counters.append(channel)
        return channels

    def _common_lines(self, groups: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], dict[int, memoryview]]:
        """Return a counter in its own cache line for each rank of each group of this rank.

        Groups with a rank whose memory cannot be read are omitted.
        """
        lines = self.allocate(len(groups) * ALIGNMENT)
        self._lines.append(lines)  # keeps the memory alive for peers
        locations: dict[int, MemoryRange | None] = dict(zip(self.members, self.exchange(self.locate(lines)), strict=True))
        result: dict[tuple[int, ...], dict[int, memoryview]] = {}
        for i, group in enumerate(groups):
            near = [(rank, locations[rank]) for rank in group if rank in self._near]
            starts = {rank: MemoryRange(location.region, location.offset + i * ALIGNMENT, 8) for rank, location in near if location is not None}
            if self._me in group and len(starts) == len(group):
                result[group] = {rank: memoryview(self.peer_view(rank, start).view(np.int64)) for rank, start in starts.items()}
        return result

    def _barrier_of(self, comm: Any, group: tuple[int, ...], what: str) -> None:
        assert self._windows is not None
        self._windows.sync()
        self._perform(comm.Ibarrier, self._count(f"collectives of {group}"), group, what)
        self._windows.sync()

    def _write(self, records: Sequence[Record]) -> list[BindingMessage]:
        return super()._write(records) if self._windows is None else self._operations.write(records)

    def _prepare(self, groups: dict[Group, list[list[BindingMessage]]]) -> None:
        self._operations.prepare(groups)
        for group in sorted(groups):
            if self._me in group.ranks and not self._by_windows(group, groups[group]):
                self._communicator(group.ranks)

    def _by_windows(self, group: Group, operations: Sequence[Sequence[BindingMessage]]) -> bool:
        """Return True for operations over shared windows.

        The result is the same on all ranks of the group, because they have the same messages and barriers.
        """
        readable = all(message.readable for messages in operations for message in messages)
        return readable and self._operations.has_barrier(group)

    def _complete(self, record: Record, messages: Sequence[BindingMessage]) -> None:
        if self._by_windows(record.group, [messages]):
            self._operations.complete(record, messages)
        elif record.kind == "transfer":
            counter = self._count(f"transfers {record.ranks}")
            transfer = MpiTransfer(self._start(record, record.source, record.target), self._finish, counter, record)
            record.operation.fill([(transfer.start, ())])
            record.wait.fill([(transfer.wait, ())])
        else:
            record.operation.fill(self._mpi_calls(record))

    def _communicator(self, ranks: tuple[int, ...]) -> Any:
        """Return MPI's communicator of `ranks`, in that order; the ranks create their communicators in the same order."""
        if ranks not in self._comms:
            group = self._comm.Get_group().Incl([self.members.index(rank) for rank in ranks])
            self._comms[ranks] = self._comm.Create_group(group)
            self._owned.append(self._comms[ranks])
        return self._comms[ranks]

    def _mpi_calls(self, record: Record) -> list[Call]:
        """Return the calls of an operation through MPI."""
        source, target, before, after = _compatible(record)
        start = self._start(record, source, target)
        counter = self._count(f"collectives of {record.ranks}")
        return [*before, (self._perform, (start, counter, record.ranks, record.label)), *after]

    def _start(self, record: Record, source: Array, target: Array) -> Callable[[], Any]:
        comm = self._communicator(record.ranks)
        width = source.itemsize
        mpi = self._settings.mpi
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

    def _perform(self, start: Callable[[], Any], counter: PlainCounter, ranks: Sequence[int], what: str) -> None:
        request = start()
        counter.done += 1
        self._finish(request, (counter.name, counter.done), ranks, what)

    def _finish(self, request: Any, point: Point, ranks: Sequence[int], what: str) -> None:
        needs = [WaitEdge(rank, *point) for rank in ranks if rank != self._me]
        self._control.carry(request.Test, what, lambda: needs)

    def barrier(self) -> None:
        what = f"a barrier of {self._named}"
        self._opened(what)
        meet = self._operations.barrier_of(self.members)
        if meet is not None:
            meet(what)
        else:
            self._perform(self._comm.Ibarrier, self._count("barriers"), self.members, what)

    def exchange(self, item: Any) -> list[Any]:
        what = f"an exchange among {self._named}"
        self._opened(what)
        return self._queue.exchange(item, what)

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
        raise JobError("reset of a communicator: ranks that are processes cannot continue after an abort; end the job")

    def close(self) -> None:
        for _, group in sorted(self._groups.items()):  # in the same order on all ranks
            group.close()
        self._groups.clear()
        self._records.clear()
        self._operations = SharedOperations(self, self._me)
        self._lines.clear()
        self._comparison = None
        self._counters[:] = [counter for counter in self._counters if isinstance(counter, PlainCounter)]  # the other counters reference windows
        if self._comm is not None and self._control.usable:
            if self._windows is not None:
                self._windows.close()
            self.barrier()
            while self._owned:
                self._owned.pop().Free()
        self._comm = None
        self._control.counters[:] = [counters for counters in self._control.counters if counters is not self._counters]


class MpiTransfer:
    """One end of a transfer through MPI."""

    def __init__(
        self, start: Callable[[], Any], finish: Callable[[Any, Point, Sequence[int], str], None], counter: PlainCounter, record: Record
    ) -> None:
        self._start = start
        self._finish = finish
        self._counter = counter
        self._about = record.ranks, record.label
        self._request: Any = None
        self._number = 0

    def start(self) -> None:
        self._request = self._start()
        self._counter.done = self._number = self._counter.done + 1

    def wait(self) -> None:
        self._finish(self._request, (self._counter.name, self._number), *self._about)


@lru_cache
def _operation(mpi: Any, reduce: Reduction, dtype: np.dtype[Any]) -> Any:
    """Return the MPI operator of a reduction.

    The maximum and minimum of floats use a custom operator, because the predefined operator may lose a NaN on some ranks only.
    """
    if reduce is Reduction.SUM or dtype.kind != "f":
        return {Reduction.SUM: mpi.SUM, Reduction.MAX: mpi.MAX, Reduction.MIN: mpi.MIN}[reduce]

    def combine(mine: Any, total: Any, _: Any) -> None:
        into = np.frombuffer(total, dtype)
        reduce.ufunc(np.frombuffer(mine, dtype), into, out=into)

    return mpi.Op.Create(combine, commute=True)


def _compatible(record: Record) -> tuple[Array, Array, list[Call], list[Call]]:
    """Return the source and the target of the MPI call, and the copies before and after the call.

    MPI needs disjoint memory, and an element type that it can reduce.  For booleans, a sum in `record.reduce` becomes a maximum.
    """
    source, target = record.source, record.target
    before: list[Call] = []
    after: list[Call] = []
    reduces = record.reduce is not None
    if reduces and source.dtype == np.bool_:
        source, target = source.view(np.uint8), target.view(np.uint8)
        # the sum of booleans is "or", as in NumPy
        record.reduce = Reduction.MAX if record.reduce is Reduction.SUM else record.reduce
    elif reduces and source.dtype.kind in "fV" and source.itemsize == 2:
        wide = np.empty(source.size, np.float32), np.empty(target.size, np.float32)
        before.append((partial(np.copyto, casting="unsafe"), (wide[0], source)))
        after.append((partial(np.copyto, casting="unsafe"), (target, wide[1])))
        source, target = wide
    (start, stop), (first, last) = ((address(a), address(a) + a.nbytes) for a in (source, target))
    if start == first or (start < last and first < stop):  # MPI rejects equal addresses even for no elements
        copy = np.empty_like(source)
        before.append((np.copyto, (copy, source)))
        source = copy
    return source, target, before, after
