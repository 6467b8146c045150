"""Loss functions. The first argument of functions named `*_with_logits` is `labels`. A result has one element per sample unless it is reduced.

`reduction` is "none", "mean" or "sum". The last two reduce all elements to shape (1,).
"""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import jobflow.functional as functional
import jobflow.legacy.math as math
from jobflow.core.errors import ArgumentError, DtypeError, JobError, JobflowError, ShapeError, user_line
from jobflow.core.types import Tensor, TensorType
from jobflow.engine.distribute import asked_of, distribute_of, split, with_distribute
from jobflow.functional.nn_base import reduced
from jobflow.functional.nn_ctc import ctc_inputs
from jobflow.legacy.job_dispatch import all_of, of_jobs
from jobflow.ops import ctc
from jobflow.ops import elementwise as ew
from jobflow.ops import loss as ls
from jobflow.ops import reduce as rd
from jobflow.ops import shape as sh
from jobflow.ops.pointwise import call
from jobflow.ops.rounding import rounded_once
from jobflow.ops.runtime_assertions import assert_bounds

#: untyped, because its functions are called with tensors of jobs here
_F: Any = functional


def class_labels(what: str, labels: Tensor, scores: TensorType) -> Tensor:
    """Return integer labels in the shape of `scores` without the last axis; a last axis of size 1 is removed from labels.

    Raises: DtypeError for labels that are not integers; ShapeError for another shape.
    """
    shape, target = labels.tensor_type.shape, scores.shape[:-1]
    if not labels.tensor_type.dtype.is_integer:
        raise DtypeError(
            f"{what} at {user_line()}: labels {labels.tensor_type}, the first argument, must be integers; cast them, "
            "or use softmax_cross_entropy_with_logits for probabilities"
        )
    if shape == target:
        return labels
    if shape == (*target, 1):
        return sh.reshape(labels, target)
    raise ShapeError(f"{what} at {user_line()}: labels {labels.tensor_type} must have the shape {list(target)} or {[*target, 1]} for scores {scores}")


def _filled(loss: Tensor) -> Tensor:
    """Return the loss, reshaped to (1,) if it has no axes."""
    return loss if loss.tensor_type.ndim else sh.reshape(loss, (1,))


def _same(what: str, **operands: Tensor | None) -> None:
    """Raise ShapeError unless the operands other than None have equal types."""
    types = {word: t.tensor_type for word, t in operands.items() if t is not None}
    if len(set(types.values())) > 1:
        listed = ", ".join(f"{word} {t}" for word, t in types.items())
        raise ShapeError(f"{what} at {user_line()}: the types of {listed} differ; pass tensors of equal shape and element type")


def sparse_softmax_cross_entropy_with_logits(labels: Tensor, logits: Tensor, name: str | None = None) -> Tensor:
    """Return -log softmax(logits)[label] of shape [...], for logits [..., classes] and integer labels [...] or [..., 1]."""
    if distribute_of(logits) is split(logits.tensor_type.ndim - 1):
        return distributed_sparse_softmax_cross_entropy_with_logits(labels, logits, name)
    target = class_labels("sparse_softmax_cross_entropy_with_logits", labels, logits.tensor_type)
    return _filled(ls.sparse_softmax_cross_entropy(logits, target, name=name))


def distributed_sparse_softmax_cross_entropy_with_logits(labels: Tensor, logits: Tensor, name: str | None = None) -> Tensor:
    """Return the sparse softmax cross entropy with the classes split over the devices, which exchange a maximum and a sum per sample.

    A layout of logits that the program has set is preserved. On a mesh, ["S(0)", "S(1)"] also splits the samples.
    """
    target = class_labels("distributed_sparse_softmax_cross_entropy_with_logits", labels, logits.tensor_type)
    by_classes = logits if asked_of(logits) else with_distribute(logits, split(logits.tensor_type.ndim - 1))
    return _filled(ls.split_sparse_softmax_cross_entropy(by_classes, target, name=name))


def softmax_cross_entropy_with_logits(labels: Tensor, logits: Tensor, name: str | None = None) -> Tensor:
    """Return -sum of labels log softmax(logits) over the last axis, the classes; labels have the type of logits.

    The gradient is softmax(logits) - labels, so the labels of a sample must sum to 1.
    """
    _same("softmax_cross_entropy_with_logits", labels=labels, logits=logits)
    return _filled(ls.softmax_cross_entropy(logits, labels, sums_to_one=True, name=name))


def sigmoid_cross_entropy_with_logits(labels: Tensor, logits: Tensor, name: str | None = None) -> Tensor:
    """Return max(x, 0) - x z + log(1 + exp(-|x|)) elementwise, for logits x and labels z of any element type."""
    if labels.tensor_type.shape != logits.tensor_type.shape:
        raise ShapeError(
            f"sigmoid_cross_entropy_with_logits at {user_line()}: labels {labels.tensor_type} and logits {logits.tensor_type} must have equal shapes"
        )
    return ls.sigmoid_cross_entropy(logits, labels, name=name)


