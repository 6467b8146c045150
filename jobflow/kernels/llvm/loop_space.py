"""The axes that a loop runs over, and how each operand lies along them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from jobflow.core.types import Array, DType, dtype_of

#: along the innermost axis: elements side by side, one element for all, apart by any stride; `number`: one for the whole loop
Lying = Literal["dense", "splat", "strided", "number"]


@dataclass(frozen=True)
class OperandAccess:
    """How the innermost loop reads or writes an operand."""

    dtype: DType
    inner: Lying

    def __str__(self) -> str:
        return f"{self.inner} {self.dtype.name}"


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

    def access(self, operand: int, dtype: DType) -> OperandAccess:
        stride = self.strides[operand][-1]
        if self.sizes[-1] == 1 or stride == dtype.itemsize:
            return OperandAccess(dtype, "dense")
        return OperandAccess(dtype, "strided" if stride else "splat")


def space_of(inputs: Sequence[Array], outputs: Sequence[Array], rows: bool, ordered: bool = False) -> Space:
    """The space of these operands with as few axes as their strides allow; where there are rows, the last axis is left alone.

    ordered: that the other axes stay in their order
    """
    operands = [*inputs, *outputs]
    shape = np.broadcast_shapes(*(a.shape for a in operands))
    strides = [np.broadcast_to(a, shape).strides for a in operands]
    last = len(shape) - 1 if rows and shape else len(shape)
    axes = [axis for axis in range(last) if shape[axis] != 1]
    if not ordered:
        axes.sort(key=lambda axis: [-abs(s[axis]) for s in reversed(strides)])  # the last output says which is innermost
    sizes: list[int] = []
    steps: list[list[int]] = [[] for _ in operands]
    for axis in axes:
        size = shape[axis]
        if sizes and all(step[-1] == s[axis] * size for step, s in zip(steps, strides, strict=True)):
            sizes[-1] *= size
            for step, s in zip(steps, strides, strict=True):
                step[-1] = s[axis]
        else:
            sizes.append(size)
            for step, s in zip(steps, strides, strict=True):
                step.append(s[axis])
    if last < len(shape):
        sizes.append(shape[last])
        for step, s in zip(steps, strides, strict=True):
            step.append(s[last])
    elif not sizes or rows:
        sizes.append(1)
        for step in steps:
            step.append(0)
    return Space(tuple(sizes), tuple(map(tuple, steps)))


def dtype_or_reason(array: Array, what: str) -> DType | str:
    """The element type of an array that lies in memory as a loop can read it, or why not."""
    try:
        dtype = dtype_of(array.dtype)
    except KeyError:
        return f"{what} is {array.dtype}"
    return dtype if array.flags.aligned else f"{what} does not lie at a multiple of its element size"


def overlaps(a: Array, b: Array) -> bool:
    """Do they share memory other than element by element?"""
    if a.size == 0 or b.size == 0 or not np.may_share_memory(a, b):
        return False
    if a.shape == b.shape and a.strides == b.strides and a.dtype.itemsize == b.dtype.itemsize and a.ctypes.data == b.ctypes.data:
        return False
    shares: Any = np.shares_memory  # its stub does not know that one may say how long it may take
    try:
        return bool(shares(a, b, max_work=1000))
    except np.exceptions.TooHardError:
        return True
