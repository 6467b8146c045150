"""The largest elements of rows on CPUs: `np.partition` finds the k-th of each row, and only what is not beyond it is sorted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jobflow.core.types import Array
from jobflow.kernels.registry import implements
from jobflow.ops.op import Binder, Call
from jobflow.ops.sort import TopK, order

#: a row has so many times as many elements as are chosen, at least
TIMES = 4


def _refused(op: TopK, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
    size = inputs[0].shape[op.axis]
    return None if 0 < TIMES * op.k <= size else f"{op.k} of {size} elements are no small part"


@implements(TopK, refuses=_refused)
def chosen_and_sorted(op: TopK, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    return [(_choose, (op, *inputs, *outputs))]


def _choose(op: TopK, x: Array, values: Array, indices: Array) -> None:
    rows = np.ascontiguousarray(np.moveaxis(x, op.axis, -1)).reshape(-1, x.shape[op.axis])
    at = rows.shape[1] - op.k if op.largest else op.k - 1
    limit = np.partition(rows, at, axis=1)[:, at]
    numbers = limit == limit  # else the k-th is NaN, which equals nothing
    if numbers.all():
        found = _places(op, rows, limit)
    else:
        found = np.empty((len(rows), op.k), np.int64)
        found[numbers] = _places(op, rows[numbers], limit[numbers])
        found[~numbers] = order(np, rows[~numbers], 1, op.largest)[:, : op.k]
    moved = np.moveaxis(indices, op.axis, -1)
    moved[...] = found.reshape(moved.shape)
    values[...] = np.take_along_axis(x, indices, axis=op.axis)


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
