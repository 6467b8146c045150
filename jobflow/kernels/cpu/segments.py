"""Segment sums in NumPy: gradients of lookup tables, of selected elements, and of interpolation.

Rows are sorted by their ids.  For all segments together, a few calls copy the first rows, add the second rows where they exist, and so on.
Segments with very many rows are summed one by one.  Rows are added in their order of occurrence, so the sums are bit-equal to the sums of
a loop.
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

#: fewest elements of a row for which one call per row costs no more than its arithmetic
WIDE = 512
#: most elements for which NumPy's own loop over indices is as fast
FEW = 4096
#: elements gathered per block
BLOCK = 64 * 1024


@dataclass(frozen=True)
class Groups:
    """Entries grouped by their ids, the largest groups first.

    `names` contains the id of each group.  The entries of group i are order[starts[i] : starts[i] + counts[i]], in their order of occurrence.
    """

    names: Array
    order: Array
    starts: Array
    counts: Array

    @classmethod
    def of(cls, ids: Array, size: int) -> Groups:
        """Group the entries with ids from 0 to size - 1."""
        inside = (ids >= 0) & (ids < size)
        valid = None if inside.all() else np.flatnonzero(inside)
        ids = ids if valid is None else ids[valid]
        order = np.argsort(ids, kind="stable")
        by_id = ids[order]
        starts = np.flatnonzero(np.concatenate((np.ones(min(1, len(order)), bool), by_id[1:] != by_id[:-1])))
        counts = np.diff(np.append(starts, len(order)))
        large_first = np.argsort(-counts, kind="stable")
        starts, counts = starts[large_first], counts[large_first]
        return cls(by_id[starts], order if valid is None else valid[order], starts, counts)

    def __len__(self) -> int:
        return len(self.names)

    def blocks(self, width: int) -> Iterator[slice]:
        """Yield slices of consecutive groups whose sums, of `width` elements each, stay in the cache."""
        step = max(1, BLOCK // max(width, 1))
        return (slice(i, min(i + step, len(self))) for i in range(0, len(self), step))

    def sums(self, rows: Array, part: slice) -> Array:
        """Return the sum of the rows of each group, for the groups in the slice `part`."""
        starts, counts = self.starts[part], self.counts[part]
        alone = _summed_singly(counts)
        sums = rows[self.order[starts]]
        for total, start, count in zip(sums, starts[:alone].tolist(), counts[:alone].tolist(), strict=False):
            _add_up(rows, self.order[start + 1 : start + count], total)
        rest, starts, counts = sums[alone:], starts[alone:], counts[alone:]
        for level in range(1, int(counts[0]) if len(counts) else 0):
            live = int(np.searchsorted(-counts, -level))
            rest[:live] += rows[self.order[starts[:live] + level]]
        return sums


def _add_up(rows: Array, chosen: Array, total: Array) -> None:
    """Add the chosen rows to `total` sequentially, block by block."""
    step = max(1, BLOCK // max(total.size, 1))
    for i in range(0, len(chosen), step):
        np.add.reduce(np.concatenate((total[None], rows[chosen[i : i + step]])), 0, None, total)


def _summed_singly(counts: Array) -> int:
    """Return how many of the largest groups to sum one by one, so that the fewest calls are needed.

    A group that is summed singly takes one call.  All other groups together take one call per row of the largest group among them.
    """
    calls = np.arange(len(counts) + 1) + np.append(counts, 0)
    return int(np.argmin(calls))


def add_rows(rows: Array, ids: Array, total: Array) -> None:
    """Compute total[k] = the sum of the rows with id k."""
    total.fill(0)
    width, size = math.prod(rows.shape[1:]), len(total)
    if width >= WIDE:
        for row, k in zip(rows, ids.tolist(), strict=True):
            if 0 <= k < size:
                target = total[k]
                np.add(target, row, target)
    elif width == 1 or rows.size <= FEW:
        inside = (ids >= 0) & (ids < size)
        valid = slice(None) if inside.all() else inside
        np.add.at(total, ids[valid], rows[valid])
    else:
        groups = Groups.of(ids, size)
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
    """Compute y[:, k] as the sum of data[:, i] over all i with ids[i] = k + offset, for each k below `size`.

    The array `data` is [before, i, inner]; y may have several axes in place of each of its three axes.
    """
    before, _, inner = data.shape
    total = (y if y.flags.c_contiguous else np.empty(y.shape, y.dtype)).reshape(before, size, inner)
    rows, sums = data.swapaxes(0, 1), total.swapaxes(0, 1)
    add_rows(*((rows[:, 0], local_ids(ids, offset), sums[:, 0]) if before == 1 else (rows, local_ids(ids, offset), sums)))
    if not y.flags.c_contiguous:
        y[...] = total.reshape(y.shape)


def local_ids(ids: Array, offset: int) -> Array:
    """Return the ids as a vector, relative to `offset`, the first id of this shard."""
    flat = ids.reshape(-1).astype(np.int64, copy=False)
    return flat - offset if offset else flat


@implements(Gather)
def copied_rows(op: Gather, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    return [(_take, (op, *inputs, *outputs))]


def _take(op: Gather, params: Array, ids: Array, y: Array) -> None:
    """Write the entries of `params` at the ids along `op.axis` to y.

    If an id is out of range, the slower kernel of the operation runs.
    """
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
    """Write the elements of x at the ids along `axis` to y.

    The axes of x that ids lacks form contiguous rows, which are copied whole.  If x is not contiguous or an id is out of range, the slower kernel of
    the operation runs.
    """
    local = ids.astype(np.int64, copy=False) - offset
    if not x.flags.c_contiguous or not local.size or local.min() < 0 or local.max() >= x.shape[axis]:
        op.kernel(np, x, ids, y)
        return
    rows = x.reshape(-1, *x.shape[ids.ndim :])
    np.take(rows, _flat(local, axis, x.shape[axis]), 0, y, "clip")


def _flat(local: Array, axis: int, size: int) -> Array:
    """Convert the ids `local` along an axis of length `size` to indices into the flattened array; ids out of range become -1."""
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
    """Compute y = the sums of data at the ids along `axis`, as segment sums over the flattened axes of ids."""
    flat = _flat(ids.astype(np.int64, copy=False) - offset, axis, y.shape[axis])
    size = math.prod(y.shape[: ids.ndim])
    _sum_merged(data.reshape(1, ids.size, math.prod(data.shape[ids.ndim :])), flat, 0, y, size)
