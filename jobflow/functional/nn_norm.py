"""Normalization functions.  Batch statistics cover the whole logical batch, independent of its layout."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from jobflow.core.errors import ArgumentError, ShapeError, user_line
from jobflow.core.types import DType
from jobflow.core.types import Tensor as Value
from jobflow.functional.nn_base import composing, formula, real, shape_of_rows
from jobflow.functional.nn_conv import check_channels
from jobflow.functional.promotion import cast
from jobflow.functional.typed import Tensor
from jobflow.ops import batch_norm as bn
from jobflow.ops import elementwise as ew
from jobflow.ops import group_norm as gn
from jobflow.ops import norm as nm
from jobflow.ops import reduce as rd
from jobflow.ops import shape as sh
from jobflow.ops import slices as sl
from jobflow.ops.op import Op
from jobflow.ops.pool import avg_pool
from jobflow.ops.scalar import Scale
from jobflow.ops.source import constant
from jobflow.ops.update import MovingAverage
from jobflow.tensors import redistribution
from jobflow.tensors import run as running
from jobflow.tensors.state import gradients, state

__all__ = ["batch_norm", "group_norm", "instance_norm", "layer_norm", "local_response_norm", "rms_norm"]


def _vector(p: Tensor | None, size: int, like: Tensor, value: float) -> Value:
    return constant(value, (size,), like.tensor_type.dtype) if p is None else p


def _wide(p: Tensor | None, dtype: DType) -> Tensor | None:
    return None if p is None else cast(p, dtype)


def update(op: Op, *inputs: Value) -> None:
    """Run `op`, which overwrites some of its inputs, immediately or in each run of the traced program."""
    here = state()
    if here.building is not None:
        here.building.update(op, inputs)
    else:
        running.update(here, op, tuple(_eager(x) for x in inputs), "update of running statistics")


def building() -> bool:
    """Return True while a program is traced, where tensors have no values."""
    return state().building is not None


def _eager(x: Value) -> Tensor:
    assert isinstance(x, Tensor)
    return x


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Return (input - mean) / sqrt(var + eps) * weight + bias per channel, axis 1 (Ioffe and Szegedy 2015).

    With `training`, mean and var are the statistics of `input`.  If both running statistics are passed, they become (1 - momentum) * old +
    momentum * new, with the unbiased variance.  Without `training`, the running statistics are mean and var.
    Raises: ShapeError for shapes that do not match, or missing running statistics without `training`.  Training with one value per channel
    raises ShapeError, and with eps <= 0 ArgumentError.  The result of an empty input is empty, and the running
    statistics do not change.
    """
    t, what = input.tensor_type, "batch_norm"
    if t.ndim < 2:
        raise ShapeError(f"{what} at {user_line()}: input {t} must be [n, channels, ...]")
    channels = t.shape[1]
    check_channels(what, channels, f"input {t}", running_mean=running_mean, running_var=running_var, weight=weight, bias=bias)
    if training and not eps > 0:
        raise ArgumentError(f"{what} at {user_line()}: eps {eps} must be positive")
    if not training and (running_mean is None or running_var is None):
        raise ShapeError(f"{what} at {user_line()}: running_mean and running_var must be passed unless training=True")
    if t.dtype.is_half:  # their statistics may overflow
        wide = partial(_wide, dtype=t.dtype.arithmetic)
        averages = (running_mean, running_var) if training else (wide(running_mean), wide(running_var))  # training updates them in place
        return cast(batch_norm(cast(input, t.dtype.arithmetic), *averages, wide(weight), wide(bias), training, momentum, eps), t.dtype)
    momentum = real(what, "momentum", momentum)
    with composing(input):
        gamma, beta = _vector(weight, channels, input, 1.0), _vector(bias, channels, input, 0.0)
        if not training:
            assert running_mean is not None and running_var is not None
            return _eager(bn.batch_norm_infer(input, gamma, beta, running_mean, running_var, 1, eps))
        if not t.size:  # the running statistics do not change
            return _eager(bn.batch_norm_infer(input, gamma, beta, _vector(None, channels, input, 0.0), _vector(None, channels, input, 1.0), 1, eps))
        count = t.size // max(channels, 1)
        if count < 2:
            raise ShapeError(f"{what} at {user_line()}: training needs more than one value per channel; input is {t}")
        y, mean, variance = bn.batch_norm_train(input, gamma, beta, 1, eps)
    if running_mean is not None and running_var is not None:
        with gradients(False):
            _move_averages((running_mean, running_var), (_eager(mean), _eager(variance)), momentum, count / (count - 1))
    return _eager(y)


