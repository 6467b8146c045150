"""Classification losses, with class indices or class probabilities as targets.  The axis of classes may be split."""

from __future__ import annotations

from jobflow.core.errors import ArgumentError, DtypeError, ShapeError, user_line
from jobflow.core.types import Tensor as Value
from jobflow.core.types import int64
from jobflow.functional.nn_base import chosen_reduction, formula, one_of, one_type, reduced
from jobflow.functional.typed import Tensor
from jobflow.ops import elementwise as ew
from jobflow.ops import reduce as rd
from jobflow.ops import shape as sh
from jobflow.ops.index import gather
from jobflow.ops.likelihood import negative_log_likelihood
from jobflow.ops.softmax import log_softmax

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


def _label_weights(x: Tensor, target: Tensor, weight: Tensor | None, ignored: int) -> Value:
    """Return the weight of each label in the type of x; 0 for ignored labels."""
    counts = _counted(target, ignored)
    if weight is None:
        return ew.cast(counts, x.tensor_type.dtype)
    weights = gather(weight, target, 0)  # 0 for a label that is not a class
    return ew.where(counts, weights, ew.fill_like(weights, 0.0))


def _likelihood(what: str, logs: Value, x: Tensor, target: Tensor, weight: Tensor | None, ignored: int, reduction: str, smoothing: float) -> Value:
    axis = _axis(x)
    loss = negative_log_likelihood(logs, target, axis, ignored, what=what)
    weights = None if weight is None and reduction != "mean" and not smoothing else _label_weights(x, target, weight, ignored)
    if weight is not None and weights is not None:
        loss = ew.multiply(loss, weights)
    if smoothing:
        loss = ew.add(ew.scale(loss, 1.0 - smoothing), ew.scale(_spread(logs, x, target, weight, ignored), smoothing / x.tensor_type.shape[axis]))
    if reduction != "mean":
        return reduced("nll_loss", loss, reduction)
    assert weights is not None
    return ew.divide(rd.reduce_sum(loss), rd.reduce_sum(weights))


def _by_class(each: Value, x: Tensor, weight: Tensor | None) -> Value:
    """Return values per class of x, multiplied by the class weights."""
    return each if weight is None else ew.multiply(each, sh.reshape(weight, (-1,) + (1,) * (x.tensor_type.ndim - 1 - _axis(x))))


def _spread(logs: Value, x: Tensor, target: Tensor, weight: Tensor | None, ignored: int) -> Value:
    """Return -sum over the classes of weight * log p; 0 for ignored labels."""
    total = ew.negate(rd.reduce_sum(_by_class(logs, x, weight), (_axis(x),)))
    return ew.where(_counted(target, ignored), total, ew.fill_like(total, 0.0))


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
    return _likelihood("nll_loss", input, input, target, weight, ignore_index, reduction, 0.0)


@formula
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
    return _likelihood(what, log_softmax(input, axis), input, target, weight, ignore_index, reduction, label_smoothing)


@one_type
@formula
def _of_probabilities(x: Tensor, target: Tensor, weight: Tensor | None, *, reduction: str, smoothing: float) -> Value:
    return _with_probabilities(log_softmax(x, _axis(x)), x, target, weight, reduction, smoothing)


def _with_probabilities(logs: Value, x: Tensor, target: Value, weight: Tensor | None, reduction: str, smoothing: float) -> Value:
    axis, classes = _axis(x), x.tensor_type.shape[_axis(x)]
    if smoothing:
        target = ew.shift(ew.scale(target, 1.0 - smoothing), smoothing / classes)
    loss = ew.negate(rd.reduce_sum(ew.multiply(logs, _by_class(target, x, weight)), (axis,)))
    return reduced("cross_entropy", loss, reduction)
