"""Communicators of ranks on GPUs through page-locked memory of the hosts.

Collectives are divided into pieces.  While the hosts exchange one piece, the GPU copies the next one to the host, and the one before from the
host.  All collectives of a device use the same four buffers.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from jobflow.core.types import Array
from jobflow.ops.op import Call
from jobflow.plan.traffic import Traffic
from jobflow.runtime.comm.communicator import Binding, Communicator, Transfers
from jobflow.runtime.comm.device_communicator import DeviceCommunicator
from jobflow.runtime.comm.record import flat
from jobflow.runtime.comm.solo_communicator import SingleRankGroup
from jobflow.runtime.device.device import Device

#: bytes of a piece
PIECE = 4 << 20
#: buffers that take turns
SIDES = 2


class StagingDevice(Device, Protocol):
    """A device with the methods for copies through the host."""

    def host_array(self, count: int, dtype: Any) -> Array:
        """Return host memory that the device copies to and from quickly."""

    def new_event(self) -> Any:
        """Return an event of the device."""

    def fetch_later(self, source: Array, host: Array, done: Any) -> None:
        """Start a copy of `source` to `host` after the kernels launched before; it is complete when the event `done` is."""

    def put_later(self, target: Array, host: Array, done: Any) -> None:
        """Start a copy of `host` to `target`, before the kernels launched later; it is complete when the event `done` is."""

    def wait(self, point: Any) -> None:
        """Wait for an event; raise the error of a failed rank."""


class Span(NamedTuple):
    """A range of elements of an array, and its first position in the buffer of a piece."""

    start: int
    stop: int
    at: int


class Piece(NamedTuple):
    """One part of a collective: the ranges of its source and of its target, and the elements of each rank."""

    sources: list[Span]
    targets: list[Span]
    counts: tuple[int, ...]
    receives: tuple[int, ...] = ()

    @property
    def sizes(self) -> tuple[int, int]:
        """The numbers of elements of the source and of the target."""
        return sum(s.stop - s.start for s in self.sources), sum(s.stop - s.start for s in self.targets)


class StagingBuffers:
    """The page-locked buffers of a device's collectives, and the events of the copies from and to them."""

    def __init__(self, device: StagingDevice) -> None:
        self.sources, self.targets = ([device.host_array(PIECE, "uint8") for _ in range(SIDES)] for _ in range(2))
        self.arrived, self.left = ([device.new_event() for _ in range(SIDES)] for _ in range(2))


#: the buffers of each device
_staging: WeakKeyDictionary[Any, StagingBuffers] = WeakKeyDictionary()


def _staging_of(device: StagingDevice) -> StagingBuffers:
    buffers = _staging.get(device)
    if buffers is None:
        buffers = _staging[device] = StagingBuffers(device)
    return buffers


