"""Activations, softmax and operations with a fused bias."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jobflow.legacy.math as math
from jobflow.core.errors import ArgumentError, ShapeError, user_line
from jobflow.core.types import Tensor
from jobflow.functional import nn_activations as nn
from jobflow.legacy.arrays import matmul, reshape, slice, transpose
from jobflow.legacy.job_dispatch import ALIAS, alias, all_of, of_jobs, traced
from jobflow.legacy.random import dropout
from jobflow.ops import activation as ac
from jobflow.ops import elementwise as ew
from jobflow.ops import matmul as la
from jobflow.ops.op import normal_axis

relu = math.relu
leaky_relu = alias(nn.leaky_relu, alpha=0.2)
elu = alias(nn.elu, alpha=1.0)
hardsigmoid = alias(nn.hardsigmoid)
hardswish = alias(nn.hardswish)
hardtanh = alias(nn.hardtanh, min_val=-1.0, max_val=1.0)
relu6 = alias(nn.relu6)
swish = alias(ac.swish, beta=1.0)
mish = alias(nn.mish)


def _rows(word: str, function: Callable[..., Any]) -> Callable[..., Tensor]:
    """Return the job function `word` for the softmax function `function` of logits with at least 2 axes; an `axis` of None means the last axis."""

    def call(logits: Tensor, axis: int | None) -> Tensor:
        return function(logits, _softmax_axis(word, logits, axis))

    call.__doc__ = function.__doc__
    return alias(call, "logits", axis=None)


def _softmax_axis(what: str, x: Tensor, axis: int | None) -> int:
    if x.tensor_type.ndim < 2:
        raise ShapeError(f"{what} at {user_line()}: the input {x.tensor_type} must have at least 2 axes")
    return normal_axis(f"{what} at {user_line()}", -1 if axis is None else axis, x.tensor_type.ndim)


softmax = _rows("softmax", nn.softmax)
logsoftmax = _rows("logsoftmax", nn.log_softmax)


def softmax_grad(y: Tensor, dy: Tensor, axis: int | None = None, name: str | None = None) -> Tensor:
    """Return y (dy - sum of y dy along `axis`), the gradient of the input of softmax.

    y is the result of softmax, and dy the gradient of y. An `axis` of None means the last axis.
    """
    place = _softmax_axis("softmax_grad", y, axis)
    return ew.multiply(y, ew.subtract(dy, math.reduce_sum(ew.multiply(y, dy), place, True)))


def bias_add(value: Tensor, bias: Tensor, data_format: str | None = None, name: str | None = None) -> Tensor:
    """Add the vector `bias` to `value` along axis 1, or along the last axis for a channels-last `data_format` such as "NHWC".

    Raises: ShapeError if `value` has fewer than 2 axes or `bias` is not a vector; ArgumentError for another `data_format`.
    """
    last = data_format is not None and data_format.startswith("N") and data_format.endswith("C") and len(data_format) > 2
    if data_format is not None and not last and not data_format.startswith("NC"):
        raise ArgumentError(f"bias_add at {user_line()}: data_format must start with NC, or start with N and end with C, not {data_format!r}")
    if value.tensor_type.ndim < 2 or bias.tensor_type.ndim != 1:
        raise ShapeError(f"bias_add at {user_line()}: value {value.tensor_type} must have at least 2 axes, and bias {bias.tensor_type} 1 axis")
    return la.bias_add(value, bias, value.tensor_type.ndim - 1 if last else 1)


def fused_bias_add_gelu(value: Tensor, bias: Tensor, data_format: str | None = None, name: str | None = None) -> Tensor:
    """Return gelu(bias_add(value, bias, data_format))."""
    return math.gelu(bias_add(value, bias, data_format))


def _fused_bias_add_dropout(
    value: Tensor,
    bias: Tensor,
    data_format: str | None = None,
    rate: float = 0.0,
    noise_shape: Sequence[int] | None = None,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Return dropout(bias_add(value, bias, data_format), rate, noise_shape, seed)."""
    return dropout(bias_add(value, bias, data_format), rate, noise_shape, seed, name)


def fused_self_attention_query_mul_key_and_value(x: Tensor, head_size: int, alpha: float = 1.0, name: str | None = None) -> tuple[Tensor, Tensor]:
    """Return alpha query key^T of shape [b, heads, s, s], and value of shape [b, heads, s, head_size].

    x [s, b, heads * 3 * head_size] contains the query, key and value of each head, for sequence length s and batch size b.
    """
    if x.tensor_type.ndim != 3 or head_size < 1 or x.tensor_type.shape[2] % (3 * head_size):
        raise ShapeError(
            f"fused_self_attention_query_mul_key_and_value at {user_line()}: x {x.tensor_type} must be [s, b, heads * 3 * head_size] with a "
            f"positive head_size; got head_size {head_size}"
        )
    s, b, width = x.tensor_type.shape
    heads = width // (3 * head_size)
    apart = transpose(reshape(x, (s, b, heads, 3, head_size)), (3, 1, 2, 0, 4))
    query, key, value = (reshape(slice(apart, [i, 0, 0, 0, 0], [1, -1, -1, -1, -1]), (b, heads, s, head_size)) for i in (0, 1, 2))
    return matmul(query, key, transpose_b=True, alpha=alpha), value


globals().update(all_of(__name__, globals(), (__name__, ALIAS), traced))
_DRAWS = {"fused_bias_add_dropout": _fused_bias_add_dropout}
_OF_TENSORS = {"fused_bias_add_dropout": "flow.nn.functional.dropout"}
fused_bias_add_dropout = all_of(__name__, _DRAWS, __name__, of_jobs, _OF_TENSORS)["fused_bias_add_dropout"]