def _move_averages(averages: tuple[Tensor, Tensor], moments: tuple[Tensor, Tensor], momentum: float, correction: float) -> None:
    """Update the running `averages` with `moments`, the mean and the variance of a batch; `correction` times the variance is unbiased."""
    vectors = (*averages, *moments)
    if running.runs_chains(*vectors) and all(x.tensor_type == vectors[0].tensor_type for x in vectors):
        update(bn.average_updates(vectors[0].tensor_type, momentum, correction), *vectors)
        return
    mean, variance = moments
    _move(averages[0], mean, momentum)
    _move(averages[1], running.run(Scale(correction), variance), momentum)


def _move(average: Tensor, value: Tensor, momentum: float) -> None:
    """Update a running average with a value, converted to the element type and layout of the average."""
    value = cast(value, average.tensor_type.dtype)
    if average.layout is not None:
        value = redistribution.redistribute(state(), value, average.layout)
    update(MovingAverage(1.0 - momentum), average, value)


def _last_axes(what: str, x: Tensor, normalized_shape: int | Sequence[int]) -> tuple[int, ...]:
    """Return `normalized_shape` as a tuple; raise ShapeError unless x ends with this shape."""
    shape = shape_of_rows(what, normalized_shape)
    if not shape or x.tensor_type.shape[-len(shape) :] != shape:
        raise ShapeError(f"{what} at {user_line()}: normalized_shape {list(shape)} must be the shape of the last axes of input {x.tensor_type}")
    return shape


def _normalized_rows(
    what: str, norm: Callable[..., Value], x: Tensor, normalized_shape: int | Sequence[int], eps: float, **parameters: Tensor | None
) -> Value:
    """Return norm(x, *parameters, first axis, eps) over the last axes of x, of shape `normalized_shape`.

    A tensor without leading axes is a single row.  Raises: ShapeError for another shape of x or of a parameter.
    """
    shape = _last_axes(what, x, normalized_shape)
    for name, p in parameters.items():
        if p is not None and p.tensor_type.shape != shape:
            raise ShapeError(f"{what} at {user_line()}: {name} {p.tensor_type} must have the shape normalized_shape {list(shape)}")
    begin = x.tensor_type.ndim - len(shape)
    if begin:
        return norm(x, *parameters.values(), begin, eps)
    return sh.squeeze(norm(sh.expand_dims(x, 0), *parameters.values(), 1, eps), (0,))


