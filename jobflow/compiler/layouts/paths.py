"""The cheapest sequence of routes from any layout to any other.

Policy: Dijkstra over whole layouts.  What a hop costs is exact: the bytes that the busiest rank hands to others, and `MEETING`
more if ranks communicate at all.  Ties go to fewer hops.  The hops are

* a row of the route table, along one mesh dimension or along several that change alike.  No mesh dimension further in may split
  the same axis, whose pieces are pieces of pieces, and none further in may be partial in another way: what is reduced first
  cannot be reduced last;
* "exchange", between any two layouts without P on the same ranks: each rank takes the boxes it needs from who has them;
* "move", the same from one set of ranks to another;
* "relabel", where every rank has what it needs: nothing happens.

Between placements a P is therefore resolved where it lies, into whatever is cheapest (on two ranks P -> S(0), then the pieces
move: b/2 and b/2 bytes instead of b and b), and made anew where it arrives, which is free.

Example, ranks as a grid of 2 x 2 and a tensor of b bytes: P,P -> B,B is one all_reduce of all four (1.5 b) and not one after
the other (b + b); S(0),S(0) -> S(1),S(0) is an exchange (b/4), for the inner cut is a cut of the outer pieces.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from itertools import combinations, count, product

from jobflow.compiler.layouts.moves import exchanges, moves
from jobflow.compiler.layouts.routes import ROUTES, Change, Route
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import SbpError
from jobflow.core.layout import B, Broadcast, Layout, Partial, S, Sbp, Split
from jobflow.core.types import TensorType

#: Bytes; a copy of this size costs ranks about as much as one more meeting.
MEETING = 32 * 1024


@dataclass(frozen=True)
class Hop:
    """One step of a path: what is done, and how the tensor lies then."""

    name: str
    target: Layout


@lru_cache(maxsize=1 << 14)
def path(source: Layout, target: Layout, type: TensorType) -> tuple[Hop, ...]:
    """The hops on the cheapest way from `source` to `target`; none if they are the same."""
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
    """What the cheapest way costs, in bytes."""
    hops = path(source, target, type)
    befores = [source, *(hop.target for hop in hops)]
    return sum(cost(hop.name, before, hop.target, type) for before, hop in zip(befores, hops, strict=False))


def _check_axes(layout: Layout, type: TensorType) -> None:
    for sbp in layout.sbp:
        if isinstance(sbp, Split) and not 0 <= sbp.axis < type.ndim:
            axes = "no axes" if type.ndim == 0 else "only axis 0" if type.ndim == 1 else f"axes 0 to {type.ndim - 1}"
            raise SbpError(f"{layout} splits axis {sbp.axis}, and a tensor {type} has {axes}")


def _plain(layout: Layout) -> Layout:
    """The same, with B along mesh dimensions of one rank."""
    return replace(layout, sbp=tuple(B if n == 1 else sbp for sbp, n in zip(layout.sbp, layout.placement.mesh, strict=True)))


def _search(start: Layout, goal: Layout, type: TensorType) -> list[Hop]:
    splits = _useful_splits(start, goal, type)
    best: dict[Layout, tuple[int, int]] = {start: (0, 0)}
    came: dict[Layout, tuple[Layout, Hop]] = {}
    number = count()
    open_ = [(0, 0, next(number), start)]
    done: set[Layout] = set()
    while open_:
        price, hops, _, here = heapq.heappop(open_)
        if here == goal:
            return _walked(came, start, goal)
        if here in done:
            continue
        done.add(here)
        for hop in _hops(here, goal, type, splits):
            found = price + cost(hop.name, here, hop.target, type), hops + 1
            if found < min(best.get(hop.target, _FAR), best.get(goal, _FAR)):
                best[hop.target], came[hop.target] = found, (here, hop)
                heapq.heappush(open_, (*found, next(number), hop.target))
    raise SbpError(f"there is no way from {start} to {goal}")


_FAR = (1 << 80, 0)


def _walked(came: dict[Layout, tuple[Layout, Hop]], start: Layout, here: Layout) -> list[Hop]:
    hops: list[Hop] = []
    while here != start:
        here, hop = came[here]
        hops.append(hop)
    return hops[::-1]


def _useful_splits(start: Layout, goal: Layout, type: TensorType) -> tuple[Sbp, ...]:
    """B, the splits at both ends, and that of the longest axis: the others lead nowhere that these do not."""
    axes = {sbp.axis for sbp in (*start.sbp, *goal.sbp) if isinstance(sbp, Split)}
    if type.ndim:
        axes.add(type.shape.index(max(type.shape)))
    return (B, *map(S, sorted(axes)))


# -------------------------------------------------------------------- hops


def _hops(here: Layout, goal: Layout, type: TensorType, splits: tuple[Sbp, ...]) -> Iterator[Hop]:
    yield from _along(here, goal, splits)
    if here.placement == goal.placement:
        if sum(n > 1 for n in here.placement.mesh) > 1:
            yield from (Hop("exchange", there) for there in _landings(here, goal, splits))
    elif set(here.placement.ranks) == set(goal.placement.ranks):
        partial = tuple(dict.fromkeys(sbp for sbp in here.sbp if isinstance(sbp, Partial)))
        yield from (Hop("relabel", there) for there in _every(goal, (*splits, *partial)) if _means_the_same(here, there, type.shape))
        if not partial:
            yield from (Hop("exchange", there) for there in _arrivals(goal, splits))
    elif not here.is_partial:
        yield from (Hop("move", there) for there in _arrivals(goal, splits))


def _along(here: Layout, goal: Layout, splits: tuple[Sbp, ...]) -> Iterator[Hop]:
    """Rows of the table; P is only made where the goal has it."""
    for dimensions in _dimensions(here.placement.mesh):
        if len({here.sbp[d] for d in dimensions}) > 1:
            continue
        ends = {goal.sbp[d] for d in dimensions} if here.placement == goal.placement else set()
        for sbp in (*splits, *(end for end in ends if len(ends) == 1 and isinstance(end, Partial))):
            there = replace(here, sbp=tuple(sbp if d in dimensions else old for d, old in enumerate(here.sbp)))
            found = ROUTES.get((type(here.sbp[dimensions[0]]), type(sbp)))
            if found is not None and there != here and _in_order(here, there, dimensions):
                yield Hop(found.name, there)


@cache
def _dimensions(mesh: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Which mesh dimensions may change together."""
    real = [d for d, n in enumerate(mesh) if n > 1]
    return tuple(some for size in range(1, len(real) + 1) for some in combinations(real, size))


