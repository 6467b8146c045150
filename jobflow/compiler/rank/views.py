"""The window of each value on its root, and the variables that updates overwrite.

`ViewOp.view` is applied to a mock array with the right shape and strides.  The mock's memory is never
read; only the strides and the address of the result are used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType

import numpy as np

from jobflow.compiler.rank.local import Collect, LocalInstruction, LocalValue, WaitFor
from jobflow.core.dataclass import dataclass
from jobflow.core.types import TensorType, contiguous_strides, unread
from jobflow.ops.op import Op, ViewOp


@dataclass(frozen=True)
class PaddedRows:
    """A C-ordered layout with `length` elements from one row of the last axis to the next."""

    length: int


#: Memory orders of values that are not dense and C-ordered: axes from outermost to innermost, or padded rows.
Orders = Mapping[LocalValue, tuple[int, ...] | PaddedRows]


@dataclass(frozen=True, eq=False)
class StridedWindow:
    """A window on the memory of `root`: `strides` and `offset` in bytes."""

    root: LocalValue
    offset: int
    strides: tuple[int, ...]


def windows(
    steps: Iterable[LocalInstruction], roots: Iterable[LocalValue], orders: Orders, placed: Mapping[LocalValue, StridedWindow] = MappingProxyType({})
) -> dict[LocalValue, StridedWindow]:
    """Return the window of every value.

    A value is its own root if its memory is fixed, or if it is neither a view nor placed elsewhere.
    """
    result: dict[LocalValue, StridedWindow] = {root: own_window(root, orders) for root in roots}
    for step in steps:
        result.update((value, own_window(value, orders)) for value in step.inputs if value.slot is not None)
        window = _view_window(step, result)
        if window is not None:
            result[step.outputs[0]] = placed.get(step.outputs[0], window)
            continue
        if isinstance(step.action, WaitFor | Collect) and step.outputs and (isinstance(step.action, WaitFor) or step.action.in_place):
            result[step.outputs[0]] = result[step.inputs[-1]]  # the memory of the communication
            continue
        for i, output in enumerate(step.outputs):
            source = step.action.alias.get(i) if isinstance(step.action, Op) else None
            result[output] = placed.get(output) or (own_window(output, orders) if source is None else result[step.inputs[source]])
    return result


def own_window(value: LocalValue, orders: Orders) -> StridedWindow:
    strides = value.slot.strides if value.slot else ordered_strides(value.type, orders.get(value))
    return StridedWindow(value, 0, strides)


@lru_cache(4096)
def ordered_strides(type: TensorType, order: tuple[int, ...] | PaddedRows | None) -> tuple[int, ...]:
    """Return the strides of an array with the axes in this memory order."""
    if order is None:
        return contiguous_strides(type.shape, type.dtype.itemsize)
    if isinstance(order, PaddedRows):
        return contiguous_strides((*type.shape[:-1], order.length), type.dtype.itemsize)
    inner = contiguous_strides(tuple(type.shape[axis] for axis in order), type.dtype.itemsize)
    strides = [0] * len(order)
    for axis, stride in zip(order, inner, strict=True):
        strides[axis] = stride
    return tuple(strides)


def reserved_bytes(type: TensorType, strides: tuple[int, ...]) -> int:
    """Return the bytes of memory for a value, with the padding after its last row."""
    return max((n * stride for n, stride in zip(type.shape, strides, strict=True)), default=type.nbytes) if type.size else 0


def _view_window(step: LocalInstruction, window_of: Mapping[LocalValue, StridedWindow]) -> StridedWindow | None:
    if not isinstance(step.action, ViewOp) or not step.inputs:
        return None
    base = window_of[step.inputs[0]]
    mocks = [unread(value.type, window_of[value].strides) for value in step.inputs]
    try:
        view = step.action.view(*mocks)
    except ValueError:
        return None
    return _inside(base, mocks[0], view)


def _inside(base: StridedWindow, mock: np.ndarray, view: np.ndarray) -> StridedWindow:
    shift = view.__array_interface__["data"][0] - mock.__array_interface__["data"][0]
    return StridedWindow(base.root, base.offset + (shift if view.size else 0), tuple(view.strides))


def inner_windows(step: LocalInstruction, window: StridedWindow) -> list[StridedWindow | None]:
    """Return, for each input, the window of the output in which it must be computed to make the instruction free (`Op.places`)."""
    if not isinstance(step.action, Op) or not step.outputs[0].type.size:
        return [None] * len(step.inputs)
    mock = unread(step.outputs[0].type, window.strides)
    views = step.action.places(mock, *(value.type for value in step.inputs))
    return [None if view is None else _inside(window, mock, view) for view in views]


def is_free(step: LocalInstruction, window_of: Mapping[LocalValue, StridedWindow]) -> bool:
    """Return True if an instruction does no work: its output is a view of the input, or all inputs are computed in place."""
    if not isinstance(step.action, Op) or len(step.outputs) != 1 or not step.inputs:
        return False
    window = window_of[step.outputs[0]]
    view = _view_window(step, window_of)
    if view is not None and _same(view, window, step.outputs[0].type):
        return True
    inner = inner_windows(step, window)
    return all(target is not None and _same(target, window_of[value], value.type) for target, value in zip(inner, step.inputs, strict=True))


def _same(a: StridedWindow, b: StridedWindow, type: TensorType) -> bool:
    same_strides = all(n <= 1 or s == t for n, s, t in zip(type.shape, a.strides, b.strides, strict=True))
    return a.root is b.root and a.offset == b.offset and same_strides


def is_dense(type: TensorType, window: StridedWindow) -> bool:
    """Return True if the window is C-ordered without gaps."""
    expected = contiguous_strides(type.shape, type.dtype.itemsize)
    return all(n <= 1 or a == b for n, a, b in zip(type.shape, window.strides, expected, strict=True))


def written_over(steps: tuple[LocalInstruction, ...]) -> dict[LocalValue, LocalValue]:
    """Map each output of an update op to the variable that it overwrites, possibly after earlier updates of the variable."""
    result: dict[LocalValue, LocalValue] = {}
    for step in steps:
        if isinstance(step.action, Op):
            for output, source in step.action.alias.items():
                result[step.outputs[output]] = result.get(step.inputs[source], step.inputs[source])
    return result


def views_of(steps: tuple[LocalInstruction, ...], roots: set[LocalValue]) -> dict[LocalValue, LocalValue]:
    """Map every value that may share memory with one of the roots to that root."""
    result = {root: root for root in roots}
    for step in steps:
        if isinstance(step.action, ViewOp) and step.inputs and step.inputs[0] in result:
            result[step.outputs[0]] = result[step.inputs[0]]
    return result
