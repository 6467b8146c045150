"""Where views lie: the window on its root that each item of a program is; and what is written over what.

`ViewOp.view` is asked what it would do to an array of the right shape and strides.  The array is a mock: its memory is never
read, only the strides and the address of the result are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType

import numpy as np

from jobflow.compiler.rank.local import Item, Step
from jobflow.core.dataclass import dataclass
from jobflow.core.types import TensorType, contiguous_strides
from jobflow.ops.op import Op, ViewOp

#: Memory orders of items that are not C-ordered: axes from outermost to innermost.
Orders = Mapping[Item, tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class StridedWindow:
    """`strides` in bytes, `offset` bytes into the memory of `root`."""

    root: Item
    offset: int
    strides: tuple[int, ...]


def windows(
    steps: Iterable[Step], roots: Iterable[Item], orders: Orders, placed: Mapping[Item, StridedWindow] = MappingProxyType({})
) -> dict[Item, StridedWindow]:
    """The window of every item; one that is neither a view nor placed in another is its own root, and so is one whose place is given."""
    found: dict[Item, StridedWindow] = {root: own_window(root, orders) for root in roots}
    for step in steps:
        found.update((item, own_window(item, orders)) for item in step.inputs if item.slot is not None)
        window = _view_window(step, found)
        if window is not None:
            found[step.outputs[0]] = placed.get(step.outputs[0], window)
            continue
        for i, output in enumerate(step.outputs):
            source = step.action.alias.get(i) if isinstance(step.action, Op) else None
            found[output] = placed.get(output) or (own_window(output, orders) if source is None else found[step.inputs[source]])
    return found


def own_window(item: Item, orders: Orders) -> StridedWindow:
    strides = item.slot.strides if item.slot else ordered_strides(item.type, orders.get(item))
    return StridedWindow(item, 0, strides)


@lru_cache(4096)
def ordered_strides(type: TensorType, order: tuple[int, ...] | None) -> tuple[int, ...]:
    """Strides of a dense array whose axes follow each other in memory as `order` says."""
    if order is None:
        return contiguous_strides(type.shape, type.dtype.itemsize)
    inner = contiguous_strides(tuple(type.shape[axis] for axis in order), type.dtype.itemsize)
    strides = [0] * len(order)
    for axis, stride in zip(order, inner, strict=True):
        strides[axis] = stride
    return tuple(strides)


def _view_window(step: Step, found: Mapping[Item, StridedWindow]) -> StridedWindow | None:
    if not isinstance(step.action, ViewOp) or not step.inputs:
        return None
    base = found[step.inputs[0]]
    mocks = [unread(item.type, found[item].strides) for item in step.inputs]
    try:
        seen = step.action.view(*mocks)
    except ValueError:
        return None
    return _inside(base, mocks[0], seen)


def _inside(base: StridedWindow, mock: np.ndarray, seen: np.ndarray) -> StridedWindow:
    shift = seen.__array_interface__["data"][0] - mock.__array_interface__["data"][0]
    return StridedWindow(base.root, base.offset + (shift if seen.size else 0), tuple(seen.strides))


def inner_windows(step: Step, window: StridedWindow) -> list[StridedWindow | None]:
    """Where the inputs of a step of one output would lie in that output's window, so that there is nothing to do (`Op.places`)."""
    if not isinstance(step.action, Op) or not step.outputs[0].type.size:
        return [None] * len(step.inputs)
    mock = unread(step.outputs[0].type, window.strides)
    places = step.action.places(mock, *(item.type for item in step.inputs))
    return [None if place is None else _inside(window, mock, place) for place in places]


def is_free(step: Step, found: Mapping[Item, StridedWindow]) -> bool:
    """True if there is nothing to do: the output is a view of the input, or all inputs have been made in their places in it."""
    if not isinstance(step.action, Op) or len(step.outputs) != 1 or not step.inputs:
        return False
    window = found[step.outputs[0]]
    seen = _view_window(step, found)
    if seen is not None and _same(seen, window, step.outputs[0].type):
        return True
    inner = inner_windows(step, window)
    return all(place is not None and _same(place, found[item], item.type) for place, item in zip(inner, step.inputs, strict=True))


def _same(a: StridedWindow, b: StridedWindow, type: TensorType) -> bool:
    lie_alike = all(n <= 1 or s == t for n, s, t in zip(type.shape, a.strides, b.strides, strict=True))
    return a.root is b.root and a.offset == b.offset and lie_alike


_MOCK = np.zeros(1, np.uint8)


@lru_cache(4096)
def unread(type: TensorType, strides: tuple[int, ...]) -> np.ndarray:
    """An array of this type and these strides, whose memory is not there; layers of a model ask for the same ones."""
    base = _MOCK if type.dtype.itemsize == 1 else np.zeros(1, type.dtype.numpy)
    return np.lib.stride_tricks.as_strided(base.view(type.dtype.numpy), type.shape, strides, writeable=False)


def is_dense(type: TensorType, window: StridedWindow) -> bool:
    """True if the window is C-ordered without gaps."""
    expected = contiguous_strides(type.shape, type.dtype.itemsize)
    return all(n <= 1 or a == b for n, a, b in zip(type.shape, window.strides, expected, strict=True))


def written_over(steps: tuple[Step, ...]) -> dict[Item, Item]:
    """Outputs of update ops, and the variables they overwrite."""
    found: dict[Item, Item] = {}
    for step in steps:
        if isinstance(step.action, Op):
            for output, source in step.action.alias.items():
                found[step.outputs[output]] = found.get(step.inputs[source], step.inputs[source])
    return found


def views_of(steps: tuple[Step, ...], roots: set[Item]) -> dict[Item, Item]:
    """Every item that may share memory with one of the roots, and which."""
    found = {root: root for root in roots}
    for step in steps:
        if isinstance(step.action, ViewOp) and step.inputs and step.inputs[0] in found:
            found[step.outputs[0]] = found[step.inputs[0]]
    return found
