"""Sums of rows with equal indices on GPUs, in a fixed order: gradients of lookup tables, updates of tables, and scattered values.

An atomic addition per element would change the last bits from run to run.  Here the entries are sorted by segment, and one thread adds up one column
of a segment (`segment_text`).  The host does not wait, and all memory comes from the plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.types import Array, DType, TensorType, contiguous_strides, dtype_of, int32, int64, type_of
from jobflow.expressions import language as f
from jobflow.expressions.language import Expression
from jobflow.kernels.argument_block import address
from jobflow.kernels.cuda import fused
from jobflow.kernels.cuda.compiled_text import compiler
from jobflow.kernels.cuda.fused import placeholders
from jobflow.kernels.cuda.kernel_form import CHUNK, WIDEST
from jobflow.kernels.cuda.kernel_text import THREADS
from jobflow.kernels.cuda.launches import KernelLaunch
from jobflow.kernels.cuda.segment_text import BITS, BY_TILES, DIGITS, TILE, print_segments, print_sort
from jobflow.kernels.region import expression_on
from jobflow.kernels.registry import at, register
from jobflow.ops.index import BatchSegmentSum, DimScatterAdd, UnsortedSegmentSum
from jobflow.ops.op import Binder, Call, Op
from jobflow.ops.row_update import RowUpdate
from jobflow.ops.sampled_classes import AddLocalRows
from jobflow.ops.scatter import Scatter
from jobflow.ops.scatter_reduce import ScatterReduce

#: entries of a sort are fewer
MOST_ENTRIES = (1 << 31) - TILE
#: prepares a launch: launcher(text, function, blocks, arguments)
Launch = Callable[[str, str, int, tuple[Any, ...]], Call]
Scratch = Callable[[tuple[int, ...], DType], Array]


@dataclass(frozen=True)
class Segments:
    """Data [outer,entries,inner] whose entries are added up to y [outer,segments,inner]; `key` is the formula of the segment of an entry.

    The formula reads the ids, of shape `ids`.  Its value for an ignored entry is `segments`.
    """

    outer: int
    entries: int
    segments: int
    inner: int
    ids: tuple[int, ...]
    key: Expression


def segments_of(op: Op, data: TensorType, ids: TensorType, y: TensorType) -> Segments:
    """Return the segments of an operation, for operands of these types."""
    first = int(vars(op).get("batch", vars(op).get("axis", 0)))
    size, offset = y.shape[first], int(vars(op).get("offset", 0))
    local = f.cast(f.element(0, ids.dtype), int64)
    local = local - offset if offset else local
    inside = f.logical_and(f.less_equal(0, local), local < size)
    before, after = math.prod(data.shape[:first]), math.prod(y.shape[first + 1 :])
    if not isinstance(op, UnsortedSegmentSum | AddLocalRows):
        inner, columns = (after, 1) if isinstance(op, BatchSegmentSum) else (1, after)
        flat = (f.index(-3) * size + local) * columns + f.index(-1)
        key = f.where(inside, flat, before * size * columns)
        return Segments(1, ids.size, before * size * columns, inner, (before, ids.shape[first], columns), f.cast(key, int32))
    return Segments(before, ids.size, size, after, (ids.size,), f.cast(f.where(inside, local, size), int32))


def launches_of_order(launch: Launch, scratch: Scratch, keys: Array, bits: int) -> tuple[list[Call], Array, Array]:
    """Return the launches of a stable sort of the entries by the lowest `bits` bits of `keys`, which they may overwrite.

    Also return the arrays of the sorted keys and of the sorted entries.
    """
    text, count = print_sort(), int(keys.size)
    tiles = max(-(-count // TILE), 1)
    sorted_keys, order, new_order = (scratch((max(count, 1),), int32) for _ in range(3))
    if tiles == 1:
        return [launch(text, "tile_sort", 1, (keys, sorted_keys, order, np.int32(count), np.int32(bits)))], sorted_keys, order
    totals, calls = scratch((DIGITS * tiles,), int32), list[Call]()
    for shift in range(0, bits, BITS):
        size = (np.int32(count), np.int32(shift))
        calls.append(launch(text, "digit_counts", tiles, (keys, totals, *size)))
        calls.append(launch(text, "digit_offsets", 1, (totals, np.int32(DIGITS * tiles))))
        calls.append(launch(text, "digit_moves", tiles, (keys, order, totals, sorted_keys, new_order, *size, np.int32(shift == 0))))
        keys, sorted_keys, order, new_order = sorted_keys, keys, new_order, order
    return calls, keys, order


def launches_of_sort(launch: Launch, scratch: Scratch, keys: Array, segments: int) -> tuple[list[Call], Array, Array]:
    """Return the launches that sort the entries by their `keys`, the array of sorted entries, and the array of the segments' bounds."""
    calls, keys, order = launches_of_order(launch, scratch, keys, segments.bit_length())
    bounds, size = scratch((segments + 1,), int32), (np.int32(keys.size), np.int32(segments))
    calls.append(launch(print_sort(), "segment_bounds", -(-(segments + 1) // THREADS), (keys, bounds, *size)))
    return calls, order, bounds


def launches_of_sums(launch: Launch, of: Segments, operands: Sequence[Array], order: Array, bounds: Array, together: str = "sum") -> Call:
    """Return the launch that combines the entries of each segment; `operands` are the dense arrays data, x and y."""
    sizes = tuple(map(np.int64, (of.outer, of.entries, of.segments, of.inner)))
    data, x, y = operands
    vector = columns_at_once(of, data, y, together)
    text = print_segments(dtype_of(y.dtype), together, vector, wide=max(int(data.size), int(y.size)) >= 1 << 31)
    return launch(text, "segment_sums", -(-int(y.size) // vector // THREADS), (data, x, order, bounds, y, *sizes))


def columns_at_once(of: Segments, data: Array, y: Array, together: str) -> int:
    """Return the number of adjacent columns that a thread adds: 16 bytes of a sum, or one if rows are not aligned."""
    vector = min(WIDEST // int(y.itemsize), CHUNK)
    aligned = all(address(a) % WIDEST == 0 for a in placeholders([data, y]))
    return vector if together == "sum" and of.inner % vector == 0 and aligned else 1


@dataclass(frozen=True)
class SegmentSums:
    """An implementation by a sort of the entries and one sum per segment."""

    name: str = "sorted sums"

    def refuses(self, op: Op, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
        data, ids = inputs
        if dtype_of(data.dtype) is not dtype_of(outputs[0].dtype) or data.dtype.kind == "b":
            return f"sums of {data.dtype} in {outputs[0].dtype} are not printed"
        return _too_many(op, data, ids, outputs[0])

    def bind(self, op: Op, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        return bound_sums(op, device, inputs[0], inputs[1], outputs[0])[0]


def _too_many(op: Op, data: Array, ids: Array, y: Array) -> str | None:
    of = segments_of(op, *map(type_of, (data, ids, y)))
    if max(of.entries, of.segments) >= MOST_ENTRIES:
        return f"{of.entries} entries or {of.segments} segments exceed 32-bit indices"
    return None


@dataclass(frozen=True)
class ScatteredValues:
    """An implementation of scattered values: a sort of the values by their elements, which a thread per element combines in their order."""

    name: str = "sorted values"

    def refuses(self, op: Op, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
        x, ids, v = inputs
        return _too_many(op, v, ids, x)

    def bind(self, op: Op, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        x, ids, v = inputs
        together = op.ufunc if isinstance(op, ScatterReduce) else "last"
        return bound_sums(op, device, v, ids, outputs[0], x, together)[0]


def bound_sums(
    op: Op, device: Binder, data: Array, ids: Array, y: Array, x: Array | None = None, together: str = "sum"
) -> tuple[list[Call], Array | None]:
    """Return the calls that compute y, and the bounds of its segments; None for the bounds if there are no elements.

    Results other than sums start at x.
    """
    if not y.size:
        return [], None
    of, index = segments_of(op, *map(type_of, (data, ids, y))), int(y.device.id)
    launch = launcher(index)
    before, data = _dense(device, index, data)
    more, ids = _dense(device, index, ids)
    if x is not None:
        copies, x = _dense(device, index, x)
        more += copies
    keys, target = device.scratch((max(of.entries, 1),), int32)[: of.entries], y
    if not y.flags.c_contiguous:
        target = device.scratch(tuple(y.shape), dtype_of(y.dtype))
    views = placeholders([ids, keys])
    computed = fused.bind(device, index, (of.key,), [views[0].reshape(of.ids)], [views[1].reshape(of.ids)], arrays=(ids, keys))
    sort, order, bounds = launches_of_sort(launch, device.scratch, keys, of.segments)
    after = [] if target is y else copied(device, index, target, y)
    operands = (data, target if x is None else x, target)
    return [*before, *more, *computed, *sort, launches_of_sums(launch, of, operands, order, bounds, together), *after], bounds


def launcher(index: int) -> Launch:
    """Return a function that prepares the launches of kernels on GPU `index`."""
    here = compiler(index)

    def launch(text: str, name: str, blocks: int, arguments: tuple[Any, ...]) -> Call:
        # blocks of the sort have a tile each; other blocks loop over the remaining elements
        grid = blocks if name in BY_TILES else min(blocks, here.blocks)
        arrays = [a for a in arguments if not isinstance(a, np.generic)]
        values = tuple(a if isinstance(a, np.generic) else np.int64(address(placeholders([a])[0])) for a in arguments)
        return KernelLaunch(here.module(text).function(name), arrays), ((max(grid, 1),), (THREADS,), values)

    return launch


def copied(device: Binder, index: int, source: Array, target: Array) -> list[Call]:
    """Return the calls for target = source, of one type and shape."""
    expression = f.element(0, dtype_of(target.dtype))
    return fused.bind(device, index, (expression,), placeholders([source]), placeholders([target]), arrays=(source, target))


def _dense(device: Binder, index: int, array: Array) -> tuple[list[Call], Array]:
    """Return the calls that copy an array into dense memory, and the dense array; no calls if the array is dense."""
    strides = contiguous_strides(tuple(array.shape), array.itemsize)
    if all(n == 1 or a == b for n, a, b in zip(array.shape, array.strides, strides, strict=True)):
        return [], array
    copy = device.scratch(tuple(array.shape), dtype_of(array.dtype))
    return copied(device, index, array, copy), copy


@dataclass(frozen=True)
class TableUpdate:
    """An implementation of table updates: the gradient of the table by sorted sums, then the optimizer's formula."""

    name: str = "sorted sums and update"

    def refuses(self, op: Op, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
        assert isinstance(op, RowUpdate)
        variables, rows, ids, scalars = op.split(tuple(placeholders(inputs)))
        gradient = _placeholder(type_of(rows).with_shape(tuple(variables[0].shape)), 1)
        why = SegmentSums().refuses(_segment_sum(op, type_of(gradient)), [rows, ids], [gradient])
        if why is not None:
            return why
        operands = [*variables, gradient, *scalars]
        expressions = _update(op, list(map(type_of, operands)))
        if expressions is None:
            return "the optimizer has no formula for single elements"
        bounds = _placeholder(TensorType((gradient.shape[0] + 1,), int32), 2)
        return fused.refuses(expressions, _reads(op, operands, bounds), placeholders(outputs))

    def bind(self, op: Op, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        assert isinstance(op, RowUpdate)
        variables, rows, ids, scalars = op.split(tuple(inputs))
        gradient = device.scratch(tuple(variables[0].shape), dtype_of(rows.dtype))
        calls, bounds = bound_sums(_segment_sum(op, type_of(gradient)), device, rows, ids, gradient)
        if bounds is None:
            return []
        operands = [*variables, gradient, *scalars]
        expressions = _update(op, list(map(type_of, operands)))
        assert expressions is not None
        reads = _reads(op, placeholders(operands), placeholders([bounds])[0])
        index = int(outputs[0].device.id)
        return [*calls, *fused.bind(device, index, expressions, reads, placeholders(outputs), arrays=(*operands, bounds, *outputs))]


def _segment_sum(op: RowUpdate, gradient: TensorType) -> UnsortedSegmentSum:
    return UnsortedSegmentSum(0, gradient.shape[0], op.offset)


def _update(op: RowUpdate, types: Sequence[TensorType]) -> tuple[Expression, ...] | None:
    """Return the formulas of the update; `types` are the variables, the gradient and the scalars.

    For a lazy update, two more inputs are the bounds of the segment of a row, and rows without entries keep their values.
    """
    expressions = expression_on(op.op, *types)
    if expressions is None or op.op.index_space(*types) is not None:
        return None
    if not op.lazy:
        return expressions
    low, high = (f.element(len(types) + k, int32) for k in range(2))
    return tuple(f.where(low < high, y, f.element(op.alias[k], y.dtype)) for k, y in enumerate(expressions))


def _reads(op: RowUpdate, operands: Sequence[Array], bounds: Array) -> list[Array]:
    """Return the inputs of the formulas of `_update`."""
    if not op.lazy:
        return list(operands)
    column = (-1, *(1,) * (operands[0].ndim - 1))
    return [*operands, bounds[:-1].reshape(column), bounds[1:].reshape(column)]


def _placeholder(type: TensorType, number: int) -> Array:
    return at(type, contiguous_strides(type.shape, type.dtype.itemsize), number << 50)


for _op in (UnsortedSegmentSum, DimScatterAdd, BatchSegmentSum, AddLocalRows):
    register(_op, "cuda", "nvrtc", SegmentSums())
register(Scatter, "cuda", "nvrtc", ScatteredValues())
register(ScatterReduce, "cuda", "nvrtc", ScatteredValues())
register(RowUpdate, "cuda", "nvrtc", TableUpdate())