class StagedCommunicator(DeviceCommunicator):
    """A communicator that copies to host memory, calls `inner`, and copies back."""

    def __init__(self, inner: Communicator, device: StagingDevice, world: StagedCommunicator | None = None, divide: bool = True) -> None:
        """Create the communicator; a group passes its `world`.

        `divide=False` exchanges each array at once.  That is required if ranks without a GPU take part, which do not divide arrays.
        """
        super().__init__(inner, device)
        self._divide = divide
        self._world = world or self
        self._groups: dict[tuple[int, ...], Communicator] = {self.members: self}
        #: operations of `inner` beyond one per run of a collective or transfer, by kind
        self._extra: dict[str, int] = {}

    def group(self, ranks: Sequence[int]) -> Communicator:
        inner, groups = self._inner.group(ranks), self._world._groups
        if inner.members not in groups:
            alone = SingleRankGroup(self._device.allocate, inner.members[0], self)
            groups[inner.members] = self._make_group(inner) if inner.size > 1 else alone
        return groups[inner.members]

    def _make_group(self, inner: Communicator) -> StagedCommunicator:
        return StagedCommunicator(inner, self._device, self._world, self._divide)

    def bind(self, what: Binding) -> list[Call]:
        source, target = flat(what.source), flat(what.target)
        pieces = pieces_of(what, list(what.ranks).index(self.rank), PIECE if self._divide else sys.maxsize)
        if len(pieces) == 1 and max(array.nbytes for array in (source, target)) > PIECE:
            return self._whole(what, source, target)
        staging = _staging_of(self._device)
        fetches = [self._fetching(staging, k % SIDES, source, piece.sources) for k, piece in enumerate(pieces)]
        calls = fetches[0]
        for k, piece in enumerate(pieces):
            side = k % SIDES
            calls += fetches[k + 1] if k + 1 < len(pieces) else []
            buffers = staging.sources[side], staging.targets[side]
            hosts = [buffer[: n * source.itemsize].view(source.dtype) for buffer, n in zip(buffers, piece.sizes, strict=True)]
            calls += [(self._device.wait, (staging.arrived[side],)), (self._device.wait, (staging.left[side],))]
            calls += self._inner.bind(what._replace(source=hosts[0], target=hosts[1], counts=piece.counts, receives=piece.receives))
            calls += self._putting(staging.left[side], target, hosts[1], piece.targets)
        return [*calls, *self._noted(what.kind, len(pieces))]

    def _whole(self, what: Binding, source: Array, target: Array) -> list[Call]:
        """Return the calls of a collective that cannot be divided."""
        hosts = [self._device.host_array(array.size, array.dtype) for array in (source, target)]
        calls = self._inner.bind(what._replace(source=hosts[0], target=hosts[1]))
        fetch: list[Call] = [(self._device.fetch, (source, hosts[0]))] if source.size else []
        return [*fetch, *calls, *([(self._device.put, (target, hosts[1]))] if target.size else [])]

    def _fetching(self, staging: StagingBuffers, side: int, source: Array, spans: Sequence[Span]) -> list[Call]:
        """Return the calls that start the copies of a piece to the host."""
        host, done = staging.sources[side].view(source.dtype), staging.arrived[side]
        return [(self._device.fetch_later, (source[s.start : s.stop], host[s.at : s.at + s.stop - s.start], done)) for s in spans if s.stop > s.start]

    def _putting(self, done: Any, target: Array, host: Array, spans: Sequence[Span]) -> list[Call]:
        """Return the calls that start the copies of a piece to the GPU, and record their event."""
        return [(self._device.put_later, (target[s.start : s.stop], host[s.at : s.at + s.stop - s.start], done)) for s in spans if s.stop > s.start]

    def bind_send(self, peer: int, source: Array, name: str = "") -> Transfers:
        source = flat(source)
        host = self._device.host_array(source.size, source.dtype)
        calls: list[Call] = []
        waits: list[Call] = []
        spans = self._ranges(source)
        events = [self._device.new_event() for _ in spans]
        # the wait of the previous step's transfer makes the host array writable again
        for (start, stop), done in zip(spans, events, strict=True):
            calls += [(self._device.fetch_later, (source[start:stop], host[start:stop], done))] if stop > start else []
        for (start, stop), done in zip(spans, events, strict=True):
            piece = self._inner.bind_send(peer, host[start:stop], name)
            calls += [(self._device.wait, (done,)), *piece.start]
            waits += piece.wait
        return Transfers([*calls, *self._noted("transfer", len(spans))], waits)

    def bind_receive(self, peer: int, target: Array, name: str = "") -> Transfers:
        target = flat(target)
        host = self._device.host_array(target.size, target.dtype)
        calls: list[Call] = []
        waits: list[Call] = []
        left = self._device.new_event()
        calls.append((self._device.wait, (left,)))  # the copies of the previous step read the host array
        spans = self._ranges(target)
        for start, stop in spans:
            piece = self._inner.bind_receive(peer, host[start:stop], name)
            calls += piece.start
            waits += piece.wait
            waits += [(self._device.put_later, (target[start:stop], host[start:stop], left))] if stop > start else []
        return Transfers([*calls, *self._noted("transfer", len(spans))], waits)

    def _ranges(self, array: Array) -> list[tuple[int, int]]:
        return _ranges(array.size, array.itemsize, PIECE if self._divide else sys.maxsize)

    def _noted(self, kind: str, pieces: int) -> list[Call]:
        """Return the call that counts the additional operations of a run in several pieces."""

        def note() -> None:
            self._extra[kind] = self._extra.get(kind, 0) + pieces - 1

        return [(note, ())] if pieces > 1 else []

    def seal(self) -> None:
        self._inner.seal()

    def sent(self) -> dict[str, Traffic]:
        extra = dict(self._extra)
        for group in self._groups.values() if self._world is self else ():
            if isinstance(group, StagedCommunicator) and group is not self:
                extra = {kind: extra.get(kind, 0) + group._extra.get(kind, 0) for kind in extra.keys() | group._extra.keys()}
        return {kind: Traffic(runs - extra.get(kind, 0), nbytes) for kind, (runs, nbytes) in self._inner.sent().items()}

    def reset(self) -> None:
        self._inner.reset()

    def close(self) -> None:
        self._inner.close()


def _ranges(count: int, width: int, most: int) -> list[tuple[int, int]]:
    """Return the ranges of elements of pieces of at most `most` bytes; one range for an empty array."""
    step = max(most // max(width, 1), 1)
    return [(start, min(start + step, count)) for start in range(0, max(count, 1), step)]


def pieces_of(what: Binding, me: int, most: int) -> list[Piece]:
    """Return the pieces of a collective, of at most `most` bytes, the same number on all ranks; `me` is this rank's position in it.

    An exchange of all ranks is one piece, because a rank does not have the numbers of elements of other ranks.
    """
    source, target, counts, width = what.source, what.target, tuple(what.counts), what.source.itemsize
    if what.kind == "all_to_all":
        return [Piece([Span(0, source.size, 0)], [Span(0, target.size, 0)], counts, tuple(what.receives))]
    if what.kind == "all_reduce":
        return [Piece([Span(start, stop, 0)], [Span(start, stop, 0)], (stop - start,)) for start, stop in _ranges(counts[0], width, most)]
    result: list[Piece] = []
    firsts = list(accumulate(counts, initial=0))
    for start, stop in _ranges(max(counts), width * len(counts), most):
        parts = [(min(start, count), min(stop, count)) for count in counts]
        sizes = tuple(last - first for first, last in parts)
        places = list(accumulate(sizes, initial=0))
        all_ranks = [Span(base + first, base + last, at) for base, (first, last), at in zip(firsts, parts, places, strict=False)]
        mine = [Span(*parts[me], 0)]
        result.append(Piece(mine, all_ranks, sizes) if what.kind == "all_gather" else Piece(all_ranks, mine, sizes))
    return result
