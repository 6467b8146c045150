"""The axes that a loop runs over, and how each operand lies along them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.types import Array, DType
from jobflow.kernels.argument_block import address

#: along the innermost axis: elements side by side, the same backwards, one element for all, apart by any stride; `number`: one for the whole loop
Lying = Literal["dense", "reversed", "splat", "strided", "number"]
#: of which elements do not follow each other
APART = ("reversed", "strided")

#: bytes of memory that come into a cache together, and how many such lines stay in the nearest one
LINE, COLUMNS_AT_A_TIME = 64, 256


@dataclass(frozen=True)
class OperandAccess:
    """How the innermost loop reads or writes an operand."""

    dtype: DType
    inner: Lying
    #: elements are their addresses: see `positions`
    counted: bool = False
    #: elements are looked up along one more axis
    table: bool = False

    def __str__(self) -> str:
        return f"{self.inner} {'position' if self.counted else self.dtype.name}{' table' if self.table else ''}"


@dataclass(frozen=True)
class LoopForm:
    """What of the operands a printed loop depends on; sizes and strides come when it runs."""

    #: axes around the innermost one
    outer: int
    inputs: tuple[OperandAccess, ...]
    outputs: tuple[OperandAccess, ...]


@dataclass(frozen=True)
class Space:
    """Sizes of the axes, the innermost last, and per operand its strides along them in bytes."""

    sizes: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]

    def access(self, operand: int, dtype: DType, counted: bool = False) -> OperandAccess:
        stride = self.strides[operand][-1]
        if counted:
            return OperandAccess(dtype, "strided" if stride and self.sizes[-1] > 1 else "splat", True)
        if self.sizes[-1] == 1 or stride == dtype.itemsize:
            return OperandAccess(dtype, "dense")
        return OperandAccess(dtype, "reversed" if stride == -dtype.itemsize else "strided" if stride else "splat")

    def tiles(self) -> Iterator[tuple[int, Space]]:
        """Stretches of the innermost axis, by where they begin, with the other axes in the order in which lines of memory are used again soonest.

        Of an operand that lies the other way, as one of y[n,k] += x[k,n] does, each row reads one element of as many lines as it has columns, and the
        next row the elements beside them.
        """
        size = self.sizes[-1]
        across = (s for s in self.strides if any(0 < abs(step) < min(LINE, abs(s[-1])) for step in s[:-1]))
        turned = next(across, None) if size > COLUMNS_AT_A_TIME else None
        if turned is None:
            yield 0, self
            return
        nearest = min((axis for axis in range(len(turned) - 1) if turned[axis]), key=lambda axis: abs(turned[axis]))
        order = (*(axis for axis in range(len(turned) - 1) if axis != nearest), nearest, len(turned) - 1)
        sizes, strides = tuple(self.sizes[axis] for axis in order), tuple(tuple(s[axis] for axis in order) for s in self.strides)
        for first in range(0, size, COLUMNS_AT_A_TIME):
            yield first, Space((*sizes[:-1], min(COLUMNS_AT_A_TIME, size - first)), strides)


def steps(array: Array, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of an array that is broadcast to a shape."""
    own = (0 if size == 1 else stride for size, stride in zip(array.shape, array.strides, strict=True))
    return (*(0,) * (len(shape) - array.ndim), *own)


def space_of(shape: tuple[int, ...], strides: Sequence[tuple[int, ...]], rows: bool, ordered: bool = False) -> Space:
    """The space of operands with as few axes as their strides allow; where there are rows, the last axis is left alone.

    ordered: that the other axes stay in their order
    """
    last = len(shape) - 1 if rows and shape else len(shape)
    axes = [axis for axis in range(last) if shape[axis] != 1]
    if not ordered:
        axes.sort(key=lambda axis: [-abs(s[axis]) for s in reversed(strides)])  # the last output says which is innermost
    sizes: list[int] = []
    taken: list[list[int]] = [[] for _ in strides]
    for axis in axes:
        size = shape[axis]
        if sizes and all(step[-1] == s[axis] * size for step, s in zip(taken, strides, strict=True)):
            sizes[-1] *= size
            for step, s in zip(taken, strides, strict=True):
                step[-1] = s[axis]
        else:
            sizes.append(size)
            for step, s in zip(taken, strides, strict=True):
                step.append(s[axis])
    if last < len(shape):
        sizes.append(shape[last])
        for step, s in zip(taken, strides, strict=True):
            step.append(s[last])
    elif not sizes or rows:
        sizes.append(1)
        for step in taken:
            step.append(0)
    return Space(tuple(sizes), tuple(map(tuple, taken)))


def stride_of_table(array: Array) -> int:
    """Bytes from an element to the next along the axis along which they are looked up."""
    return int(array.strides[-1])


def overlaps(a: Array, b: Array) -> bool:
    """Do they share memory other than element by element?"""
    if a.size == 0 or b.size == 0 or not np.may_share_memory(a, b):
        return False
    if a.shape == b.shape and a.strides == b.strides and a.dtype.itemsize == b.dtype.itemsize and address(a) == address(b):
        return False
    shares: Any = np.shares_memory  # its stub does not know that one may say how long it may take
    try:
        return bool(shares(a, b, max_work=1000))
    except np.exceptions.TooHardError:
        return True
