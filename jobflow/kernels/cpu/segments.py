"""Sums of rows that have a number in common, in NumPy: gradients of tables, of chosen entries, of interpolation.

Rows are sorted by their numbers.  Of each number the first row is copied, then the second is added where there is one, and so on: a few calls
for all numbers at once.  Numbers of very many rows are summed one by one.  Rows are added in the order in which they come, so the sums
are those of a loop to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.types import Array
from jobflow.kernels.registry import implements
from jobflow.ops.index import BatchGather, BatchSegmentSum, DimGather, DimScatterAdd, Gather, UnsortedSegmentSum
from jobflow.ops.op import Binder, Call

#: elements of a row from which on a call for each row costs no more than its arithmetic
WIDE = 512
#: elements in all up to which NumPy's own loop over places is as fast
FEW = 4096
#: elements that are gathered at once
BLOCK = 64 * 1024


@dataclass(frozen=True)
class Groups:
    """Entries grouped by their numbers, the largest groups first.

    The numbers are `names`; the entries of group i are order[starts[i] : starts[i] + counts[i]], in the order in which they come.
    """

    names: Array
    order: Array
    starts: Array
    counts: Array

    @classmethod
    def of(cls, numbers: Array, size: int) -> Groups:
        """Those with numbers from 0 to size - 1."""
        inside = (numbers >= 0) & (numbers < size)
        kept = None if inside.all() else np.flatnonzero(inside)
        numbers = numbers if kept is None else numbers[kept]
        order = np.argsort(numbers, kind="stable")
        by_number = numbers[order]
        starts = np.flatnonzero(np.concatenate((np.ones(min(1, len(order)), bool), by_number[1:] != by_number[:-1])))
        counts = np.diff(np.append(starts, len(order)))
        large_first = np.argsort(-counts, kind="stable")
        starts, counts = starts[large_first], counts[large_first]
        return cls(by_number[starts], order if kept is None else kept[order], starts, counts)

    def __len__(self) -> int:
        return len(self.names)

    def blocks(self, width: int) -> Iterator[slice]:
        """Consecutive groups whose sums, of `width` elements each, stay in the cache."""
        step = max(1, BLOCK // max(width, 1))
        return (slice(i, min(i + step, len(self))) for i in range(0, len(self), step))

    def sums(self, rows: Array, part: slice) -> Array:
        """The sum of the rows of each group of a part."""
        starts, counts = self.starts[part], self.counts[part]
        alone = _best_alone(counts)
        sums = rows[self.order[starts]]
        for total, start, count in zip(sums, starts[:alone].tolist(), counts[:alone].tolist(), strict=False):
            _add_up(rows, self.order[start + 1 : start + count], total)
        rest, starts, counts = sums[alone:], starts[alone:], counts[alone:]
        for level in range(1, int(counts[0]) if len(counts) else 0):
            live = int(np.searchsorted(-counts, -level))
            rest[:live] += rows[self.order[starts[:live] + level]]
        return sums


def _add_up(rows: Array, chosen: Array, total: Array) -> None:
    """total += the chosen rows, one after another, a block of them at a time."""
    step = max(1, BLOCK // max(total.size, 1))
    for i in range(0, len(chosen), step):
        np.add.reduce(np.concatenate((total[None], rows[chosen[i : i + step]])), 0, None, total)


def _best_alone(counts: Array) -> int:
    """How many of the largest groups are better summed each by itself: it takes a call for each, and for the others one for each place in a group."""
    calls = np.arange(len(counts) + 1) + np.append(counts, 0)
    return int(np.argmin(calls))


def add_rows(rows: Array, numbers: Array, total: Array) -> None:
    """total[k] = the sum of the rows whose number is k."""
    total.fill(0)
    width, size = math.prod(rows.shape[1:]), len(total)
    if width >= WIDE:
        for row, k in zip(rows, numbers.tolist(), strict=True):
            if 0 <= k < size:
                target = total[k]
                np.add(target, row, target)
    elif width == 1 or rows.size <= FEW:
        inside = (numbers >= 0) & (numbers < size)
        kept = slice(None) if inside.all() else inside
        np.add.at(total, numbers[kept], rows[kept])
    else:
        groups = Groups.of(numbers, size)
        for part in groups.blocks(width):
            total[groups.names[part]] = groups.sums(rows, part)


@implements(UnsortedSegmentSum)
def sums_of_sorted_rows(op: UnsortedSegmentSum, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    (data, ids), (y,) = inputs, outputs
    return [(_sum_segments, (op, data, ids, y))]


def _sum_segments(op: UnsortedSegmentSum, data: Array, ids: Array, y: Array) -> None:
    before, inner = math.prod(data.shape[: op.axis]), math.prod(data.shape[op.axis + ids.ndim :])
    _sum_merged(data.reshape(before, ids.size, inner), ids, op.offset, y, y.shape[op.axis])


def _sum_merged(data: Array, ids: Array, offset: int, y: Array, size: int) -> None:
    """y[before, k, inner] = the sum of data[before, i, inner] whose id is k + offset; y may have other axes in their places."""
    before, _, inner = data.shape
    total = (y if y.flags.c_contiguous else np.empty(y.shape, y.dtype)).reshape(before, size, inner)
    rows, places = data.swapaxes(0, 1), total.swapaxes(0, 1)
    add_rows(*((rows[:, 0], local_ids(ids, offset), places[:, 0]) if before == 1 else (rows, local_ids(ids, offset), places)))
    if not y.flags.c_contiguous:
        y[...] = total.reshape(y.shape)


def local_ids(ids: Array, offset: int) -> Array:
    """As a vector, counted from what is here first."""
    flat = ids.reshape(-1).astype(np.int64, copy=False)
    return flat - offset if offset else flat


@implements(Gather)
def copied_rows(op: Gather, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    return [(_take, (op, *inputs, *outputs))]


def _take(op: Gather, params: Array, ids: Array, y: Array) -> None:
    """Rows copied without a mask if all numbers are in range, as they are unless the table is split."""
    at = ids - op.offset if op.offset else ids
    if at.size and (at.min() < 0 or at.max() >= params.shape[op.axis]):
        op.kernel(np, params, ids, y)
    else:
        np.take(params, at, op.axis, y, "clip")


@implements(DimGather)
def elements_by_place(op: DimGather, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    return [(_take_elements, (op, op.axis, op.offset, *inputs, *outputs))]


@implements(BatchGather)
def rows_by_place(op: BatchGather, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    return [(_take_elements, (op, op.batch, 0, *inputs, *outputs))]


def _take_elements(op: DimGather | BatchGather, axis: int, offset: int, x: Array, ids: Array, y: Array) -> None:
    """y = x at the ids along `axis`, of x in one piece as rows of what ids has no axes for; without a mask if all are in range."""
    local = ids.astype(np.int64, copy=False) - offset
    if not x.flags.c_contiguous or not local.size or local.min() < 0 or local.max() >= x.shape[axis]:
        op.kernel(np, x, ids, y)
        return
    rows = x.reshape(-1, *x.shape[ids.ndim :])
    np.take(rows, _flat(local, axis, x.shape[axis]), 0, y, "clip")


def _flat(local: Array, axis: int, size: int) -> Array:
    """The places in a tensor as one axis, of places along one axis of which the others are where they are; -1 for those out of range."""
    before, inner = local.shape[:axis], local.shape[axis + 1 :]
    inside = (local >= 0) & (local < size)
    lines = np.arange(math.prod(before)).reshape(*before, 1, *(1 for _ in inner)) * size
    flat = (lines + local) * math.prod(inner) + np.arange(math.prod(inner)).reshape(inner)
    return flat if inside.all() else np.where(inside, flat, -1)


@implements(DimScatterAdd)
def sums_of_elements(op: DimScatterAdd, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    return [(_add_elements, (op.axis, op.offset, *inputs, *outputs))]


@implements(BatchSegmentSum)
def sums_of_sorted_rows_by_batch(op: BatchSegmentSum, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    return [(_add_elements, (op.batch, 0, *inputs, *outputs))]


def _add_elements(axis: int, offset: int, data: Array, ids: Array, y: Array) -> None:
    """y along `axis` at the ids = the sums of data, as segments of a tensor of one axis where ids has several."""
    flat = _flat(ids.astype(np.int64, copy=False) - offset, axis, y.shape[axis])
    size = math.prod(y.shape[: ids.ndim])
    _sum_merged(data.reshape(1, ids.size, math.prod(data.shape[ids.ndim :])), flat, 0, y, size)
