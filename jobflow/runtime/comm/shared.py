"""Collectives over shared memory: of threads, or of processes with a shared window.

Every operation is `meet, read what the peers have, meet again`: the first meeting says that all sources are ready, the second
that all have been read and may be overwritten.

* A small source is copied first into one of two buffers, which the operations of a group use in turn.  A rank that arrives at the meeting of
  the next operation has finished reading in this one.  So the buffer is free again after that meeting, and a second meeting is not needed.
* A larger source that peers cannot read is copied to memory that all such operations share, because a second meeting ends each of them.
* all_reduce: each rank combines all sources into its own target.  Large ones, and those in place, go in two halves: each rank
  combines its piece of the sources, all meet, and each copies the others' pieces.
* A transfer takes no meeting.  The sender counts what it has posted, the receiver what it has taken, each in a place of its own
  that the other looks at; the receiver copies when it waits.  A source that peers cannot read is copied when it is posted.
* Sources are always combined in the order of `ranks`, so all ranks get the same bits.
* Sums of more than two sources go block by block, so that the partial sum stays in the cache.
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
from jobflow.runtime.comm.record import Group, Letter, MemoryRange, Record, Turns, address
from jobflow.runtime.comm.solo_communicator import copying

#: bytes; up to here a copy costs less than a meeting
SMALL = 32 * 1024
#: bytes; above this two ranks gain more from reading each source once than another meeting costs (measured on two cores)
HALVES = 512 * 1024
#: bytes; two sources and a sum of this size fit a core's own cache
BLOCK = 128 * 1024
#: bytes; staged sources start on cache lines
LINE = 64

#: Waits until all ranks of a group are there; the argument says what for.
Meet = Callable[[str], None]


class Channel(Protocol):
    """One end of the way from one rank to another: each end counts what it has done."""

    @property
    def done(self) -> int:
        """How much this end has done."""

    def tell(self) -> int:
        """This end has done one more; how many that makes."""

    def hear(self, count: int, what: str) -> None:
        """Wait until the other end has done `count`; `what` says what for."""


class Memory(Protocol):
    """What the algorithms need of whoever shares memory among the ranks of a node."""

    def allocate(self, nbytes: int) -> Array:
        """See `Communicator.allocate`; collective over the node."""

    def locate(self, array: Array) -> MemoryRange | None:
        """Where a contiguous array lies in this rank's allocations; None if the peers cannot read it."""

    def look(self, rank: int, place: MemoryRange) -> Array:
        """The bytes of a peer."""

    def gates(self, groups: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], Meet]:
        """How each group of ranks meets, as far as it can; collective over the world, which names the same groups."""

    def channels(self, pairs: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], Channel]:
        """This rank's end of the way from the first rank of each pair to the second, as for `gates`."""


@dataclass(frozen=True)
class StagingNeed:
    """Bytes that an operation stages: a small source in the buffers of its group, a source or a result that peers cannot read where it lies.

    A transfer has a buffer to itself, from its post to the next post.
    """

    small: int = 0
    source: int = 0
    result: int = 0


@dataclass(frozen=True)
class Seat:
    """Offsets in the staging memory of one seal; None where the array itself can be read, or there is nothing to read."""

    source: int | None = None
    twin: int | None = None
    result: int | None = None


