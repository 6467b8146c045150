"""Collectives over shared memory: of threads, or of processes with a shared window.

Every operation consists of a barrier, reads of the peers' data, and another barrier.  The first barrier signals that all sources are ready.
The second barrier signals that all sources have been read and may be overwritten.

* A small source is first copied to one of two buffers, which the operations of a group use alternately.  A rank at the barrier of the next operation
  has finished reading in this one.  So the buffer is free after that barrier, and a second barrier is not needed.
* A larger source that peers cannot read is copied to memory that all such operations share, because a second barrier ends each of them.
* all_reduce: each rank combines all sources into its own target.  Large and in-place reductions run in two halves: each rank combines its piece of
  the sources, a barrier follows, and each rank copies the other pieces.
* A transfer needs no barrier.  The sender counts started transfers and the receiver completed ones, each in memory that the other reads.  The
  receiver copies when it waits.  A source that peers cannot read is copied when the transfer starts.
* Sources are always combined in the order of `ranks`, so all ranks get the same bits.
* Sums of more than two sources run block by block, so that the partial sum stays in the cache.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, Protocol

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.layout import cut
from jobflow.core.types import Array
from jobflow.ops.op import Call
from jobflow.runtime.comm.record import BindingMessage, Group, MemoryRange, Record, Turns, address
from jobflow.runtime.comm.solo_communicator import copying

#: bytes up to which a copy costs less than a barrier
SMALL = 32 * 1024
#: bytes above which two ranks save more by reading each source once than another barrier costs (measured on two cores)
HALVES = 512 * 1024
#: bytes; two sources and a sum of this size fit the private cache of a core
BLOCK = 128 * 1024
#: alignment of staged sources in bytes: a cache line
LINE = 64

#: Waits until all ranks of a group reach the barrier; the argument names the operation.
Barrier = Callable[[str], None]


class Channel(Protocol):
    """One end of a channel from one rank to another: each end counts its completed operations."""

    @property
    def done(self) -> int:
        """The number of completed operations of this end."""

    def advance(self) -> int:
        """Count one more operation of this end; return the new count."""

    def wait_for(self, count: int, what: str) -> None:
        """Wait until the other end has completed `count` operations; `what` names the operation."""


class Memory(Protocol):
    """The interface to memory that the ranks of a node share."""

    def allocate(self, nbytes: int) -> Array:
        """Allocate as in `Communicator.allocate`; collective over the node."""

    def locate(self, array: Array) -> MemoryRange | None:
        """Return the range of a contiguous array in this rank's allocations; None if the peers cannot read it."""

    def peer_view(self, rank: int, location: MemoryRange) -> Array:
        """Return a view of the memory of a peer."""

    def barriers(self, groups: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], Barrier]:
        """Return the barrier of each group of ranks, if it has one; collective over the world with the same groups."""

    def channels(self, pairs: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], Channel]:
        """Return this rank's end of the channel from the first to the second rank of each pair; collective like `barriers`."""


@dataclass(frozen=True)
class StagingNeed:
    """The bytes of staging memory that an operation needs.

    `small` is for a small source, in the two buffers of its group.  `source` and `result` are for arrays that peers cannot read directly.

    A transfer has its own buffer, from its start to the next start.
    """

    small: int = 0
    source: int = 0
    result: int = 0


@dataclass(frozen=True)
class StagingOffsets:
    """Offsets of a record in staging memory: its source, the source in the second buffer of the group, and its result; None for unstaged arrays."""

    source: int | None = None
    twin: int | None = None
    result: int | None = None