def sparse_cross_entropy(labels: Tensor, prediction: Tensor, name: str | None = None) -> Tensor:
    """Return -log max(prediction[label], 1e-20) of shape [...], for probabilities [..., classes] and integer labels [...] or [..., 1]."""
    target = class_labels("sparse_cross_entropy", labels, prediction.tensor_type)
    return _filled(ls.sparse_cross_entropy(prediction, target, name=name))


def _reduced(what: str, loss: Tensor, reduction: str, name: str | None) -> Tensor:
    """Return `loss` unchanged for the reduction "none", or its "mean" or "sum" with shape (1,)."""
    result = reduced(what, loss, reduction)
    return result if reduction == "none" else sh.reshape(result, (1,), name=name)


def _named(reduction: str, name: str | None) -> str | None:
    """Return `name` for the elementwise loss if no reduction follows, else None."""
    return name if reduction == "none" else None


@rounded_once
def BCELoss(input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean", name: str | None = None) -> Tensor:
    """Return the binary cross entropy -weight (t log x + (1 - t) log(1 - x)) of x = input and t = target; logarithms are at least -100.

    `reduction` is "none", "mean" or "sum". A `weight` of None means 1.
    """
    _same("BCELoss", input=input, target=target, weight=weight)
    return _weighted("BCELoss", ls.binary_cross_entropy(input, target), weight, reduction, name)


@rounded_once
def BCEWithLogitsLoss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: str = "mean",
    name: str | None = None,
) -> Tensor:
    """Return the binary cross entropy weight ((1 - t) x + (1 + (pos_weight - 1) t) log(1 + e^-x)), x = input, t = target.

    `reduction` is "none", "mean" or "sum". A weight of None means 1.
    """
    _same("BCEWithLogitsLoss", input=input, target=target, weight=weight)
    largest = ew.clip(ew.negate(input), 0.0, None)
    tail = ew.add(largest, ew.log1p(ew.exp(ew.negate(ew.absolute(input)))))  # log(1 + e^-x) without overflow
    if pos_weight is not None:
        tail = ew.multiply(tail, math.add(ew.multiply(math.subtract(pos_weight, 1.0), target), 1.0))
    loss = ew.add(ew.multiply(math.subtract(1.0, target), input), tail)
    return _weighted("BCEWithLogitsLoss", loss, weight, reduction, name)


def _weighted(what: str, loss: Tensor, weight: Tensor | None, reduction: str, name: str | None) -> Tensor:
    weighted = ew.identity(loss, name=_named(reduction, name)) if weight is None else ew.multiply(loss, weight, name=_named(reduction, name))
    return _reduced(what, weighted, reduction, name)


@rounded_once
def KLDivLoss(input: Tensor, target: Tensor, log_target: bool = False, reduction: str = "mean", name: str | None = None) -> Tensor:
    """Return the Kullback-Leibler divergence t (log t - x), x = input, t = target, or 0 where t <= 0; with `log_target` e^t (t - x).

    `reduction` is "none", "mean" or "sum".
    """
    _same("KLDivLoss", input=input, target=target)
    own = _named(reduction, name)
    if log_target:
        loss = ew.multiply(ew.exp(target), ew.subtract(target, input), name=own)
    else:
        zero, one = ew.fill_like(target, 0.0), ew.fill_like(target, 1.0)
        positive = ew.greater(target, zero)
        logarithm = ew.log(ew.where(positive, target, one))  # 1 where t <= 0 keeps the gradient there finite
        loss = ew.where(positive, ew.multiply(target, ew.subtract(logarithm, input)), zero, name=own)
    return _reduced("KLDivLoss", loss, reduction, name)


@rounded_once
def L1Loss(input: Tensor, target: Tensor, reduction: str = "mean", name: str | None = None) -> Tensor:
    """Return the absolute error |target - input|, elementwise for the reduction "none", or its mean or sum."""
    _same("L1Loss", input=input, target=target)
    return _reduced("L1Loss", ew.absolute(ew.subtract(target, input), name=_named(reduction, name)), reduction, name)


@rounded_once
def MSELoss(input: Tensor, target: Tensor, reduction: str = "mean", name: str | None = None) -> Tensor:
    """Return the squared error (target - input)^2, elementwise for the reduction "none", or its mean or sum."""
    _same("MSELoss", input=input, target=target)
    return _reduced("MSELoss", ew.squared_difference(target, input, name=_named(reduction, name)), reduction, name)


@rounded_once
def MarginRankingLoss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: str = "mean", name: str | None = None
) -> Tensor:
    """Return the margin ranking loss max(0, margin - target (input1 - input2)); `target` contains 1 or -1.

    `reduction` is "none", "mean" or "sum".
    """
    _same("MarginRankingLoss", input1=input1, input2=input2)
    distance = math.subtract(margin, ew.multiply(target, ew.subtract(input1, input2)))
    return _reduced("MarginRankingLoss", ew.clip(distance, 0.0, None, name=_named(reduction, name)), reduction, name)


