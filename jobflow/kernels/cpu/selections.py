"""The largest elements of rows on CPUs.

A few are taken one after the other, each as the largest of what is left: NumPy looks at a row faster than it could order any part of it.  For
more of them `np.partition` finds the k-th of each row, and only what is not beyond it is sorted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jobflow.core.types import Array
from jobflow.kernels.cpu.blocks import BLOCK
from jobflow.kernels.registry import implements
from jobflow.ops.op import Binder, Call
from jobflow.ops.sort import TopK, order

#: a row has so many times as many elements as are chosen, at least
TIMES = 4

#: as many are taken one after the other: `np.partition` takes 8 to 50 times as long as `np.argmax`, for rows of 100 and of 1,000
TAKEN = 8


def _refused(op: TopK, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
    size = inputs[0].shape[op.axis]
    return None if 0 < TIMES * op.k <= size else f"{op.k} of {size} elements are no small part"


@implements(TopK, refuses=_refused)
def chosen_and_sorted(op: TopK, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    return [(_choose, (op, *inputs, *outputs))]


def _choose(op: TopK, x: Array, values: Array, indices: Array) -> None:
    if op.axis != x.ndim - 1:
        x, values, indices = (np.moveaxis(a, op.axis, -1) for a in (x, values, indices))
    rows = np.ascontiguousarray(x).reshape(-1, x.shape[-1])
    if op.k <= TAKEN:
        found, chosen = _taken(op, rows)
    else:
        found = _parted(op, rows)
        chosen = np.take_along_axis(rows, found, axis=1)
    indices[...] = found.reshape(indices.shape)
    values[...] = chosen.reshape(values.shape)


def _taken(op: TopK, rows: Array) -> tuple[Array, Array]:
    """Where the k of each row are, in order, and they: what has been taken is replaced by the number that comes last."""
    found, chosen = np.empty((len(rows), op.k), np.int64), np.empty((len(rows), op.k), rows.dtype)
    last = _last(rows.dtype, op.largest)
    size = max(1, BLOCK // rows.shape[1])
    for start in range(0, len(rows), size):
        left = rows[start : start + size].copy()
        starts, numbers = np.arange(len(left)) * rows.shape[1], left.reshape(-1)
        for k in range(op.k):
            places = left.argmax(1) if op.largest else left.argmin(1)
            found[start : start + size, k] = places
            places += starts
            chosen[start : start + size, k] = numbers[places]
            numbers[places] = last
    unsure = chosen == last  # it may have been taken before
    if not op.largest:
        unsure |= chosen != chosen  # NumPy's least is NaN, which is larger than any number
    if unsure.any():
        again = unsure.any(1)
        found[again] = _parted(op, rows[again])
        chosen[again] = np.take_along_axis(rows[again], found[again], axis=1)
    return found, chosen


def _last(dtype: np.dtype, largest: bool) -> np.generic:
    """The number that comes after all others: the least where the largest come first."""
    if dtype.kind == "b":
        return np.bool_(not largest)
    if dtype.kind in "iu":
        return dtype.type(np.iinfo(dtype).min if largest else np.iinfo(dtype).max)
    return dtype.type(-np.inf if largest else np.inf)


def _parted(op: TopK, rows: Array) -> Array:
    """Where the k of each row are, in order."""
    at = rows.shape[1] - op.k if op.largest else op.k - 1
    limit = np.partition(rows, at, axis=1)[:, at]
    numbers = limit == limit  # else the k-th is NaN, which equals nothing
    if numbers.all():
        return _places(op, rows, limit)
    found = np.empty((len(rows), op.k), np.int64)
    found[numbers] = _places(op, rows[numbers], limit[numbers])
    found[~numbers] = order(np, rows[~numbers], 1, op.largest)[:, : op.k]
    return found


def _places(op: TopK, rows: Array, limit: Array) -> Array:
    """Where the k of each row are, of which `limit` is the last, in order."""
    among = np.less(rows, limit[:, None]) if op.largest else np.less_equal(rows, limit[:, None])
    places = np.flatnonzero(np.logical_not(among, out=among) if op.largest else among)  # NaN is larger than any number
    if places.size > len(rows) * op.k:
        places = places[_first_equals(places // rows.shape[1], rows.reshape(-1)[places], limit, op.k)]
    chosen = places.reshape(-1, op.k)
    return np.take_along_axis(chosen % rows.shape[1], order(np, rows.reshape(-1)[chosen], 1, op.largest), axis=1)


def _first_equals(row: Array, value: Array, limit: Array, k: int) -> Array:
    """Which of these elements to keep, row by row: all but the last of those that equal the limit, so that k are left."""
    equal = value == limit[row]
    counts, equals = (np.bincount(numbers, minlength=len(limit)) for numbers in (row, row[equal]))
    keep = np.ones(len(row), np.bool_)
    number = np.arange(equals.sum()) - np.repeat(np.cumsum(equals) - equals, equals)  # among the equal ones of its row
    keep[equal] = number < np.repeat(k - (counts - equals), equals)
    return keep
