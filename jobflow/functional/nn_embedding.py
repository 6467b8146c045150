"""Embeddings: lookups of rows of a table, and sums, means and maxima of bags of rows.

Gradients are tensors with the shape of the table.  Graphs and compiled functions update large tables only at the rows that were read.
"""

from __future__ import annotations

import math

from jobflow.core.errors import ArgumentError, DtypeError, JobError, ShapeError, user_line
from jobflow.core.types import Tensor as Value
from jobflow.core.types import int64
from jobflow.functional.nn_base import assign, composed, formula, one_of, real, whole
from jobflow.functional.nn_linear import asserted, length
from jobflow.functional.promotion import rounded_once
from jobflow.functional.reductions import max as largest
from jobflow.functional.selecting import index_select
from jobflow.functional.sorting import argsort
from jobflow.functional.typed import Tensor
from jobflow.ops import elementwise as ew
from jobflow.ops import reduce as rd
from jobflow.ops import shape as sh
from jobflow.ops.index import dim_gather, gather, unsorted_segment_sum
from jobflow.ops.runtime_assertions import RuntimeAssertion, row_assertion
from jobflow.ops.scan import cumsum
from jobflow.tensors.run import run
from jobflow.tensors.state import gradients, state

__all__ = ["embedding", "embedding_bag"]

MODES = ("sum", "mean", "max")


# ------------------------------------------------------------------------ rows


def _checked_padding(what: str, weight: Tensor, padding_idx: int | None) -> int | None:
    """Return `padding_idx` as a nonnegative index of a row of the weight; raise ArgumentError if it is out of range."""
    count = weight.tensor_type.shape[0]
    if padding_idx is not None and not -count <= whole(what, "padding_idx", padding_idx) < count:
        raise ArgumentError(
            f"{what} at {user_line()}: padding_idx {padding_idx} is out of range, {-count} to {count - 1}, for weight {weight.tensor_type}"
        )
    return None if padding_idx is None else padding_idx % count


def _times_read(ids: Value, count: int) -> Value:
    """Return how often each of `count` rows is read, as int64."""
    return unsorted_segment_sum(ew.fill_like(ids, 1, dtype=int64), ids, count)


@formula
def _limited(weight: Tensor, ids: Tensor, most: float, p: float) -> Value:
    """Return the weight with the rows `ids` scaled to a p-norm of at most `most`, where their norm is larger."""
    rows, axes = weight.tensor_type.shape[0], tuple(range(1, weight.tensor_type.ndim))
    norm, times = length(weight, axes, p, False), _times_read(ids, rows)
    changed = ew.logical_and(ew.greater(times, ew.fill_like(times, 0)), ew.greater(norm, ew.fill_like(norm, most)))
    factor = ew.where(changed, ew.divide(ew.fill_like(norm, most), ew.shift(norm, 1e-7)), ew.fill_like(norm, 1.0))
    return ew.multiply(weight, sh.reshape(factor, (rows, *(1,) * len(axes))))


@composed
def _looked_up(ids: Tensor, weight: Tensor, padding: int | None, by_frequency: bool, limited: Tensor | None) -> Value:
    """Return the rows `ids` of the weight, or of `limited` if it is passed; the gradient is that of a lookup in the weight.

    The gradient excludes row `padding`, and is divided by the count of each row with `by_frequency`.
    """
    rows = gather(weight, ids, 0)
    fixed, ones = ew.detach(rows), (*ids.tensor_type.shape, *(1,) * (weight.tensor_type.ndim - 1))
    if by_frequency:
        times = ew.cast(gather(_times_read(ids, weight.tensor_type.shape[0]), ids, 0), weight.tensor_type.dtype)
        rows = ew.add(fixed, ew.divide(ew.subtract(rows, fixed), sh.reshape(times, ones)))
    if limited is not None:
        rows = ew.add(gather(limited, ids, 0), ew.subtract(rows, fixed))
    if padding is None:
        return rows
    skipped = sh.reshape(ew.equal(ids, ew.fill_like(ids, padding)), ones)
    return ew.where(skipped, ew.detach(rows), rows)


def _rows(what: str, ids: Tensor, weight: Tensor, padding: int | None, max_norm: float | None, norm_type: float, by_frequency: bool) -> Tensor:
    """Return the rows `ids`; with `max_norm`, rows of the weight with a larger norm are scaled to it, in place."""
    p = real(what, "norm_type", norm_type)
    if max_norm is None:
        return _looked_up(ids, weight, padding, bool(by_frequency), None)
    with gradients(False):
        limited = _limited(weight.detach(), ids, real(what, "max_norm", max_norm), p)
    rows = _looked_up(ids, weight, padding, bool(by_frequency), limited)
    with gradients(False):
        assign(state(), weight, limited, what)
    return rows


