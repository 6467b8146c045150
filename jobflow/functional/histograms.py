"""Counts, histograms, searches in sorted rows, and membership."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jobflow.core.errors import ArgumentError, DtypeError, JobError, ShapeError, user_line
from jobflow.core.types import bool_, float32, float64, int32, int64
from jobflow.functional.argument_checks import check_size, checks_arguments
from jobflow.functional.binary_functions import add, div, mul, sub
from jobflow.functional.comparing import eq, ge, le, logical_and, logical_not, where
from jobflow.functional.dispatch import method
from jobflow.functional.global_tensors import value_of
from jobflow.functional.indexing import checked_indices, listed
from jobflow.functional.promotion import Operand, cast, constant, kind, pair, rounded_once
from jobflow.functional.reductions import amax, amin, cumsum
from jobflow.functional.reductions import sum as total
from jobflow.functional.selecting import gather
from jobflow.functional.shapes import axis_of, expand, flatten, reshape
from jobflow.functional.sorting import sort
from jobflow.functional.typed import Tensor
from jobflow.functional.unary_functions import clamp, clamp_max, floor
from jobflow.ops.index import UnsortedSegmentSum
from jobflow.ops.runtime_assertions import RuntimeAssertion
from jobflow.ops.scalar import Detach, FillLike
from jobflow.ops.search import SearchSorted
from jobflow.tensors.run import run
from jobflow.tensors.state import running

__all__ = [
    "bincount", "bucketize", "histc", "histogram", "isin", "searchsorted", "unique_consecutive",
]  # fmt: skip


# -------------------------------------------------------------------- sorted rows


@checks_arguments
def searchsorted(
    sorted_sequence: Tensor,
    values: Operand,
    right: bool = False,
    *,
    out_int32: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """Return the indices at which `values` would be inserted into the ascending rows of `sorted_sequence`, int64 or with `out_int32` int32.

    The rows are the last axis; a vector is the row of all values.  The indices precede equal elements, or follow them with `right` or
    side="right".  `sorter` has the indices that sort the rows, as `argsort` returns them.
    Raises: ShapeError for different leading axes, ArgumentError for another `side`.
    """
    what = "searchsorted"
    if side not in (None, "left", "right") or (side == "left" and right):
        remedy = 'right=True is side="right"; pass one of them' if side == "left" else 'pass "left" or "right"'
        raise ArgumentError(f"{what} at {user_line()}: side={side!r} cannot be combined with right={right}; {remedy}")
    if not sorted_sequence.ndim:
        raise ShapeError(f"{what} at {user_line()}: sorted_sequence {sorted_sequence.tensor_type} has no axis; pass a vector")
    if sorter is not None:
        sorted_sequence = _in_order(what, sorted_sequence, sorter)
    rows, targets = pair(what, sorted_sequence, values)
    if rows.ndim > 1 and rows.shape[:-1] != targets.shape[:-1]:
        raise ShapeError(
            f"{what} at {user_line()}: sorted_sequence {rows.tensor_type} must be a vector, or have the leading axes of values {targets.tensor_type}"
        )
    dtype = int32 if out_int32 else int64
    return run(SearchSorted(bool(right) or side == "right", dtype), run(Detach(), rows), run(Detach(), targets))


def _in_order(what: str, rows: Tensor, sorter: Tensor) -> Tensor:
    if sorter.shape != rows.shape or sorter.dtype is not int64:
        raise ShapeError(
            f"{what} at {user_line()}: sorter {sorter.tensor_type} must be int64 and have the shape of sorted_sequence {rows.tensor_type}; "
            "pass argsort(sorted_sequence)"
        )
    return gather(rows, -1, sorter)


@checks_arguments
def bucketize(input: Operand, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    """Return the index of the bucket of each element of `input`; `boundaries` is an ascending vector.

    Bucket i contains the elements x with boundaries[i-1] < x <= boundaries[i], or with `right` boundaries[i-1] <= x < boundaries[i].
    Raises: ShapeError unless `boundaries` is a vector.
    """
    if boundaries.ndim != 1:
        raise ShapeError(f"bucketize at {user_line()}: boundaries must be a vector; got {boundaries.tensor_type}")
    return searchsorted(boundaries, input, right, out_int32=out_int32)


@checks_arguments
def isin(elements: Operand, test_elements: Operand, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    """Return a bool tensor, True where an element is one of `test_elements`; with `invert`, False there.

    `assume_unique` has no effect.
    """
    x, tests = pair("isin", elements, test_elements)
    if not tests.tensor_type.size:
        return run(FillLike(bool(invert), bool_), x)
    ordered = sort(flatten(tests), 0).values
    at = clamp_max(searchsorted(ordered, x), tests.tensor_type.size - 1)
    member = eq(reshape(gather(ordered, 0, flatten(at)), x.shape), x)
    return logical_not(member) if invert else member


# -------------------------------------------------------------------- counts


@checks_arguments
def bincount(x: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """Return the number of occurrences of each number 0, 1, 2, ... in the vector x, or the sum of their `weights`.

    The result has at least `minlength` elements.  All ranks must call this function.
    Raises: JobError during tracing, because the largest element is unknown; ArgumentError for negative elements.
    """
    what = "bincount"
    if x.ndim != 1 or kind(x.dtype) != 1 or minlength < 0:
        raise ArgumentError(f"{what} at {user_line()}: x must be a vector of integers and minlength >= 0; got {x.tensor_type}, minlength={minlength}")
    check_size(what, "minlength", minlength)
    if weights is not None and weights.shape != x.shape:
        raise ShapeError(f"{what} at {user_line()}: weights {weights.tensor_type} must have the shape of x {x.tensor_type}")
    if x.traced is not None:
        raise JobError(f"{what} at {user_line()}: the largest element is not known while {running()} runs; use one_hot(x, n).sum(0) there")
    values = value_of(x, what)
    if values.size and values.min() < 0:
        raise ArgumentError(f"{what} at {user_line()}: element {values.min()} of x is negative; pass integers from 0 on")
    count = max(int(values.max()) + 1 if values.size else 0, int(minlength))
    addends = run(FillLike(1, int64), x) if weights is None else weights if weights.dtype in (float32, float64) else cast(weights, float64)
    return run(UnsortedSegmentSum(0, count), addends, checked_indices(x, count, what) if count else cast(x, int64))


def _bounds(what: str, x: Tensor, low: float, high: float, margin: float) -> tuple[Tensor, Tensor]:
    """Return the ends of a histogram as tensors; for equal bounds, the smallest and the largest element.

    Ends that are equal move apart by `margin` each.
    """
    if not low <= high or low == -float("inf") or high == float("inf"):
        raise ArgumentError(f"{what} at {user_line()}: the range [{low}, {high}] is not finite or not ascending; pass min < max")
    if low < high or not x.tensor_type.size:
        return constant(x, low, x.dtype), constant(x, high if low < high else low + 1, x.dtype)
    detached = run(Detach(), x)
    finite = RuntimeAssertion(what, "end of the range", low=-x.dtype.largest, high=x.dtype.largest)
    smallest, largest = (run(finite, function(detached)) for function in (amin, amax))
    same = eq(smallest, largest)
    return where(same, sub(smallest, margin), smallest), where(same, add(largest, margin), largest)


@checks_arguments
@rounded_once
def histc(x: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """Return the number of elements in each of `bins` equal intervals of [min, max]; other elements are ignored.

    If `min` equals `max`, the range is that of the elements.
    Raises: DtypeError unless x is a floating point tensor; ArgumentError for bins < 1, min > max or an infinite range.
    """
    if bins < 1:
        raise ArgumentError(f"histc at {user_line()}: bins must be at least 1; got {bins}")
    check_size("histc", "bins", bins)
    if not x.dtype.is_float:
        raise DtypeError(f"histc at {user_line()}: the tensor must have a floating point type; got {x.tensor_type}; use x.float()")
    low, high = _bounds("histc", x, float(min), float(max), 1)
    flat = run(Detach(), flatten(x))
    at = floor(mul(sub(flat, low), div(float(bins), sub(high, low))))
    at = where(logical_and(ge(flat, low), le(flat, high)), clamp(at, 0, bins - 1), float(bins))
    return run(UnsortedSegmentSum(0, int(bins)), run(FillLike(1), flat), cast(at, int64))


class Histogram(NamedTuple):
    """The values of a histogram, and the edges of its bins."""

    hist: Tensor
    bin_edges: Tensor


@checks_arguments
def histogram(x: Tensor, bins: Any, *, range: Sequence[float] | None = None, weight: Tensor | None = None, density: bool = False) -> Histogram:
    """Return (hist, bin_edges): the number of elements, or the sum of their weights, in each bin; the last bin includes both of its ends.

    `bins` is the number of equal bins in `range`, by default that of the elements, or an ascending vector of edges.
    With `density`, the integral of the histogram is 1.  Raises: DtypeError unless x is float32 or float64.
    """
    what = "histogram"
    if not x.dtype.is_float or x.dtype.is_half:
        raise DtypeError(f"{what} at {user_line()}: the tensor must be float32 or float64; got {x.tensor_type}; use x.float()")
    if weight is not None and (weight.shape != x.shape or weight.dtype is not x.dtype):
        raise ShapeError(f"{what} at {user_line()}: weight {weight.tensor_type} must have the shape and type of x {x.tensor_type}")
    edges = _edges(what, x, bins, range)
    count = edges.shape[0] - 1
    flat = run(Detach(), flatten(x))
    at = sub(searchsorted(edges, flat, True), 1)
    at = where(eq(flat, edges[count]), count - 1, at)
    addends = run(FillLike(1), flat) if weight is None else run(Detach(), flatten(weight))
    values = run(UnsortedSegmentSum(0, count), addends, at)
    return Histogram(div(div(values, total(values)), sub(edges[1:], edges[:-1])) if density else values, edges)


def _edges(what: str, x: Tensor, bins: Any, range: Sequence[float] | None) -> Tensor:
    """Return the edges of the bins as a vector of the type of x."""
    if isinstance(bins, Tensor):
        if bins.ndim != 1 or bins.dtype is not x.dtype or bins.shape[0] < 2 or range is not None:
            raise ArgumentError(
                f"{what} at {user_line()}: bins must be a vector of at least two edges of the type of {x.tensor_type}, without range; "
                f"got {bins.tensor_type} and range={range}"
            )
        return run(Detach(), bins)
    if isinstance(bins, bool) or not isinstance(bins, int | np.integer) or bins < 1:
        raise ArgumentError(f"{what} at {user_line()}: bins={bins!r} must be a number of bins >= 1, or a vector of edges")
    check_size(what, "bins", int(bins))
    if range is not None and len(range) != 2:
        raise ArgumentError(f"{what} at {user_line()}: range={range} must be two numbers, the ends of the bins")
    first, last = (0.0, 0.0) if range is None else range
    low, high = _bounds(what, x, float(first), float(last), 0.5)
    ones = expand(run(FillLike(1), reshape(low, 1)), int(bins) + 1)
    shares = div(sub(cumsum(ones, 0), 1), float(bins))
    return add(mul(sub(1.0, shares), low), mul(shares, high))


# -------------------------------------------------------------------- runs of equal elements


@checks_arguments
def unique_consecutive(x: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None) -> Any:
    """Return the first element of each run of equal elements, or of equal slices along axis `dim`.

    `return_inverse` adds the index of each input element in the result, and `return_counts` the length of each run.  All ranks must call
    this function.  Raises: JobError during tracing, because the number of runs is unknown.
    """
    what = "unique_consecutive"
    if x.traced is not None:
        raise JobError(f"{what} at {user_line()}: the number of runs is not known while {running()} runs; call {what} outside of {running()}")
    axis = 0 if dim is None else axis_of(what, dim, x.ndim)
    values = value_of(x, what)
    rows = values.reshape(-1) if dim is None or not x.ndim else np.moveaxis(values, axis, 0)
    starts = np.ones(len(rows), bool)
    if len(rows) > 1:
        starts[1:] = (rows[1:] != rows[:-1]).reshape(len(rows) - 1, -1).any(1)
    first = rows[starts]
    inverse = (np.cumsum(starts) - 1).astype(np.int64)
    counts = np.diff(np.append(np.flatnonzero(starts), len(rows))).astype(np.int64)
    parts = [first if dim is None or not x.ndim else np.moveaxis(first, 0, axis)]
    parts += [inverse.reshape(values.shape) if dim is None or not x.ndim else inverse] if return_inverse else []
    parts += [counts] if return_counts else []
    results = tuple(listed(x, np.array(part, order="C")) for part in parts)
    return results if len(results) > 1 else results[0]


class CountingMethods:
    """Counts and histograms as methods of tensors."""

    __slots__ = ()

    bincount = method(bincount)
    histc = method(histc)
    histogram = method(histogram)
    isin = method(isin)
    searchsorted = method(searchsorted)
    unique_consecutive = method(unique_consecutive)
