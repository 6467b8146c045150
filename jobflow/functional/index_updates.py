"""Lookups along an axis with broadcasting, and updates at indices or under a mask: copies, products, means and extremes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jobflow.core.scope as scope
from jobflow.core.errors import ArgumentError, DtypeError, ShapeError, user_line
from jobflow.core.types import bool_, int64
from jobflow.functional.argument_checks import checks_arguments
from jobflow.functional.binary_functions import add, div, floor_divide, sub
from jobflow.functional.comparing import eq, where
from jobflow.functional.dispatch import method
from jobflow.functional.in_place import form
from jobflow.functional.indexing import checked_indices, getitem
from jobflow.functional.promotion import cast, constant
from jobflow.functional.reductions import cumsum
from jobflow.functional.selecting import Combine, as_row, gather, scattered, take
from jobflow.functional.shapes import axis_of, common_shape, expand, expanded_together, flatten, reshape
from jobflow.functional.typed import Tensor
from jobflow.functional.unary_functions import clamp
from jobflow.ops.arithmetic import Add
from jobflow.ops.index import DimScatterAdd
from jobflow.ops.runtime_assertions import RuntimeAssertion
from jobflow.ops.scalar import FillLike
from jobflow.ops.scatter import Scatter
from jobflow.ops.scatter_reduce import ScatterMax, ScatterMin, ScatterProd
from jobflow.tensors.run import run

__all__ = [
    "index_copy", "index_put", "index_put_", "index_reduce", "masked_scatter", "scatter_reduce", "take_along_dim",
]  # fmt: skip


@checks_arguments
def take_along_dim(x: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """Return y with y[i, j, ...] = x[i, indices[i, j, ...], ...] for dim = 1, after broadcasting the other axes of x and `indices`.

    Without `dim`, look up the elements of the flattened x.
    Raises: ShapeError for different numbers of axes, AxisError for an index out of range.
    """
    if dim is None:
        return take(x, flatten(indices))
    axis = axis_of("take_along_dim", dim, x.ndim)
    if x.ndim != indices.ndim:
        raise ShapeError(
            f"take_along_dim at {user_line()}: x {x.tensor_type} and indices {indices.tensor_type} must have the same number of axes; reshape one"
        )
    if not x.ndim:
        return gather(x, 0, indices)

    def others(shape: Sequence[int]) -> tuple[int, ...]:
        return tuple(1 if i == axis else n for i, n in enumerate(shape))

    common = common_shape("take_along_dim", others(x.shape), others(indices.shape))
    table, ids = (expand(each, tuple(each.shape[i] if i == axis else n for i, n in enumerate(common))) for each in (x, indices))
    return gather(table, axis, ids)


# -------------------------------------------------------------------- slices at the indices of a vector


def _slices(what: str, x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """Return the indices of a vector in the shape of `source`, which has one slice of x per index; raise ShapeError for another shape."""
    axis = axis_of(what, dim, x.ndim)
    if index.ndim > 1 or tuple(source.shape) != (*x.shape[:axis], index.tensor_type.size, *x.shape[axis + 1 :]):
        raise ShapeError(
            f"{what} at {user_line()}: source {source.tensor_type} must have the shape of x {x.tensor_type}, except for axis {axis} with one "
            f"slice per element of the vector index {index.tensor_type}"
        )
    if source.dtype is not x.dtype:
        raise DtypeError(f"{what} at {user_line()}: source {source.tensor_type} must have the element type of x {x.tensor_type}; cast one of them")
    return expand(reshape(index, tuple(-1 if i == axis else 1 for i in range(x.ndim))), source.shape)


@checks_arguments
def index_copy(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """Return x with the slices of `source` along axis `dim` at the indices of the vector `index`; the last slice for a repeated index applies.

    Raises: ShapeError unless `source` has one slice per index.
    """
    if not x.ndim:
        return reshape(index_copy(as_row(x), dim, index, as_row(source)), ())
    return scattered("index_copy", x, dim, _slices("index_copy", x, dim, index, source), source)


@checks_arguments
def index_reduce(x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True) -> Tensor:
    """Return x with the slices of `source` along axis `dim` combined at the indices of the vector `index`.

    `reduce` is "prod", "mean", "amax" or "amin"; without `include_self`, the elements of x at the indices do not count.
    """
    if reduce not in ("prod", "mean", "amax", "amin"):
        raise ArgumentError(f"index_reduce at {user_line()}: reduce={reduce!r} is not one of prod, mean, amax, amin")
    if not x.ndim:
        return reshape(index_reduce(as_row(x), dim, index, as_row(source), reduce, include_self=include_self), ())
    at = _slices("index_reduce", x, dim, index, source)
    return _reduced("index_reduce", x, dim, at, source, reduce, include_self)


# -------------------------------------------------------------------- reductions at indices


@checks_arguments
def scatter_reduce(x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True) -> Tensor:
    """Return a copy y of x, with src[i, j, ...] combined with y[i, index[i, j, ...], ...] for dim = 1.

    `reduce` is "sum", "prod", "mean", "amax" or "amin"; without `include_self`, the elements of x at the indices do not count.
    Raises: ShapeError, AxisError as in `gather`; ArgumentError for another `reduce`.
    """
    if reduce not in ("sum", "prod", "mean", "amax", "amin"):
        raise ArgumentError(f"scatter_reduce at {user_line()}: reduce={reduce!r} is not one of sum, prod, mean, amax, amin")
    if src.dtype is not x.dtype:
        raise DtypeError(f"scatter_reduce at {user_line()}: src {src.tensor_type} must have the element type of x {x.tensor_type}; cast one of them")
    return _reduced("scatter_reduce", x, dim, index, src, reduce, include_self)


def _reduced(what: str, x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, include_self: bool) -> Tensor:
    if x.dtype is bool_:
        return cast(scattered(what, cast(x, int64), dim, index, cast(src, int64), _combine(reduce, include_self)), bool_)
    return scattered(what, x, dim, index, src, _combine(reduce, include_self))


def _combine(reduce: str, include_self: bool) -> Combine:
    """Return the function that combines values with a table; see `scattered`."""

    def combine(axis: int, table: Tensor, at: Tensor, src: Tensor) -> Tensor:
        size = table.shape[axis]
        count = None if include_self and reduce != "mean" else run(DimScatterAdd(axis, size), run(FillLike(1, int64), src), at)
        if not include_self:
            assert count is not None
            table = where(eq(count, 0), table, constant(table, _neutral(reduce, table), table.dtype))
        if reduce in _EXTREMES:
            return run(_EXTREMES[reduce](axis), table, at, src)
        result: Tensor = run(Add(), table, run(DimScatterAdd(axis, size), src, at))
        if reduce == "sum":
            return result
        assert count is not None
        divisor = add(count, 1) if include_self else where(eq(count, 0), 1, count)
        return div(result, cast(divisor, result.dtype)) if result.dtype.is_float else floor_divide(result, cast(divisor, result.dtype))

    return combine


#: reductions with an op -> the op
_EXTREMES: dict[str, Callable[[int], Any]] = {"prod": ScatterProd, "amax": ScatterMax, "amin": ScatterMin}


def _neutral(reduce: str, x: Tensor) -> float:
    """Return the number that leaves the other operand of a reduction unchanged."""
    if reduce in ("sum", "mean"):
        return 0
    if reduce == "prod":
        return 1
    infinite = float("inf")
    low, high = (-infinite, infinite) if x.dtype.is_float else x.dtype.span
    return low if reduce == "amax" else high


# -------------------------------------------------------------------- keys and masks


def index_put(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    """Return x with x[indices] = values; with `accumulate`, x[indices] += values, in which repeated indices add up.

    `indices` is a list or tuple of integer tensors, masks and None; None selects a whole axis.
    Raises: ShapeError if the values do not broadcast to the selection, DtypeError for another element type.
    """
    what = "index_put"
    if isinstance(indices, Tensor) or not isinstance(indices, list | tuple) or not all(each is None or isinstance(each, Tensor) for each in indices):
        raise ArgumentError(f"{what} at {user_line()}: indices must be a tuple of tensors or None; got {indices!r:.60}")
    if scope.current().autocast is not None and x.is_cuda and isinstance(values, Tensor) and values.dtype.is_float and x.dtype.is_float:
        widest = max(x.dtype, values.dtype, key=lambda dtype: dtype.itemsize)  # as PyTorch does on GPUs only
        x, values = cast(x, widest), cast(values, widest)
    if not isinstance(values, Tensor) or values.dtype is not x.dtype:
        got = values.tensor_type if isinstance(values, Tensor) else repr(values)
        raise DtypeError(f"{what} at {user_line()}: values must be a tensor of the element type of x {x.tensor_type}; got {got}")
    size = x.tensor_type.size
    places = reshape(sub(cumsum(run(FillLike(1, int64), flatten(x)), 0), 1), x.shape)
    at = getitem(places, tuple(slice(None) if each is None else each for each in indices))
    if common_shape(what, values.shape, at.shape) != tuple(at.shape):
        raise ShapeError(f"{what} at {user_line()}: values {values.tensor_type} must broadcast to the selection {list(at.shape)} of {x.tensor_type}")
    addends, ids = flatten(expand(values, at.shape)), flatten(at)
    row = flatten(x)
    if accumulate and x.dtype is bool_:
        return cast(index_put(cast(x, int64), indices, cast(values, int64), True), bool_)
    if accumulate:
        return reshape(run(Add(), row, run(DimScatterAdd(0, size), addends, ids)), x.shape)
    return reshape(run(Scatter(0), row, ids, addends), x.shape)


@checks_arguments
def masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """Return x with consecutive elements of `source` where the mask is True, after broadcasting x and the mask.

    Raises: ArgumentError for fewer elements in `source` than the mask selects, DtypeError for another element type.
    """
    what = "masked_scatter"
    if mask.dtype is not bool_ or source.dtype is not x.dtype:
        raise DtypeError(
            f"{what} at {user_line()}: mask {mask.tensor_type} must be bool, and source {source.tensor_type} have the type of x {x.tensor_type}"
        )
    x, mask = expanded_together(what, x, mask)
    shape = tuple(x.shape)
    n = source.tensor_type.size
    row = flatten(mask)
    problem = f"selected elements exceed the {n} elements of source"
    counts = run(RuntimeAssertion(what, "number", high=n, problem=problem), cumsum(row, 0))
    if not n or not x.tensor_type.size:
        return where(reshape(eq(counts, counts), shape), x, x)
    at = checked_indices(clamp(sub(counts, 1), 0, n - 1), n, what)
    return where(mask, reshape(take(source, at), shape), x)


index_copy_ = form(index_copy)
index_put_ = form(index_put)
index_reduce_ = form(index_reduce)
masked_scatter_ = form(masked_scatter)
scatter_reduce_ = form(scatter_reduce)


class UpdateMethods:
    """Lookups and updates at indices as methods of tensors."""

    __slots__ = ()

    index_copy = method(index_copy)
    index_copy_ = method(index_copy_)
    index_put = method(index_put)
    index_put_ = method(index_put_)
    index_reduce = method(index_reduce)
    index_reduce_ = method(index_reduce_)
    masked_scatter = method(masked_scatter)
    masked_scatter_ = method(masked_scatter_)
    scatter_reduce = method(scatter_reduce)
    scatter_reduce_ = method(scatter_reduce_)
    take_along_dim = method(take_along_dim)
