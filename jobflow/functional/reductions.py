"""Reductions over all axes, one axis or several axes `dim`; `keepdim` keeps the reduced axes with size 1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from jobflow.core.errors import ArgumentError, DtypeError, ShapeError, user_line
from jobflow.core.types import DType, bool_, float64, int64, uint8
from jobflow.core.types import Tensor as Value
from jobflow.functional import binary_functions as arithmetic
from jobflow.functional.comparing import truth
from jobflow.functional.dispatch import method
from jobflow.functional.nn_base import composed
from jobflow.functional.promotion import as_float, cast, constant, rounded_once
from jobflow.functional.typed import Tensor
from jobflow.ops.arithmetic import Add, Divide, Subtract, Where
from jobflow.ops.axes import ExpandDims, Reshape, Squeeze
from jobflow.ops.compare import Equal, NotEqual
from jobflow.ops.index import DimGather
from jobflow.ops.reduce import ArgExtreme, ReduceAll, ReduceAny, ReduceMax, ReduceMin, ReduceProd, ReduceSum, check_filled
from jobflow.ops.scalar import Detach, DivideBy, FillLike, Scale, Shift
from jobflow.ops.scan import CumProd, CumSum
from jobflow.ops.slices import Slice
from jobflow.ops.sort import Sort
from jobflow.ops.transcendental import Absolute, Exp, Log, Square
from jobflow.ops.vector_norm import root, vector_norm
from jobflow.tensors import redistribution
from jobflow.tensors.run import run, run_several
from jobflow.tensors.state import state

__all__ = [
    "all", "amax", "amin", "any", "argmax", "argmin", "count_nonzero", "cumprod", "cumsum", "logsumexp", "max", "mean", "median", "min", "nansum",
    "norm", "prod", "std", "std_mean", "sum", "var", "var_mean",
]  # fmt: skip

Dim: TypeAlias = int | Sequence[int] | None


class Extreme(NamedTuple):
    """Largest, smallest or median elements along an axis, and their int64 indices."""

    values: Tensor
    indices: Tensor


def axis_of(what: str, x: Tensor, dim: int) -> int:
    """Return `dim` as a nonnegative axis; raise ShapeError unless x has this axis.  A tensor without axes accepts 0 and -1."""
    ndim = x.tensor_type.ndim or 1
    if not isinstance(dim, int | np.integer) or not -ndim <= dim < ndim:
        raise ShapeError(f"{what} at {user_line()}: dim={dim!r} is not an axis of {x.tensor_type}, whose axes are -{ndim} to {ndim - 1}")
    return int(dim) % ndim


def axes_of(what: str, x: Tensor, dim: Dim) -> tuple[int, ...]:
    """Return the axes `dim` of x as nonnegative numbers in ascending order; None and an empty sequence select all axes.

    Raises: ShapeError for an axis out of range, or passed twice.
    """
    if dim is None or (isinstance(dim, Sequence) and not len(dim)):
        return tuple(range(x.tensor_type.ndim))
    axes = [axis_of(what, x, each) for each in (dim if isinstance(dim, Sequence) else [dim])]
    if len(set(axes)) != len(axes):
        raise ShapeError(f"{what} at {user_line()}: dim={dim} names an axis of {x.tensor_type} twice; pass each axis once")
    return tuple(sorted(axes)) if x.tensor_type.ndim else ()


def _counted(x: Tensor) -> Tensor:
    """Return integers and bool as int64, the element type of their sums."""
    return x if x.tensor_type.dtype.is_float else cast(x, int64)


def _floats(what: str, x: Tensor) -> Tensor:
    if not x.tensor_type.dtype.is_float:
        raise DtypeError(f"{what} at {user_line()}: the tensor must have a floating point type; got {x.tensor_type}; use x.float()")
    return x


def _reduced(op: type[Any], x: Tensor, axes: tuple[int, ...], keepdim: bool) -> Tensor:
    return run(op(axes, keepdim), x) if axes else x


def _largest(what: str, op: type[Any], x: Tensor, dim: Dim, keepdim: bool) -> Tensor:
    """Return the result of `op`, a maximum or minimum over the axes `dim`; bool tensors are computed as uint8.

    Raises: ShapeError for an empty axis.
    """
    axes = axes_of(what, x, dim)
    check_filled(what, x.tensor_type, axes)
    return cast(_reduced(op, cast(x, uint8), axes, keepdim), bool_) if x.tensor_type.dtype is bool_ else _reduced(op, x, axes, keepdim)


# -------------------------------------------------------------------- sums and products


def sum(x: Tensor, dim: Dim = None, keepdim: bool = False, *, dtype: DType | None = None) -> Tensor:
    """Return the sum over `dim`, by default over all axes.  Without `dtype`, the sum of integers or bool is int64.

    Examples:
        >>> x = flow.tensor([[1, 2], [3, 4]])
        >>> flow.sum(x)
        tensor(10, dtype=jobflow.int64)
        >>> x.sum(dim=0)
        tensor([4, 6], dtype=jobflow.int64)
    """
    return _reduced(ReduceSum, cast(x, dtype) if dtype else _counted(x), axes_of("sum", x, dim), keepdim)


def mean(x: Tensor, dim: Dim = None, keepdim: bool = False, *, dtype: DType | None = None) -> Tensor:
    """Return the mean of the logical tensor over `dim`, by default over all axes.

    `dtype` converts x first.  Raises: DtypeError unless x is, or becomes, a floating point tensor.

    Examples:
        >>> x = flow.tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> x.mean()
        tensor(2.5000, dtype=jobflow.float32)
        >>> x.mean(dim=1, keepdim=True)
        tensor([[1.5000],
                [3.5000]], dtype=jobflow.float32)
    """
    return _mean(_floats("mean", cast(x, dtype) if dtype else x), dim, keepdim)


@rounded_once
def _mean(x: Tensor, dim: Dim, keepdim: bool) -> Tensor:
    axes = axes_of("mean", x, dim)
    count = math.prod(x.tensor_type.shape[i] for i in axes)
    total = _reduced(ReduceSum, x, axes, keepdim)
    return run(DivideBy(count), total) if count else run(Scale(math.nan), total)


def nansum(x: Tensor, dim: Dim = None, keepdim: bool = False, *, dtype: DType | None = None) -> Tensor:
    """Return the sum over `dim`, by default over all axes, of the elements that are not NaN."""
    if x.tensor_type.dtype.is_float:
        x = run(Where(), run(Equal(), x, x), x, constant(x, 0, x.tensor_type.dtype))
    return sum(x, dim, keepdim, dtype=dtype)


def count_nonzero(x: Tensor, dim: Dim = None) -> Tensor:
    """Return the number of nonzero elements over `dim`, by default over all axes, as an int64 tensor."""
    return sum(truth(x), dim)


def prod(x: Tensor, dim: Dim = None, keepdim: bool = False, *, dtype: DType | None = None) -> Tensor:
    """Return the product over `dim`, by default over all axes.  Without `dtype`, the product of integers or bool is int64."""
    x = _counted(x) if dtype is None else cast(x, dtype)
    result = _reduced(ReduceProd, _counted(x) if dtype is bool_ else x, axes_of("prod", x, dim), keepdim)
    return result if dtype is None else cast(result, dtype)


def cumsum(x: Tensor, dim: int, *, dtype: DType | None = None) -> Tensor:
    """Return the cumulative sums along axis `dim`.  Without `dtype`, the sums of integers or bool are int64."""
    return _scanned("cumsum", CumSum, x, dim, dtype)


def cumprod(x: Tensor, dim: int, *, dtype: DType | None = None) -> Tensor:
    """Return the cumulative products along axis `dim`.  Without `dtype`, the products of integers or bool are int64."""
    return _scanned("cumprod", CumProd, x, dim, dtype)


def _scanned(what: str, op: type[Any], x: Tensor, dim: int, dtype: DType | None) -> Tensor:
    x = cast(x, dtype) if dtype else _counted(x)
    axis = axis_of(what, x, dim)
    return run(op(axis), x) if x.tensor_type.ndim else x


# -------------------------------------------------------------------- extremes


def amax(x: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Return the largest elements over `dim`, by default over all axes; equal elements share the gradient.

    Raises: ShapeError for an empty axis.
    """
    return _largest("amax", ReduceMax, x, dim, keepdim)