@rounded_once
def TripletMarginLoss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
    name: str | None = None,
) -> Tensor:
    """Return max(0, d(anchor, positive) - d(anchor, negative) + margin), where d(x, y) is the p-norm of x - y + eps over axis 1.

    `reduction` is "none", "mean" or "sum". `swap` must be False.
    """
    if swap:
        raise JobError(f"TripletMarginLoss at {user_line()}: swap=True is not supported; omit it")
    _same("TripletMarginLoss", anchor=anchor, positive=positive, negative=negative)
    if anchor.tensor_type.ndim < 2:
        raise ArgumentError(f"TripletMarginLoss at {user_line()}: anchor {anchor.tensor_type} must have at least 2 axes")
    nearness = ew.subtract(_distance(anchor, positive, p, eps), _distance(anchor, negative, p, eps))
    loss = ew.clip(math.add(nearness, margin), 0.0, None, name=_named(reduction, name))
    return _reduced("TripletMarginLoss", loss, reduction, name)


def _distance(x: Tensor, y: Tensor, p: float, eps: float) -> Tensor:
    difference = ew.absolute(math.add(ew.subtract(x, y), eps))
    return ew.scalar_power(rd.reduce_sum(ew.scalar_power(difference, p), (1,)), 1.0 / p)


def smooth_l1_loss(prediction: Tensor, label: Tensor, beta: float = 1.0, name: str | None = None) -> Tensor:
    """Return d^2 / (2 beta) where d < beta, and d - beta / 2 elsewhere, for d = |prediction - label|, elementwise."""
    if not isinstance(beta, Real) or beta < 0:
        raise ArgumentError(f"smooth_l1_loss at {user_line()}: beta must be a non-negative number, not {beta!r}")
    _same("smooth_l1_loss", prediction=prediction, label=label)
    return ls.smooth_l1(prediction, label, beta, name=name)


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
    name: str | None = None,
) -> Tensor:
    """Return the connectionist temporal classification loss of log_probs [frames, n, classes], the output of log-softmax.

    `targets` are the labels, as [n, labels] with padding, or concatenated for all samples. `input_lengths` and `target_lengths` [n] are the numbers
    of frames and labels of each sample. "mean" divides each loss by its number of labels, at least 1, before averaging. With `zero_infinity` a
    sample with too few frames for its labels has loss 0 instead of inf.
    """
    arguments = _ctc_inputs(log_probs, targets, input_lengths, target_lengths, blank)
    own = _named(reduction, name)
    loss = ctc.ctc_loss(*arguments, int(blank), bool(zero_infinity), name=own)
    if reduction == "mean":
        loss = ew.divide(loss, ew.cast(_F.clamp(arguments[3], 1), loss.tensor_type.dtype))
    return _reduced("ctc_loss", loss, reduction, name)


def ctc_losses(
    log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, blank: int, zero_infinity: bool
) -> tuple[Tensor, Tensor]:
    """Return the loss per sample, and the logarithms of the forward variables alpha, [n, frames, 2 labels + 1].

    `targets` are [n, labels].
    """
    arguments = _ctc_inputs(log_probs, targets, input_lengths, target_lengths, blank)
    return ctc.ctc_loss(*arguments, int(blank), bool(zero_infinity)), call(ctc.CtcPaths(int(blank)), *arguments)


def ctc_greedy_decoder(log_probs: Tensor, input_lengths: Tensor, merge_repeated: bool = True, name: str | None = None) -> tuple[Tensor, Tensor]:
    """Decode log_probs [frames, n, classes], with the blank as the last class, to (labels, negated sums of the largest log-probabilities).

    The labels [n, frames], in the type of input_lengths [n], are the likeliest classes per frame without blanks, padded with zeros. With
    `merge_repeated`, equal classes of consecutive frames count once. The sums [n, 1] cover the frames of each sample.
    """
    try:
        ctc.CtcGreedyDecoder().infer(log_probs.tensor_type, input_lengths.tensor_type)
    except JobflowError as error:
        raise type(error)(str(error).replace("ctc_greedy_decoder", f"ctc_greedy_decoder at {user_line()}", 1)) from None
    lengths = assert_bounds(input_lengths, "ctc_greedy_decoder", low=0, high=log_probs.tensor_type.shape[0], noun="input length")
    return ctc.ctc_greedy_decoder(log_probs, lengths, bool(merge_repeated), name=name)


def _ctc_inputs(
    log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, blank: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the inputs of CTC ops, with runtime assertions for lengths and labels; raise ArgumentError if `blank` is not an int."""
    if not isinstance(blank, Integral):
        raise ArgumentError(f"ctc_loss at {user_line()}: blank must be a class index, not {blank!r}")
    return ctc_inputs(log_probs, targets, input_lengths, target_lengths, blank)


globals().update(all_of(__name__, globals(), __name__, of_jobs))
