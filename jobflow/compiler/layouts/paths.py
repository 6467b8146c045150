"""The cheapest sequence of routes from one layout to another.

The search is Dijkstra's algorithm over whole layouts.  The cost of a hop is exact: the bytes that the busiest rank sends, plus
`MEETING` if ranks communicate.  Among equal costs, fewer hops win.  The hops are

* a row of the route table, along one mesh dimension or along several that change in the same way.  No inner mesh dimension may
  split the same axis, because its pieces are pieces of the outer pieces.  No inner dimension may be partial with another
  reduction, because the inner reduction has to come first;
* "exchange", between any two layouts without P on the same ranks: each rank receives its missing boxes from their holders;
* "move", an exchange from one set of ranks to another;
* "relabel", if every rank holds its part already: no data moves.

A partial tensor is therefore reduced on its own placement before it moves, to the layout that makes both hops cheapest.  On two
ranks, P -> S(0) and a move of the pieces send b/2 bytes each.  P -> B and a move of the whole tensor would send b bytes each.  A
partial target is built after the move, which is free.

Example, ranks as a grid of 2 x 2 and a tensor of b bytes.  P,P -> B,B is one all_reduce among all four ranks (1.5 b), not one
per mesh dimension (b + b).  S(0),S(0) -> S(1),S(0) is an exchange (b/4), because the inner dimension cuts the outer pieces.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from itertools import combinations, count, product

from jobflow.compiler.layouts.routes import ROUTES, Change, Route
from jobflow.compiler.layouts.transfers import exchanges, transfers
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import SbpError
from jobflow.core.layout import B, Broadcast, Layout, Partial, S, Sbp, Split
from jobflow.core.types import TensorType

#: Cost of a synchronization, as the number of bytes whose copy takes about as long.
MEETING = 32 * 1024


@dataclass(frozen=True)
class Hop:
    """One step of a path: the name of the route and the layout after it."""

    name: str
    target: Layout


@lru_cache(maxsize=1 << 14)
def path(source: Layout, target: Layout, type: TensorType) -> tuple[Hop, ...]:
    """Return the hops of the cheapest path from `source` to `target`; no hops if they are equal."""
    if source == target:
        return ()
    _check_axes(source, type)
    _check_axes(target, type)
    same = source.placement.ranks == target.placement.ranks and source.placement.mesh == target.placement.mesh
    start, goal = _plain(replace(source, placement=target.placement) if same else source), _plain(target)
    hops = [Hop("relabel", start), *_search(start, goal, type), Hop("relabel", target)]
    later = [*hops[1:], None]
    once = [hop for hop, following in zip(hops, later, strict=True) if hop.name != "relabel" or following is None or following.name != "relabel"]
    befores = [source, *(hop.target for hop in once)]
    return tuple(hop for hop, before in zip(once, befores, strict=False) if hop.target != before)


def price(source: Layout, target: Layout, type: TensorType) -> int:
    """Return the cost of the cheapest path in bytes."""
    hops = path(source, target, type)
    befores = [source, *(hop.target for hop in hops)]
    return sum(cost(hop.name, before, hop.target, type) for before, hop in zip(befores, hops, strict=False))


def _check_axes(layout: Layout, type: TensorType) -> None:
    for sbp in layout.sbp:
        if isinstance(sbp, Split) and not 0 <= sbp.axis < type.ndim:
            axes = "no axes" if type.ndim == 0 else "only axis 0" if type.ndim == 1 else f"axes 0 to {type.ndim - 1}"
            raise SbpError(f"{layout} splits axis {sbp.axis}, but a tensor {type} has {axes}; choose a layout without this split")


def _plain(layout: Layout) -> Layout:
    """Return the layout with B along mesh dimensions of one rank."""
    return replace(layout, sbp=tuple(B if n == 1 else sbp for sbp, n in zip(layout.sbp, layout.placement.mesh, strict=True)))


def _search(start: Layout, goal: Layout, type: TensorType) -> list[Hop]:
    splits = _useful_splits(start, goal, type)
    best: dict[Layout, tuple[int, int]] = {start: (0, 0)}
    predecessors: dict[Layout, tuple[Layout, Hop]] = {}
    number = count()
    open_ = [(0, 0, next(number), start)]
    done: set[Layout] = set()
    while open_:
        price, hops, _, here = heapq.heappop(open_)
        if here == goal:
            return _traced_back(predecessors, start, goal)
        if here in done:
            continue
        done.add(here)
        for hop in _hops(here, goal, type, splits):
            candidate = price + cost(hop.name, here, hop.target, type), hops + 1
            if candidate < min(best.get(hop.target, _FAR), best.get(goal, _FAR)):
                best[hop.target], predecessors[hop.target] = candidate, (here, hop)
                heapq.heappush(open_, (*candidate, next(number), hop.target))
    raise SbpError(f"redistribution from {start} to {goal}: no sequence of routes converts a tensor {type}")


_FAR = (1 << 80, 0)


def _traced_back(predecessors: dict[Layout, tuple[Layout, Hop]], start: Layout, here: Layout) -> list[Hop]:
    hops: list[Hop] = []
    while here != start:
        here, hop = predecessors[here]
        hops.append(hop)
    return hops[::-1]


def _useful_splits(start: Layout, goal: Layout, type: TensorType) -> tuple[Sbp, ...]:
    """Return B, the splits of both layouts and the split of the longest axis; other splits are never cheaper."""
    axes = {sbp.axis for sbp in (*start.sbp, *goal.sbp) if isinstance(sbp, Split)}
    if type.ndim:
        axes.add(type.shape.index(max(type.shape)))
    return (B, *map(S, sorted(axes)))


# -------------------------------------------------------------------- hops


def _hops(here: Layout, goal: Layout, type: TensorType, splits: tuple[Sbp, ...]) -> Iterator[Hop]:
    yield from _along(here, goal, splits)
    if here.placement == goal.placement:
        if sum(n > 1 for n in here.placement.mesh) > 1:
            yield from (Hop("exchange", there) for there in _exchange_targets(here, goal, splits))
    elif set(here.placement.ranks) == set(goal.placement.ranks):
        partial = tuple(dict.fromkeys(sbp for sbp in here.sbp if isinstance(sbp, Partial)))
        yield from (Hop("relabel", there) for there in _all_layouts(goal, (*splits, *partial)) if _is_same_data(here, there, type.shape))
        if not partial:
            yield from (Hop("exchange", there) for there in _move_targets(goal, splits))
    elif not here.is_partial:
        yield from (Hop("move", there) for there in _move_targets(goal, splits))


def _along(here: Layout, goal: Layout, splits: tuple[Sbp, ...]) -> Iterator[Hop]:
    """Yield the hops that are rows of the route table; a hop to P only if the goal has P along the same dimensions."""
    for dimensions in _dimensions(here.placement.mesh):
        if len({here.sbp[d] for d in dimensions}) > 1:
            continue
        ends = {goal.sbp[d] for d in dimensions} if here.placement == goal.placement else set()
        for sbp in (*splits, *(end for end in ends if len(ends) == 1 and isinstance(end, Partial))):
            there = replace(here, sbp=tuple(sbp if d in dimensions else old for d, old in enumerate(here.sbp)))
            route = ROUTES.get((type(here.sbp[dimensions[0]]), type(sbp)))
            if route is not None and there != here and _may_change(here, there, dimensions):
                yield Hop(route.name, there)


@cache
def _dimensions(mesh: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Return all sets of one or more mesh dimensions that have several ranks, the smallest sets first."""
    real = [d for d, n in enumerate(mesh) if n > 1]
    return tuple(some for size in range(1, len(real) + 1) for some in combinations(real, size))