class Staging:
    """The staging memory of a series of records: two buffers per group, one per transfer, and one for all other operations.

    `spare` is the offset of a block for partial sums, which reductions among more than two ranks share.
    """

    def __init__(self, records: Sequence[Record], needs: Sequence[StagingNeed]) -> None:
        self.size = 0
        small: dict[tuple[int, ...], int] = {}
        for record, need in zip(records, needs, strict=True):
            group = tuple(sorted(record.ranks))
            small[group] = max(small.get(group, 0), need.small)
        pairs = {group: (self._take(nbytes), self._take(nbytes)) for group, nbytes in small.items()}
        transfers = [self._take(need.source) if record.kind == "transfer" else 0 for record, need in zip(records, needs, strict=True)]
        shared = self.size
        self.offsets = [
            self._offsets_of(need, pairs[tuple(sorted(record.ranks))], own if record.kind == "transfer" else shared)
            for record, need, own in zip(records, needs, transfers, strict=True)
        ]
        collectives = [need for record, need in zip(records, needs, strict=True) if record.kind != "transfer"]
        self._take(max((_lines(need.source) + need.result for need in collectives), default=0))
        self.spare = self._take(BLOCK if any(record.reduce is not None and len(record.ranks) > 2 for record in records) else 0)

    def _take(self, nbytes: int) -> int:
        offset = self.size
        self.size += _lines(nbytes)
        return offset

    def _offsets_of(self, need: StagingNeed, pair: tuple[int, int], start: int) -> StagingOffsets:
        if need.small:
            return StagingOffsets(*pair)
        return StagingOffsets(start if need.source else None, None, start + _lines(need.source) if need.result else None)