@formula
def layer_norm(
    input: Tensor, normalized_shape: int | Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Value:
    """Return (input - mean) / sqrt(var + eps) * weight + bias over the last axes, of shape `normalized_shape` (Ba et al. 2016).

    Raises: ShapeError unless `normalized_shape` is the shape of the last axes of the input and of the parameters.
    """
    return _normalized_rows("layer_norm", nm.layer_norm, input, normalized_shape, eps, weight=weight, bias=bias)


@formula
def rms_norm(input: Tensor, normalized_shape: int | Sequence[int], weight: Tensor | None = None, eps: float | None = None) -> Value:
    """Return input / sqrt(mean(input^2) + eps) * weight over the last axes, of shape `normalized_shape` (Zhang and Sennrich 2019).

    `eps` defaults to the machine epsilon of the element type.
    Raises: ShapeError unless `normalized_shape` is the shape of the last axes of the input and of the weight.
    """
    return _normalized_rows(
        "rms_norm", nm.rms_norm, input, normalized_shape, _epsilon(input.tensor_type.dtype) if eps is None else eps, weight=weight
    )


def _epsilon(dtype: Any) -> float:
    """Return the distance from 1 to the next larger number of the element type."""
    return {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10}.get(dtype.name, 2.0**-7)


@formula
def group_norm(input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5) -> Value:
    """Normalize `input` [n, c, ...] per sample and group of channels, then multiply by weight and add bias per channel (Wu and He 2018).

    Normalized values have mean 0 and variance 1.
    Raises: ShapeError unless the channels divide into `num_groups` groups and the parameters have one element per channel.
    """
    t = input.tensor_type
    if t.ndim < 2 or num_groups < 1 or t.shape[1] % num_groups:
        raise ShapeError(f"group_norm at {user_line()}: the channels, axis 1 of input {t}, cannot be divided into {num_groups} equal groups")
    check_channels("group_norm", t.shape[1], str(t), weight=weight, bias=bias)
    return gn.group_norm(input, num_groups, weight, bias, eps)


@formula
def local_response_norm(input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Value:
    """Return input / (k + alpha * m)^beta for `input` [n, c, ...], where m is the mean square of `size` neighbouring channels.

    The window of channel c begins at channel c - size // 2; channels outside of the input count as zeros (Krizhevsky et al. 2012).
    Raises: ShapeError for an input with fewer than 3 axes, ArgumentError unless size >= 1.
    """
    t, what = input.tensor_type, "local_response_norm"
    if t.ndim < 3:
        raise ShapeError(f"{what} at {user_line()}: input {t} must be [n, channels, ...] with at least 3 axes")
    if not 1 <= size < 2**31:
        raise ArgumentError(f"{what} at {user_line()}: size must be at least 1 and below 2**31; got {size}")
    if not t.size:
        return ew.identity(input)
    n, c, *places = t.shape
    squares = sh.reshape(ew.square(input), (n, 1, c, math.prod(places)))
    wide = sl.pad(squares, [(0, 0), (0, 0), (size // 2, (size - 1) // 2), (0, 0)])
    means = sh.reshape(avg_pool(wide, (size, 1), (1, 1)), t.shape)
    return ew.divide(input, ew.scalar_power(ew.shift(ew.scale(means, alpha), k), beta))


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalize `input` [n, c, ...] per sample and channel, then multiply by weight and add bias per channel (Ulyanov et al. 2016).

    Normalized values have mean 0 and variance 1.  If both running statistics are passed, they become (1 - momentum) * old + momentum * new,
    where new is averaged over the samples.  With `use_input_stats=False`, the running statistics replace the statistics of the input.
    Raises: ShapeError unless each channel of a sample has several values, and the parameters have one element per channel.
    """
    t, what = input.tensor_type, "instance_norm"
    if t.ndim < 3 or t.size // max(t.shape[0] * t.shape[1], 1) == 1:
        raise ShapeError(f"{what} at {user_line()}: input {t} must be [n, channels, ...] with more than one value per channel")
    momentum = real(what, "momentum", momentum)
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    if t.dtype.is_half:
        wide = partial(_wide, dtype=t.dtype.arithmetic)
        return cast(instance_norm(cast(input, t.dtype.arithmetic), running_mean, running_var, wide(weight), wide(bias), True, momentum, eps), t.dtype)
    if running_mean is not None and not t.size:
        raise ShapeError(f"{what} at {user_line()}: input {t} is empty and has no statistics; pass at least one sample")
    with composing(input):
        check_channels(what, t.shape[1], str(t), weight=weight, bias=bias)
        y = gn.group_norm(input, t.shape[1], weight, bias, eps)
    if running_mean is not None and running_var is not None:
        with gradients(False), composing(input):
            axes = tuple(range(2, t.ndim))
            count = t.size // (t.shape[0] * t.shape[1])
            mean = rd.reduce_mean(input, axes)
            variance = ew.scale(rd.reduce_variance(input, axes), count / (count - 1))
            means = [rd.reduce_mean(each, (0,)) for each in (mean, variance)]
        with gradients(False):
            for average, value in zip((running_mean, running_var), means, strict=True):
                _move(average, _eager(value), momentum)
    return _eager(y)