def _may_change(here: Layout, there: Layout, dimensions: Sequence[int]) -> bool:
    """Return True if these mesh dimensions may change while inner dimensions stay the same.

    Inner dimensions must not cut a piece that moves, and must not be partial with another reduction.
    """
    ends = (here.sbp[dimensions[0]], there.sbp[dimensions[0]])
    for d in range(dimensions[0] + 1, len(here.sbp)):
        sbp = here.sbp[d]
        if d in dimensions or isinstance(sbp, Broadcast):
            continue
        if isinstance(sbp, Split):
            if sbp in ends:
                return False
        elif any(isinstance(end, Partial) and end != sbp for end in ends):
            return False
    return True


def _exchange_targets(here: Layout, goal: Layout, splits: tuple[Sbp, ...]) -> Iterator[Layout]:
    """Yield the layouts that an exchange on one placement may reach; partial dimensions stay partial."""
    choices: list[tuple[Sbp, ...]] = []
    for have, want in zip(here.sbp, goal.sbp, strict=True):
        if isinstance(have, Partial):
            choices.append((have,) if have == want else ())
        else:
            choices.append(splits if isinstance(want, Partial) else (want,))
    for sbp in product(*choices):
        if sbp != here.sbp:
            yield replace(here, sbp=sbp)


def _move_targets(goal: Layout, splits: tuple[Sbp, ...]) -> Iterator[Layout]:
    """Yield the layouts in which another placement can receive a tensor.

    Split dimensions are received as in the goal.  Whole and partial dimensions may also be received split.
    """
    for sbp in product(*((want,) if isinstance(want, Split) or n == 1 else splits for want, n in zip(goal.sbp, goal.placement.mesh, strict=True))):
        yield replace(goal, sbp=sbp)