class Staging:
    """The staging memory of a series of records: two buffers for each group, one for each transfer, and one that all else shares.

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
        self.seats = [
            self._seat(need, pairs[tuple(sorted(record.ranks))], own if record.kind == "transfer" else shared)
            for record, need, own in zip(records, needs, transfers, strict=True)
        ]
        collectives = [need for record, need in zip(records, needs, strict=True) if record.kind != "transfer"]
        self._take(max((_lines(need.source) + need.result for need in collectives), default=0))
        self.spare = self._take(BLOCK if any(record.reduce is not None and len(record.ranks) > 2 for record in records) else 0)

    def _take(self, nbytes: int) -> int:
        offset = self.size
        self.size += _lines(nbytes)
        return offset

    def _seat(self, need: StagingNeed, pair: tuple[int, int], start: int) -> Seat:
        if need.small:
            return Seat(*pair)
        return Seat(start if need.source else None, None, start + _lines(need.source) if need.result else None)


def _lines(nbytes: int) -> int:
    """The bytes of whole cache lines that hold `nbytes`."""
    return -(-nbytes // LINE) * LINE


class SharedOperations:
    """Writes the letters of one rank's records and fills in their calls, over one `Memory`."""

    def __init__(self, memory: Memory, rank: int) -> None:
        self._memory = memory
        self._rank = rank
        self._gates: dict[tuple[int, ...], Meet] = {}
        self._channels: dict[tuple[int, ...], Channel] = {}
        self._known: set[Group] = set()
        self._staging: Array = None
        self._spare: Array = None
        #: by group, of the operations of one seal
        self._turns: dict[tuple[int, ...], Turns] = {}

    def write(self, records: Sequence[Record]) -> list[Letter]:
        """Collective over the node: sources that must be copied get memory here."""
        staging = Staging(records, [self._need(record) for record in records])
        self._staging, self._turns = self._memory.allocate(staging.size), defaultdict(Turns)
        self._spare = self._staging[staging.spare :]
        base = self._memory.locate(self._staging)
        return [self._letter(record, seat, base) for record, seat in zip(records, staging.seats, strict=True)]

    def prepare(self, groups: Iterable[Group]) -> None:
        """Make the gates and channels that are still missing; collective over the world."""
        new = sorted({group if group.transfers else Group(tuple(sorted(group.ranks)), False) for group in groups} - self._known)
        self._known.update(new)
        meeting, sending = ([group.ranks for group in new if group.transfers == sends] for sends in (False, True))
        if meeting:
            self._gates.update(self._memory.gates(meeting))
        if sending:
            self._channels.update(self._memory.channels(sending))

    def meeting(self, ranks: tuple[int, ...]) -> Meet | None:
        """How these ranks meet, if they have done so before; the same answer on all of them."""
        return self._gates.get(tuple(sorted(ranks)))

    def can_meet(self, group: Group) -> bool:
        """True if all ranks of the group have memory that they can read of each other."""
        return group.ranks in self._channels if group.transfers else tuple(sorted(group.ranks)) in self._gates

    def complete(self, record: Record, letters: Sequence[Letter]) -> None:
        """Fill in the calls of `record`, whose ranks wrote `letters`."""
        record.operation.keep(self._staging)
        if record.kind == "transfer":
            self._transfer(record, letters)
            return
        depart = any(letter.twin is None and letter.nbytes > 0 for letter in letters)
        even = self._series(record, letters, False, depart)
        odd = self._series(record, letters, True, depart) if any(letter.twin is not None for letter in letters) else even
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
        """True if writing the target may change what peers still read of the source."""
        if not _overlap(record.source, record.target):
            return False
        if record.kind == "all_reduce":
            return _span(record.source) != _span(record.target)
        me = record.ranks.index(self._rank)
        start, stop = _offsets(record.counts)[me : me + 2]
        if record.kind == "all_gather":
            return _span(record.source) != _span(record.target[start:stop])
        # of the source of a reduce_scatter, a rank's own piece is read by nobody else
        return record.kind != "reduce_scatter" or _span(record.target) != _span(record.source[start:stop])

    def _letter(self, record: Record, seat: Seat, base: MemoryRange | None) -> Letter:
        def staged(offset: int | None, nbytes: int) -> MemoryRange | None:
            return None if base is None or offset is None else MemoryRange(base.region, base.offset + offset, nbytes)

        nbytes = record.source.nbytes
        if nbytes == 0 or len(record.ranks) == 1:
            return record.letter()
        if seat.twin is not None:
            return record.letter(staged(seat.source, nbytes), staged(seat.twin, nbytes))
        source = self._memory.locate(record.source) if seat.source is None else staged(seat.source, nbytes)
        if record.kind != "all_reduce":
            return record.letter(source)
        piece = self._own_piece(record)
        result = self._memory.locate(piece) if seat.result is None else staged(seat.result, piece.nbytes)
        return record.letter(source, None, result, seat.source is None and _overlap(record.source, record.target))

    def _series(self, record: Record, letters: Sequence[Letter], odd: bool, depart: bool) -> list[Call]:
        meet: Call = (self._gates[tuple(sorted(record.ranks))], (record.label,))
        places = [letter.twin if odd and letter.twin is not None else letter.source for letter in letters]
        sources = [self._array(rank, place, record) for rank, place in zip(record.ranks, places, strict=True)]
        me = record.ranks.index(self._rank)
        stage = copying(record.source, sources[me]) if record.source.size else []
        return [*stage, meet, *self._reads(record, me, sources, letters, meet), *([meet] if depart else [])]

    def _transfer(self, record: Record, letters: Sequence[Letter]) -> None:
        place = letters[0].source
        source = self._array(record.ranks[0], place, record)
        channel = self._channels[record.ranks]
        if record.ranks[0] == self._rank:
            sending = Sending(channel, record.label, copying(record.source, source))
            record.operation.fill([(sending.post, ())])
            record.wait.fill([(sending.wait, ())])
        else:
            taking = Taking(channel, record.label, copying(source, record.target))
            record.operation.fill([(taking.post, ())])
            record.wait.fill([(taking.wait, ())])

    def _array(self, rank: int, place: MemoryRange | None, record: Record) -> Array:
        return record.source[:0] if place is None else self._memory.look(rank, place).view(record.source.dtype)

    def _reads(self, record: Record, me: int, sources: Sequence[Array], letters: Sequence[Letter], meet: Call) -> list[Call]:
        target = record.target
        if record.kind == "all_gather":
            return _gathering(sources, target, record.counts, me)
        if record.kind == "all_to_all":
            starts = [_offsets(letter.counts)[me] for letter in letters]
            pieces = [source[a : a + n] for source, a, n in zip(sources, starts, record.receives, strict=True)]
            return _gathering(pieces, target, record.receives, me)
        assert record.reduce is not None
        if record.kind == "reduce_scatter":
            start, stop = _offsets(record.counts)[me : me + 2]
            return combining(record.reduce.ufunc, [source[start:stop] for source in sources], target, self._spare)
        nbytes = letters[0].nbytes
        if nbytes > HALVES or (nbytes > SMALL and (len(letters) > 2 or any(letter.in_place for letter in letters))):
            return self._halves(record, me, sources, letters, meet)
        return combining(record.reduce.ufunc, sources, target, self._spare)

    def _halves(self, record: Record, me: int, sources: Sequence[Array], letters: Sequence[Letter], meet: Call) -> list[Call]:
        assert record.reduce is not None
        spans = cut(record.target.size, len(record.ranks))
        results = [self._array(rank, letter.result, record) for rank, letter in zip(record.ranks, letters, strict=True)]
        first = combining(record.reduce.ufunc, [source[slice(*spans[me])] for source in sources], results[me], self._spare)
        return [*first, meet, *_gathering(results, record.target, [stop - start for start, stop in spans], me)]


