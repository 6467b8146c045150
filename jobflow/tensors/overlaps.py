"""Detection of tensors that use the same bytes of memory."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Container, Iterable

import numpy as np

from jobflow.core.types import Array
from jobflow.tensors.gpus import byte_bounds
from jobflow.tensors.tensor import TensorBase


def overlap(tensors: Iterable[TensorBase], written: Container[int]) -> tuple[TensorBase, TensorBase] | None:
    """Return a pair of different tensors whose memory overlaps, the first of them written, or None.  `written` has ids of tensors."""
    ranges = sorted(((*byte_bounds(x.array), i, x) for i, x in enumerate({id(x): x for x in tensors}.values())), key=lambda each: each[:3])
    open_: list[tuple[int, TensorBase]] = []
    for first, last, _, x in ranges:
        open_ = [(end, other) for end, other in open_ if end > first]
        for _, other in open_:
            if first < last and (id(x) in written or id(other) in written):
                return (x, other) if id(x) in written else (other, x)
        open_.append((last, x))
    return None


def is_shared(x: TensorBase) -> bool:
    """Return True if another tensor, array or library may use the memory of x.

    The base of a view does not count if only the view refers to it.
    """
    if x._storage is not None and x._storage.exported:
        return True
    owner, name, own = x, "_array", list[int]()
    while owner.base is not None:
        if sys.getrefcount(owner.base[0]) > 2:  # the reference of `base`, and the argument
            return True
        owner = owner.base[0]
        own.append(id(getattr(owner, "_array", None)))
    memory: object = x
    while (now := getattr(memory, name, None)) is not None:
        is_array = isinstance(now, np.ndarray) or hasattr(now, "device")
        if not is_array or sys.getrefcount(now) > 3 + own.count(id(now)):  # also the reference of `now`
            return True
        memory, name = now, "base"
        del now
    return False


class Ranges:
    """Sorted ranges of addresses, for a fast test of whether an array overlaps one of them."""

    def __init__(self, arrays: Iterable[Array]) -> None:
        self.firsts: list[int] = []
        self.lasts: list[int] = []
        for first, last in sorted(map(byte_bounds, arrays)):
            if self.lasts and first <= self.lasts[-1]:
                self.lasts[-1] = max(self.lasts[-1], last)
            else:
                self.firsts.append(first)
                self.lasts.append(last)

    def meet(self, array: Array) -> bool:
        """Return True if an element of `array` may lie in one of the ranges."""
        first, last = byte_bounds(array)
        i = bisect_right(self.firsts, last - 1) - 1
        return first < last and i >= 0 and self.lasts[i] > first
