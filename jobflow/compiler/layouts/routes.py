"""The route table: one row for each change of layout, with its collective, the bytes it sends, and its instructions.

One table serves cost, explanation and execution.  Other changes are the cheapest path through rows of the table (`paths`).
A row changes one mesh dimension, or several in the same way.  The route runs in groups of ranks that differ only in those dimensions,
on the part of the tensor that the group holds.  With b bytes on n ranks, a rank sends

    S -> B  all_gather      b (n-1)/n        P -> S  reduce_scatter  b (n-1)/n       B -> P  keep_first  0
    S -> S  all_to_all      b (n-1)/n^2      B -> S  slice           0               S -> P  pad         0
    P -> B  all_reduce      2 b (n-1)/n

For uneven pieces, `plan.traffic` defines the exact number.  Collectives transfer flat arrays whose pieces are contiguous, in
rank order.  A local instruction converts pieces along an axis to that order and back (`PackPieces`, `UnpackPieces`).  The conversion is
free if memory has that order already.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Protocol

from jobflow.compiler.rank.local import Builder, Collect, LocalValue
from jobflow.core.dataclass import dataclass
from jobflow.core.layout import SUM, Box, Broadcast, Partial, Sbp, Span, Split, nested_cut
from jobflow.core.types import TensorType
from jobflow.ops.layout_ops import Assemble, FillIdentity, Identity, PackPieces, SliceBox, UnpackPieces
from jobflow.plan.plan import Kind
from jobflow.plan.traffic import handed


@dataclass(frozen=True)
class Change:
    """A change of layout, for the rank at `index` of a group of `ranks`.

    `mesh` is the mesh of the group.  `type` is the type of the part of the tensor that the ranks of the group hold together.
    """

    source: Sbp
    target: Sbp
    type: TensorType
    ranks: tuple[int, ...]
    index: int
    mesh: tuple[int, ...]
    #: position in the global order of communication
    order: int = -1

    def pieces(self, sbp: Sbp) -> tuple[Span, ...]:
        """Return the index range of each rank of the group along the axis that `sbp` splits."""
        assert isinstance(sbp, Split)
        return nested_cut(self.type.shape[sbp.axis], self.mesh)

    def counts(self, sbp: Sbp) -> tuple[int, ...]:
        """Return the length of each rank's piece along the axis that `sbp` splits."""
        return tuple(stop - start for start, stop in self.pieces(sbp))

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
    def __call__(self, build: Builder, x: LocalValue, change: Change) -> LocalValue: ...


@dataclass(frozen=True)
class Route:
    """A row of the route table."""

    name: str
    #: the collective operation; None without communication
    kind: Kind | None
    #: elements per piece that a rank passes to the collective
    counts: Callable[[Change], tuple[int, ...]]
    steps: Steps

    def sent(self, change: Change) -> int:
        """Return the bytes that the rank of `change` sends to other ranks of its group."""
        if self.kind is None:
            return 0
        return handed(self.kind, self.counts(change), change.index, len(change.ranks)) * change.type.dtype.itemsize


def _collect(
    build: Builder, change: Change, kind: Kind, x: LocalValue, size: int, counts: tuple[int, ...], receives: tuple[int, ...] = ()
) -> LocalValue:
    out = LocalValue(x.type.with_shape((size,)), f"{build.name}.{kind}")
    build.append(Collect(kind, change.ranks, counts, receives, change.reduce.reduce, change.order), (x,), (out,))
    return out


def _rest(shape: tuple[int, ...], axis: int) -> int:
    return math.prod(shape[:axis] + shape[axis + 1 :])


def _gathered(change: Change) -> tuple[int, ...]:
    assert isinstance(change.source, Split)
    return _times(change.counts(change.source), _rest(change.type.shape, change.source.axis))


def _scattered(change: Change) -> tuple[int, ...]:
    assert isinstance(change.target, Split)
    return _times(change.counts(change.target), _rest(change.type.shape, change.target.axis))


def _turned(change: Change) -> tuple[int, ...]:
    assert isinstance(change.target, Split)
    return _times(change.counts(change.target), _rest(change.local_shape(change.source), change.target.axis))


def _times(lengths: tuple[int, ...], each: int) -> tuple[int, ...]:
    return tuple(n * each for n in lengths)


def _nothing(change: Change) -> tuple[int, ...]:
    return ()


def _all_gather(build: Builder, x: LocalValue, change: Change) -> LocalValue:
    assert isinstance(change.source, Split)
    counts = _gathered(change)
    flat = _collect(build, change, "all_gather", build.flatten(x), sum(counts), counts)
    return build.compute(UnpackPieces(change.source.axis, change.counts(change.source), change.type.shape), flat)


def _reduce_scatter(build: Builder, x: LocalValue, change: Change) -> LocalValue:
    assert isinstance(change.target, Split)
    counts = _scattered(change)
    packed = build.compute(PackPieces(change.target.axis, change.counts(change.target)), x, name=f"{x.name}.packed")
    flat = _collect(build, change, "reduce_scatter", packed, counts[change.index], counts)
    return build.unflatten(flat, change.local_shape(change.target))


def _all_reduce(build: Builder, x: LocalValue, change: Change) -> LocalValue:
    flat = _collect(build, change, "all_reduce", build.flatten(x), change.type.size, (change.type.size,))
    return build.unflatten(flat, change.type.shape)


def _all_to_all(build: Builder, x: LocalValue, change: Change) -> LocalValue:
    assert isinstance(change.source, Split) and isinstance(change.target, Split)
    takes, shape = change.counts(change.source), change.local_shape(change.target)
    receives = _times(takes, _rest(shape, change.source.axis))
    packed = build.compute(PackPieces(change.target.axis, change.counts(change.target)), x, name=f"{x.name}.packed")
    flat = _collect(build, change, "all_to_all", packed, sum(receives), _turned(change), receives)
    return build.compute(UnpackPieces(change.source.axis, takes, shape), flat)


def _slice(build: Builder, x: LocalValue, change: Change) -> LocalValue:
    assert isinstance(change.target, Split)
    axis, shape = change.target.axis, change.type.shape
    start, stop = change.pieces(change.target)[change.index]
    starts = tuple(start if i == axis else 0 for i in range(len(shape)))
    stops = tuple(stop if i == axis else n for i, n in enumerate(shape))
    return build.compute(SliceBox(starts, stops), x)


def _keep_first(build: Builder, x: LocalValue, change: Change) -> LocalValue:
    if change.index == 0:
        return build.compute(Identity(), x)
    return build.compute(FillIdentity(change.type.shape, change.type.dtype, change.reduce.reduce))


def _pad(build: Builder, x: LocalValue, change: Change) -> LocalValue:
    assert isinstance(change.source, Split)
    axis, shape = change.source.axis, change.type.shape
    start, stop = change.pieces(change.source)[change.index]
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
    (Split, Broadcast): Route("all_gather", "all_gather", _gathered, _all_gather),
    (Split, Split): Route("all_to_all", "all_to_all", _turned, _all_to_all),
    (Partial, Broadcast): Route("all_reduce", "all_reduce", lambda change: (change.type.size,), _all_reduce),
    (Partial, Split): Route("reduce_scatter", "reduce_scatter", _scattered, _reduce_scatter),
    (Broadcast, Split): Route("slice", None, _nothing, _slice),
    (Broadcast, Partial): Route("keep_first", None, _nothing, _keep_first),
    (Split, Partial): Route("pad", None, _nothing, _pad),
}
