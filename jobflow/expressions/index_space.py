"""The index space of an operation, and where its inputs and outputs have their elements in it.

An expression is computed at every index of one space, whose last axis is its row.  Elementwise operations broadcast as in NumPy.  Others say by
letters, those of their rule, which axis of the space each axis of an operand is:

    cross entropy     space "nc"      logits "nc"    labels "n"     loss "n"    prob "nc"
    sum of images     space "nhwc"    x "nchw"       y "c"
    layer norm        space "n(hc)"   x "nhc"        gamma "hc"     y "nhc"     mean "n"      two axes are one row

An operand is looked at as an array with as many axes as the space: those that it has not have one element there.  A table has one more, along
which its elements are looked up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from jobflow.core.dataclass import dataclass
from jobflow.core.types import Array, TensorType, Xp

#: for each axis of an operand the axis of the space; None for an axis of one element that is repeated, LOOKED_UP for one that the space has not
Places = tuple[int | None, ...]
#: along this axis elements are looked up, wherever they are
LOOKED_UP = -1


@dataclass(frozen=True)
class IndexSpace:
    """The sizes of the axes, the place of each operand (inputs, then outputs), and how many of the last axes are one row."""

    sizes: tuple[int, ...]
    operands: tuple[Places, ...]
    row: int = 1

    @property
    def shape(self) -> tuple[int, ...]:
        """With the row as one axis."""
        return self.collapsed(self.sizes)

    def view(self, operand: int, x: Array) -> Array | None:
        """A NumPy array as the space sees it, in the same memory; None where there is no such view."""
        wide = self.wide(operand, x)
        try:
            return wide.reshape(self._seen(wide.shape), copy=False)
        except ValueError:
            return None

    def read(self, operand: int, x: Array) -> Array:
        """The same, or a copy."""
        wide = self.wide(operand, x)
        return wide.reshape(self._seen(wide.shape))

    def _seen(self, wide: tuple[int, ...]) -> tuple[int, ...]:
        """With the row as one axis, and behind it that of a table."""
        return (*self.collapsed(wide[: len(self.sizes)]), *wide[len(self.sizes) :])

    def wide(self, operand: int, x: Array) -> Array:
        """A view with an axis for each of the space's, of one element where the operand has none; axes of one row are apart."""
        places = self.operands[operand]
        kept = x[(*(0 if place is None else slice(None) for place in places), ...)]  # a view, never a number that is read
        order = [place if place != LOOKED_UP else len(self.sizes) for place in places if place is not None]
        turned = kept.transpose(sorted(range(len(order)), key=order.__getitem__))
        return turned[(*(slice(None) if i in order else None for i in range(len(self.sizes))), ...)]

    def collapsed(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """These sizes with the row as one axis."""
        return (*sizes[: len(sizes) - self.row], math.prod(sizes[len(sizes) - self.row :])) if sizes else ()

    def write(self, operand: int, value: Array, x: Array, xp: Xp) -> None:
        """Put what was computed for an operand, which broadcasts to what the space sees of it, where it belongs."""
        places = self.operands[operand]
        order = [place for place in places if place is not None]
        sizes = [n if i in order else 1 for i, n in enumerate(self.sizes)]
        kept = xp.broadcast_to(value, self.collapsed(sizes)).reshape(sizes)[tuple(slice(None) if i in order else 0 for i in range(len(sizes)))]
        x[...] = kept.transpose([sorted(order).index(place) for place in order]).reshape(x.shape)


def broadcasting(*types: TensorType) -> IndexSpace:
    """The space of operands that broadcast to the last of them; one with more axes, such as a rate beside a scalar, has one element along them."""
    made = types[-1].shape
    sizes = (*(1,) * (max(type.ndim for type in types) - len(made)), *made)

    def places(shape: Sequence[int]) -> Places:
        return tuple(i if n == sizes[i] else None for i, n in enumerate(shape, len(sizes) - len(shape)))

    return IndexSpace(sizes, tuple(places(type.shape) for type in types))


def space_of(spec: str, types: Sequence[TensorType], row: str = "", last: str = "", table: str = "") -> IndexSpace:
    """The space of a rule's letters and the types of inputs and outputs.

    row: letters of the axes that are the row together;  last: letters that come last;  table: that of the axis along which is looked up
    """
    words = spec.lower().replace("->", ",").split(",")
    ends, apart = row or last, ("1", table)
    pairs = [(letter, n) for word, type in zip(words, types, strict=True) for letter, n in zip(word, type.shape, strict=False)]
    size = {letter: n for letter, n in pairs if letter not in apart}
    letters = "".join(letter for letter in size if letter not in ends) + ends

    def place(letter: str) -> int | None:
        return letters.index(letter) if letter not in apart else LOOKED_UP if letter == table else None

    places = tuple(tuple(map(place, word[: type.ndim])) for word, type in zip(words, types, strict=True))
    if not letters:  # numbers are rows of one element
        return IndexSpace((1,), places)
    return IndexSpace(tuple(size[letter] for letter in letters), places, max(len(row), 1))
