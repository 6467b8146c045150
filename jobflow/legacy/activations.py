"""Activations, softmax, dropout, and the published combinations of them."""

from __future__ import annotations

from collections.abc import Sequence

import jobflow.legacy.math as math
from jobflow.core.errors import ArgumentError, ShapeError, user_line
from jobflow.core.types import Tensor
from jobflow.eager.faces import all_of, of_jobs
from jobflow.legacy.arrays import matmul, reshape, slice, transpose
from jobflow.legacy.random import dropout
from jobflow.ops import activation as ac
from jobflow.ops import elementwise as ew
from jobflow.ops import matmul as la
from jobflow.ops import softmax as sm
from jobflow.ops.op import normal_axis

relu = math.relu


def leaky_relu(x: Tensor, alpha: float = 0.2, name: str | None = None) -> Tensor:
    """x where x > 0, alpha x elsewhere."""
    return ac.leaky_relu(x, alpha, name=name)


def elu(x: Tensor, alpha: float = 1.0, name: str | None = None) -> Tensor:
    """x where x > 0, alpha (e^x - 1) elsewhere."""
    return ac.elu(x, alpha, name=name)


def hardsigmoid(x: Tensor, name: str | None = None) -> Tensor:
    """x / 6 + 1/2, limited to [0, 1]."""
    return ac.hard_sigmoid(x, name=name)


def hardswish(x: Tensor, name: str | None = None) -> Tensor:
    """x / 6 times x + 3 limited to [0, 6]."""
    return ac.hard_swish(x, name=name)


def hardtanh(x: Tensor, min_val: float = -1.0, max_val: float = 1.0, name: str | None = None) -> Tensor:
    """x limited to [min_val, max_val]."""
    return ac.hard_tanh(x, min_val, max_val, name=name)


def relu6(x: Tensor, name: str | None = None) -> Tensor:
    """x limited to [0, 6]."""
    return ac.relu6(x, name=name)


def swish(x: Tensor, beta: float = 1.0, name: str | None = None) -> Tensor:
    """x sigmoid(beta x)."""
    return ac.swish(x, beta, name=name)


def mish(x: Tensor, name: str | None = None) -> Tensor:
    """x tanh(log(1 + e^x))."""
    return ac.mish(x, name=name)


def _softmax_axis(what: str, x: Tensor, axis: int | None) -> int:
    if x.type.ndim < 2:
        raise ShapeError(f"{what} at {user_line()}: {x.type} must have at least 2 axes")
    return normal_axis(f"{what} at {user_line()}", -1 if axis is None else axis, x.type.ndim)


def softmax(logits: Tensor, axis: int | None = None, name: str | None = None) -> Tensor:
    """e^x / sum of e^x along `axis` (the last one if None)."""
    return sm.softmax(logits, _softmax_axis("softmax", logits, axis), name=name)


def logsoftmax(logits: Tensor, axis: int | None = None, name: str | None = None) -> Tensor:
    """log(softmax(x))."""
    return sm.log_softmax(logits, _softmax_axis("logsoftmax", logits, axis), name=name)


def softmax_grad(y: Tensor, dy: Tensor, axis: int | None = None, name: str | None = None) -> Tensor:
    """y (dy - sum of y dy along `axis`)."""
    place = _softmax_axis("softmax_grad", y, axis)
    return ew.multiply(y, ew.subtract(dy, math.reduce_sum(ew.multiply(y, dy), place, True)), name=name)


def bias_add(value: Tensor, bias: Tensor, data_format: str | None = None, name: str | None = None) -> Tensor:
    """value + bias along axis 1, or along the last axis for a data_format such as "NHWC"."""
    last = data_format is not None and data_format.startswith("N") and data_format.endswith("C") and len(data_format) > 2
    if data_format is not None and not last and not data_format.startswith("NC"):
        raise ArgumentError(f"bias_add at {user_line()}: data_format {data_format!r} begins with NC, or begins with N and ends with C")
    if value.type.ndim < 2 or bias.type.ndim != 1:
        raise ShapeError(f"bias_add at {user_line()}: value {value.type} needs 2 axes or more, and bias {bias.type} one")
    return la.bias_add(value, bias, value.type.ndim - 1 if last else 1, name=name)


def fused_bias_add_gelu(value: Tensor, bias: Tensor, data_format: str | None = None, name: str | None = None) -> Tensor:
    """gelu(value + bias)."""
    return math.gelu(bias_add(value, bias, data_format), name)


def fused_bias_add_dropout(
    value: Tensor,
    bias: Tensor,
    data_format: str | None = None,
    rate: float = 0.0,
    noise_shape: Sequence[int] | None = None,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """dropout(value + bias)."""
    return dropout(bias_add(value, bias, data_format), rate, noise_shape, seed, name)


def fused_self_attention_query_mul_key_and_value(x: Tensor, head_size: int, alpha: float = 1.0, name: str | None = None) -> tuple[Tensor, Tensor]:
    """x [s, b, heads * 3 * head_size] holds query, key, value per head; (alpha query key^T [b, heads, s, s], value [b, heads, s, head_size])."""
    if x.type.ndim != 3 or x.type.shape[2] % (3 * head_size):
        raise ShapeError(f"fused_self_attention at {user_line()}: x {x.type} must be [s, b, heads * 3 * {head_size}]")
    s, b, width = x.type.shape
    heads = width // (3 * head_size)
    apart = transpose(reshape(x, (s, b, heads, 3, head_size)), (3, 1, 2, 0, 4))
    query, key, value = (reshape(slice(apart, [i, 0, 0, 0, 0], [1, -1, -1, -1, -1]), (b, heads, s, head_size)) for i in (0, 1, 2))
    return matmul(query, key, transpose_b=True, alpha=alpha, name=name), value


#: what tensors have instead of what draws
_OF_TENSORS = {"fused_bias_add_dropout": "flow.nn.functional.dropout"}
globals().update(all_of(__name__, globals(), __name__, of_jobs, _OF_TENSORS))
