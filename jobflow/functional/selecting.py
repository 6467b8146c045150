"""Functions that select, replace, scatter and move elements by index or by mask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from jobflow.core.errors import ArgumentError, DtypeError, JobError, ShapeError, user_line
from jobflow.core.types import Array, bool_, int8, int64
from jobflow.functional import comparing
from jobflow.functional.dispatch import method
from jobflow.functional.global_tensors import value_of
from jobflow.functional.gradients import clone
from jobflow.functional.in_place import form
from jobflow.functional.indexing import check_mask, checked_indices, constant_like, filled, listed, mask_indices, number_as, selected
from jobflow.functional.promotion import cast, result_type
from jobflow.functional.shapes import axis_of, common_shape, expand, flatten, integer, permute, reshape, unsqueeze
from jobflow.functional.typed import Tensor
from jobflow.ops.arithmetic import Add
from jobflow.ops.index import DimGather, DimScatterAdd, Gather, UnsortedSegmentSum
from jobflow.ops.move import Roll
from jobflow.ops.scatter import Scatter
from jobflow.ops.scatter_reduce import ScatterProd
from jobflow.ops.slice_update import SliceUpdate, Subscript
from jobflow.ops.slices import Slice
from jobflow.ops.triangle import Tril, Triu
from jobflow.tensors.constant_values import depends_on_run
from jobflow.tensors.run import run

__all__ = [
    "argwhere", "diag", "diagonal", "gather", "index_add", "index_add_", "index_fill", "index_fill_", "index_select", "masked_fill", "masked_fill_",
    "masked_select", "nonzero", "repeat_interleave", "roll", "scatter", "scatter_", "scatter_add", "scatter_add_", "select", "take", "tril", "tril_",
    "triu", "triu_",
    "where",
]  # fmt: skip

#: combine(axis, table, indices, values) -> the table with the values at the indices along `axis`
Combine: TypeAlias = Callable[[int, Tensor, Tensor, Tensor], Tensor]

# ------------------------------------------------------------------------ by position


def select(x: Tensor, dim: int, index: int) -> Tensor:
    """Return the slice of x at one index of axis `dim`, without that axis, as a view.  Raises: AxisError for an index out of range."""
    axis = axis_of("select", dim, x.ndim)
    return x[(*(slice(None),) * axis, integer("select", index))]


def index_select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """Return the slices of x along axis `dim` at the indices of the vector `index`.

    Raises: ShapeError unless `index` is a vector, AxisError for an index out of range.
    """
    axis = axis_of("index_select", dim, x.ndim)
    if index.ndim > 1 or (not x.ndim and index.tensor_type.size != 1):
        raise ShapeError(
            f"index_select at {user_line()}: the indices must be a vector, or one number for x without axes; got {index.tensor_type} "
            f"for {x.tensor_type}"
        )
    if not x.ndim:
        return reshape(index_select(reshape(x, 1), 0, index), ())
    return run(Gather(axis), x, checked_indices(reshape(index, index.tensor_type.size), x.shape[axis], "index_select"))


def take(x: Tensor, index: Tensor) -> Tensor:
    """Return the elements of the flattened x at the indices, in the shape of `index`.  Raises: AxisError for an index out of range."""
    return run(Gather(0), flatten(x), checked_indices(index, x.tensor_type.size, "take"))


def _first(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Return the slice x[:shape[0], :shape[1], ...]."""
    if tuple(x.shape) == tuple(shape):
        return x
    return run(Slice((0,) * x.ndim, tuple(shape), (1,) * x.ndim), x)


def _names_none(index: Tensor) -> bool:
    """Return True for an empty index, whose shape and type are not checked."""
    return bool(index.ndim) and not index.tensor_type.size


def _checked_axis(what: str, x: Tensor, dim: int, index: Tensor, src: Tensor | None = None) -> int:
    """Return `dim` as a nonnegative axis, for `gather` and `scatter`.

    Raises: ShapeError unless `index` has as many axes as x and `src`, all no longer than in `src` and, except for `dim`, than in x.
    """
    axis = axis_of(what, dim, x.ndim)
    bounds = [x.shape] if src is None else [x.shape, src.shape]
    fits = all(len(shape) == index.ndim for shape in bounds) and not any(
        n > m for shape in bounds for i, (n, m) in enumerate(zip(index.shape, shape, strict=True)) if i != axis or shape is not bounds[0]
    )
    if not fits:
        raise ShapeError(
            f"{what} at {user_line()}: index {index.tensor_type} does not match "
            f"{x.tensor_type}{'' if src is None else f' and src {src.tensor_type}'} along axis {axis}; "
            f"index needs as many axes, each no longer than in {'x' if src is None else 'x and src'} except for axis {axis}"
        )
    return axis


