"""The largest elements of rows on CPUs.

For small k, the largest remaining element of each row is selected k times.  A pass over a row is faster than ordering part of it.  For larger k,
`np.partition` computes the k-th element of each row, and only elements up to it are sorted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jobflow.core.types import Array
from jobflow.kernels.cpu.blocks import BLOCK
from jobflow.kernels.registry import implements
from jobflow.ops.op import Binder, Call
from jobflow.ops.sort import TopK, order

#: smallest ratio of the elements of a row to k
TIMES = 4

#: largest k for repeated selection: `np.partition` takes 8 (rows of 100) to 50 (rows of 1,000) times as long as `np.argmax`
MOST_SELECTED = 8


def _refused(op: TopK, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
    size = inputs[0].shape[op.axis]
    return None if 0 < TIMES * op.k <= size else f"k = {op.k} is not between 1 and a quarter of the {size} elements of a row"


@implements(TopK, refuses=_refused)
def selected_and_sorted(op: TopK, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    return [(_choose, (op, *inputs, *outputs))]


def _choose(op: TopK, x: Array, values: Array, indices: Array) -> None:
    if op.axis != x.ndim - 1:
        x, values, indices = (np.moveaxis(a, op.axis, -1) for a in (x, values, indices))
    rows = np.ascontiguousarray(x).reshape(-1, x.shape[-1])
    if op.k <= MOST_SELECTED:
        positions_in_row, chosen = _selected(op, rows)
    else:
        positions_in_row = _partitioned(op, rows)
        chosen = np.take_along_axis(rows, positions_in_row, axis=1)
    indices[...] = positions_in_row.reshape(indices.shape)
    values[...] = chosen.reshape(values.shape)


def _selected(op: TopK, rows: Array) -> tuple[Array, Array]:
    """Return the indices and values of the k largest (or smallest) elements of each row, in sorted order.

    In a copy of the rows, selected elements are overwritten with the value that sorts last.
    """
    columns, chosen = np.empty((len(rows), op.k), np.int64), np.empty((len(rows), op.k), rows.dtype)
    last = _last(rows.dtype, op.largest)
    size = max(1, BLOCK // rows.shape[1])
    for start in range(0, len(rows), size):
        left = rows[start : start + size].copy()
        starts, values = np.arange(len(left)) * rows.shape[1], left.reshape(-1)
        for k in range(op.k):
            extremes = left.argmax(1) if op.largest else left.argmin(1)
            columns[start : start + size, k] = extremes
            extremes += starts
            chosen[start : start + size, k] = values[extremes]
            values[extremes] = last
    unsure = chosen == last  # the element may have been selected before
    if not op.largest:
        unsure |= chosen != chosen  # argmin returns a NaN first, which sorts last
    if unsure.any():
        again = unsure.any(1)
        columns[again] = _partitioned(op, rows[again])
        chosen[again] = np.take_along_axis(rows[again], columns[again], axis=1)
    return columns, chosen


def _last(dtype: np.dtype, largest: bool) -> np.generic:
    """Return the value that sorts after all others, apart from NaN: the smallest value of the type if `largest`, otherwise the largest."""
    if dtype.kind == "b":
        return np.bool_(not largest)
    if dtype.kind in "iu":
        return dtype.type(np.iinfo(dtype).min if largest else np.iinfo(dtype).max)
    return dtype.type(-np.inf if largest else np.inf)


def _partitioned(op: TopK, rows: Array) -> Array:
    """Return the indices of the k largest (or smallest) elements of each row, in sorted order, computed by partition."""
    at = rows.shape[1] - op.k if op.largest else op.k - 1
    limit = np.partition(rows, at, axis=1)[:, at]
    ordered = limit == limit  # False if the k-th is NaN, which equals nothing
    if ordered.all():
        return _first_columns(op, rows, limit)
    columns = np.empty((len(rows), op.k), np.int64)
    columns[ordered] = _first_columns(op, rows[ordered], limit[ordered])
    columns[~ordered] = order(np, rows[~ordered], 1, op.largest)[:, : op.k]
    return columns


def _first_columns(op: TopK, rows: Array, limit: Array) -> Array:
    """Return the indices of the k largest (or smallest) elements of each row, in sorted order; `limit` is the k-th of them in each row."""
    among = np.less(rows, limit[:, None]) if op.largest else np.less_equal(rows, limit[:, None])
    indices = np.flatnonzero(np.logical_not(among, out=among) if op.largest else among)  # NaN sorts as the largest value
    if indices.size > len(rows) * op.k:
        indices = indices[_first_equals(indices // rows.shape[1], rows.reshape(-1)[indices], limit, op.k)]
    chosen = indices.reshape(-1, op.k)
    return np.take_along_axis(chosen % rows.shape[1], order(np, rows.reshape(-1)[chosen], 1, op.largest), axis=1)


def _first_equals(row: Array, value: Array, limit: Array, k: int) -> Array:
    """Return a mask that keeps k of the candidate elements of each row, and drops the last candidates that equal the limit.

    `row` and `value` have one entry per candidate, and `limit` has one per row.
    """
    equal = value == limit[row]
    counts, equals = (np.bincount(row_indices, minlength=len(limit)) for row_indices in (row, row[equal]))
    keep = np.ones(len(row), np.bool_)
    number = np.arange(equals.sum()) - np.repeat(np.cumsum(equals) - equals, equals)  # index among the equal elements of its row
    keep[equal] = number < np.repeat(k - (counts - equals), equals)
    return keep
