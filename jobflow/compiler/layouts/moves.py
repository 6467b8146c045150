"""Transfers of boxes of a tensor between ranks: between placements, and where the route table has no row.

Nothing here is partial: a box means the same numbers on every rank that holds it.  Along mesh dimensions on which both layouts
are partial alike, the ranks that share a place hand their addends on among themselves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

from jobflow.compiler.rank.local import Builder, Collect, Item, Join
from jobflow.core.dataclass import dataclass
from jobflow.core.layout import SUM, Box, Layout, Partial, Span
from jobflow.core.types import TensorType
from jobflow.ops.layout_ops import Assemble, FillIdentity, SliceBox


@dataclass(frozen=True)
class Move:
    """`box` of a tensor goes from one rank to another (or stays, if they are the same)."""

    source: int
    target: int
    box: Box

    @property
    def size(self) -> int:
        """Elements that leave the source."""
        return 0 if self.source == self.target else math.prod(self.box.shape)


@lru_cache(maxsize=4096)
def moves(source: Layout, target: Layout, shape: tuple[int, ...], among: frozenset[int] | None = None) -> tuple[Move, ...]:
    """What goes where when a tensor without partial dimensions changes its placement; `among` leaves the other ranks out."""
    return _between(source.boxes(shape), target.boxes(shape), shape, among)


@lru_cache(maxsize=4096)
def row_exchanges(layout: Layout, shape: tuple[int, ...], start: int, stop: int) -> tuple[Exchange, ...]:
    """How the ranks of a layout come to their parts of rows `start` to `stop` of a tensor, nothing of which is partial."""
    needed = {rank: shifted(box, start, shape) for rank, box in layout.boxes((stop - start, *shape[1:])).items()}
    return tuple(_connected(layout.placement.ranks, _between(layout.boxes(shape), needed, shape)))


def shifted(box: Box, start: int, shape: tuple[int, ...]) -> Box:
    """A box of the rows that begin at `start`, as a box of the whole tensor."""
    (low, high), *rest = box.spans
    return Box(((low + start, high + start), *rest), shape)


def _between(source: Mapping[int, Box], target: Mapping[int, Box], shape: tuple[int, ...], among: frozenset[int] | None = None) -> tuple[Move, ...]:
    """What goes where, by what every rank has and needs.

    Every target rank takes what it needs from itself first, then from the holders in placement order; several holders of the
    same part take turns, so that no one serves all.
    """
    held: dict[tuple[Span, ...], list[int]] = {}
    for rank, box in source.items():
        if among is None or rank in among:
            held.setdefault(box.spans, []).append(rank)
    found: list[Move] = []
    for turn, (rank, need) in enumerate(target.items()):
        if among is not None and rank not in among:
            continue
        for spans, holders in held.items():
            box = need.meet(Box(spans, shape))
            if not box.is_empty:
                found.append(Move(rank if rank in holders else holders[turn % len(holders)], rank, box))
    return tuple(found)


@dataclass(frozen=True)
class Exchange:
    """One all_to_all: `moves` among `ranks`, those that stay included."""

    ranks: tuple[int, ...]
    moves: tuple[Move, ...]

    def counts(self, rank: int) -> tuple[int, ...]:
        """Elements that `rank` gives to each."""
        return self._sizes({move.target: move.size for move in self.moves if move.source == rank})

    def receives(self, rank: int) -> tuple[int, ...]:
        """Elements that `rank` gets from each."""
        return self._sizes({move.source: move.size for move in self.moves if move.target == rank})

    def _sizes(self, sizes: dict[int, int]) -> tuple[int, ...]:
        return tuple(sizes.get(other, 0) for other in self.ranks)


@lru_cache(maxsize=4096)
def exchanges(source: Layout, target: Layout, shape: tuple[int, ...]) -> tuple[Exchange, ...]:
    """How the ranks of one placement come from one layout to another: in the smallest groups that need nothing from outside."""
    partial = [d for d, sbp in enumerate(source.sbp) if isinstance(sbp, Partial)]
    if partial:
        inside = source.placement.along([d for d in range(len(source.sbp)) if d not in partial])
        found = [exchange for ranks in inside for exchange in _connected(ranks, moves(source, target, shape, frozenset(ranks)))]
    else:
        found = _connected(source.placement.ranks, moves(source, target, shape))
    return tuple(found)


def _connected(ranks: Sequence[int], all_moves: tuple[Move, ...]) -> list[Exchange]:
    group = {rank: rank for rank in ranks}

    def root(rank: int) -> int:
        while group[rank] != rank:
            rank = group[rank]
        return rank

    for move in all_moves:
        group[root(move.source)] = root(move.target)
    found: dict[int, list[int]] = {}
    for rank in ranks:
        found.setdefault(root(rank), []).append(rank)
    return [Exchange(tuple(members), tuple(move for move in all_moves if move.target in members)) for members in found.values()]


def exchange_steps(build: Builder, x: Item, source: Box, target: Box, exchange: Exchange, order: int) -> Item:
    """This rank's `target` box, from `x`, which holds its `source` box, and from what the others hold."""
    gives = sorted((move for move in exchange.moves if move.source == build.rank), key=lambda move: exchange.ranks.index(move.target))
    takes = sorted((move for move in exchange.moves if move.target == build.rank), key=lambda move: exchange.ranks.index(move.source))
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


def _all_to_all(build: Builder, x: Item, held: Box, boxes: Sequence[Box], exchange: Exchange, order: int) -> Item:
    """What the others give this rank, flat; `boxes` is what it gives them."""
    counts, receives = exchange.counts(build.rank), exchange.receives(build.rank)
    packed = Item(x.type.with_shape((sum(counts),)), f"{x.name}.packed")
    parts, offsets, offset = [], [], 0
    for box in boxes:
        at = box.within(held)
        parts.append(build.compute(SliceBox(tuple(s.start for s in at), tuple(s.stop for s in at)), x))
        offsets.append(offset)
        offset += parts[-1].type.nbytes
    build.append(Join(tuple(offsets)), tuple(parts), (packed,))
    flat = Item(x.type.with_shape((sum(receives),)), f"{build.name}.all_to_all")
    build.append(Collect("all_to_all", exchange.ranks, counts, receives, SUM, order), (packed,), (flat,))
    return flat


def take(build: Builder, x: Item, held: Box, box: Box) -> Item:
    """`box` of a tensor, from `x`, which is its box `held`."""
    if held.spans == box.spans:
        return x
    at = box.within(held)
    return build.compute(SliceBox(tuple(s.start for s in at), tuple(s.stop for s in at)), x)


def put_together(build: Builder, box: Box, parts: Sequence[tuple[Box, Item]], type: TensorType) -> Item:
    """`box` of a tensor from parts that fill it."""
    if len(parts) == 1 and parts[0][0].spans == box.spans:
        return parts[0][1]
    if not parts:
        return build.compute(FillIdentity(box.shape, type.dtype))
    boxes = tuple(Box(tuple((s.start, s.stop) for s in part.within(box)), box.shape) for part, _ in parts)
    return build.compute(Assemble(box.shape, boxes), *(item for _, item in parts))