def gather(x: Tensor, dim: int, index: Tensor, sparse_grad: bool = False) -> Tensor:
    """Return y with y[i, j, ...] = x[i, index[i, j, ...], ...] for dim = 1, and likewise for any axis.

    `index` needs as many axes as x, each no longer than in x except for `dim`.
    Raises: ShapeError for another shape, AxisError for an index out of range.
    """
    if _names_none(index):
        axis_of("gather", dim, x.ndim)
        return reshape(take(x, cast(flatten(index), int64)), index.shape)
    if not (x.ndim and index.ndim):
        return reshape(gather(as_row(x), dim, as_row(index)), index.shape)
    axis = _checked_axis("gather", x, dim, index)
    table = _first(x, tuple(x.shape[i] if i == axis else n for i, n in enumerate(index.shape)))
    return run(DimGather(axis), table, checked_indices(index, x.shape[axis], "gather"))


def scatter(x: Tensor, dim: int, index: Tensor, src: Any = None, *, value: Any = None, reduce: str | None = None) -> Tensor:
    """Return a copy y of x with y[i, index[i, j, ...], ...] = src[i, j, ...] for dim = 1.

    With `reduce`, "add" or "multiply", the elements of src are added to those of x, or multiplied with them; repeated indices accumulate.
    `src` is a tensor or a number; `value` is used without `src`.
    Raises: ShapeError, AxisError as in `gather`; ArgumentError without `src` and `value`; JobError for another `reduce`.
    """
    new = value if src is None else src
    if new is None:
        raise ArgumentError(f"scatter at {user_line()}: src or value is missing; pass a tensor or a number")
    if reduce == "add":
        return scatter_add(x, dim, index, new if isinstance(new, Tensor) else _constant(x, index.shape, new))
    if reduce not in (None, "multiply"):
        raise JobError(f'scatter at {user_line()}: reduce must be None, "add" or "multiply"; got {reduce!r}')
    return scattered("scatter", x, dim, index, new, _replaced if reduce is None else _multiplied)


def as_row(x: Tensor) -> Tensor:
    """Return a tensor without axes as a vector of one element; other tensors unchanged."""
    return x if x.ndim else reshape(x, 1)


def _constant(x: Tensor, shape: Sequence[int], number: Any) -> Tensor:
    return constant_like(x, tuple(shape), number_as(x, number))


def _added(axis: int, table: Tensor, at: Tensor, src: Tensor) -> Tensor:
    return run(Add(), table, run(DimScatterAdd(axis, table.shape[axis]), src, at))


def _replaced(axis: int, table: Tensor, at: Tensor, src: Tensor) -> Tensor:
    return run(Scatter(axis), table, at, src)


def _multiplied(axis: int, table: Tensor, at: Tensor, src: Tensor) -> Tensor:
    if table.dtype is bool_:  # a logical and
        return cast(_multiplied(axis, cast(table, int64), at, cast(src, int64)), bool_)
    result: Tensor = run(ScatterProd(axis), table, at, src)
    return result


def scattered(what: str, x: Tensor, dim: int, index: Tensor, new: Any, combine: Combine = _replaced) -> Tensor:
    """Return x with its elements at the indices combined with `new`, a tensor or a number; see `scatter`."""
    if _names_none(index):
        axis_of(what, dim, x.ndim)
        return clone(x)
    src = new if isinstance(new, Tensor) else _constant(x, index.shape, new)
    src = src if src.ndim or not index.ndim else expand(src, index.shape)
    if not (x.ndim and index.ndim and src.ndim):
        return reshape(scattered(what, as_row(x), dim, as_row(index), as_row(src), combine), x.shape)
    axis = _checked_axis(what, x, dim, index, src)
    if result_type(x, src) is not x.dtype:
        raise DtypeError(f"{what} at {user_line()}: {x.tensor_type} cannot hold the values of {src.tensor_type}; cast one of them")
    src = cast(_first(src, index.shape), x.dtype)
    at = checked_indices(index, x.shape[axis], what)
    part = tuple(x.shape[i] if i == axis else n for i, n in enumerate(index.shape))
    table = _first(x, part)
    y = combine(axis, table, at, src)
    if table is not x:
        y = run(SliceUpdate(Slice((0,) * x.ndim, part, (1,) * x.ndim)), x, y)
    return y


