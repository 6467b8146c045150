"""Classification losses, with class indices or class probabilities as targets.  The axis of classes may be split."""

from __future__ import annotations

import jobflow.core.scope as scope
from jobflow.core.errors import ArgumentError, DtypeError, ShapeError, user_line
from jobflow.core.types import Tensor as Value
from jobflow.core.types import int64
from jobflow.functional.nn_base import chosen_reduction, composed, formula, one_of, one_type, reduced
from jobflow.functional.typed import Tensor
from jobflow.ops import elementwise as ew
from jobflow.ops import reduce as rd
from jobflow.ops import shape as sh
from jobflow.ops.index import gather
from jobflow.ops.likelihood import negative_log_likelihood
from jobflow.ops.logit_likelihood import class_cross_entropy, label_cross_entropy
from jobflow.ops.softmax import log_softmax
from jobflow.ops.source import constant

__all__ = ["cross_entropy", "nll_loss"]


def _axis(x: Tensor) -> int:
    return 0 if x.tensor_type.ndim == 1 else 1


def _check(what: str, x: Tensor, target: Tensor, weight: Tensor | None) -> None:
    t = x.tensor_type
    if not t.ndim:
        raise ShapeError(f"{what} at {user_line()}: input {t} must be [n, classes, ...] or [classes]")
    axis = _axis(x)
    rows = (*t.shape[:axis], *t.shape[axis + 1 :])
    if target.tensor_type.dtype.is_float:
        raise DtypeError(f"{what} at {user_line()}: target {target.tensor_type} must be integers, or probabilities in the shape of input {t}")
    if target.tensor_type.shape != rows:
        hint = "; for numbers instead of classes, use mse_loss (loss: mean_squared_error)" if target.tensor_type.shape == t.shape else ""
        raise ShapeError(
            f"{what} at {user_line()}: target {target.tensor_type} must be {list(rows)}, the shape of input {t} without the axis of classes{hint}"
        )
    _check_weight(what, x, weight)


def _check_weight(what: str, x: Tensor, weight: Tensor | None) -> None:
    if weight is not None and weight.tensor_type.shape != (x.tensor_type.shape[_axis(x)],):
        raise ShapeError(f"{what} at {user_line()}: weight {weight.tensor_type} must have one element per class of input {x.tensor_type}")


def _counted(target: Tensor, ignored: int) -> Value:
    """Return a bool tensor, True where a label differs from `ignored`, which may be out of range for one-byte labels."""
    labels = ew.cast(target, int64) if target.tensor_type.dtype.itemsize == 1 else target
    return ew.not_equal(labels, ew.fill_like(labels, ignored))


def _label_weights(loss: Value, target: Tensor, weight: Value | None, ignored: int) -> Value:
    """Return the weight of each label in the type of the loss; 0 for ignored labels."""
    counts = _counted(target, ignored)
    if weight is None:
        return ew.cast(counts, loss.tensor_type.dtype)
    weights = gather(weight, target, 0)  # 0 for a label that is not a class
    return ew.where(counts, weights, ew.fill_like(weights, 0.0))


def _reduced(
    loss: Value, target: Tensor, weight: Value | None, ignored: int, reduction: str, spread: Value | None = None, smoothing: float = 0.0
) -> Value:
    """Return the losses of labels, multiplied by the weights of their classes and by 1 - smoothing, plus `spread`, after the reduction."""
    weights = None if weight is None and reduction != "mean" else _label_weights(loss, target, weight, ignored)
    if weight is not None and weights is not None:
        loss = ew.multiply(loss, weights)
    loss = loss if spread is None else ew.add(ew.scale(loss, 1.0 - smoothing), spread)
    if reduction != "mean":
        return reduced("nll_loss", loss, reduction)
    assert weights is not None
    return ew.divide(rd.reduce_sum(loss), rd.reduce_sum(weights))


def _by_class(each: Value, x: Tensor, weight: Value | None) -> Value:
    """Return values per class of x, multiplied by the class weights."""
    return each if weight is None else ew.multiply(each, sh.reshape(weight, (-1,) + (1,) * (x.tensor_type.ndim - 1 - _axis(x))))


def _is_one_operation(x: Tensor, of_all_classes: bool) -> bool:
    """Return True if the loss is one operation that reads the logits x; otherwise, it is computed from their log-probabilities.

    Global tensors have the layouts of the two functions.  Sums over all classes keep their order for logits that are not half precision.
    """
    return getattr(x, "layout", None) is None and (x.tensor_type.dtype.is_half or not of_all_classes)


def _spread(x: Tensor, logs: Value | None, target: Tensor, weight: Value | None, ignored: int, smoothing: float) -> Value:
    """Return -smoothing / classes times the sum over the classes of weight * log p; 0 for ignored labels."""
    classes = x.tensor_type.shape[_axis(x)]
    if logs is None:
        total = class_cross_entropy(x, constant(1.0, (classes,), x.tensor_type.dtype.arithmetic) if weight is None else weight, _axis(x))
    else:
        total = ew.negate(rd.reduce_sum(_by_class(logs, x, weight), (_axis(x),)))
    return ew.scale(ew.where(_counted(target, ignored), total, ew.fill_like(total, 0.0)), smoothing / classes)


