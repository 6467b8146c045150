"""Transfers of boxes of a tensor between ranks: between placements, and where the route table has no row.

A box has the same values on every rank that holds it, so no partial dimension is involved.  Along mesh dimensions that are partial
in both layouts, the ranks with the same coordinate exchange their addends among themselves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

from jobflow.compiler.rank.local import Builder, Collect, Join, LocalValue
from jobflow.core.dataclass import dataclass
from jobflow.core.layout import SUM, Box, Layout, Partial, Span
from jobflow.core.types import TensorType
from jobflow.ops.layout_ops import Assemble, FillIdentity, SliceBox


@dataclass(frozen=True)
class BoxTransfer:
    """The transfer of a box of a tensor from one rank to another; a local copy if both are the same rank."""

    source: int
    target: int
    box: Box

    @property
    def size(self) -> int:
        """The number of elements that the source rank sends; 0 for a local copy."""
        return 0 if self.source == self.target else math.prod(self.box.shape)


@lru_cache(maxsize=4096)
def transfers(source: Layout, target: Layout, shape: tuple[int, ...], among: frozenset[int] | None = None) -> tuple[BoxTransfer, ...]:
    """Return the transfers that change the placement of a tensor without partial dimensions; `among` restricts the ranks."""
    return _between(source.boxes(shape), target.boxes(shape), shape, among)


@lru_cache(maxsize=4096)
def row_exchanges(layout: Layout, shape: tuple[int, ...], start: int, stop: int) -> tuple[Exchange, ...]:
    """Return the exchanges by which ranks receive their parts of rows `start` to `stop` of a tensor without partial dimensions."""
    needed = {rank: shifted(box, start, shape) for rank, box in layout.boxes((stop - start, *shape[1:])).items()}
    return tuple(_connected(layout.placement.ranks, _between(layout.boxes(shape), needed, shape)))


def shifted(box: Box, start: int, shape: tuple[int, ...]) -> Box:
    """Convert a box of the rows that begin at `start` to a box of the whole tensor."""
    (low, high), *rest = box.spans
    return Box(((low + start, high + start), *rest), shape)


def _between(
    source: Mapping[int, Box], target: Mapping[int, Box], shape: tuple[int, ...], among: frozenset[int] | None = None
) -> tuple[BoxTransfer, ...]:
    """Return the transfers from the boxes that ranks hold to the boxes that ranks need.

    Every target rank uses its own data first, then receives from other holders in placement order.  Several holders of the same part
    send it alternately, to balance the load.
    """
    held: dict[tuple[Span, ...], list[int]] = {}
    for rank, box in source.items():
        if among is None or rank in among:
            held.setdefault(box.spans, []).append(rank)
    result: list[BoxTransfer] = []
    for turn, (rank, need) in enumerate(target.items()):
        if among is not None and rank not in among:
            continue
        for spans, holders in held.items():
            box = need.meet(Box(spans, shape))
            if not box.is_empty:
                result.append(BoxTransfer(rank if rank in holders else holders[turn % len(holders)], rank, box))
    return tuple(result)


@dataclass(frozen=True)
class Exchange:
    """One all_to_all among `ranks`; the transfers include local copies."""

    ranks: tuple[int, ...]
    transfers: tuple[BoxTransfer, ...]

    def counts(self, rank: int) -> tuple[int, ...]:
        """Return the number of elements that `rank` sends to each rank."""
        return self._sizes({move.target: move.size for move in self.transfers if move.source == rank})

    def receives(self, rank: int) -> tuple[int, ...]:
        """Return the number of elements that `rank` receives from each rank."""
        return self._sizes({move.source: move.size for move in self.transfers if move.target == rank})

    def _sizes(self, sizes: dict[int, int]) -> tuple[int, ...]:
        return tuple(sizes.get(other, 0) for other in self.ranks)


@lru_cache(maxsize=4096)
def exchanges(source: Layout, target: Layout, shape: tuple[int, ...]) -> tuple[Exchange, ...]:
    """Return the exchanges between two layouts on one placement, in the smallest independent groups of ranks."""
    partial = [d for d, sbp in enumerate(source.sbp) if isinstance(sbp, Partial)]
    if partial:
        inside = source.placement.along([d for d in range(len(source.sbp)) if d not in partial])
        result = [exchange for ranks in inside for exchange in _connected(ranks, transfers(source, target, shape, frozenset(ranks)))]
    else:
        result = _connected(source.placement.ranks, transfers(source, target, shape))
    return tuple(result)


def _connected(ranks: Sequence[int], all_transfers: tuple[BoxTransfer, ...]) -> list[Exchange]:
    group = {rank: rank for rank in ranks}

    def root(rank: int) -> int:
        while group[rank] != rank:
            rank = group[rank]
        return rank

    for move in all_transfers:
        group[root(move.source)] = root(move.target)
    groups: dict[int, list[int]] = {}
    for rank in ranks:
        groups.setdefault(root(rank), []).append(rank)
    return [Exchange(tuple(members), tuple(move for move in all_transfers if move.target in members)) for members in groups.values()]


def exchange_steps(build: Builder, x: LocalValue, source: Box, target: Box, exchange: Exchange, order: int) -> LocalValue:
    """Append the instructions of an exchange; return the `target` box of this rank.

    `x` is the `source` box of this rank.
    """
    gives = sorted((move for move in exchange.transfers if move.source == build.rank), key=lambda move: exchange.ranks.index(move.target))
    takes = sorted((move for move in exchange.transfers if move.target == build.rank), key=lambda move: exchange.ranks.index(move.source))
    received = [(move.box, take(build, x, source, move.box)) for move in takes if move.source == build.rank]
    if len(exchange.ranks) > 1:
        flat = _all_to_all(build, x, source, [move.box for move in gives if move.size], exchange, order)
        start = 0
        for move in takes:
            if move.size:
                piece = build.compute(SliceBox((start,), (start + move.size,)), flat)
                received.append((move.box, build.unflatten(piece, move.box.shape)))
                start += move.size
    return put_together(build, target, received, x.type)


def _all_to_all(build: Builder, x: LocalValue, held: Box, boxes: Sequence[Box], exchange: Exchange, order: int) -> LocalValue:
    """Send `boxes` to the other ranks; return the received data as a flat array."""
    counts, receives = exchange.counts(build.rank), exchange.receives(build.rank)
    packed = LocalValue(x.type.with_shape((sum(counts),)), f"{x.name}.packed")
    parts, offsets, offset = [], [], 0
    for box in boxes:
        at = box.within(held)
        parts.append(build.compute(SliceBox(tuple(s.start for s in at), tuple(s.stop for s in at)), x))
        offsets.append(offset)
        offset += parts[-1].type.nbytes
    build.append(Join(tuple(offsets)), tuple(parts), (packed,))
    flat = LocalValue(x.type.with_shape((sum(receives),)), f"{build.name}.all_to_all")
    build.append(Collect("all_to_all", exchange.ranks, counts, receives, SUM, order), (packed,), (flat,))
    return flat


def take(build: Builder, x: LocalValue, held: Box, box: Box) -> LocalValue:
    """Return `box` of a tensor, read from `x`, which is the box `held` of the tensor."""
    if held.spans == box.spans:
        return x
    at = box.within(held)
    return build.compute(SliceBox(tuple(s.start for s in at), tuple(s.stop for s in at)), x)


def put_together(build: Builder, box: Box, parts: Sequence[tuple[Box, LocalValue]], type: TensorType) -> LocalValue:
    """Return `box` of a tensor, assembled from parts that fill it."""
    if len(parts) == 1 and parts[0][0].spans == box.spans:
        return parts[0][1]
    if not parts:
        return build.compute(FillIdentity(box.shape, type.dtype))
    boxes = tuple(Box(tuple((s.start, s.stop) for s in part.within(box)), box.shape) for part, _ in parts)
    return build.compute(Assemble(box.shape, boxes), *(value for _, value in parts))