def amin(x: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Return the smallest elements over `dim`, by default over all axes; equal elements share the gradient.

    Raises: ShapeError for an empty axis.
    """
    return _largest("amin", ReduceMin, x, dim, keepdim)


def max(x: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    """Return the largest element of x, or (values, indices) of the largest elements along an axis `dim`.

    With a tensor `dim`, return the elementwise maximum of both tensors.  Raises: ShapeError for an empty tensor or axis.

    Examples:
        >>> x = flow.tensor([[1, 5], [4, 3]])
        >>> flow.max(x)
        tensor(5, dtype=jobflow.int64)
        >>> values, indices = x.max(dim=1)
        >>> indices
        tensor([1, 0], dtype=jobflow.int64)
    """
    return arithmetic.maximum(x, dim) if isinstance(dim, Tensor) else _extreme("max", x, dim, keepdim, largest=True)


def min(x: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    """Return the smallest element of x, or (values, indices) of the smallest elements along an axis `dim`.

    With a tensor `dim`, return the elementwise minimum of both tensors.  Raises: ShapeError for an empty tensor or axis.
    """
    return arithmetic.minimum(x, dim) if isinstance(dim, Tensor) else _extreme("min", x, dim, keepdim, largest=False)


def _extreme(what: str, x: Tensor, dim: int | None, keepdim: bool, largest: bool) -> Any:
    if dim is None:
        return _largest(what, ReduceMax if largest else ReduceMin, x, None, False)
    axis = axis_of(what, x, dim)
    if not x.tensor_type.ndim:
        return Extreme(x, run(FillLike(0, int64), x))
    check_filled(what, x.tensor_type, (axis,))
    op = ArgExtreme(axis, largest)
    x = redistribution.as_read(state(), op, x)
    where = run(ExpandDims(axis), run(op, x))
    values = run(DimGather(axis), x, where)
    where = cast(where, int64)
    return Extreme(values, where) if keepdim else Extreme(run(Squeeze((axis,)), values), run(Squeeze((axis,)), where))


def argmax(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Return the int64 index of the largest element along an axis, or in the flattened tensor; the first of equal elements.

    Raises: ShapeError for an empty tensor or axis.

    Examples:
        >>> flow.argmax(flow.tensor([[1, 5], [4, 3]]), dim=1)
        tensor([1, 0], dtype=jobflow.int64)
    """
    return _position("argmax", x, dim, keepdim, largest=True)


def argmin(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Return the int64 index of the smallest element along an axis, or in the flattened tensor; the first of equal elements.

    Raises: ShapeError for an empty tensor or axis.
    """
    return _position("argmin", x, dim, keepdim, largest=False)


def _position(what: str, x: Tensor, dim: int | None, keepdim: bool, largest: bool) -> Tensor:
    flat = dim is None or not x.tensor_type.ndim
    row = run(Reshape((x.tensor_type.size,)), x) if flat else x
    axis = 0 if dim is None else axis_of(what, x, dim)
    check_filled(what, row.tensor_type, (axis,))
    where = cast(run(ArgExtreme(axis, largest), row), int64)
    if not keepdim or not x.tensor_type.ndim:
        return where
    return run(Reshape((1,) * x.tensor_type.ndim), where) if flat else run(ExpandDims(axis), where)


def median(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """Return the median of all elements, or (values, indices) of the medians along axis `dim`.

    The median of an even number of elements is the lower one in the middle.  A median is NaN if an element is NaN.
    The median of a floating point tensor without elements is NaN.
    Raises: ShapeError for an empty axis, or an empty tensor of integers.
    """
    if dim is None and not x.tensor_type.size and x.tensor_type.dtype.is_float:
        return run(Shift(math.nan), sum(x))
    row = x if dim is not None and x.tensor_type.ndim else run(Reshape((x.tensor_type.size,)), x)
    axis = 0 if dim is None else axis_of("median", x, dim)
    check_filled("median", row.tensor_type, (axis,))
    values, indices = run_several(Sort(axis), row)
    middle, last = (_at(axis, i, values, indices) for i in ((row.tensor_type.shape[axis] - 1) // 2, row.tensor_type.shape[axis] - 1))
    if x.tensor_type.dtype.is_float:  # NaN is sorted to the end
        missing = run(NotEqual(), last[0], last[0])
        middle = [run(Where(), missing, end, element) for end, element in zip(last, middle, strict=True)]
    if dim is None:
        return run(Squeeze((0,)), middle[0])
    gone = () if keepdim and x.tensor_type.ndim else (axis,)
    return Extreme(*(run(Squeeze(gone), each) if gone else each for each in middle))


def _at(axis: int, position: int, *tensors: Tensor) -> list[Tensor]:
    """Return the slice of each tensor at index `position` of an axis, with this axis of size 1."""
    shape = tensors[0].tensor_type.shape
    first = tuple(position if i == axis else 0 for i in range(len(shape)))
    behind = tuple(position + 1 if i == axis else n for i, n in enumerate(shape))
    return [run(Slice(first, behind, (1,) * len(shape)), x) for x in tensors]


# -------------------------------------------------------------------- truth


def _axes_of_truth(what: str, x: Tensor, dim: Dim) -> tuple[int, ...]:
    """Return the axes `dim` in ascending order, as `axes_of` does, except that an empty sequence selects no axes."""
    return () if isinstance(dim, Sequence) and not len(dim) else axes_of(what, x, dim)


def all(x: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Return a bool tensor, True where all elements over `dim`, by default over all axes, are nonzero."""
    return _reduced(ReduceAll, truth(x), _axes_of_truth("all", x, dim), keepdim)


def any(x: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Return a bool tensor, True where at least one element over `dim`, by default over all axes, is nonzero."""
    return _reduced(ReduceAny, truth(x), _axes_of_truth("any", x, dim), keepdim)


# -------------------------------------------------------------------- spread and size


@rounded_once
def var(x: Tensor, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, correction: int | None = None) -> Tensor:
    """Return the variance over `dim`: the sum of squared distances from the mean, divided by n - 1 if `unbiased`, else by n.

    n is the number of elements.  With `correction`, the divisor is n - correction.
    Raises: DtypeError unless x is a floating point tensor.
    """
    return cast(_variance("var", x, dim, unbiased, keepdim, correction), x.tensor_type.dtype)


def _variance(what: str, x: Tensor, dim: Any, unbiased: bool, keepdim: bool, correction: int | None) -> Tensor:
    """Return the variance in float64, because rounding the mean to float32 can exceed a small variance, and squares overflow in float32."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    x = cast(_floats(what, x), float64)
    axes = axes_of(what, x, dim)
    less = int(unbiased) if correction is None else correction
    count = math.prod(x.tensor_type.shape[i] for i in axes) - less
    distance = run(Subtract(), x, mean(x, axes, keepdim=True)) if axes else run(Scale(0.0), x)
    squares = _reduced(ReduceSum, run(Square(), distance), axes, keepdim)
    return run(DivideBy(count), squares) if count > 0 else run(Divide(), squares, constant(squares, 0, float64))


@rounded_once
def std(x: Tensor, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, correction: int | None = None) -> Tensor:
    """Return the standard deviation over `dim`, the square root of `var`, with gradient 0 where the variance is 0."""
    return cast(_deviation(_variance("std", x, dim, unbiased, keepdim, correction)), x.tensor_type.dtype)


@composed
def _deviation(variance: Tensor) -> Value:
    return root(variance)


@rounded_once
def var_mean(x: Tensor, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, correction: int | None = None) -> tuple[Tensor, Tensor]:
    """Return a pair of the variance and the mean over `dim`; see `var`."""
    return var(x, dim, unbiased, keepdim, correction=correction), mean(x, None if isinstance(dim, bool) else dim, keepdim)


@rounded_once
def std_mean(x: Tensor, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, correction: int | None = None) -> tuple[Tensor, Tensor]:
    """Return a pair of the standard deviation and the mean over `dim`; see `std`."""
    return std(x, dim, unbiased, keepdim, correction=correction), mean(x, None if isinstance(dim, bool) else dim, keepdim)


@rounded_once
def logsumexp(x: Tensor, dim: Dim, keepdim: bool = False) -> Tensor:
    """Return log(sum(exp(x))) over `dim`, computed without overflow of exp."""
    x = as_float(x)
    axes = axes_of("logsumexp", x, dim)
    if not axes:
        return x
    largest = run(Detach(), run(ReduceMax(axes, True), x))
    finite = run(
        Where(),
        run(Equal(), run(Absolute(), largest), constant(largest, math.inf, x.tensor_type.dtype)),
        constant(largest, 0, x.tensor_type.dtype),
        largest,
    )
    total = run(ReduceSum(axes, True), run(Exp(), run(Subtract(), x, finite)))
    result: Tensor = run(Add(), run(Log(), total), finite)
    return result if keepdim else run(Squeeze(axes), result)


def norm(x: Tensor, p: float | str | None = "fro", dim: Dim = None, keepdim: bool = False, *, dtype: DType | None = None) -> Tensor:
    """Return the vector norm (sum |x|^p)^(1/p) over `dim`, by default over all axes.

    `p="fro"` means p = 2, and `p="nuc"` the sum of the singular values of a matrix.
    For p = inf and p = -inf, return the largest and the smallest |x|; for p = 0, the number of nonzero elements.
    Raises: ArgumentError for another string, DtypeError unless x is a floating point tensor.
    """
    x = cast(x, dtype) if dtype else _floats("norm", x)
    if p == "nuc":
        from jobflow.functional.linalg_functions import matrix_norm  # late: linear algebra uses reductions

        return matrix_norm(x, "nuc", tuple(range(x.ndim)) if dim is None else dim, keepdim)  # type: ignore[arg-type]
    axes = axes_of("norm", x, dim)
    p = 2 if p in (None, "fro") else float("inf") if p == "inf" else p
    if not isinstance(p, int | float):
        raise ArgumentError(f'norm at {user_line()}: p={p!r} is not an order of a norm; use a number, "fro", "nuc" or inf')
    if math.isinf(p):
        check_filled("norm", x.tensor_type, axes)
    return _norm(x, float(p), axes, keepdim)


@composed
def _norm(x: Tensor, p: float, axes: tuple[int, ...], keepdim: bool) -> Value:
    return vector_norm(x, p, axes, keepdim)


class ReductionMethods:
    """Reductions as methods of tensors."""

    __slots__ = ()

    all = method(all)
    amax = method(amax)
    amin = method(amin)
    any = method(any)
    argmax = method(argmax)
    argmin = method(argmin)
    count_nonzero = method(count_nonzero)
    cumprod = method(cumprod)
    cumsum = method(cumsum)
    logsumexp = method(logsumexp)
    max = method(max)
    mean = method(mean)
    median = method(median)
    min = method(min)
    nansum = method(nansum)
    norm = method(norm)
    prod = method(prod)
    std = method(std)
    std_mean = method(std_mean)
    sum = method(sum)
    var = method(var)
    var_mean = method(var_mean)
