"""The index space of several operations together, by the axes of what they share.

y[n, c] = x[n, c] - m[n]      space [n, c]       z[n] = m[n] * 2      space [n], which is axis 0 of the other, for m says so
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jobflow.compiler.rank.local import Item, Step
from jobflow.core.dataclass import dataclass
from jobflow.expressions.index_space import LOOKED_UP, Places, broadcasting
from jobflow.expressions.language import Expression, in_order
from jobflow.kernels.region import expression_on, space_on
from jobflow.kernels.row_phases import COLUMNS, REDUCTIONS
from jobflow.ops.op import Op

#: what depends on where the axes of the index space are
_OF_SPACE = {*REDUCTIONS, COLUMNS, "columns", "index"}


def expressions_of(step: Step) -> tuple[Expression, ...]:
    """What an operation computes, if it is written down."""
    assert isinstance(step.action, Op)
    return expression_on(step.action, *(item.type for item in step.inputs)) or ()


@dataclass(frozen=True)
class JoinedSpace:
    """Sizes of the axes, how many of the last are one row, and where the items lie.

    free: no member asks where the axes are, so they may get other numbers
    """

    sizes: tuple[int, ...]
    row: int
    places: Mapping[Item, Places]
    free: bool
    one_place: bool = True

    def made_once(self, items: Sequence[Item]) -> bool:
        """Is no result of an operation made in several rows?"""
        lead = [i for i, n in enumerate(self.sizes[: len(self.sizes) - self.row]) if n != 1]
        return all(set(lead) <= set(self.places[item]) for item in items)

    def whole_rows(self) -> bool:
        """Has each item, of the axes of a row of several, all or none?"""
        row = {len(self.sizes) - i for i in range(1, self.row + 1) if self.row > 1 and self.sizes[-i] != 1}
        return all(row.isdisjoint(places) or row.issubset(places) for places in self.places.values())

    def holds(self, item: Item) -> bool:
        """Has an item one element for each index, or for each row?"""
        have = {place for place in self.places[item] if place is not None}
        lead = len(self.sizes) - self.row
        lacks = [i for i, n in enumerate(self.sizes) if n != 1 and i not in have]
        return not lacks or (all(i >= lead for i in lacks) and all(i < lead for i in have))


def space_of_step(step: Step) -> JoinedSpace:
    """The index space of an operation."""
    assert isinstance(step.action, Op)
    items = (*step.inputs, *step.outputs)
    space = space_on(step.action, *(item.type for item in step.inputs)) or broadcasting(*(item.type for item in items))
    places = dict(zip(items, space.operands, strict=True))
    once = all(places[item] == place for item, place in zip(items, space.operands, strict=True))
    return JoinedSpace(space.sizes, space.row, places, all(x.primitive not in _OF_SPACE for x in in_order(expressions_of(step))), once)


def joined_space(a: JoinedSpace, b: JoinedSpace) -> JoinedSpace | None:
    """The space of both: one of them, with the axes of the other renamed as what they share says."""
    for small, large in ((b, a), (a, b)):
        axes = _renamed(small, large)
        if axes is not None:
            axes[LOOKED_UP] = LOOKED_UP
            lifted = {item: tuple(None if place is None else axes[place] for place in places) for item, places in small.places.items()}
            if all(_alike(lifted[item], large.places[item], large.sizes) for item in lifted if item in large.places):
                joined = JoinedSpace(large.sizes, large.row, {**lifted, **large.places}, small.free and large.free)
                return joined if joined.whole_rows() else None
    return None


def _renamed(small: JoinedSpace, large: JoinedSpace) -> dict[int, int | None] | None:
    """Which axis of the large space each of the small one is; None where that cannot be told, or may not be."""
    if small.sizes == large.sizes and (small.row == large.row or small.free):
        same = {i: i for i in range(len(small.sizes))}
        if all(_alike(small.places[item], large.places[item], large.sizes) for item in small.places if item in large.places):
            return same  # type: ignore[return-value]
    if not small.free:
        return None
    axes: dict[int, int | None] = {i: None for i, n in enumerate(small.sizes) if n == 1}
    for item, places in small.places.items():
        for own, other in zip(places, large.places.get(item, ()), strict=False):
            if own is None or (own != LOOKED_UP and small.sizes[own] == 1) or own == other == LOOKED_UP:
                continue
            if other is None or LOOKED_UP in (own, other) or axes.setdefault(own, other) != other:
                return None
    used = [axis for axis in axes.values() if axis is not None]
    complete = len(axes) == len(small.sizes) and len(set(used)) == len(used)
    return axes if complete else None


def _alike(a: Places, b: Places, sizes: tuple[int, ...]) -> bool:
    """The same places, but for axes of one element."""
    return len(a) == len(b) and all(x == y or all(z is None or (z >= 0 and sizes[z] == 1) for z in (x, y)) for x, y in zip(a, b, strict=True))