@formula
def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Value:
    """Return -weight[t] * input[n, t, ...] with t = target[n, ...], for log-probabilities `input` [n, classes, ...] and class indices `target`.

    The loss is 0 where the target is `ignore_index`.  `reduction` "mean" divides the sum by the sum of the weights.
    Raises: ArgumentError for a target that is neither a class nor `ignore_index`; ShapeError, DtypeError, ConfigError for other invalid arguments.
    """
    reduction = chosen_reduction("nll_loss", size_average, reduce, reduction)
    one_of("nll_loss", "reduction", reduction, ("mean", "sum", "none"))
    _check("nll_loss", input, target, weight)
    loss = negative_log_likelihood(input, target, _axis(input), ignore_index, what="nll_loss")
    return _reduced(loss, target, weight, ignore_index, reduction)


@composed
def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Value:
    """Return nll_loss(log_softmax(input), target), for logits `input` [n, classes, ...] or [classes] and class indices `target`.

    The target may also be probabilities of all classes, in the shape of `input`; then "mean" divides by the number of samples.
    The fraction `label_smoothing` of each label is distributed evenly over all classes.
    Raises: ArgumentError for a target that is neither a class nor `ignore_index`, or for a `label_smoothing` outside [0, 1].
    Probabilities with ignore_index >= 0 raise ArgumentError, too; other invalid arguments raise ShapeError, DtypeError or ConfigError.

    Examples:
        >>> scores, labels = flow.zeros(2, 4), flow.tensor([0, 3])
        >>> nn.functional.cross_entropy(scores, labels)
        tensor(1.3863, dtype=jobflow.float32)
        >>> nn.CrossEntropyLoss()(scores, labels)
        tensor(1.3863, dtype=jobflow.float32)
    """
    what = "cross_entropy"
    reduction = chosen_reduction(what, size_average, reduce, reduction)
    one_of(what, "reduction", reduction, ("mean", "sum", "none"))
    if not 0.0 <= label_smoothing <= 1.0:
        raise ArgumentError(f"{what} at {user_line()}: label_smoothing {label_smoothing} must be in [0, 1]")
    axis = _axis(input)
    if target.tensor_type.dtype.is_float and target.tensor_type.shape == input.tensor_type.shape:
        _check_weight(what, input, weight)
        if ignore_index >= 0:
            raise ArgumentError(
                f"{what} at {user_line()}: ignore_index {ignore_index} needs class indices, but target {target.tensor_type} has probabilities"
            )
        return _of_probabilities(input, target, weight, reduction=reduction, smoothing=label_smoothing)
    _check(what, input, target, weight)
    logs = None if _is_one_operation(input, bool(label_smoothing)) else log_softmax(ew.cast(input, input.tensor_type.dtype.arithmetic), axis)
    if logs is None:
        loss = label_cross_entropy(input, target, axis, ignore_index, what=what)
    else:
        loss = negative_log_likelihood(logs, target, axis, ignore_index, what=what)
    weight = None if weight is None else _in_single(weight, input)  # type: ignore[assignment]
    spread = None
    if label_smoothing:
        spread = _spread(input, logs, target, weight, ignore_index, label_smoothing)
    return _as_input(_reduced(loss, target, weight, ignore_index, reduction, spread, label_smoothing), input)


def _in_single(x: Tensor, input: Tensor) -> Value:
    """Return x in float32 if x and `input` have the same type in half precision."""
    return ew.cast(x, input.tensor_type.dtype.arithmetic) if x.tensor_type.dtype is input.tensor_type.dtype else x


def _as_input(loss: Value, input: Tensor) -> Value:
    """Return the loss in the type of the input; in float32 for half precision under `autocast`."""
    return loss if scope.current().autocast is not None else ew.cast(loss, input.tensor_type.dtype)


@one_type
@composed
def _of_probabilities(x: Tensor, target: Tensor, weight: Tensor | None, *, reduction: str, smoothing: float) -> Value:
    weights: Value = target if weight is None and not smoothing else _in_single(target, x)
    if smoothing:
        weights = ew.shift(ew.scale(weights, 1.0 - smoothing), smoothing / x.tensor_type.shape[_axis(x)])
    weights = _by_class(weights, x, None if weight is None else _in_single(weight, x))
    if _is_one_operation(x, True):
        loss = class_cross_entropy(x, weights, _axis(x))
    else:
        wide = ew.cast(x, x.tensor_type.dtype.arithmetic)
        loss = ew.negate(rd.reduce_sum(ew.multiply(log_softmax(wide, _axis(x)), ew.cast(weights, wide.tensor_type.dtype)), (_axis(x),)))
    return _as_input(reduced("cross_entropy", loss, reduction), x)