def _in_order(here: Layout, there: Layout, dimensions: Sequence[int]) -> bool:
    """Whether mesh dimensions may change while those further in stay: these cut no piece that moves, and are not reduced before."""
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


def _landings(here: Layout, goal: Layout, splits: tuple[Sbp, ...]) -> Iterator[Layout]:
    """Where an exchange on one placement may lead: to the goal, but P stays P."""
    choices: list[tuple[Sbp, ...]] = []
    for have, want in zip(here.sbp, goal.sbp, strict=True):
        if isinstance(have, Partial):
            choices.append((have,) if have == want else ())
        else:
            choices.append(splits if isinstance(want, Partial) else (want,))
    for sbp in product(*choices):
        if sbp != here.sbp:
            yield replace(here, sbp=sbp)


def _arrivals(goal: Layout, splits: tuple[Sbp, ...]) -> Iterator[Layout]:
    """How a tensor may arrive at another placement: as the goal has it, or in pieces of what is whole or partial there."""
    for sbp in product(*((want,) if isinstance(want, Split) or n == 1 else splits for want, n in zip(goal.sbp, goal.placement.mesh, strict=True))):
        yield replace(goal, sbp=sbp)


def _every(goal: Layout, kinds: tuple[Sbp, ...]) -> Iterator[Layout]:
    for sbp in product(*(kinds if n > 1 else (B,) for n in goal.placement.mesh)):
        yield replace(goal, sbp=sbp)


