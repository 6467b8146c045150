"""Running extremes, quantiles, most frequent elements, and statistics without NaN."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from jobflow.core.errors import ArgumentError, DtypeError, ShapeError, user_line
from jobflow.core.types import DType, bool_, int64
from jobflow.functional.argument_checks import checks_arguments
from jobflow.functional.binary_functions import add, div, floor_divide, mul, sub
from jobflow.functional.casting import named
from jobflow.functional.comparing import eq, where
from jobflow.functional.dispatch import method
from jobflow.functional.joining import cat
from jobflow.functional.promotion import cast, constant, rounded_once
from jobflow.functional.reductions import Dim, Extreme, amax, amin, any, argmax, axes_of, cumsum, nansum, sum
from jobflow.functional.selecting import gather
from jobflow.functional.shapes import axis_of, expand, flatten, movedim, reshape, squeeze, unsqueeze
from jobflow.functional.sorting import sort
from jobflow.functional.typed import Tensor
from jobflow.functional.unary_functions import ceil, clamp_min, floor, isnan
from jobflow.functional.unary_functions import round as rounded
from jobflow.ops.running_extremes import CumExtreme, LogCumSumExp
from jobflow.ops.runtime_assertions import RuntimeAssertion
from jobflow.ops.scalar import FillLike
from jobflow.tensors.run import run, run_several

__all__ = [
    "aminmax", "cummax", "cummin", "logcumsumexp", "mode", "msort", "nanmean", "nanmedian", "nanquantile", "quantile",
]  # fmt: skip


class MinMax(NamedTuple):
    """The smallest and the largest elements."""

    min: Tensor
    max: Tensor


@checks_arguments
def aminmax(x: Tensor, *, dim: int | None = None, keepdim: bool = False) -> MinMax:
    """Return (min, max): the smallest and the largest elements along axis `dim`, by default of all elements.

    Raises: ShapeError for an empty axis.
    """
    return MinMax(amin(x, dim, bool(keepdim)), amax(x, dim, bool(keepdim)))


def _running(what: str, x: Tensor, dim: int, largest: bool) -> Extreme:
    axis = axis_of(what, dim, x.ndim)
    if not x.ndim:
        return Extreme(*(reshape(y, ()) for y in _running(what, reshape(x, 1), 0, largest)))
    return Extreme(*run_several(CumExtreme(axis, largest), x))


@checks_arguments
def cummax(x: Tensor, dim: int) -> Extreme:
    """Return (values, indices): the maximum of the elements up to each position of axis `dim`, and the index of its last occurrence."""
    return _running("cummax", x, dim, True)


@checks_arguments
def cummin(x: Tensor, dim: int) -> Extreme:
    """Return (values, indices): the minimum of the elements up to each position of axis `dim`, and the index of its last occurrence."""
    return _running("cummin", x, dim, False)


@checks_arguments
def logcumsumexp(x: Tensor, dim: int) -> Tensor:
    """Return the logarithm of the sum of exponentials of the elements up to each position of axis `dim`."""
    axis = axis_of("logcumsumexp", dim, x.ndim)
    if not x.dtype.is_float:
        raise DtypeError(f"logcumsumexp at {user_line()}: the tensor must have a floating point type; got {x.tensor_type}; use x.float()")
    return run(LogCumSumExp(axis), x) if x.ndim else reshape(run(LogCumSumExp(0), reshape(x, 1)), ())


def msort(x: Tensor) -> Tensor:
    """Return the elements sorted along the first axis, in ascending order."""
    return sort(x, 0).values


# -------------------------------------------------------------------- rows


def _numbered(x: Tensor, axis: int) -> Tensor:
    """Return the index of each element along `axis`, in the shape and layout of x."""
    return sub(cumsum(run(FillLike(1, int64), x), axis), 1)


def _filled_axis(what: str, x: Tensor, dim: int) -> int:
    """Return `dim` as a nonnegative axis; raise ShapeError if it is empty."""
    axis = axis_of(what, dim, x.ndim)
    if x.ndim and not x.shape[axis]:
        raise ShapeError(f"{what} at {user_line()}: axis {axis} of {x.tensor_type} is empty; pass a tensor with elements")
    return axis


def _selected(ordered: Extreme, at: Tensor, axis: int, keepdim: bool) -> Extreme:
    """Return the elements and indices of sorted rows at one position of each row."""
    results = (gather(each, axis, at) for each in ordered)
    return Extreme(*(each if keepdim else squeeze(each, axis) for each in results))


@checks_arguments
def mode(x: Tensor, dim: int = -1, keepdim: bool = False) -> Extreme:
    """Return (values, indices): the most frequent element along axis `dim`, the smallest of several, and the index of its last occurrence."""
    axis = _filled_axis("mode", x, dim)
    if not x.ndim:
        return Extreme(*(reshape(y, ()) for y in mode(reshape(x, 1), 0)))
    ordered = Extreme(*sort(x, axis))
    n, places = x.shape[axis], _numbered(x, axis)
    follows = eq(ordered.values.narrow(axis, 1, n - 1), ordered.values.narrow(axis, 0, n - 1))
    repeats = cat([run(FillLike(0, bool_), places.narrow(axis, 0, 1)), follows], axis)
    length = sub(places, cummax(where(repeats, 0, places), axis).values)
    return _selected(ordered, argmax(length, axis, True), axis, keepdim)


def _valid(x: Tensor) -> Tensor:
    """Return a bool tensor, False where an element is NaN."""
    return eq(x, x)


@checks_arguments
def nanmedian(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """Return the median of the elements that are not NaN; with `dim`, a pair (values, indices) along that axis.

    The median of an even number of elements is the lower of the two in the middle.  Without elements, the median is NaN.
    """
    if dim is None and not x.tensor_type.size and x.dtype.is_float:
        return add(sum(x), math.nan)
    if dim is None:
        return nanmedian(flatten(x), 0).values
    axis = _filled_axis("nanmedian", x, dim)
    if not x.ndim:
        return Extreme(*(reshape(y, ()) for y in nanmedian(reshape(x, 1), 0)))
    middle = clamp_min(floor_divide(sub(sum(_valid(x), axis, keepdim=True), 1), 2), 0)
    return _selected(Extreme(*sort(x, axis)), middle, axis, keepdim)


@rounded_once
def _nanmean(x: Tensor, dim: Dim, keepdim: bool) -> Tensor:
    return div(nansum(x, dim, keepdim), cast(sum(_valid(x), dim, keepdim), x.dtype))


@checks_arguments
def nanmean(x: Tensor, dim: Dim = None, keepdim: bool = False, *, dtype: DType | None = None) -> Tensor:
    """Return the mean over `dim`, by default over all axes, of the elements that are not NaN.

    Raises: DtypeError unless x is, or becomes by `dtype`, a floating point tensor.
    """
    x = cast(x, named("nanmean", dtype)) if dtype else x
    if not x.dtype.is_float:
        raise DtypeError(f"nanmean at {user_line()}: the tensor must have a floating point type; got {x.tensor_type}; use x.float()")
    axes_of("nanmean", x, dim)
    return _nanmean(x, dim, keepdim)


# -------------------------------------------------------------------- quantiles

#: interpolation between two elements -> the weight of the upper element, by the fraction of the position
_INTERPOLATIONS = ("linear", "lower", "higher", "midpoint", "nearest")


@checks_arguments
def quantile(x: Tensor, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear") -> Tensor:
    """Return the q-th quantiles along axis `dim`, by default of all elements; q is a number or a vector of numbers from 0 to 1.

    A vector of quantiles is the first axis of the result.  A row with NaN has the quantile NaN.  `interpolation` is "linear", "lower", "higher",
    "midpoint" or "nearest".  Raises: DtypeError unless x is float32 or float64, ArgumentError for another `interpolation` or q.
    """
    return _quantile("quantile", x, q, dim, keepdim, interpolation, False)


@checks_arguments
def nanquantile(x: Tensor, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear") -> Tensor:
    """Return the q-th quantiles of the elements that are not NaN; see `quantile`."""
    return _quantile("nanquantile", x, q, dim, keepdim, interpolation, True)


def _quantile(what: str, x: Tensor, q: Any, dim: int | None, keepdim: bool, interpolation: str, skips: bool) -> Tensor:
    if interpolation not in _INTERPOLATIONS:
        raise ArgumentError(f"{what} at {user_line()}: interpolation={interpolation!r} is not one of {', '.join(_INTERPOLATIONS)}")
    if not x.dtype.is_float or x.dtype.is_half:
        raise DtypeError(f"{what} at {user_line()}: the tensor must be float32 or float64; got {x.tensor_type}; use x.float()")
    shares = _shares(what, x, q)
    axis = _filled_axis(what, x, 0 if dim is None else dim)
    if not x.tensor_type.size:
        raise ShapeError(f"{what} at {user_line()}: {x.tensor_type} is empty; pass a tensor with elements")
    rows = flatten(x) if dim is None or not x.ndim else movedim(x, axis, -1)
    values = _between(sort(rows, -1).values, _ranks(rows, reshape(shares, shares.tensor_type.size), skips), interpolation)
    result = movedim(values, -1, 0) if shares.ndim else squeeze(values, -1)
    if keepdim and x.ndim:
        lead = (shares.tensor_type.size,) * shares.ndim
        result = reshape(result, (*lead, *(1,) * x.ndim)) if dim is None else unsqueeze(result, axis + shares.ndim)
    return result


def _shares(what: str, x: Tensor, q: Any) -> Tensor:
    """Return the quantiles q as a tensor of the type of x, with an assertion of their range."""
    if isinstance(q, Tensor):
        if q.dtype is not x.dtype or q.ndim > 1:
            raise DtypeError(f"{what} at {user_line()}: q must be a number, or a vector of the type of {x.tensor_type}; got {q.tensor_type}")
        return run(RuntimeAssertion(what, "q", low=0.0, high=1.0), q)
    if isinstance(q, bool) or not isinstance(q, int | float) or not 0 <= q <= 1:
        raise ArgumentError(f"{what} at {user_line()}: q={q!r} must be a number from 0 to 1, or a vector of such numbers")
    return constant(x, float(q), x.dtype)


def _ranks(rows: Tensor, shares: Tensor, skips: bool) -> Tensor:
    """Return the fractional positions of the quantiles in the sorted rows, [..., quantiles]; NaN for rows with NaN, unless `skips` ignores NaN."""
    n = rows.shape[-1]
    if skips:
        last = clamp_min(sub(sum(_valid(rows), -1, keepdim=True), 1), 0)
        return mul(cast(last, rows.dtype), shares)
    return where(any(isnan(rows), -1, keepdim=True), float(n - 1), mul(shares, float(n - 1)))


def _between(ordered: Tensor, ranks: Tensor, interpolation: str) -> Tensor:
    """Return the elements of sorted rows at the fractional positions `ranks`, by the given interpolation."""
    if interpolation == "nearest":
        return gather(ordered, -1, cast(rounded(ranks), int64))
    below, above = (gather(ordered, -1, cast(edge(ranks), int64)) for edge in (floor, ceil))
    if interpolation in ("lower", "higher"):
        return below if interpolation == "lower" else above
    weight = constant(ranks, 0.5, ranks.dtype) if interpolation == "midpoint" else sub(ranks, floor(ranks))
    return below.lerp(above, expand(weight, below.shape))


class OrderMethods:
    """Order statistics as methods of tensors."""

    __slots__ = ()

    aminmax = method(aminmax)
    cummax = method(cummax)
    cummin = method(cummin)
    logcumsumexp = method(logcumsumexp)
    mode = method(mode)
    msort = method(msort)
    nanmean = method(nanmean)
    nanmedian = method(nanmedian)
    nanquantile = method(nanquantile)
    quantile = method(quantile)
