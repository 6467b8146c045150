"""The index space of an operation, and the mapping from the axes of its operands to the axes of the space.

An expression is computed at every index of one space.  The last axes of the space form a row, by default the last axis only.  Elementwise
operations broadcast as in NumPy.  Other operations name the axes by the letters of their rule:

    cross entropy     space "nc"      logits "nc"    labels "n"     loss "n"    prob "nc"
    sum of images     space "nhwc"    x "nchw"       y "c"
    layer norm        space "n(hc)"   x "nhc"        gamma "hc"     y "nhc"     mean "n"      two axes are one row

An operand is viewed as an array with the axes of the space; missing axes have size 1.  A lookup table has one more axis, along which its
elements are looked up.  Several lookup axes of an operand form this axis in C order: element (i, j) of [m,n] has offset i n + j.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from jobflow.core.dataclass import dataclass
from jobflow.core.types import Array, TensorType, Xp

#: for each axis of an operand the axis of the space; None for a broadcast axis of size 1, LOOKED_UP for a lookup axis of a table
Places = tuple[int | None, ...]
#: marks a lookup axis of a table, which is not an axis of the space
LOOKED_UP = -1


@dataclass(frozen=True)
class IndexSpace:
    """The index space of an operation: `sizes` of its axes, and the axes of the space that correspond to the axes of each operand.

    The operands are the inputs, then the outputs.  `row` is the number of last axes that form a row.
    """

    sizes: tuple[int, ...]
    operands: tuple[Places, ...]
    row: int = 1

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the axes, with the row as one axis."""
        return self.collapsed(self.sizes)

    def view(self, operand: int, x: Array) -> Array | None:
        """Return x, the array of operand number `operand`, as a view with the axes of the space, or None if no view exists."""
        wide = self.wide(operand, x)
        try:
            return wide.reshape(self._with_row_axis(wide.shape), copy=False)
        except ValueError:
            return None

    def read(self, operand: int, x: Array) -> Array:
        """Return x, the array of operand number `operand`, with the axes of the space; a copy if its strides allow no view."""
        wide = self.wide(operand, x)
        return wide.reshape(self._with_row_axis(wide.shape))

    def _with_row_axis(self, wide: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape `wide`, a result of the method `wide`, with the axes of a row merged.

        The lookup axes of a table are merged, and remain last.
        """
        table = wide[len(self.sizes) :]
        return (*self.collapsed(wide[: len(self.sizes)]), *((math.prod(table),) if table else ()))

    def wide(self, operand: int, x: Array) -> Array:
        """Return a view of x, the array of operand number `operand`, with every axis of the space; the axes of a row are not merged.

        Axes that the operand lacks have size 1.
        """
        places = self.operands[operand]
        present = x[(*(0 if axis is None else slice(None) for axis in places), ...)]  # the ellipsis makes the result a view, even of 0 axes
        order = [axis if axis != LOOKED_UP else len(self.sizes) for axis in places if axis is not None]
        turned = present.transpose(sorted(range(len(order)), key=order.__getitem__))
        return turned[(*(slice(None) if i in order else None for i in range(len(self.sizes))), ...)]

    def collapsed(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """Return `sizes`, one per axis of the space, with the sizes of the row's axes replaced by their product."""
        return (*sizes[: len(sizes) - self.row], math.prod(sizes[len(sizes) - self.row :])) if sizes else ()

    def write(self, operand: int, value: Array, x: Array, xp: Xp) -> None:
        """Write the computed `value` of operand number `operand` to its array x. `value` broadcasts to the view of the operand in the space."""
        places = self.operands[operand]
        order = [axis for axis in places if axis is not None]
        sizes = [n if i in order else 1 for i, n in enumerate(self.sizes)]
        present = xp.broadcast_to(value, self.collapsed(sizes)).reshape(sizes)[tuple(slice(None) if i in order else 0 for i in range(len(sizes)))]
        x[...] = present.transpose([sorted(order).index(axis) for axis in order]).reshape(x.shape)


def broadcasting(*types: TensorType) -> IndexSpace:
    """Return the space of operands that broadcast to the last operand.

    Operands with more axes than the last operand have size 1 along the additional axes, for example a learning rate and a scalar parameter.
    """
    shape_of_last = types[-1].shape
    sizes = (*(1,) * (max(type.ndim for type in types) - len(shape_of_last)), *shape_of_last)

    def places(shape: Sequence[int]) -> Places:
        return tuple(i if n == sizes[i] else None for i, n in enumerate(shape, len(sizes) - len(shape)))

    return IndexSpace(sizes, tuple(places(type.shape) for type in types))


def space_of(spec: str, types: Sequence[TensorType], row: str = "", last: str = "", table: str = "") -> IndexSpace:
    """Return the index space of an op with the rule `spec` for inputs and outputs of these `types`.

    `row` has the letters of the axes that form a row.  `last` has the letters of the last axes for ops without a row.  `table` is the letter of
    the lookup axis.  An empty string stands for no axis.
    """
    words = spec.lower().replace("->", ",").split(",")
    ends, excluded = row or last, ("1", table)
    pairs = [(name, n) for word, type in zip(words, types, strict=True) for name, n in zip(word, type.shape, strict=False)]
    size = {name: n for name, n in pairs if name not in excluded}
    letters = "".join(name for name in size if name not in ends) + ends

    def axis_of(name: str) -> int | None:
        return letters.index(name) if name not in excluded else LOOKED_UP if name == table else None

    places = tuple(tuple(map(axis_of, word[: type.ndim])) for word, type in zip(words, types, strict=True))
    if not letters:  # scalars are rows of one element
        return IndexSpace((1,), places)
    return IndexSpace(tuple(size[name] for name in letters), places, max(len(row), 1))