def scatter_add(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """Return a copy y of x with src[i, j, ...] added to y[i, index[i, j, ...], ...] for dim = 1; repeated indices accumulate.

    Raises: ShapeError, AxisError as in `gather`.
    """
    if x.dtype is bool_ and isinstance(src, Tensor) and src.dtype is bool_:  # a logical or
        return cast(scattered("scatter_add", cast(x, int64), dim, index, cast(src, int64), _added), bool_)
    return scattered("scatter_add", x, dim, index, src, _added)


def index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    """Return x with alpha times the slices of `source` added along axis `dim` at the indices of the vector `index`.

    Raises: ShapeError unless `source` has one slice per index, DtypeError for a fractional alpha with integers.
    """
    axis = axis_of("index_add", dim, x.ndim)
    if not x.ndim:
        return reshape(index_add(as_row(x), 0, as_row(index), as_row(source), alpha=alpha), ())
    if x.dtype is bool_ and source.dtype is bool_:  # a logical or
        return cast(index_add(cast(x, int64), dim, index, cast(source, int64), alpha=alpha), bool_)
    index = as_row(index)
    if tuple(source.shape) != (*x.shape[:axis], index.tensor_type.size, *x.shape[axis + 1 :]):
        raise ShapeError(
            f"index_add at {user_line()}: source {source.tensor_type} must have the shape of x {x.tensor_type}, except for axis {axis} with one "
            f"slice per element of index {index.tensor_type}"
        )
    at = checked_indices(index, x.shape[axis], "index_add")
    if not x.dtype.is_float and isinstance(alpha, float) and alpha != int(alpha):
        raise DtypeError(f"index_add at {user_line()}: alpha {alpha} needs a floating point type; cast x {x.tensor_type} first")
    scaled = source if alpha == 1 else source * alpha
    return run(Add(), x, run(UnsortedSegmentSum(axis, x.shape[axis]), cast(scaled, x.dtype), at))


def repeat_interleave(x: Tensor, repeats: Any = None, dim: int | None = None, *, output_size: int | None = None) -> Tensor:
    """Return x with every slice along `dim` repeated `repeats` times in a row; without `dim`, every element of the flattened x.

    `repeats` is an int for all slices, or a tensor with one int per slice.  `output_size` is the size of the result along `dim`.
    repeat_interleave(repeats) returns each index i repeats[i] times.
    Raises: ShapeError for another number of repeats or another `output_size`, ArgumentError for negative repeats, DtypeError for fractions, and
    JobError for a traced tensor of repeats.
    """
    if repeats is None:
        return repeat_interleave(_counting(x), x, 0, output_size=output_size)
    if dim is None:
        return repeat_interleave(flatten(x), repeats, 0, output_size=output_size)
    axis = axis_of("repeat_interleave", dim, x.ndim)
    if not x.ndim:
        return repeat_interleave(reshape(x, 1), repeats, 0, output_size=output_size)
    size = x.shape[axis]
    if isinstance(repeats, Tensor) and repeats.tensor_type.size != 1:
        counts = _repeats(repeats, size)
        _check_output_size(output_size, int(counts.sum()))
        return index_select(x, axis, listed(x, np.repeat(np.arange(size), counts)))
    count = integer("repeat_interleave: repeats", repeats)
    if count < 0:
        raise ArgumentError(f"repeat_interleave at {user_line()}: repeats must not be negative; got {count}")
    _check_output_size(output_size, size * count)
    wide = expand(unsqueeze(x, axis + 1), (*x.shape[: axis + 1], count, *x.shape[axis + 1 :]))
    return reshape(wide, (*x.shape[:axis], size * count, *x.shape[axis + 1 :]))


def _counting(repeats: Tensor) -> Tensor:
    """Return the int64 vector 0, 1, 2, ... with one element per element of the vector `repeats`."""
    if repeats.ndim != 1:
        raise ShapeError(f"repeat_interleave at {user_line()}: repeats must be a vector; got {repeats.tensor_type}; pass x and repeats")
    return listed(repeats, np.arange(repeats.tensor_type.size))


def _repeats(repeats: Tensor, size: int) -> Array:
    """Return the values of `repeats`, one nonnegative int for each of `size` slices."""
    if not repeats.dtype.is_integer:
        raise DtypeError(f"repeat_interleave at {user_line()}: repeats must contain integers; got {repeats.tensor_type}")
    if repeats.shape != (size,):
        raise ShapeError(f"repeat_interleave at {user_line()}: repeats must be one int, or a vector of {size}; got {repeats.tensor_type}")
    counts = value_of(repeats, "repeat_interleave with a tensor of repeats")
    if counts.size and counts.min() < 0:
        raise ArgumentError(f"repeat_interleave at {user_line()}: repeats must not be negative; got {counts.min()}")
    return counts


def _check_output_size(output_size: int | None, actual: int) -> None:
    if output_size is not None and output_size != actual:
        raise ShapeError(f"repeat_interleave at {user_line()}: the result has {actual} slices, but output_size is {output_size}; omit output_size")


def index_fill(x: Tensor, dim: int, index: Tensor, value: float) -> Tensor:
    """Return x with the number `value` along axis `dim` at the indices of the vector `index`."""
    axis = axis_of("index_fill", dim, x.ndim)
    if not x.ndim:
        return reshape(index_fill(as_row(x), 0, index, value), ())
    none = constant_like(x, (x.shape[axis],), 0, int8)
    named = scattered("index_fill", none, 0, reshape(index, index.tensor_type.size), 1)  # repeated indices count once
    return filled(x, cast(reshape(named, tuple(n if i == axis else 1 for i, n in enumerate(x.shape))), bool_), value)


# ------------------------------------------------------------------------ by a mask


def masked_fill(x: Tensor, mask: Tensor, value: Any) -> Tensor:
    """Return x with `value`, a number or a tensor without axes, where the mask is True.  Raises: ShapeError for a value with axes."""
    if isinstance(value, Tensor) and value.ndim:
        raise ShapeError(
            f"masked_fill at {user_line()}: the value must be a number or a tensor without axes; got {value.tensor_type}; use where(mask, value, x)"
        )
    return filled(x, mask, value)


def masked_select(x: Tensor, mask: Tensor) -> Tensor:
    """Return the elements of x where the mask is True, as a vector, after broadcasting x and the mask.

    All ranks must call this function.  Raises: JobError during tracing, because the number of elements is unknown.
    """
    shape = common_shape("masked_select", x.shape, mask.shape)
    x, mask = (tensor if tuple(tensor.shape) == shape else expand(tensor, shape) for tensor in (x, mask))
    check_mask(mask, x, 0, "masked_select")
    return selected(x, mask, "masked_select")


def nonzero(x: Tensor, as_tuple: bool = False) -> Any:
    """Return the indices of the nonzero elements as int64: a matrix with one row per element, or one vector per axis with `as_tuple`.

    All ranks must call this function.  Raises: JobError during tracing, because the number of elements is unknown.
    """
    return _nonzero_indices(x, "nonzero", as_tuple)


def _nonzero_indices(x: Tensor, what: str, as_tuple: bool = False) -> Any:
    if depends_on_run(x):
        return mask_indices(x, x, what)
    values = value_of(x, what)
    places = np.nonzero(np.atleast_1d(values))
    if as_tuple:
        return tuple(listed(x, each.astype(np.int64)) for each in places)
    return listed(x, np.stack(places, 1).astype(np.int64) if x.ndim else np.zeros((len(places[0]), 0), np.int64))


def argwhere(x: Tensor) -> Tensor:
    """Return the indices of the nonzero elements, one per row; see `nonzero`."""
    return _nonzero_indices(x, "argwhere")


def where(condition: Tensor, input: Any = None, other: Any = None) -> Any:
    """Return `input` where the condition is nonzero, else `other`, with broadcasting of all three arguments.

    `where(condition)` returns `nonzero(condition, as_tuple=True)`.

    Examples:
        >>> x = flow.tensor([-1.0, 2.0])
        >>> flow.where(x > 0, x, 0.0)
        tensor([0., 2.], dtype=jobflow.float32)
    """
    if input is None and other is None:
        return nonzero(condition, as_tuple=True)
    return comparing.where(condition, input, other)


# ------------------------------------------------------------------------ moves and matrices


def roll(x: Tensor, shifts: int | Sequence[int], dims: int | Sequence[int] | None = None) -> Tensor:
    """Return x with its elements shifted along the axes `dims`; elements shifted beyond the last position reappear at the first.

    Without `dims`, the flattened tensor is shifted.  Raises: ShapeError for different numbers of shifts and dims.
    """
    if dims is None:
        return reshape(roll(flatten(x), shifts, 0), x.shape)
    each, axes = ([argument] if isinstance(argument, int) else list(argument) for argument in (shifts, dims))
    if len(each) != len(axes):
        raise ShapeError(f"roll at {user_line()}: shifts {shifts} and dims {dims} must have the same length; pass one shift per dim")
    by = [0] * x.ndim
    for shift, d in zip(each, axes, strict=True):
        if x.ndim == 0:
            raise ShapeError(f"roll at {user_line()}: dims={dims} are passed for {x.tensor_type}, which has no axes; omit dims")
        by[axis_of("roll", d, x.ndim)] += integer("roll(shifts=...)", shift)
    return run(Roll(tuple(by)), x)


def triu(x: Tensor, diagonal: int = 0) -> Tensor:
    """Return the upper triangle of x over its last two axes: elements on and above a diagonal, and zeros below it.

    `diagonal` is 0 for the main diagonal, and positive above it.
    """
    return run(Triu(diagonal), x)


def tril(x: Tensor, diagonal: int = 0) -> Tensor:
    """Return the lower triangle of x over its last two axes: elements on and below a diagonal, and zeros above it.

    `diagonal` is 0 for the main diagonal, and positive above it.
    """
    return run(Tril(diagonal), x)


def diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Return the elements of x with index(dim2) - index(dim1) = offset, along a new last axis.

    Raises: ShapeError unless `dim1` and `dim2` are different axes.
    """
    turned = permute(x, diagonal_axes("diagonal", x, dim1, dim2))
    *lead, rows, columns = turned.shape
    return run(Subscript(*diagonal_slice(turned.shape, integer("diagonal", offset))), reshape(turned, (*lead, rows * columns)))


def diagonal_axes(what: str, x: Tensor, dim1: int, dim2: int) -> list[int]:
    """Return the order of the axes of x that puts `dim1` and `dim2` last; raise ShapeError unless they are different axes."""
    a, b = axis_of(what, dim1, x.ndim), axis_of(what, dim2, x.ndim)
    if a == b or x.ndim < 2:
        raise ShapeError(f"{what} at {user_line()}: dim1 and dim2 must be two different axes of {x.tensor_type}; got {dim1} and {dim2}")
    return [i for i in range(x.ndim) if i not in (a, b)] + [a, b]


def diagonal_slice(shape: Sequence[int], offset: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return the starts, stops and steps of a diagonal of matrices with the given shape, whose rows are joined into one axis."""
    *lead, rows, columns = shape
    count = max(0, min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns))
    start = (offset if offset >= 0 else -offset * columns) if count else 0
    stop = start + (count - 1) * (columns + 1) + 1 if count else 0
    return (*(0 for _ in lead), start), (*lead, stop), (*(1 for _ in lead), columns + 1)