def _means_the_same(a: Layout, b: Layout, shape: tuple[int, ...]) -> bool:
    """Whether what the ranks hold in layout `a` is the same tensor in layout `b`, on another mesh of the same ranks."""
    reductions = {sbp for sbp in a.sbp if isinstance(sbp, Partial)}
    if reductions != {sbp for sbp in b.sbp if isinstance(sbp, Partial)} or len(reductions) > 1:
        return False
    if a.boxes(shape) != b.boxes(shape):
        return False
    return not reductions or _same_partition(_copies(a), _copies(b))


def _copies(layout: Layout) -> dict[int, tuple[int, ...]]:
    """Per rank, what names the ranks that hold copies of the same addend."""
    whole = [isinstance(sbp, Broadcast) for sbp in layout.sbp]
    return {
        rank: tuple(i for i, copied in zip(layout.placement.coordinates(rank), whole, strict=True) if not copied) for rank in layout.placement.ranks
    }


def _same_partition(a: dict[int, tuple[int, ...]], b: dict[int, tuple[int, ...]]) -> bool:
    pairs = {(a[rank], b[rank]) for rank in a}
    return len(pairs) == len(set(a.values())) == len(set(b.values()))


def direct(source: Layout, target: Layout) -> str:
    """What the one hop between two layouts is called; SbpError if it takes several."""
    a, b = source.placement, target.placement
    partial = source.is_partial or target.is_partial
    if (a.ranks, a.mesh) == (b.ranks, b.mesh):
        dimensions = changed(source, target)
        kinds = {(source.sbp[d], target.sbp[d]) for d in dimensions}
        rows = [ROUTES.get((type(have), type(want))) for have, want in kinds]
        if not rows:
            return "relabel"
        if len(rows) == 1 and rows[0] is not None and _in_order(source, target, dimensions):
            return rows[0].name
        if not any(isinstance(sbp, Partial) for pair in kinds for sbp in pair):
            return "exchange"
    elif set(a.ranks) == set(b.ranks):
        return "relabel" if partial else "exchange"
    elif not partial:
        return "move"
    raise SbpError(f"from {source} to {target} is more than one hop")


# -------------------------------------------------------------------- what a hop moves


def changed(source: Layout, target: Layout) -> tuple[int, ...]:
    """The mesh dimensions along which two layouts on one mesh differ."""
    pairs = zip(source.sbp, target.sbp, source.placement.mesh, strict=True)
    return tuple(d for d, (have, want, n) in enumerate(pairs) if have != want and n > 1)


def row(source: Layout, target: Layout) -> Route:
    """The row of the table for a hop along mesh dimensions."""
    d = changed(source, target)[0]
    return ROUTES[type(source.sbp[d]), type(target.sbp[d])]


def changes(source: Layout, target: Layout, type: TensorType) -> Iterator[tuple[Change, ...]]:
    """A hop along mesh dimensions as its ranks see it, group by group."""
    dimensions = changed(source, target)
    mesh = tuple(source.placement.mesh[d] for d in dimensions)
    common = replace(source, sbp=tuple(B if d in dimensions else sbp for d, sbp in enumerate(source.sbp)))
    ends = source.sbp[dimensions[0]], target.sbp[dimensions[0]]
    for ranks in source.placement.along(dimensions):
        group = common.local_type(type, ranks[0])
        yield tuple(Change(*ends, group, ranks, i, mesh) for i in range(len(ranks)))


@lru_cache(maxsize=1 << 14)
def sent(name: str, source: Layout, target: Layout, type: TensorType) -> dict[int, int]:
    """Bytes that each rank which communicates hands to others in one hop; exactly what the communicators will count."""
    found: dict[int, int] = {}
    if name in ("move", "exchange"):
        shape, each = type.shape, type.dtype.itemsize
        parts = moves(source, target, shape) if name == "move" else [m for e in exchanges(source, target, shape) for m in e.moves]
        for move in parts:
            if move.source != move.target:
                found[move.source] = found.get(move.source, 0) + move.size * each
    elif name != "relabel":
        route = row(source, target)
        if route.kind is not None:
            for group in changes(source, target, type):
                found.update({change.ranks[change.index]: route.sent(change) for change in group})
    return found


def cost(name: str, source: Layout, target: Layout, type: TensorType) -> int:
    """What a hop costs, in bytes."""
    each = sent(name, source, target, type)
    return max(each.values()) + MEETING if each else 0
