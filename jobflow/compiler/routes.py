"""Every way to change a layout on one placement: name, bytes each rank sends, and the steps a rank takes.

One table serves cost, explanation and execution.  Pairs that are not in it are the cheapest path through those that are.
With b bytes on n ranks:

    S -> B  all_gather      b (n-1)/n        P -> S  reduce_scatter  b (n-1)/n       B -> P  keep_first  0
    S -> S  all_to_all      b (n-1)/n^2      B -> S  slice           0               S -> P  pad         0
    P -> B  all_reduce      2 b (n-1)/n

Collectives move flat arrays whose pieces lie one after another in rank order; putting pieces along an axis in that order, and
back, is a local step (`PackPieces`, `UnpackPieces`), free where memory already has it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from jobflow.compiler.local import Builder, Collect, Item
from jobflow.errors import SbpError
from jobflow.layout import SUM, B, Box, Broadcast, Layout, Partial, Sbp, Split, cut
from jobflow.ops.layout_ops import Assemble, FillIdentity, Identity, PackPieces, SliceBox, UnpackPieces
from jobflow.plan.plan import Kind
from jobflow.types import TensorType


@dataclass(frozen=True)
class Change:
    """One change of layout of a tensor of logical `type`, as the rank at `index` of `ranks` sees it."""

    source: Sbp
    target: Sbp
    type: TensorType
    ranks: tuple[int, ...]
    index: int
    order: int

    def counts(self, sbp: Sbp) -> tuple[int, ...]:
        """Elements along the split axis that each rank holds."""
        assert isinstance(sbp, Split)
        return tuple(stop - start for start, stop in cut(self.type.shape[sbp.axis], len(self.ranks)))

    def local_shape(self, sbp: Sbp) -> tuple[int, ...]:
        if not isinstance(sbp, Split):
            return self.type.shape
        shape = list(self.type.shape)
        shape[sbp.axis] = self.counts(sbp)[self.index]
        return tuple(shape)

    @property
    def reduce(self) -> Partial:
        sbp = self.source if isinstance(self.source, Partial) else self.target
        return sbp if isinstance(sbp, Partial) else Partial(SUM)


class Steps(Protocol):
    def __call__(self, build: Builder, x: Item, change: Change) -> Item: ...


@dataclass(frozen=True)
class Route:
    """A row of the table."""

    name: str
    #: bytes each rank sends, from the bytes of the whole tensor and the number of ranks
    bytes: Callable[[int, int], float]
    steps: Steps


def flatten(build: Builder, x: Item) -> Item:
    return build.compute(PackPieces(0, (x.type.shape[0] if x.type.shape else 1,)), x, name=f"{x.name}.flat")


def unflatten(build: Builder, flat: Item, shape: tuple[int, ...]) -> Item:
    return build.compute(UnpackPieces(0, (shape[0] if shape else 1,), shape), flat)


def _collect(build: Builder, change: Change, kind: Kind, x: Item, size: int, counts: tuple[int, ...], receives: tuple[int, ...] = ()) -> Item:
    out = Item(x.type.with_shape((size,)), f"{build.name}.{kind}")
    build.append(Collect(kind, change.ranks, counts, receives, change.reduce.reduce, change.order), (x,), (out,))
    return out


def _rest(shape: tuple[int, ...], axis: int) -> int:
    return math.prod(shape[:axis] + shape[axis + 1 :])


def _all_gather(build: Builder, x: Item, change: Change) -> Item:
    assert isinstance(change.source, Split)
    axis, shape = change.source.axis, change.type.shape
    lengths = change.counts(change.source)
    counts = tuple(n * _rest(shape, axis) for n in lengths)
    flat = _collect(build, change, "all_gather", flatten(build, x), sum(counts), counts)
    return build.compute(UnpackPieces(axis, lengths, shape), flat)


def _reduce_scatter(build: Builder, x: Item, change: Change) -> Item:
    assert isinstance(change.target, Split)
    axis = change.target.axis
    lengths = change.counts(change.target)
    counts = tuple(n * _rest(change.type.shape, axis) for n in lengths)
    packed = build.compute(PackPieces(axis, lengths), x, name=f"{x.name}.packed")
    flat = _collect(build, change, "reduce_scatter", packed, counts[change.index], counts)
    return unflatten(build, flat, change.local_shape(change.target))


def _all_reduce(build: Builder, x: Item, change: Change) -> Item:
    flat = _collect(build, change, "all_reduce", flatten(build, x), change.type.size, (change.type.size,))
    return unflatten(build, flat, change.type.shape)


def _all_to_all(build: Builder, x: Item, change: Change) -> Item:
    assert isinstance(change.source, Split) and isinstance(change.target, Split)
    gives, takes = change.counts(change.target), change.counts(change.source)
    counts = tuple(n * _rest(x.type.shape, change.target.axis) for n in gives)
    shape = change.local_shape(change.target)
    receives = tuple(n * _rest(shape, change.source.axis) for n in takes)
    packed = build.compute(PackPieces(change.target.axis, gives), x, name=f"{x.name}.packed")
    flat = _collect(build, change, "all_to_all", packed, sum(receives), counts, receives)
    return build.compute(UnpackPieces(change.source.axis, takes, shape), flat)


def _slice(build: Builder, x: Item, change: Change) -> Item:
    assert isinstance(change.target, Split)
    axis, shape = change.target.axis, change.type.shape
    start, stop = cut(shape[axis], len(change.ranks))[change.index]
    starts = tuple(start if i == axis else 0 for i in range(len(shape)))
    stops = tuple(stop if i == axis else n for i, n in enumerate(shape))
    return build.compute(SliceBox(starts, stops), x)


def _keep_first(build: Builder, x: Item, change: Change) -> Item:
    if change.index == 0:
        return build.compute(Identity(), x)
    return build.compute(FillIdentity(change.type.shape, change.type.dtype, change.reduce.reduce))


def _pad(build: Builder, x: Item, change: Change) -> Item:
    assert isinstance(change.source, Split)
    axis, shape = change.source.axis, change.type.shape
    start, stop = cut(shape[axis], len(change.ranks))[change.index]
    parts, boxes = [], []
    for a, b in ((0, start), (start, stop), (stop, shape[axis])):
        box = Box(tuple((a, b) if i == axis else (0, n) for i, n in enumerate(shape)), shape)
        if (a, b) == (start, stop):
            parts.append(x)
        elif box.is_empty:
            continue
        else:
            parts.append(build.compute(FillIdentity(box.shape, change.type.dtype, change.reduce.reduce)))
        boxes.append(box)
    return build.compute(Assemble(shape, tuple(boxes)), *parts)


ROUTES: Mapping[tuple[type, type], Route] = {
    (Split, Broadcast): Route("all_gather", lambda b, n: b * (n - 1) / n, _all_gather),
    (Split, Split): Route("all_to_all", lambda b, n: b * (n - 1) / n**2, _all_to_all),
    (Partial, Broadcast): Route("all_reduce", lambda b, n: 2 * b * (n - 1) / n, _all_reduce),
    (Partial, Split): Route("reduce_scatter", lambda b, n: b * (n - 1) / n, _reduce_scatter),
    (Broadcast, Split): Route("slice", lambda b, n: 0.0, _slice),
    (Broadcast, Partial): Route("keep_first", lambda b, n: 0.0, _keep_first),
    (Split, Partial): Route("pad", lambda b, n: 0.0, _pad),
}


def path(source: Sbp, target: Sbp, nbytes: int, n: int) -> tuple[Sbp, ...]:
    """The S/B/P after each route on the cheapest way from `source` to `target`; empty if they are equal."""
    if source == target:
        return ()
    best: dict[Sbp, tuple[float, tuple[Sbp, ...]]] = {source: (0.0, ())}
    open_ = [source]
    while open_:
        here = min(open_, key=lambda sbp: (best[sbp][0], len(best[sbp][1]), str(sbp)))
        open_.remove(here)
        if here == target:
            return best[here][1]
        for there in (B, target):
            route = ROUTES.get((type(here), type(there)))
            if route is None or here == there:
                continue
            cost = best[here][0] + route.bytes(nbytes, n)
            if there not in best or cost < best[there][0]:
                best[there] = (cost, (*best[here][1], there))
                open_.append(there)
    raise SbpError(f"no way to bring a tensor from {source} to {target}")


@dataclass(frozen=True)
class Move:
    """`box` of a tensor goes from one rank to another (or stays, if they are the same)."""

    source: int
    target: int
    box: Box


def moves(source: Layout, target: Layout, shape: tuple[int, ...]) -> tuple[Move, ...]:
    """What goes where when a tensor without partial dimensions changes its placement.

    Every target rank takes what it needs from itself first, then from the holders in placement order; several holders of the
    same part take turns, so that no one serves all.
    """
    found: list[Move] = []
    for turn, rank in enumerate(target.placement.ranks):
        need = target.box(shape, rank)
        held: dict[tuple[tuple[int, int], ...], list[int]] = {}
        for holder in source.placement.ranks:
            held.setdefault(source.box(shape, holder).spans, []).append(holder)
        for spans, holders in held.items():
            box = need.meet(Box(spans, shape))
            if not box.is_empty:
                found.append(Move(rank if rank in holders else holders[turn % len(holders)], rank, box))
    return tuple(found)
