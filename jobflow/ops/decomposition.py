"""Decompositions of row-wise ops for layouts that split the axis of the rows (`Op.decompose`).

Each rank computes on its shard. The ranks exchange one value per row. These maxima and sums are partial tensors, reduced before the next read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from jobflow.core.types import Tensor
from jobflow.ops.arithmetic import add, divide, multiply, subtract
from jobflow.ops.axes import reshape
from jobflow.ops.compare import greater
from jobflow.ops.reduce import reduce_max, reduce_sum
from jobflow.ops.scalar import cast, clip, negate, scale, shift
from jobflow.ops.transcendental import exp, log, rsqrt, sqrt, square
from jobflow.ops.triangle import tril


def softmax(x: Tensor, axis: int, masked: bool = False) -> Tensor:
    """Return softmax(x) along `axis`.

    With `masked`, rows of -inf become zero: their maximum and their sum are clipped to finite values.
    """
    top = reduce_max(x, axis, keepdims=True)
    e = exp(subtract(x, clip(top, -x.tensor_type.dtype.largest) if masked else top))
    total = reduce_sum(e, axis, keepdims=True)
    return divide(e, clip(total, 1.0) if masked else total)


def softmax_grad(y: Tensor, dy: Tensor, axis: int, factor: float) -> Tensor:
    dx = multiply(y, subtract(dy, reduce_sum(multiply(y, dy), axis, keepdims=True)))
    return dx if factor == 1 else scale(dx, factor)


def log_softmax(x: Tensor, axis: int) -> Tensor:
    z = subtract(x, reduce_max(x, axis, keepdims=True))
    return subtract(z, log(reduce_sum(exp(z), axis, keepdims=True)))


def log_softmax_grad(y: Tensor, dy: Tensor, axis: int) -> Tensor:
    return subtract(dy, multiply(exp(y), reduce_sum(dy, axis, keepdims=True)))


def causal_softmax(x: Tensor, factor: float, diagonal: int) -> Tensor:
    return softmax(tril(scale(x, factor), diagonal, fill=-math.inf), x.tensor_type.ndim - 1, masked=True)


def softmax_cross_entropy(logits: Tensor, labels: Tensor, tiny: float) -> tuple[Tensor, Tensor]:
    prob = softmax(logits, -1)
    return negate(reduce_sum(multiply(labels, log(clip(prob, tiny))), -1)), prob


def softmax_cross_entropy_grad(prob: Tensor, labels: Tensor, dloss: Tensor) -> Tensor:
    away = subtract(multiply(prob, reduce_sum(labels, -1, keepdims=True)), labels)
    return multiply(away, reshape(dloss, (*dloss.tensor_type.shape, 1)))


def l2_normalize(x: Tensor, axis: int, epsilon: float) -> Tensor:
    return divide(x, sqrt(clip(reduce_sum(square(x), axis, keepdims=True), epsilon)))


def l2_normalize_grad(x: Tensor, dy: Tensor, axis: int, epsilon: float) -> Tensor:
    squares = reduce_sum(square(x), axis, keepdims=True)
    limited = clip(squares, epsilon)
    above = cast(greater(squares, clip(squares, None, epsilon)), x.tensor_type.dtype)
    along = divide(multiply(reduce_sum(multiply(x, dy), axis, keepdims=True), above), limited)
    return divide(subtract(dy, multiply(x, along)), sqrt(limited))


def _rows(x: Tensor, begin: int) -> tuple[int, ...]:
    return tuple(range(begin, x.tensor_type.ndim))


def _lead(per_row: Tensor, x: Tensor) -> Tensor:
    """Reshape `per_row`, with one value per row, to broadcast along the rows of x."""
    return reshape(per_row, (*per_row.tensor_type.shape, *[1] * (x.tensor_type.ndim - per_row.tensor_type.ndim)))


def _mean(x: Tensor, axes: Sequence[int]) -> Tensor:
    return scale(reduce_sum(x, axes), 1.0 / max(math.prod(x.tensor_type.shape[i] for i in axes), 1))


def row_statistics(x: Tensor, begin: int, epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean of each row, x minus the mean, and 1 / sqrt(variance + epsilon)."""
    axes = _rows(x, begin)
    first = _mean(x, axes)
    away = subtract(x, _lead(first, x))
    rest = _mean(away, axes)
    mean = add(first, rest)
    variance = clip(subtract(_mean(square(away), axes), square(rest)), 0.0)
    return mean, subtract(x, _lead(mean, x)), rsqrt(shift(variance, epsilon))


def layer_norm(x: Tensor, gamma: Tensor, beta: Tensor, begin: int, epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    mean, centred, inv_std = row_statistics(x, begin, epsilon)
    return add(multiply(multiply(centred, _lead(inv_std, x)), gamma), beta), mean, inv_std


def layer_norm_grad(dy: Tensor, x: Tensor, gamma: Tensor, mean: Tensor, inv_std: Tensor, begin: int) -> tuple[Tensor, Tensor, Tensor]:
    axes, lead = _rows(x, begin), tuple(range(begin))
    n = multiply(subtract(x, _lead(mean, x)), _lead(inv_std, x))
    away = multiply(dy, gamma)
    away = subtract(away, _lead(_mean(away, axes), x))
    through = multiply(n, _lead(_mean(multiply(away, n), axes), x))
    dx = multiply(subtract(away, through), _lead(inv_std, x))
    return dx, reduce_sum(multiply(dy, n), lead), reduce_sum(dy, lead)


def rms_norm(x: Tensor, gamma: Tensor, begin: int, epsilon: float) -> tuple[Tensor, Tensor]:
    inv_rms = rsqrt(shift(_mean(square(x), _rows(x, begin)), epsilon))
    return multiply(multiply(x, _lead(inv_rms, x)), gamma), inv_rms


def rms_norm_grad(dy: Tensor, x: Tensor, gamma: Tensor, inv_rms: Tensor, begin: int) -> tuple[Tensor, Tensor]:
    n = multiply(x, _lead(inv_rms, x))
    u = multiply(dy, gamma)
    through = multiply(n, _lead(_mean(multiply(u, n), _rows(x, begin)), x))
    return multiply(subtract(u, through), _lead(inv_rms, x)), reduce_sum(multiply(dy, n), tuple(range(begin)))


def row_statistics_grad(x: Tensor, mean: Tensor, inv_std: Tensor, dmean: Tensor, dinv: Tensor, begin: int) -> Tensor:
    cubed = multiply(inv_std, square(inv_std))
    away = multiply(_lead(multiply(dinv, cubed), x), subtract(x, _lead(mean, x)))
    return scale(subtract(_lead(dmean, x), away), 1.0 / math.prod(x.tensor_type.shape[begin:]))
