"""Activations, softmax, dropout, and the published combinations of them."""

from __future__ import annotations

from collections.abc import Sequence

from jobflow import math, scope
from jobflow.errors import ArgumentError, JobError, ShapeError, user_line
from jobflow.ops import activation as ac
from jobflow.ops import elementwise as ew
from jobflow.ops import linalg as la
from jobflow.ops import random as rn
from jobflow.ops import softmax as sm
from jobflow.ops.base import apply, normal_axis
from jobflow.types import Tensor, int8
from jobflow.variables import current_job

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


def dropout(x: Tensor, rate: float, noise_shape: Sequence[int] | None = None, seed: int | None = None, name: str | None = None) -> Tensor:
    """Each element 0 with probability `rate`, the others divided by 1 - rate; x itself in predict jobs and for rate 0.

    Other elements fall at every run.  `seed` replaces the job's seed and needs a name.
    """
    if not 0 <= rate < 1:
        raise ArgumentError(f"dropout at {user_line()}: rate {rate} is not in [0, 1)")
    if noise_shape is not None:
        raise JobError(f"dropout at {user_line()}: noise_shape is not supported")
    if seed is not None and name is None:
        raise ArgumentError(f"dropout at {user_line()}: a seed needs a name, which must be the same in every run of the program")
    job = current_job("dropout")
    if not job.trainable or rate == 0:
        return x
    key = job.unique_name("dropout") if name is None else scope.current().full_name(name)
    return rn.dropout(x, float(rate), job.run_counter(), key=key, seed=job.seed if seed is None else seed, name=name)


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


def fused_scale_tril_softmax_dropout(
    x: Tensor,
    diagonal: int = 0,
    fill_value: float = 0,
    scale: float = 1,
    rate: float = 0.0,
    noise_shape: Sequence[int] | None = None,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """dropout(softmax(scale x where column - row <= diagonal, fill_value elsewhere))."""
    own = name if rate == 0 or not current_job("fused_scale_tril_softmax_dropout").trainable else None
    if fill_value == float("-inf"):
        y = sm.causal_softmax(x, float(scale), diagonal, name=own)
    else:
        y = sm.softmax(math.fused_scale_tril(x, diagonal, fill_value, scale), name=own)
    return dropout(y, rate, noise_shape, seed, name)


def random_mask_like(like: Tensor, rate: float, seed: int | None = None, noise_shape: Sequence[int] | None = None, name: str | None = None) -> Tensor:
    """int8 in the shape of `like`: 0 with probability `rate`, else 1.  A seed needs a name."""
    if not 0 <= rate < 1:
        raise ArgumentError(f"random_mask_like at {user_line()}: rate {rate} is not in [0, 1)")
    if noise_shape is not None or (seed is not None and name is None):
        raise ArgumentError(f"random_mask_like at {user_line()}: noise_shape is not supported, and a seed needs a name")
    job = current_job("random_mask_like")
    key = job.unique_name("mask") if name is None else scope.current().full_name(name)
    mask = apply(rn.DropoutMask(float(rate), key, job.seed if seed is None else seed), like, job.run_counter())
    return ew.cast(ew.sign(mask), int8, name=name)