def diag(x: Tensor, diagonal: int = 0) -> Tensor:
    """Return a diagonal of the matrix x, or a matrix with the vector x on this diagonal and zeros elsewhere.

    `diagonal` is 0 for the main diagonal, and positive above it.  Raises: ShapeError for other numbers of axes.
    """
    diagonal = integer("diag", diagonal)
    if x.ndim == 2:
        return _diagonal(x, diagonal)
    if x.ndim != 1:
        raise ShapeError(f"diag at {user_line()}: x must be a vector or a matrix; got {x.tensor_type}")
    if abs(diagonal) >= 2**31:
        raise ShapeError(f"diag at {user_line()}: diagonal {diagonal} exceeds the largest number of rows, 2**31 - 1")
    count, n = x.tensor_type.size, x.tensor_type.size + abs(diagonal)
    empty = constant_like(x, (n * n,), 0)
    if not count:
        return reshape(empty, (n, n))
    start = diagonal if diagonal >= 0 else -diagonal * n
    window = Slice((start,), (start + (count - 1) * (n + 1) + 1,), (n + 1,))
    return reshape(run(SliceUpdate(window), empty, x), (n, n))


_diagonal = diagonal

masked_fill_ = form(masked_fill)
scatter_ = form(scatter)
scatter_add_ = form(scatter_add)
index_add_ = form(index_add)
index_fill_ = form(index_fill)
tril_ = form(tril)
triu_ = form(triu)


class SelectionMethods:
    """Methods of tensors that select and replace elements."""

    __slots__ = ()

    argwhere = method(argwhere)
    diag = method(diag)
    diagonal = method(diagonal)
    gather = method(gather)
    index_add = method(index_add)
    index_add_ = method(index_add_)
    index_fill = method(index_fill)
    index_fill_ = method(index_fill_)
    index_select = method(index_select)
    repeat_interleave = method(repeat_interleave)
    masked_fill = method(masked_fill)
    masked_fill_ = method(masked_fill_)
    masked_select = method(masked_select)
    nonzero = method(nonzero)
    roll = method(roll)
    scatter = method(scatter)
    scatter_ = method(scatter_)
    scatter_add = method(scatter_add)
    scatter_add_ = method(scatter_add_)
    select = method(select)
    take = method(take)
    tril = method(tril)
    tril_ = method(tril_)
    triu = method(triu)
    triu_ = method(triu_)
