"""Loss functions.  `reduction` is "mean" (over all elements, unless stated otherwise), "sum" or "none"."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec

import numpy as np

from jobflow.core.errors import ArgumentError, ShapeError, user_line
from jobflow.core.notices import notice
from jobflow.core.types import Tensor as Value
from jobflow.core.types import int64
from jobflow.functional.nn_base import REDUCTIONS, chosen_reduction, formula, one_float_type, one_of, one_type, reduced
from jobflow.functional.nn_linear import cosine, last_axis, length
from jobflow.functional.typed import Tensor
from jobflow.ops import activation as act
from jobflow.ops import elementwise as ew
from jobflow.ops import elementwise_loss as el
from jobflow.ops import reduce as rd
from jobflow.ops import shape as sh
from jobflow.ops.broadcast import broadcast_to
from jobflow.ops.runtime_assertions import assert_bounds
from jobflow.ops.source import constant
from jobflow.tensors.state import state

__all__ = [
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "cosine_embedding_loss", "gaussian_nll_loss", "hinge_embedding_loss", "huber_loss",
    "kl_div", "l1_loss", "margin_ranking_loss", "mse_loss", "poisson_nll_loss", "smooth_l1_loss", "soft_margin_loss", "triplet_margin_loss",
]  # fmt: skip

P = ParamSpec("P")


#: losses whose mean is divided by the sum of the weights; that of others is divided by the number of elements
_WEIGHTED_MEANS = ("mse_loss", "l1_loss")


def reducing(function: Callable[P, Value]) -> Callable[P, Tensor]:
    """Wrap a function that returns elementwise losses, so that its argument `reduction` selects their mean, their sum or the losses themselves.

    The older arguments `size_average` and `reduce`, if the function has them, replace `reduction`.
    """
    what, names = function.__name__, list(signature(function).parameters)
    usual = {"size_average": None, "reduce": None, "reduction": "mean", "weight": None}
    indices = {name: names.index(name) for name in usual if name in names}

    @wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> Value:
        passed: dict[str, Any] = {name: arguments[at] if len(arguments) > at else named.get(name, usual[name]) for name, at in indices.items()}
        options = usual | passed
        reduction = chosen_reduction(what, options["size_average"], options["reduce"], options["reduction"])
        loss, weight = function(*arguments, **named), options["weight"]
        if weight is not None and what in _WEIGHTED_MEANS and one_of(what, "reduction", reduction, REDUCTIONS) == "mean":
            return ew.divide(rd.reduce_sum(loss), rd.reduce_sum(weight))
        return reduced(what, loss, reduction)

    return formula(call)


def one_shape(what: str, **operands: Tensor | None) -> None:
    """Raise ShapeError unless the tensors have equal shapes, because broadcasting would compare different samples."""
    types = {name: x.tensor_type for name, x in operands.items() if x is not None}
    if len({type.shape for type in types.values()}) > 1:
        alike = len({math.prod(type.shape) for type in types.values()}) == 1
        remedy = f"; use reshape({next(iter(types))}.shape)" if alike else ""
        raise ShapeError(
            f"{what} at {user_line()}: {' and '.join(f'{name} {type}' for name, type in types.items())} must have the same shape{remedy}"
        )


def _alike(what: str, input: Any, target: Any, weight: Any = None) -> tuple[Any, Any]:
    """Return input and target, broadcast to one shape with a notice, because broadcasting is often a mistake.

    Raises: ShapeError if they do not broadcast together, or if `weight` does not have the shape of the result.
    """
    first, second = input.tensor_type, target.tensor_type
    if first.shape != second.shape:
        try:
            shape = np.broadcast_shapes(first.shape, second.shape)
        except ValueError:
            one_shape(what, input=input, target=target)
            raise
        notice(f"{what} at {user_line()}: input {first} and target {second} are broadcast to {list(shape)}; give them the same shape")
        input, target = broadcast_to(input, shape), broadcast_to(target, shape)
    one_shape(what, input=input, weight=weight)
    return input, target


@one_type
@reducing
def mse_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Value:
    """Return the squared errors (input - target)^2, reduced by `reduction`: "mean", "sum" or "none".

    `weight` multiplies the errors, and the mean is then divided by the sum of the weights.
    Operands of different shapes are broadcast, with a notice.
    Raises: ShapeError for shapes that do not broadcast together, or unless `weight` has the shape of the losses.

    Examples:
        >>> x, y = flow.tensor([1.0, 2.0]), flow.tensor([1.0, 4.0])
        >>> nn.functional.mse_loss(x, y)
        tensor(2., dtype=jobflow.float32)
        >>> nn.MSELoss(reduction="none")(x, y)
        tensor([0., 4.], dtype=jobflow.float32)
    """
    input, target = _alike("mse_loss", input, target, weight)
    return _weighted(ew.squared_difference(input, target), weight)


@one_type
@reducing
def l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Value:
    """Return the absolute errors |input - target|, reduced by `reduction`: "mean", "sum" or "none".

    `weight` multiplies the errors, and the mean is then divided by the sum of the weights.
    Operands of different shapes are broadcast, with a notice.
    Raises: ShapeError for shapes that do not broadcast together, or unless `weight` has the shape of the losses.
    """
    input, target = _alike("l1_loss", input, target, weight)
    return _weighted(ew.absolute(ew.subtract(input, target)), weight)


@one_type
@reducing
def smooth_l1_loss(
    input: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean", beta: float = 1.0
) -> Value:
    """Return d^2 / (2 * beta) where d < beta, else d - beta / 2, with d = |input - target|.

    `reduction` is "mean", "sum" or "none".
    Operands of different shapes are broadcast, with a notice.
    Raises: ArgumentError for a negative beta; ShapeError for shapes that do not broadcast together.
    """
    if beta < 0:
        raise ArgumentError(f"smooth_l1_loss at {user_line()}: beta {beta} must not be negative")
    input, target = _alike("smooth_l1_loss", input, target)
    if beta == 0:
        return ew.absolute(ew.subtract(input, target))
    return el.smooth_l1(input, target, beta)


@one_type
@reducing
def huber_loss(input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0, weight: Tensor | None = None) -> Value:
    """Return d^2 / 2 where d < delta, else delta * (d - delta / 2), with d = |input - target|; `weight` multiplies the losses.

    `reduction` is "mean", "sum" or "none".
    Operands of different shapes are broadcast, with a notice.
    Raises: ArgumentError unless delta > 0; ShapeError for shapes that do not broadcast together.
    """
    if delta <= 0:
        raise ArgumentError(f"huber_loss at {user_line()}: delta {delta} must be positive")
    input, target = _alike("huber_loss", input, target, weight)
    return _weighted(ew.scale(el.smooth_l1(input, target, delta), delta), weight)


def _weighted(loss: Value, weight: Tensor | None) -> Value:
    return loss if weight is None else ew.multiply(loss, weight)


@reducing
def binary_cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean"
) -> Value:
    """Return -weight * (target * log(input) + (1 - target) * log(1 - input)), for probabilities `input`.

    Logarithms below -100 are replaced by -100.  `weight` defaults to 1.  `reduction` is "mean", "sum" or "none".
    Raises: ShapeError unless `input` and `target` have the same shape.
    """
    one_shape("binary_cross_entropy", input=input, target=target)
    return _weighted(el.binary_cross_entropy(input, target), weight)


@one_type
@reducing
def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Value:
    """Return weight * ((1 - t) * x + (1 + (pos_weight - 1) * t) * ln(1 + e^-x)), where x is `input` (logits) and t is `target`.

    `weight` and `pos_weight` default to 1.  `reduction` is "mean", "sum" or "none".
    Raises: ShapeError unless `input` and `target` have the same shape.
    """
    one_shape("binary_cross_entropy_with_logits", input=input, target=target)
    if pos_weight is None:
        return _weighted(el.sigmoid_cross_entropy(input, target), weight)
    tail = ew.multiply(ew.shift(ew.multiply(ew.shift(pos_weight, -1.0), target), 1.0), act.softplus(ew.negate(input)))
    loss = ew.add(ew.multiply(ew.shift(ew.negate(target), 1.0), input), tail)
    return _weighted(loss, weight)


@one_type
@formula
def kl_div(
    input: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean", log_target: bool = False
) -> Value:
    """Return the terms of the Kullback-Leibler divergence, target * (log(target) - input), and 0 where the target is 0.

    `input` has log-probabilities, and `target` has probabilities.  With `log_target`, both arguments have log-probabilities, and the terms are
    e^target * (target - input).  `reduction` is "mean", "sum", "none", or "batchmean": the sum divided by the size of the first axis.
    Raises: ConfigError for an unknown reduction.
    """
    reduction = chosen_reduction("kl_div", size_average, reduce, reduction)
    one_of("kl_div", "reduction", reduction, (*REDUCTIONS, "batchmean"))
    if log_target:
        loss = ew.multiply(ew.exp(target), ew.subtract(target, input))
    else:
        zero, one = (constant(number, (), target.tensor_type.dtype) for number in (0.0, 1.0))
        something = ew.not_equal(target, zero)
        logarithm = ew.log(ew.where(something, target, one))  # log(1) where t is 0, for a finite gradient
        loss = ew.subtract(ew.where(something, ew.multiply(target, logarithm), zero), ew.multiply(target, input))
    if reduction == "batchmean":
        return ew.scale(rd.reduce_sum(loss), 1.0 / max(input.tensor_type.shape[0] if input.tensor_type.ndim else 1, 1))
    return reduced("kl_div", loss, reduction)


def hinge(x: Value) -> Value:
    """Return max(0, x) with gradient 1 at 0, which separates equal scores if the margin is 0."""
    return ew.clip(x, 0.0, None)


def _signs(target: Tensor, like: Value) -> Value:
    """Return the targets 1 and -1 in the type of `like`; bool and unsigned targets have no -1."""
    return ew.cast(target, like.tensor_type.dtype)


@reducing
def soft_margin_loss(input: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean") -> Value:
    """Return ln(1 + e^(-target * input)) for targets 1 and -1, reduced by `reduction`: "mean", "sum" or "none".

    Raises: ShapeError unless `input` and `target` have the same shape.
    """
    one_shape("soft_margin_loss", input=input, target=target)
    return act.softplus(ew.negate(ew.multiply(_signs(target, input), input)))


@reducing
def hinge_embedding_loss(
    input: Tensor, target: Tensor, margin: float = 1.0, size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean"
) -> Value:
    """Return `input` where the target is 1, max(0, margin - input) where the target is -1, and input + max(0, margin - input) elsewhere.

    `reduction` is "mean", "sum" or "none".  Raises: ShapeError unless `input` and `target` have the same shape.
    """
    one_shape("hinge_embedding_loss", input=input, target=target)
    zero, sign = ew.fill_like(input, 0.0), _signs(target, input)
    positive, negative = (ew.equal(sign, ew.fill_like(sign, label)) for label in (1.0, -1.0))
    near = ew.where(positive, zero, hinge(ew.shift(ew.negate(input), margin)))
    return ew.add(ew.where(negative, zero, input), near)


@one_type
@reducing
def margin_ranking_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0.0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Value:
    """Return max(0, margin - target * (input1 - input2)); integers are cast to the default element type, as in PyTorch.

    `reduction` is "mean", "sum" or "none".  Raises: ShapeError unless the three tensors have the same shape.
    """
    one_shape("margin_ranking_loss", input1=input1, input2=input2, target=target)
    if not input1.tensor_type.dtype.is_float:
        # unsigned differences would wrap
        input1, input2, target = (ew.cast(x, int64) for x in (input1, input2, target))  # type: ignore[assignment]
    product = ew.multiply(target, ew.subtract(input1, input2))
    if not product.tensor_type.dtype.is_float:
        product = ew.cast(product, state().default_dtype)
    return hinge(ew.shift(ew.negate(product), margin))


@one_float_type
@reducing
def cosine_embedding_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0.0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Value:
    """Return 1 - c where the target is 1, max(0, c - margin) where the target is -1, and 0 elsewhere.

    c is the cosine similarity of `input1` and `input2` along the last axis.  `reduction` is "mean", "sum" or "none".
    Raises: ShapeError for inputs of different shapes, or unless the target has one element per pair of vectors.
    """
    one_shape("cosine_embedding_loss", input1=input1, input2=input2)
    similar = cosine(input1, input2, -1, 1e-8)
    if target.tensor_type.shape != similar.tensor_type.shape:
        raise ShapeError(
            f"cosine_embedding_loss at {user_line()}: target {target.tensor_type} must have one element per pair of vectors, {similar.tensor_type}"
        )
    zero = ew.fill_like(similar, 0.0)
    signs = _signs(target, similar)
    positive, negative = (ew.equal(signs, ew.fill_like(signs, label)) for label in (1.0, -1.0))
    near = ew.where(positive, ew.shift(ew.negate(similar), 1.0), zero)
    far = ew.where(negative, hinge(ew.shift(similar, -margin)), zero)
    return ew.add(near, far)


@one_float_type
@reducing
def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Value:
    """Return max(0, d(anchor, positive) - d(anchor, negative) + margin), where d(a, b) is the p-norm of a - b + eps along the last axis.

    `swap` replaces d(anchor, negative) by d(positive, negative) where this distance is smaller.  `reduction` is "mean", "sum" or "none".
    Raises: ArgumentError unless margin > 0; ShapeError unless the three tensors have the same shape.
    """
    if margin <= 0:
        raise ArgumentError(f"triplet_margin_loss at {user_line()}: margin {margin} must be positive")
    one_shape("triplet_margin_loss", anchor=anchor, positive=positive, negative=negative)

    def distance(x: Value, y: Value) -> Value:
        difference = ew.shift(ew.subtract(x, y), eps)
        return length(difference, last_axis(difference), float(p), False)

    far = distance(anchor, negative)
    if swap:
        far = ew.minimum(far, distance(positive, negative))
    return hinge(ew.shift(ew.subtract(distance(anchor, positive), far), margin))


def _variance(input: Tensor, var: Tensor | float) -> Value:
    if isinstance(var, int | float):
        return ew.fill_like(input, var)
    x, v = input.tensor_type, var.tensor_type
    if v.shape == x.shape[:-1] and x.ndim:
        return sh.expand_dims(var, v.ndim)
    if v.ndim != x.ndim or any(n not in (1, size) for n, size in zip(v.shape, x.shape, strict=True)):
        raise ShapeError(
            f"gaussian_nll_loss at {user_line()}: var {v} must have the shape of input {x}; axes may be missing at the end, or of size 1"
        )
    return var


@one_type
@reducing
def gaussian_nll_loss(input: Tensor, target: Tensor, var: Tensor | float, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> Value:
    """Return (log v + (input - target)^2 / v) / 2 with v = max(var, eps); the gradient ignores the bound `eps`.

    `full` adds log(2 pi) / 2.  `reduction` is "mean", "sum" or "none".
    `var` is a number, or a tensor with the shape of `input`, whose axes may be of size 1, and whose last axis may be missing.
    Raises: ShapeError for another shape of `var`, ArgumentError for a negative variance.
    """
    variance = assert_bounds(_variance(input, var), "gaussian_nll_loss", low=0.0, nan=True, noun="variance")
    bounded = ew.add(variance, ew.detach(ew.subtract(ew.clip(variance, eps, None), variance)))
    loss = ew.scale(ew.add(ew.log(bounded), ew.divide(ew.squared_difference(input, target), bounded)), 0.5)
    return ew.shift(loss, 0.9189385332046727) if full else loss


@one_float_type
@reducing
def poisson_nll_loss(
    input: Tensor,
    target: Tensor,
    log_input: bool = True,
    full: bool = False,
    size_average: bool | None = None,
    eps: float = 1e-8,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Value:
    """Return e^input - target * input, or input - target * log(input + eps) unless `log_input`.

    `full` adds Stirling's approximation target * log(target) - target + log(2 pi target) / 2 where target > 1.
    `reduction` is "mean", "sum" or "none".
    """
    if log_input:
        loss = ew.subtract(ew.exp(input), ew.multiply(target, input))
    else:
        loss = ew.subtract(input, ew.multiply(target, ew.log(ew.shift(input, eps))))
    if full:
        one = ew.fill_like(target, 1.0)
        t = ew.where(ew.greater(target, one), target, one)
        logarithm = ew.log(t)
        stirling = ew.add(ew.subtract(ew.multiply(t, logarithm), t), ew.shift(ew.scale(logarithm, 0.5), 0.9189385332046727))
        loss = ew.add(loss, ew.where(ew.greater(target, one), stirling, ew.fill_like(target, 0.0)))
    return loss
