"""The joint index space of several operations, derived from the axes of shared values.

y[n, c] = x[n, c] - m[n]      space [n, c]       z[n] = m[n] * 2      space [n], which is axis 0 of [n, c], because both operations use m
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jobflow.compiler.rank.local import LocalInstruction, LocalValue
from jobflow.core.dataclass import dataclass
from jobflow.expressions.index_space import LOOKED_UP, Places, broadcasting
from jobflow.expressions.language import Expression, in_order
from jobflow.kernels.region import expression_on, space_on
from jobflow.kernels.row_phases import COLUMNS, REDUCTIONS
from jobflow.kernels.target import Kind
from jobflow.ops.op import Op

#: primitives that depend on the positions of the axes in the index space
_OF_SPACE = {*REDUCTIONS, COLUMNS, "columns", "index"}


def expressions_of(step: LocalInstruction) -> tuple[Expression, ...]:
    """Return the expressions of an operation; () if it has none."""
    assert isinstance(step.action, Op)
    return expression_on(step.action, *(value.type for value in step.inputs)) or ()


def fits_in_loop(step: LocalInstruction, kind: Kind) -> bool:
    """Return True if a region on this kind of device can contain the instruction."""
    return isinstance(step.action, Op) and kind in step.action.loops_on and bool(expressions_of(step))


@dataclass(frozen=True)
class JoinedSpace:
    """The sizes of the axes, the number of last axes that form one row, and the axes of each value.

    If `free`, no member depends on axis numbers, so axes may be renumbered.
    """

    sizes: tuple[int, ...]
    row: int
    places: Mapping[LocalValue, Places]
    free: bool
    unique_axes: bool = True

    def computed_once(self, values: Sequence[LocalValue]) -> bool:
        """Return True if each value has all axes before the row, so that no value is computed in several rows."""
        lead = [i for i, n in enumerate(self.sizes[: len(self.sizes) - self.row]) if n != 1]
        return all(set(lead) <= set(self.places[value]) for value in values)

    def whole_rows(self) -> bool:
        """Return True unless a value has only some of the axes of a row."""
        row = {len(self.sizes) - i for i in range(1, self.row + 1) if self.row > 1 and self.sizes[-i] != 1}
        return all(row.isdisjoint(places) or row.issubset(places) for places in self.places.values())

    def holds(self, value: LocalValue) -> bool:
        """Return True if a value has one element for each index of the space, or one for each row."""
        have = {axis for axis in self.places[value] if axis is not None}
        lead = len(self.sizes) - self.row
        lacks = [i for i, n in enumerate(self.sizes) if n != 1 and i not in have]
        return not lacks or (all(i >= lead for i in lacks) and all(i < lead for i in have))


def space_of_step(step: LocalInstruction) -> JoinedSpace:
    """Return the index space of an operation."""
    assert isinstance(step.action, Op)
    values = (*step.inputs, *step.outputs)
    space = space_on(step.action, *(value.type for value in step.inputs)) or broadcasting(*(value.type for value in values))
    places = dict(zip(values, space.operands, strict=True))
    once = all(places[value] == axis for value, axis in zip(values, space.operands, strict=True))
    return JoinedSpace(space.sizes, space.row, places, all(x.primitive not in _OF_SPACE for x in in_order(expressions_of(step))), once)


def joined_space(a: JoinedSpace, b: JoinedSpace) -> JoinedSpace | None:
    """Return one index space for both operations, in which shared values have the same axes; None if no such space exists."""
    for small, large in ((b, a), (a, b)):
        axes = _renamed(small, large)
        if axes is not None:
            axes[LOOKED_UP] = LOOKED_UP
            lifted = {value: tuple(None if axis is None else axes[axis] for axis in places) for value, places in small.places.items()}
            if all(_alike(lifted[value], large.places[value], large.sizes) for value in lifted if value in large.places):
                joined = JoinedSpace(large.sizes, large.row, {**lifted, **large.places}, small.free and large.free)
                return joined if joined.whole_rows() else None
    return None


def _renamed(small: JoinedSpace, large: JoinedSpace) -> dict[int, int | None] | None:
    """Return the axis of the large space for each axis of the small one; None if the mapping is ambiguous or not allowed."""
    if small.sizes == large.sizes and (small.row == large.row or small.free):
        same = {i: i for i in range(len(small.sizes))}
        if all(_alike(small.places[value], large.places[value], large.sizes) for value in small.places if value in large.places):
            return same  # type: ignore[return-value]
    if not small.free:
        return None
    axes: dict[int, int | None] = {i: None for i, n in enumerate(small.sizes) if n == 1}
    for value, places in small.places.items():
        for own, other in zip(places, large.places.get(value, ()), strict=False):
            if own is None or (own != LOOKED_UP and small.sizes[own] == 1) or own == other == LOOKED_UP:
                continue
            if other is None or LOOKED_UP in (own, other) or axes.setdefault(own, other) != other:
                return None
    used = [axis for axis in axes.values() if axis is not None]
    complete = len(axes) == len(small.sizes) and len(set(used)) == len(used)
    return axes if complete else None


def _alike(a: Places, b: Places, sizes: tuple[int, ...]) -> bool:
    """Return True if the values with the axes `a` and `b` have the same axes, apart from axes of one element."""
    return len(a) == len(b) and all(x == y or all(z is None or (z >= 0 and sizes[z] == 1) for z in (x, y)) for x, y in zip(a, b, strict=True))
