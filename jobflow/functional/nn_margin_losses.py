"""Margin losses of classes, labels and triplets, and the distances of all pairs of rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from jobflow.core.errors import ArgumentError, DtypeError, ShapeError, user_line
from jobflow.core.types import Tensor as Value
from jobflow.core.types import int64
from jobflow.functional.nn_base import REDUCTIONS, composed, flag, formula, one_of, one_type, reduced
from jobflow.functional.nn_linear import length, pairwise_distance
from jobflow.functional.nn_losses import hinge, one_shape, reducing
from jobflow.functional.nn_windows import literal
from jobflow.functional.typed import Tensor
from jobflow.ops import activation as act
from jobflow.ops import elementwise as ew
from jobflow.ops import reduce as rd
from jobflow.ops import shape as sh
from jobflow.ops.index import dim_gather, gather, one_hot
from jobflow.ops.runtime_assertions import check, class_assertion
from jobflow.ops.scan import cumsum

__all__ = ["multi_margin_loss", "multilabel_margin_loss", "multilabel_soft_margin_loss", "pdist", "triplet_margin_with_distance_loss"]


def _rows(what: str, input: Tensor) -> Value:
    """Return scores [classes] or [n, classes] as [n, classes], and one score as [1, 1]; raise ShapeError for another number of axes."""
    t = input.tensor_type
    if t.ndim > 2 or not all(t.shape[-1:]):
        raise ShapeError(f"{what} at {user_line()}: input {t} must be scores [n, classes] or [classes] of at least one class")
    return input if t.ndim == 2 else sh.reshape(input, (1, max(t.size, 1)))


def _check_labels(what: str, target: Tensor, shape: tuple[int, ...]) -> None:
    if target.tensor_type.shape != shape or target.tensor_type.dtype is not int64:
        raise (ShapeError if target.tensor_type.shape != shape else DtypeError)(
            f"{what} at {user_line()}: target {target.tensor_type} must be int64 labels of shape {list(shape)}"
        )


@reducing
def multi_margin_loss(
    input: Tensor,
    target: Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Value:
    """Return the sum over the classes j other than y = target[i] of max(0, margin - input[i, y] + input[i, j])^p, divided by their number.

    `input` is [n, classes] or [classes].  `weight` has one element per class and multiplies the terms of its samples before the power.
    `reduction` is "mean", "sum" or "none".
    Raises: ArgumentError unless p is 1 or 2, or for a label that is not a class; ShapeError, DtypeError for arguments that do not match.
    """
    what = "multi_margin_loss"
    if p not in (1, 2):
        raise ArgumentError(f"{what} at {user_line()}: p must be 1 or 2; got {p!r}")
    x = _rows(what, input)
    n, classes = x.tensor_type.shape
    single = input.tensor_type.ndim == 1 and target.tensor_type.shape == (1,)
    _check_labels(what, target, (1,) if single else input.tensor_type.shape[:-1])
    if weight is not None and weight.tensor_type.shape != (classes,):
        raise ShapeError(f"{what} at {user_line()}: weight {weight.tensor_type} must have one element per class of input {input.tensor_type}")
    labels = check(class_assertion(what, classes), sh.reshape(target, (n, 1)))
    terms = hinge(ew.shift(ew.subtract(x, dim_gather(x, labels, 1)), margin))
    terms = ew.square(terms) if p == 2 else terms
    if weight is not None:
        terms = ew.multiply(terms, gather(weight, labels, 0))
    others = one_hot(sh.squeeze(labels, (1,)), classes, dtype=x.tensor_type.dtype, on=0.0, off=1.0)
    loss = ew.scale(rd.reduce_sum(ew.multiply(terms, others), (1,)), 1.0 / classes)
    return loss if input.tensor_type.ndim == 2 else sh.squeeze(loss, (0,))


@reducing
def multilabel_margin_loss(
    input: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean"
) -> Value:
    """Return the sum over labels y and classes j without a label of max(0, 1 - input[i, y] + input[i, j]), divided by the number of classes.

    `input` is [n, classes] or [classes].  The labels of row i are target[i] up to the first -1.  `reduction` is "mean", "sum" or "none".
    Raises: ArgumentError for a label that is neither a class nor -1; ShapeError, DtypeError for arguments that do not match.
    """
    what = "multilabel_margin_loss"
    x = _rows(what, input)
    n, classes = x.tensor_type.shape
    _check_labels(what, target, input.tensor_type.shape)
    labels = check(class_assertion(what, classes, -1), sh.reshape(target, (n, classes)))
    ended = cumsum(ew.cast(ew.less(labels, ew.fill_like(labels, 0)), int64), 1)
    labels = ew.where(ew.greater(ended, ew.fill_like(ended, 0)), ew.fill_like(labels, -1), labels)
    dtype = x.tensor_type.dtype
    each = one_hot(labels, classes, dtype=dtype)  # [n, label, class]; zeros where there is no label
    unlabeled = ew.shift(ew.negate(rd.reduce_max(each, (1,))), 1.0)
    scores = rd.reduce_sum(ew.multiply(each, sh.expand_dims(x, 1)), (2,), True)
    terms = hinge(ew.shift(ew.subtract(sh.expand_dims(x, 1), scores), 1.0))
    terms = ew.multiply(ew.multiply(terms, sh.expand_dims(unlabeled, 1)), rd.reduce_max(each, (2,), True))
    loss = ew.scale(rd.reduce_sum(terms, (1, 2)), 1.0 / classes)
    return loss if input.tensor_type.ndim == 2 else sh.squeeze(loss, (0,))


@one_type
@reducing
def multilabel_soft_margin_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Value:
    """Return the mean over the classes, the last axis, of -weight * (target * ln s(input) + (1 - target) * ln s(-input)), where s is the sigmoid.

    `reduction` is "mean", "sum" or "none".  Raises: ShapeError unless `input` and `target` have the same shape with at least one axis.
    """
    one_shape("multilabel_soft_margin_loss", input=input, target=target)
    t = input.tensor_type
    if not t.ndim or not t.shape[-1]:
        raise ShapeError(f"multilabel_soft_margin_loss at {user_line()}: input {t} must have a last axis of at least one class")
    negative = ew.multiply(ew.shift(ew.negate(target), 1.0), act.log_sigmoid(ew.negate(input)))
    loss = ew.negate(ew.add(ew.multiply(target, act.log_sigmoid(input)), negative))
    if weight is not None:
        loss = ew.multiply(loss, weight)
    return rd.reduce_mean(loss, (loss.tensor_type.ndim - 1,))


@composed
def _triplets(near: Tensor, far: Tensor, swapped: Tensor | None, margin: float, reduction: str) -> Value:
    what = "triplet_margin_with_distance_loss"
    if swapped is not None:
        far = ew.minimum(far, swapped)  # type: ignore[assignment]
    return reduced(what, hinge(ew.shift(ew.subtract(near, far), margin)), reduction)


def triplet_margin_with_distance_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    distance_function: Callable[[Tensor, Tensor], Tensor] | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """Return max(0, d(anchor, positive) - d(anchor, negative) + margin) with d = `distance_function`, by default `pairwise_distance`.

    `swap` replaces d(anchor, negative) by d(positive, negative) where this distance is smaller.  `reduction` is "mean", "sum" or "none".
    Raises: ArgumentError unless margin > 0; ShapeError unless the three tensors have the same number of axes.
    """
    what = "triplet_margin_with_distance_loss"
    one_of(what, "reduction", reduction, REDUCTIONS)
    if not isinstance(margin, int | float) or not margin > 0:
        raise ArgumentError(f"{what} at {user_line()}: margin must be a positive number; got {margin!r}")
    types = [x.tensor_type for x in (anchor, positive, negative)]
    if len({t.ndim for t in types}) > 1:
        raise ShapeError(f"{what} at {user_line()}: anchor {types[0]}, positive {types[1]} and negative {types[2]} must have the same number of axes")
    swap = flag(what, "swap", swap)
    distance = pairwise_distance if distance_function is None else distance_function
    if not callable(distance):
        raise ArgumentError(f"{what} at {user_line()}: distance_function must be a function of two tensors; got {distance!r}")
    return _triplets(distance(anchor, positive), distance(anchor, negative), distance(positive, negative) if swap else None, margin, reduction)


@formula
def pdist(input: Tensor, p: float = 2.0) -> Value:
    """Return the p-norms of the differences of all pairs of rows i < j of `input` [n, features], as a vector of n (n - 1) / 2 elements.

    Raises: ShapeError unless the input has two axes, ArgumentError for a negative p, DtypeError for integers.
    """
    t = input.tensor_type
    if t.ndim != 2:
        raise ShapeError(f"pdist at {user_line()}: input {t} must be [n, features]")
    if not t.dtype.is_float:
        raise DtypeError(f"pdist at {user_line()}: input {t} must contain floating point numbers; cast it with .float()")
    if not p >= 0:
        raise ArgumentError(f"pdist at {user_line()}: p must not be negative; got {p}")
    first, second = (literal(each.astype(np.int64)) for each in np.triu_indices(t.shape[0], 1))
    return length(ew.subtract(gather(input, first, 0), gather(input, second, 0)), (1,), float(p), False)