def _lines(nbytes: int) -> int:
    """Return `nbytes` rounded up to whole cache lines."""
    return -(-nbytes // LINE) * LINE


class SharedOperations:
    """The messages and calls of one rank's records, over one `Memory`."""

    def __init__(self, memory: Memory, rank: int) -> None:
        self._memory = memory
        self._rank = rank
        self._barriers: dict[tuple[int, ...], Barrier] = {}
        self._channels: dict[tuple[int, ...], Channel] = {}
        self._known: set[Group] = set()
        self._staging: Array = None
        self._spare: Array = None
        #: by group, for the operations of one seal
        self._turns: dict[tuple[int, ...], Turns] = {}

    def write(self, records: Sequence[Record]) -> list[BindingMessage]:
        """Allocate staging memory and return the messages of the records; collective over the node."""
        staging = Staging(records, [self._need(record) for record in records])
        self._staging, self._turns = self._memory.allocate(staging.size), defaultdict(Turns)
        self._spare = self._staging[staging.spare :]
        base = self._memory.locate(self._staging)
        return [self._message(record, offsets, base) for record, offsets in zip(records, staging.offsets, strict=True)]

    def prepare(self, groups: Iterable[Group]) -> None:
        """Create the missing barriers and channels; collective over the world."""
        new = sorted({group if group.transfers else Group(tuple(sorted(group.ranks)), False) for group in groups} - self._known)
        self._known.update(new)
        meeting, sending = ([group.ranks for group in new if group.transfers == sends] for sends in (False, True))
        if meeting:
            self._barriers.update(self._memory.barriers(meeting))
        if sending:
            self._channels.update(self._memory.channels(sending))

    def barrier_of(self, ranks: tuple[int, ...]) -> Barrier | None:
        """Return the barrier of these ranks; None, on all of these ranks, if they have no barrier."""
        return self._barriers.get(tuple(sorted(ranks)))

    def has_barrier(self, group: Group) -> bool:
        """Return True if the group has a barrier, or a channel if it is a group of transfers."""
        return group.ranks in self._channels if group.transfers else tuple(sorted(group.ranks)) in self._barriers

    def complete(self, record: Record, messages: Sequence[BindingMessage]) -> None:
        """Fill in the calls of `record` from the messages of its ranks."""
        record.operation.keep(self._staging)
        if record.kind == "transfer":
            self._transfer(record, messages)
            return
        depart = any(message.twin is None and message.nbytes > 0 for message in messages)
        even = self._series(record, messages, False, depart)
        odd = self._series(record, messages, True, depart) if any(message.twin is not None for message in messages) else even
        record.operation.fill(even, odd, self._turns[tuple(sorted(record.ranks))])

    def _need(self, record: Record) -> StagingNeed:
        nbytes = record.source.nbytes
        if nbytes == 0 or len(record.ranks) == 1:
            return StagingNeed()
        if nbytes <= SMALL and record.kind != "transfer":
            return StagingNeed(small=nbytes)
        own_piece = self._own_piece(record) if record.kind == "all_reduce" else None
        piece = 0 if own_piece is None or self._memory.locate(record.target) else own_piece.nbytes
        direct = self._memory.locate(record.source) is not None and not self._disturbs(record)
        return StagingNeed(source=0 if direct else nbytes, result=piece)

    def _own_piece(self, record: Record) -> Array:
        start, stop = cut(record.target.size, len(record.ranks))[record.ranks.index(self._rank)]
        return record.target[start:stop]

    def _disturbs(self, record: Record) -> bool:
        """Return True if writes to the target may change parts of the source that peers still read."""
        if not _overlap(record.source, record.target):
            return False
        if record.kind == "all_reduce":
            return _span(record.source) != _span(record.target)
        me = record.ranks.index(self._rank)
        start, stop = _offsets(record.counts)[me : me + 2]
        if record.kind == "all_gather":
            return _span(record.source) != _span(record.target[start:stop])
        # no peer reads a rank's own piece of the source of a reduce_scatter
        return record.kind != "reduce_scatter" or _span(record.target) != _span(record.source[start:stop])

    def _message(self, record: Record, offsets: StagingOffsets, base: MemoryRange | None) -> BindingMessage:
        def staged(offset: int | None, nbytes: int) -> MemoryRange | None:
            return None if base is None or offset is None else MemoryRange(base.region, base.offset + offset, nbytes)

        nbytes = record.source.nbytes
        if nbytes == 0 or len(record.ranks) == 1:
            return record.message()
        if offsets.twin is not None:
            return record.message(staged(offsets.source, nbytes), staged(offsets.twin, nbytes))
        source = self._memory.locate(record.source) if offsets.source is None else staged(offsets.source, nbytes)
        if record.kind != "all_reduce":
            return record.message(source)
        piece = self._own_piece(record)
        result = self._memory.locate(piece) if offsets.result is None else staged(offsets.result, piece.nbytes)
        return record.message(source, None, result, offsets.source is None and _overlap(record.source, record.target))

    def _series(self, record: Record, messages: Sequence[BindingMessage], odd: bool, depart: bool) -> list[Call]:
        meet: Call = (self._barriers[tuple(sorted(record.ranks))], (record.label,))
        locations = [message.twin if odd and message.twin is not None else message.source for message in messages]
        sources = [self._array(rank, location, record) for rank, location in zip(record.ranks, locations, strict=True)]
        me = record.ranks.index(self._rank)
        stage = copying(record.source, sources[me]) if record.source.size else []
        return [*stage, meet, *self._reads(record, me, sources, messages, meet), *([meet] if depart else [])]

    def _transfer(self, record: Record, messages: Sequence[BindingMessage]) -> None:
        location = messages[0].source
        source = self._array(record.ranks[0], location, record)
        channel = self._channels[record.ranks]
        if record.ranks[0] == self._rank:
            sender = Sender(channel, record.label, copying(record.source, source))
            record.operation.fill([(sender.start, ())])
            record.wait.fill([(sender.wait, ())])
        else:
            receiver = Receiver(channel, record.label, copying(source, record.target))
            record.operation.fill([(receiver.start, ())])
            record.wait.fill([(receiver.wait, ())])

    def _array(self, rank: int, location: MemoryRange | None, record: Record) -> Array:
        return record.source[:0] if location is None else self._memory.peer_view(rank, location).view(record.source.dtype)

    def _reads(self, record: Record, me: int, sources: Sequence[Array], messages: Sequence[BindingMessage], meet: Call) -> list[Call]:
        target = record.target
        if record.kind == "all_gather":
            return _gathering(sources, target, record.counts, me)
        if record.kind == "all_to_all":
            starts = [_offsets(message.counts)[me] for message in messages]
            pieces = [source[a : a + n] for source, a, n in zip(sources, starts, record.receives, strict=True)]
            return _gathering(pieces, target, record.receives, me)
        assert record.reduce is not None
        if record.kind == "reduce_scatter":
            start, stop = _offsets(record.counts)[me : me + 2]
            return combining(record.reduce.ufunc, [source[start:stop] for source in sources], target, self._spare)
        nbytes = messages[0].nbytes
        if nbytes > HALVES or (nbytes > SMALL and (len(messages) > 2 or any(message.in_place for message in messages))):
            return self._halves(record, me, sources, messages, meet)
        return combining(record.reduce.ufunc, sources, target, self._spare)

    def _halves(self, record: Record, me: int, sources: Sequence[Array], messages: Sequence[BindingMessage], meet: Call) -> list[Call]:
        assert record.reduce is not None
        spans = cut(record.target.size, len(record.ranks))
        results = [self._array(rank, message.result, record) for rank, message in zip(record.ranks, messages, strict=True)]
        first = combining(record.reduce.ufunc, [source[slice(*spans[me])] for source in sources], results[me], self._spare)
        return [*first, meet, *_gathering(results, record.target, [stop - start for start, stop in spans], me)]


class Sender:
    """The sender of a transfer; `staging` are the calls that copy a source that the receiver cannot read directly, or an empty list."""

    def __init__(self, channel: Channel, what: str, staging: list[Call]) -> None:
        self._channel = channel
        self._what = what
        self._staging = staging
        self._started = 0

    def start(self) -> None:
        if self._staging:
            self._channel.wait_for(self._started, self._what)  # the same transfer of the previous step
            for function, arguments in self._staging:
                function(*arguments)
        self._started = self._channel.advance()

    def wait(self) -> None:
        if not self._staging:
            self._channel.wait_for(self._started, self._what)


class Receiver:
    """The receiver of a transfer; the n-th start of the sender matches the n-th start of the receiver."""

    def __init__(self, channel: Channel, what: str, copy: list[Call]) -> None:
        self._channel = channel
        self._what = what
        self._copy = copy

    def start(self) -> None:
        """Do nothing: the receiver copies when it waits."""

    def wait(self) -> None:
        self._channel.wait_for(self._channel.done + 1, self._what)
        for function, arguments in self._copy:
            function(*arguments)
        self._channel.advance()


def _span(array: Array) -> tuple[int, int]:
    start = address(array)
    return start, start + array.nbytes


def _overlap(a: Array, b: Array) -> bool:
    (start_a, stop_a), (start_b, stop_b) = _span(a), _span(b)
    return start_a < stop_b and start_b < stop_a


def _offsets(counts: Sequence[int]) -> list[int]:
    return list(accumulate(counts, initial=0))


def _gathering(pieces: Sequence[Array], target: Array, counts: Sequence[int], me: int) -> list[Call]:
    """Return the calls that concatenate the pieces in `target`; each rank starts with its own piece, to spread the memory reads."""
    n = len(pieces)
    offsets = _offsets(counts)
    calls: list[Call] = []
    for i in range(me, me + n):
        calls += copying(pieces[i % n], target[offsets[i % n] : offsets[i % n + 1]])
    return calls


def _combine(ufunc: Any, a: Array, b: Array, out: Array) -> Call:
    # NumPy 2.4 deprecates the positional output of maximum and minimum; for add, it costs less than a keyword
    return (ufunc, (a, b, out)) if ufunc is np.add else (partial(ufunc, out=out), (a, b))


def combining(ufunc: Any, sources: Sequence[Array], target: Array, spare: Array) -> list[Call]:
    """Return the calls that combine the sources from left to right in `target`, which may be one of the sources.

    `spare` has BLOCK bytes for partial sums.
    """
    if target.size == 0:
        return []
    if len(sources) == 1:
        return copying(sources[0], target)
    if len(sources) == 2:
        return [_combine(ufunc, sources[0], sources[1], target)]
    length = max(1, BLOCK // target.itemsize)
    partial_sums = spare[:BLOCK].view(target.dtype) if any(_overlap(target, source) for source in sources) else None
    calls: list[Call] = []
    for start in range(0, target.size, length):
        parts = [source[start : start + length] for source in sources]
        out = target[start : start + length]
        so_far = out if partial_sums is None else partial_sums[: out.size]
        calls.append(_combine(ufunc, parts[0], parts[1], so_far))
        calls += [_combine(ufunc, so_far, part, so_far) for part in parts[2:-1]]
        calls.append(_combine(ufunc, so_far, parts[-1], out))
    return calls
