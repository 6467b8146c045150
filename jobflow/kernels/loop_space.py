"""Axes of a loop, and the strides of each operand along them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.types import Array, DType
from jobflow.kernels.argument_block import address

#: along the innermost axis: contiguous, contiguous backwards, stride 0, any other stride; `number`: a scalar of the whole loop
InnerLayout = Literal["dense", "reversed", "splat", "strided", "number"]
#: layouts whose elements are not contiguous in ascending order
NON_CONTIGUOUS = ("reversed", "strided")

#: bytes of a cache line, and the number of lines that fit the first-level cache
LINE, COLUMNS_AT_A_TIME = 64, 256


@dataclass(frozen=True)
class OperandAccess:
    """The element type of an operand, and the pattern by which the innermost loop accesses its elements."""

    dtype: DType
    inner: InnerLayout
    #: True if the values are the addresses of elements: see `index_operands`
    counted: bool = False
    #: True if elements are looked up along an additional last axis
    table: bool = False

    def __str__(self) -> str:
        return f"{self.inner} {'position' if self.counted else self.dtype.name}{' table' if self.table else ''}"


@dataclass(frozen=True)
class LoopForm:
    """The properties of operands that the code of a loop depends on; sizes and strides are passed at run time."""

    #: number of axes outside the innermost one
    outer: int
    inputs: tuple[OperandAccess, ...]
    outputs: tuple[OperandAccess, ...]


@dataclass(frozen=True)
class Space:
    """The index space of a loop: sizes of the axes, the innermost last, and the strides of each operand along them in bytes."""

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
        """Yield tiles of the innermost axis with their first index; the other axes are ordered so that cache lines are reused soonest.

        Tiles save time for an operand in transposed order, such as y of y[n,k] += x[k,n].  Each element of its row is in another cache line.
        The next row reads the adjacent elements of the same lines.  Without such an operand, the only tile is the whole space.
        """
        size = self.sizes[-1]
        across = (s for s in self.strides if any(0 < abs(step) < min(LINE, abs(s[-1])) for step in s[:-1]))
        transposed = next(across, None) if size > COLUMNS_AT_A_TIME else None
        if transposed is None:
            yield 0, self
            return
        nearest = min((axis for axis in range(len(transposed) - 1) if transposed[axis]), key=lambda axis: abs(transposed[axis]))
        order = (*(axis for axis in range(len(transposed) - 1) if axis != nearest), nearest, len(transposed) - 1)
        sizes, strides = tuple(self.sizes[axis] for axis in order), tuple(tuple(s[axis] for axis in order) for s in self.strides)
        for first in range(0, size, COLUMNS_AT_A_TIME):
            yield first, Space((*sizes[:-1], min(COLUMNS_AT_A_TIME, size - first)), strides)


def steps(array: Array, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides in bytes of an array broadcast to `shape`: 0 along additional axes and axes of one element."""
    own = (0 if size == 1 else stride for size, stride in zip(array.shape, array.strides, strict=True))
    return (*(0,) * (len(shape) - array.ndim), *own)


def space_of(shape: tuple[int, ...], strides: Sequence[tuple[int, ...]], rows: bool, ordered: bool = False) -> Space:
    """Return the space of operands with as few axes as their strides allow.

    With `rows`, the last axis is not merged.  With `ordered`, the other axes keep their order.
    """
    last = len(shape) - 1 if rows and shape else len(shape)
    axes = [axis for axis in range(last) if shape[axis] != 1]
    if not ordered:
        axes.sort(key=lambda axis: [-abs(s[axis]) for s in reversed(strides)])  # the last output determines the innermost axis
    sizes: list[int] = []
    merged: list[list[int]] = [[] for _ in strides]
    for axis in axes:
        size = shape[axis]
        if sizes and all(step[-1] == s[axis] * size for step, s in zip(merged, strides, strict=True)):
            sizes[-1] *= size
            for step, s in zip(merged, strides, strict=True):
                step[-1] = s[axis]
        else:
            sizes.append(size)
            for step, s in zip(merged, strides, strict=True):
                step.append(s[axis])
    if last < len(shape):
        sizes.append(shape[last])
        for step, s in zip(merged, strides, strict=True):
            step.append(s[last])
    elif not sizes or rows:
        sizes.append(1)
        for step in merged:
            step.append(0)
    return Space(tuple(sizes), tuple(map(tuple, merged)))


def stride_of_table(array: Array) -> int:
    """Return the stride in bytes along the last axis of a table, which is the axis of its entries."""
    return int(array.strides[-1])


def overlaps(a: Array, b: Array) -> bool:
    """Return True if the arrays may share memory, except if both are views of the same elements in the same order."""
    if a.size == 0 or b.size == 0 or not np.may_share_memory(a, b):
        return False
    if a.shape == b.shape and a.strides == b.strides and a.dtype.itemsize == b.dtype.itemsize and address(a) == address(b):
        return False
    shares: Any = np.shares_memory  # the stub of NumPy lacks max_work
    try:
        return bool(shares(a, b, max_work=1000))
    except np.exceptions.TooHardError:
        return True