class Sending:
    """What the sender of a transfer does; `staging` copies the source to where the receiver finds it, if it cannot read it where it is."""

    def __init__(self, channel: Channel, what: str, staging: list[Call]) -> None:
        self._channel = channel
        self._what = what
        self._staging = staging
        self._posted = 0

    def post(self) -> None:
        if self._staging:
            self._channel.hear(self._posted, self._what)  # the same transfer in the step before
            for function, arguments in self._staging:
                function(*arguments)
        self._posted = self._channel.tell()

    def wait(self) -> None:
        if not self._staging:
            self._channel.hear(self._posted, self._what)


class Taking:
    """What the receiver of a transfer does.  The sender's first post is the receiver's first, and so on."""

    def __init__(self, channel: Channel, what: str, copy: list[Call]) -> None:
        self._channel = channel
        self._what = what
        self._copy = copy

    def post(self) -> None:
        """Nothing: the receiver fetches what it waits for."""

    def wait(self) -> None:
        self._channel.hear(self._channel.done + 1, self._what)
        for function, arguments in self._copy:
            function(*arguments)
        self._channel.tell()


def _span(array: Array) -> tuple[int, int]:
    start = address(array)
    return start, start + array.nbytes


def _overlap(a: Array, b: Array) -> bool:
    (start_a, stop_a), (start_b, stop_b) = _span(a), _span(b)
    return start_a < stop_b and start_b < stop_a


def _offsets(counts: Sequence[int]) -> list[int]:
    return list(accumulate(counts, initial=0))


def _gathering(pieces: Sequence[Array], target: Array, counts: Sequence[int], me: int) -> list[Call]:
    """target = the pieces, one after another; each rank begins with its own, so that not all read the same memory at once."""
    n = len(pieces)
    offsets = _offsets(counts)
    calls: list[Call] = []
    for i in range(me, me + n):
        calls += copying(pieces[i % n], target[offsets[i % n] : offsets[i % n + 1]])
    return calls


def _combine(ufunc: Any, a: Array, b: Array, out: Array) -> Call:
    # NumPy 2.4 deprecates a positional output of maximum and minimum; that of add costs less than a keyword
    return (ufunc, (a, b, out)) if ufunc is np.add else (partial(ufunc, out=out), (a, b))


def combining(ufunc: Any, sources: Sequence[Array], target: Array, spare: Array) -> list[Call]:
    """target = sources[0] + sources[1] + ... from left to right; target may be one of them.  `spare`: BLOCK bytes for partial sums."""
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
