"""Stages: the kernels that together compute expressions on arrays of a GPU.

    reductions of rows, sums of columns    rows -> values per row in scratch memory; tiles -> sums of groups of rows in scratch memory; totals
    the same, if a thread can hold its part of a row in registers    walks -> sums of groups of rows in scratch memory; totals
    rows that leave most of a GPU idle     sums of parts of a row in scratch memory; rows; elements

Each stage writes to scratch memory, or is the last one that reads the inputs which its outputs overwrite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from jobflow.core.dataclass import dataclass
from jobflow.core.types import Array, DType, TensorType, dtype_of
from jobflow.expressions import language as f
from jobflow.expressions.language import Expression, element, in_order, make, replaced
from jobflow.expressions.on_arrays import BLOCK
from jobflow.kernels.argument_block import address
from jobflow.kernels.cuda.kernel_form import FEW_SUMS, TILE, Kind
from jobflow.kernels.loop_operands import constant_in_rows, facts, loop_shape
from jobflow.kernels.registry import at
from jobflow.kernels.row_phases import COLUMNS, REDUCTIONS, of_columns, position

#: allocates an array in scratch memory, which is represented by a placeholder: scratch(shape, dtype)
Allocate: TypeAlias = Callable[[tuple[int, ...], DType], Array]
#: returns the number of rows with a common sum if one kernel reduces the rows and adds the columns of a stage, else 0
Walked: TypeAlias = Callable[["Stage"], int]
#: longest row of one stage, and fewest rows that occupy a GPU
LONGEST, FEW = 1 << 16, 64
#: elements of a part of a long row, of a very long row, and the width from which on a row is very long
PART, LARGE_PART, VERY_LONG = 1 << 11, 1 << 14, 1 << 22
#: bytes of shared memory for the sums of tiles
SHARED = 34 << 10
#: most sums of a column in scratch memory, and the fewest blocks of rows with a common sum if there are more than FEW_SUMS
MOST_SUMS, LEAST_GROUP = 512, 4


@dataclass(frozen=True)
class Stage:
    """Outputs that one kernel computes.  The sums of columns in the outputs of tiles and walks are written to `sums`, others to `targets`."""

    kind: Kind
    outputs: tuple[Expression, ...]
    inputs: tuple[Array, ...]
    targets: tuple[Array, ...]
    #: shape of the index space
    shape: tuple[int, ...]
    sums: tuple[Array, ...] = ()
    #: blocks of rows of tiles with a common sum
    group: int = 1


def stages(outputs: Sequence[Expression], inputs: Sequence[Array], targets: Sequence[Array], allocate: Allocate, walked: Walked) -> list[Stage]:
    """Return the stages that compute `outputs` from `inputs` and write them to `targets`, in the order of their execution."""
    known = facts(tuple(outputs))
    shape = loop_shape(known, inputs, targets)
    result: Iterable[Stage]
    if known.per_column:
        result = _walk(outputs, inputs, targets, shape, allocate, walked) or _columns(outputs, inputs, targets, shape, allocate)
    elif is_long(known.rows, shape):
        result = _long_rows(outputs, inputs, targets, shape, allocate)
    else:
        rows = known.rows or any(target.shape != shape for target in targets)
        result = [Stage("rows" if rows else "elements", tuple(outputs), tuple(inputs), tuple(targets), shape)]
    return [_compact(stage) for stage in result]


def is_long(rows: bool, shape: Sequence[int]) -> bool:
    """Return True if an index space of this shape has few rows, each so long that several blocks of threads share it."""
    return rows and bool(shape) and shape[-1] > LONGEST and math.prod(shape[:-1]) < FEW


# Sums of columns ---------------------------------------------------------------------------------------------------------------------


def _walk(
    outputs: Sequence[Expression],
    inputs: Sequence[Array],
    targets: Sequence[Array],
    shape: tuple[int, ...],
    allocate: Allocate,
    walked: Walked,
) -> list[Stage]:
    """Return a stage that reduces rows and adds columns, and one that adds its sums; or no stages, if these are not the best."""
    if not _values_per_row(outputs, inputs):
        return []
    per_column = of_columns(in_order(outputs))
    sums = [x for x in per_column if x.primitive == COLUMNS]
    others = [k for k, y in enumerate(outputs) if y not in per_column]
    whole = (*(outputs[k] for k in others), *map(_wide, sums))
    stage = Stage("walks", whole, tuple(inputs), tuple(targets[k] for k in others), shape)
    span = walked(stage)
    if not span:
        return []
    partial = {x: allocate((-(-math.prod(shape[:-1]) // span), shape[-1]), x.dtype.arithmetic) for x in sums}
    return [replace(stage, sums=tuple(partial.values())), _totals(outputs, inputs, targets, partial)]


def _columns(
    outputs: Sequence[Expression], inputs: Sequence[Array], targets: Sequence[Array], shape: tuple[int, ...], allocate: Allocate
) -> Iterator[Stage]:
    arrays = list(inputs)
    values = _values_per_row(outputs, inputs)
    if values:
        # outputs with a value per row share no memory with inputs that the tiles read
        ready = {y: target for y, target in zip(outputs, targets, strict=True) if y in values and target.shape == (*shape[:-1], 1) != shape}
        written = tuple(ready[x] if x in ready else allocate((*shape[:-1], 1), x.dtype) for x in values)
        yield Stage("rows", tuple(values), tuple(inputs), written, shape)
        left = [k for k, y in enumerate(outputs) if targets[k] is not ready.get(y)]
        outputs, targets = [outputs[k] for k in left], [targets[k] for k in left]
        substitutes = {x: element(len(arrays) + k, x.dtype) for k, x in enumerate(values)}
        outputs = [replaced(y, substitutes) for y in outputs]
        arrays += written
    per_column = of_columns(in_order(outputs))
    sums = {x: _wide(x) for x in per_column if x.primitive == COLUMNS}
    blocks = -(-math.prod(shape[:-1]) // BLOCK)
    group = group_of(blocks)
    blocks = -(-blocks // group)
    partial = {x: allocate((blocks, shape[-1]), x.dtype.arithmetic) for x in sums}
    elements = [k for k, y in enumerate(outputs) if y not in per_column]
    *first, last = _groups(list(sums))
    for together in first:
        yield Stage("tiles", tuple(sums[x] for x in together), tuple(arrays), (), shape, tuple(partial[x] for x in together), group)
    # the last tiles overwrite inputs
    whole = (*(outputs[k] for k in elements), *(sums[x] for x in last))
    yield Stage("tiles", whole, tuple(arrays), tuple(targets[k] for k in elements), shape, tuple(partial[x] for x in last), group)
    yield _totals(outputs, arrays, targets, partial)


def _totals(outputs: Sequence[Expression], arrays: Sequence[Array], targets: Sequence[Array], partial: Mapping[Expression, Array]) -> Stage:
    """Return the stage that adds the sums of groups of rows."""
    totals = {x: f.cast(element(len(arrays) + k, x.dtype.arithmetic), x.dtype) for k, x in enumerate(partial)}
    chosen = [(y, target) for y, target in zip(outputs, targets, strict=True) if any(x in totals for x in in_order([y]))]
    shape = next(iter(partial.values())).shape
    flat = tuple(_view(target, (shape[-1],), target.strides[-1:]) for _, target in chosen)
    return Stage("totals", tuple(replaced(y, totals) for y, _ in chosen), (*arrays, *partial.values()), flat, shape)


def group_of(blocks: int) -> int:
    """Return the number of blocks of rows with a common sum, a power of two."""
    if blocks <= FEW_SUMS:
        return 1
    return max(LEAST_GROUP, 1 << (-(-blocks // MOST_SUMS) - 1).bit_length())


def _values_per_row(outputs: Sequence[Expression], inputs: Sequence[Array]) -> list[Expression]:
    """Return the values per row that depend on reductions of rows and that outputs or values per element need."""
    order = in_order(outputs)
    constant, per_column = constant_in_rows(order, inputs), of_columns(order)
    reduced: set[Expression] = set()
    for x in order:
        if x.primitive in REDUCTIONS or any(y in reduced for y in x.arguments):
            reduced.add(x)
    outside = _outside_reductions(outputs, {x for x in reduced if constant[x] and x not in per_column})
    return [x for x in order if x in outside]


def _wide(x: Expression) -> Expression:
    """Return the sum or the reduction x in the type in which it is computed."""
    kind = x.dtype.arithmetic
    return make(x.primitive, (f.cast(x.arguments[0], kind),), kind)


def _outside_reductions(outputs: Sequence[Expression], per_row: set[Expression]) -> set[Expression]:
    """Return the expressions of `per_row` that are reached from the outputs first."""
    result: set[Expression] = set()
    visited: set[Expression] = set()
    left = list(outputs)
    while left:
        x = left.pop()
        if x in visited:
            continue
        visited.add(x)
        if x in per_row:
            result.add(x)
        else:
            left.extend(x.arguments)
    return result


def _groups(sums: Sequence[Expression]) -> list[list[Expression]]:
    """Split sums of columns into groups that fit into shared memory."""
    groups: list[list[Expression]] = [[]]
    used = 0
    for x in sums:
        size = BLOCK * (TILE + 1) * x.dtype.arithmetic.itemsize
        if groups[-1] and used + size > SHARED:
            groups.append([])
            used = 0
        groups[-1].append(x)
        used += size
    return groups


# Long rows ---------------------------------------------------------------------------------------------------------------------------


def _long_rows(
    outputs: Sequence[Expression], inputs: Sequence[Array], targets: Sequence[Array], shape: tuple[int, ...], allocate: Allocate
) -> Iterator[Stage]:
    arrays = list(inputs)
    width = {x: f.constant(shape[-1], x.dtype) for x in in_order(outputs) if x.primitive == "columns"}
    outputs = [replaced(y, width) for y in outputs]
    per_row = all(target.shape == (*shape[:-1], 1) for target in targets)
    while True:
        order = in_order(outputs)
        reductions = [x for x in order if x.primitive in REDUCTIONS]
        first = [x for x in reductions if not any(y.primitive in REDUCTIONS for y in in_order(x.arguments))]
        if not first:
            break
        parts = yield from _parts(first, arrays, shape, allocate)
        joined = {x: _joined(x, len(arrays) + k) for k, x in enumerate(first)}
        read, space = (*arrays, *parts), (*shape[:-1], parts[0].shape[-1])
        if per_row and len(first) == len(reductions):
            yield Stage("rows", tuple(replaced(y, joined) for y in outputs), read, tuple(targets), space)
            return
        values = [allocate((*shape[:-1], 1), x.dtype) for x in first]
        yield Stage("rows", tuple(joined.values()), read, tuple(values), space)
        outputs = [replaced(y, {x: element(len(arrays) + k, x.dtype) for k, x in enumerate(first)}) for y in outputs]
        arrays += values
    for space in (shape, (*shape[:-1], 1)):
        chosen = [k for k, target in enumerate(targets) if target.shape == space]
        if chosen:
            yield Stage("elements", tuple(outputs[k] for k in chosen), tuple(arrays), tuple(targets[k] for k in chosen), space)


def _joined(x: Expression, operand: int) -> Expression:
    """Return the reduction of the results of parts, which are in input `operand`."""
    kind = x.dtype.arithmetic
    return f.cast(make(x.primitive, (element(operand, kind),), kind), x.dtype)


def _parts(
    reductions: Sequence[Expression], inputs: Sequence[Array], shape: tuple[int, ...], allocate: Allocate
) -> Generator[Stage, None, tuple[Array, ...]]:
    """Yield the stages that reduce the parts of rows; return the arrays of the results."""
    *lead, width = shape
    size = PART if width < VERY_LONG else LARGE_PART
    whole, rest = divmod(width, size)
    results = tuple(allocate((*lead, whole + bool(rest)), x.dtype.arithmetic) for x in reductions)
    wide = [_wide(x) for x in reductions]
    for first, count, length in ((0, whole, size), (whole * size, 1, rest)):
        if not length:
            continue
        views = tuple(_part(a, width, first, count, length) for a in inputs)
        targets = tuple(_view(_begin(r, first // size), (*lead, count, 1), (*r.strides, r.strides[-1])) for r in results)
        outputs = tuple(_at_parts(x, first, length, len(shape)) for x in wide)
        yield Stage("rows", outputs, views, targets, (*lead, count, length))
    return results


def _at_parts(x: Expression, first: int, length: int, axes: int) -> Expression:
    """Return x for an index space whose last axis is split into parts of `length` elements, the first of which begins at `first`."""
    indices = {f.index(axis): f.index(axis - 1) for axis in range(-axes, -1)}
    indices[f.index(-1)] = f.index(-2) * length + f.index(-1) + first
    return replaced(x, indices)


def _part(a: Array, width: int, first: int, count: int, length: int) -> Array:
    """Return a view of an operand with its last axis split into `count` parts of `length` elements from `first` on."""
    if a.ndim == 0 or a.shape[-1] != width:
        return _view(a, (*a.shape[:-1], 1, 1), (*a.strides[:-1], 0, 0)) if a.ndim and a.size != 1 else a
    step = a.strides[-1]
    return _view(_begin(a, first), (*a.shape[:-1], count, length), (*a.strides[:-1], step * length, step))


def _begin(a: Array, first: int) -> Array:
    """Return a placeholder that begins at element `first` of the last axis."""
    return at(TensorType(tuple(a.shape), dtype_of(a.dtype)), tuple(a.strides), address(a) + first * a.strides[-1])


def _view(a: Array, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    return at(TensorType(shape, dtype_of(a.dtype)), strides, address(a))


# Operands ----------------------------------------------------------------------------------------------------------------------------


def _compact(stage: Stage) -> Stage:
    """Return the stage without the inputs that its outputs do not read."""
    order = in_order(stage.outputs)
    leaves = ("element", "number", "looked_up")
    read = sorted({position(x) for x in order if x.primitive in leaves})
    places = {k: n for n, k in enumerate(read)}
    known: dict[Expression, Expression] = {}
    for x in order:
        attribute = places[position(x)] if x.primitive in leaves else x.attribute
        known[x] = make(x.primitive, tuple(known[y] for y in x.arguments), x.dtype, attribute)
    outputs = tuple(known[y] for y in stage.outputs)
    return Stage(stage.kind, outputs, tuple(stage.inputs[k] for k in read), stage.targets, stage.shape, stage.sums, stage.group)