def _all_layouts(goal: Layout, kinds: tuple[Sbp, ...]) -> Iterator[Layout]:
    for sbp in product(*(kinds if n > 1 else (B,) for n in goal.placement.mesh)):
        yield replace(goal, sbp=sbp)


def _is_same_data(a: Layout, b: Layout, shape: tuple[int, ...]) -> bool:
    """Return True if layouts `a` and `b`, on two meshes of the same ranks, assign each rank the same data."""
    reductions = {sbp for sbp in a.sbp if isinstance(sbp, Partial)}
    if reductions != {sbp for sbp in b.sbp if isinstance(sbp, Partial)} or len(reductions) > 1:
        return False
    if a.boxes(shape) != b.boxes(shape):
        return False
    return not reductions or _same_partition(_copies(a), _copies(b))


def _copies(layout: Layout) -> dict[int, tuple[int, ...]]:
    """Return, per rank, a key that is equal for ranks with copies of the same addend."""
    whole = [isinstance(sbp, Broadcast) for sbp in layout.sbp]
    return {
        rank: tuple(i for i, copied in zip(layout.placement.coordinates(rank), whole, strict=True) if not copied) for rank in layout.placement.ranks
    }


def _same_partition(a: dict[int, tuple[int, ...]], b: dict[int, tuple[int, ...]]) -> bool:
    pairs = {(a[rank], b[rank]) for rank in a}
    return len(pairs) == len(set(a.values())) == len(set(b.values()))


def direct(source: Layout, target: Layout) -> str:
    """Return the name of the single hop between two layouts; raise SbpError if several are needed."""
    a, b = source.placement, target.placement
    partial = source.is_partial or target.is_partial
    if (a.ranks, a.mesh) == (b.ranks, b.mesh):
        dimensions = changed(source, target)
        kinds = {(source.sbp[d], target.sbp[d]) for d in dimensions}
        rows = [ROUTES.get((type(have), type(want))) for have, want in kinds]
        if not rows:
            return "relabel"
        if len(rows) == 1 and rows[0] is not None and _may_change(source, target, dimensions):
            return rows[0].name
        if not any(isinstance(sbp, Partial) for pair in kinds for sbp in pair):
            return "exchange"
    elif set(a.ranks) == set(b.ranks):
        return "relabel" if partial else "exchange"
    elif not partial:
        return "move"
    raise SbpError(f"redistribution from {source} to {target}: it takes more than one hop; insert one Reroute per hop of paths.path")


# -------------------------------------------------------------------- what a hop moves


def changed(source: Layout, target: Layout) -> tuple[int, ...]:
    """Return the mesh dimensions along which two layouts on one mesh differ."""
    pairs = zip(source.sbp, target.sbp, source.placement.mesh, strict=True)
    return tuple(d for d, (have, want, n) in enumerate(pairs) if have != want and n > 1)


def row(source: Layout, target: Layout) -> Route:
    """Return the row of the route table for a hop along mesh dimensions."""
    d = changed(source, target)[0]
    return ROUTES[type(source.sbp[d]), type(target.sbp[d])]


def changes(source: Layout, target: Layout, type: TensorType) -> Iterator[tuple[Change, ...]]:
    """Yield, for each group of ranks, the change of every rank in a hop along mesh dimensions."""
    dimensions = changed(source, target)
    mesh = tuple(source.placement.mesh[d] for d in dimensions)
    common = replace(source, sbp=tuple(B if d in dimensions else sbp for d, sbp in enumerate(source.sbp)))
    ends = source.sbp[dimensions[0]], target.sbp[dimensions[0]]
    for ranks in source.placement.along(dimensions):
        group = common.local_type(type, ranks[0])
        yield tuple(Change(*ends, group, ranks, i, mesh) for i in range(len(ranks)))


@lru_cache(maxsize=1 << 14)
def sent(name: str, source: Layout, target: Layout, type: TensorType) -> dict[int, int]:
    """Return the bytes that each communicating rank sends in one hop, as the communicators count them."""
    nbytes: dict[int, int] = {}
    if name in ("move", "exchange"):
        shape, each = type.shape, type.dtype.itemsize
        parts = transfers(source, target, shape) if name == "move" else [m for e in exchanges(source, target, shape) for m in e.transfers]
        for move in parts:
            if move.source != move.target:
                nbytes[move.source] = nbytes.get(move.source, 0) + move.size * each
    elif name != "relabel":
        route = row(source, target)
        if route.kind is not None:
            for group in changes(source, target, type):
                nbytes.update({change.ranks[change.index]: route.sent(change) for change in group})
    return nbytes


def cost(name: str, source: Layout, target: Layout, type: TensorType) -> int:
    """Return the cost of a hop: the bytes that the busiest rank sends, plus MEETING if ranks communicate."""
    each = sent(name, source, target, type)
    return max(each.values()) + MEETING if each else 0