def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Return weight[input], one row per index; row `padding_idx` receives no gradient.  The rows of the weight may be split.

    With `max_norm`, rows with a larger `norm_type`-norm are first scaled to it, in place.  `scale_grad_by_freq` divides the gradient of a row by
    the number of its occurrences.  `sparse` has no effect, because gradients have the shape of the weight.
    Raises: ArgumentError for an index out of range, DtypeError for indices that are not integers, ShapeError for a weight without axes.
    """
    if not weight.tensor_type.ndim:
        raise ShapeError(f"embedding at {user_line()}: weight {weight.tensor_type} must be [rows, size of a row]")
    input = asserted(input, row_assertion("embedding", weight.tensor_type.shape[0]))
    padding = _checked_padding("embedding", weight, padding_idx)
    return _rows("embedding", input, weight, padding, max_norm, norm_type, scale_grad_by_freq)


# ------------------------------------------------------------------------ bags


@composed
def _bag_of_each(offsets: Tensor, count: int) -> Value:
    """Return the bag of each of `count` indices: the number of offsets up to its position, minus 1."""
    return ew.shift(cumsum(_times_read(offsets, count), 0), -1)


@composed
def _in_bags(x: Tensor, bags: Tensor | None, count: int) -> Value:
    """Return the sum of x over each of `count` bags; without `bags`, axis 1 of x is a bag."""
    return rd.reduce_sum(x, (1,)) if bags is None else unsorted_segment_sum(x, bags, count)


@composed
def _visible(rows: Tensor, ids: Tensor, padding: int, value: float) -> Value:
    """Return `rows`, with `value` in each row whose index in `ids` is `padding`."""
    hidden = sh.reshape(ew.equal(ids, ew.fill_like(ids, padding)), (*ids.tensor_type.shape, 1))
    return ew.where(hidden, ew.fill_like(rows, value), rows)


@composed
def _sizes(ids: Tensor, bags: Tensor | None, count: int, padding: int | None) -> Value:
    """Return the number of indices in each bag that differ from `padding`, as [count, 1]."""
    ones = ew.fill_like(ids, 1, dtype=int64)
    if padding is not None:
        ones = ew.where(ew.equal(ids, ew.fill_like(ids, padding)), ew.fill_like(ones, 0), ones)
    total = rd.reduce_sum(ones, (1,)) if bags is None else unsorted_segment_sum(ones, bags, count)
    return sh.reshape(total, (count, 1))


@composed
def _weighted(rows: Tensor, factors: Tensor) -> Value:
    return ew.multiply(rows, sh.reshape(factors, (*factors.tensor_type.shape, 1)))


@composed
def _means(total: Tensor, sizes: Tensor) -> Value:
    return ew.divide(total, ew.cast(ew.clip(sizes, 1, None), total.tensor_type.dtype))


@composed
def _filled_only(y: Tensor, sizes: Tensor) -> Value:
    """Return y with zeros in the rows of empty bags."""
    return ew.where(ew.greater(sizes, ew.fill_like(sizes, 0)), y, ew.fill_like(y, 0.0))


@composed
def _picked(order: Tensor, indices: Tensor) -> Value:
    return dim_gather(order, indices, 0)


def _maxima(rows: Tensor, bags: Tensor | None, offsets: Tensor | None) -> Tensor:
    """Return the largest row elements of each bag.

    Rows are sorted by value, then by bag, so that the first row of each bag has its maximum.
    """
    if bags is None or offsets is None:
        return rows.sum(1) if not rows.shape[1] else largest(rows, 1)[0]
    if not rows.shape[0]:
        return _in_bags(rows, bags, offsets.shape[0])
    with gradients(False):
        by_value = argsort(rows.detach(), 0, descending=True)
        at = index_select(bags, 0, by_value.reshape(-1)).reshape(by_value.shape)
        order = _picked(by_value, argsort(at, 0))
        first = index_select(order, 0, offsets.clamp(max=rows.shape[0] - 1))
    return _picked(rows, first)


def _check_bags(ids: Tensor, weight: Tensor, offsets: Tensor | None, factors: Tensor | None) -> None:
    what = f"embedding_bag at {user_line()}"
    i, w = ids.tensor_type, weight.tensor_type
    if w.ndim != 2 or not w.dtype.is_float:
        raise ShapeError(f"{what}: weight {w} must be a floating point tensor [rows, size of a row]")
    if i.ndim not in (1, 2):
        raise ShapeError(f"{what}: input {i} must be a vector of indices with offsets, or a matrix with one bag per row")
    if i.ndim == 2 and offsets is not None:
        raise ArgumentError(f"{what}: input {i} has one bag per row; omit offsets, or pass a vector as input")
    if i.ndim == 1 and (offsets is None or offsets.tensor_type.ndim != 1):
        got = "None" if offsets is None else str(offsets.tensor_type)
        raise ShapeError(f"{what}: offsets is {got}; pass a vector with the position in input {i} at which each bag starts")
    if offsets is not None and not offsets.tensor_type.dtype.is_integer:
        raise DtypeError(f"{what}: offsets {offsets.tensor_type} must be integers")
    if factors is not None and factors.tensor_type.shape != i.shape:
        raise ShapeError(f"{what}: per_sample_weights {factors.tensor_type} must have the shape of input {i}")
    if factors is not None and factors.tensor_type.dtype is not w.dtype:
        raise DtypeError(f"{what}: per_sample_weights {factors.tensor_type} must have the element type of weight {w}; cast one of them")


def _check_mode(mode: str, factors: Tensor | None, by_frequency: bool, sparse: bool) -> None:
    one_of("embedding_bag", "mode", mode, MODES)
    what = f"embedding_bag at {user_line()}"
    if factors is not None and mode != "sum":
        raise JobError(f'{what}: per_sample_weights requires mode="sum"; got mode={mode!r}')
    for name, option in (("scale_grad_by_freq", by_frequency), ("sparse", sparse)):
        if mode == "max" and option:
            raise ArgumentError(f'{what}: {name}=True is not available with mode="max"; omit it')


def _checked_offsets(offsets: Tensor, count: int) -> Tensor:
    """Return offsets with runtime assertions: they begin with 0, do not decrease, and are at most `count`."""
    if not offsets.shape[0]:
        return offsets
    first = run(RuntimeAssertion("embedding_bag", "offset", 0, 0, problem="must be 0, the start of the first bag"), offsets[:1])
    rest = run(RuntimeAssertion("embedding_bag", "offset", 0, count, problem=f"is outside [0, {count}], the positions in input"), offsets)
    if offsets.shape[0] > 1:
        problem = "is the step from an offset to the next; offsets must not decrease"
        first = first + run(RuntimeAssertion("embedding_bag", "difference", 0, problem=problem), rest[1:] - rest[:-1])[:1] * 0
    return rest + first.sum()


@rounded_once
def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """Return the sum, mean or maximum (`mode`) of the rows of each bag of indices; an empty bag yields zeros.

    `input` is a matrix with one bag per row, or a vector whose bags start at the positions `offsets`.  With `include_last_offset`, the last offset
    is the end of the last bag.  `per_sample_weights` are factors of the rows with mode="sum".  Indices equal to `padding_idx` are skipped.
    `embedding` describes the other arguments.
    Raises: ArgumentError, ShapeError, DtypeError for invalid indices, offsets and options; JobError for `per_sample_weights` in other modes.
    """
    if input.dtype.is_float and weight.dtype.is_integer:  # the order of these arguments in earlier versions of PyTorch
        input, weight = weight, input
    _check_bags(input, weight, offsets, per_sample_weights)
    _check_mode(mode, per_sample_weights, scale_grad_by_freq, sparse)
    padding = _checked_padding("embedding_bag", weight, padding_idx)
    input = asserted(input, row_assertion("embedding_bag", weight.tensor_type.shape[0]))
    count, bags = input.tensor_type.shape[0], None
    if offsets is not None:
        if include_last_offset and not offsets.shape[0]:
            raise ShapeError(f"embedding_bag at {user_line()}: offsets {offsets.tensor_type} lack the last offset; omit include_last_offset")
        offsets = _checked_offsets(offsets, count)
        offsets = offsets[:-1] if include_last_offset else offsets
        bags, count = _bag_of_each(offsets, count), offsets.tensor_type.shape[0]
    rows = _rows("embedding_bag", input, weight, padding, max_norm, norm_type, scale_grad_by_freq)
    if per_sample_weights is not None:
        rows = _weighted(rows, per_sample_weights)
    if padding is not None:
        rows = _visible(rows, input, padding, -math.inf if mode == "max" else 0.0)
    if mode == "sum":
        return _in_bags(rows, bags, count)
    sizes = _sizes(input, bags, count, padding)
    if mode == "mean":
        return _means(_in_bags(rows, bags, count), sizes)
    return _filled_only(_maxima(rows, bags, offsets), sizes)
