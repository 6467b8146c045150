"""Initializers of variables.

An initializer returns the source op of a variable's initial value. The value is a function of (seed, key, element index). Therefore a rank
computes only its own shard, and all layouts contain equal values.

    fan_in  = prod(shape[1:])
    fan_out = shape[0] * (number of kernel positions): shape[2:] for channels first, shape[1:-1] for channels last
    fan_avg = (fan_in + fan_out) / 2

Variance scaling uses s = scale / fan: random_normal has variance s, random_uniform is U(-sqrt(3 s), sqrt(3 s)). truncated_normal is truncated
at two standard deviations and scaled to variance s.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ArgumentError, ConfigError, did_you_mean, user_line
from jobflow.core.types import DType, float32
from jobflow.functional.nn_base import one_of
from jobflow.legacy.job_dispatch import all_of, of_kinds
from jobflow.ops.op import Op
from jobflow.ops.random_tensors import RandomInt, RandomNormal, RandomUniform, TruncatedNormal
from jobflow.ops.source import Constant

#: Standard deviation of a unit normal cut at +-2.
_TRUNCATED_STD = 0.87962566103423978


class Initializer(Protocol):
    """The protocol of initializers: `op` returns the source op of a variable's initial value, with the variable's full name as `key`."""

    def op(self, shape: tuple[int, ...], dtype: DType, key: str, seed: int) -> Op: ...


@dataclass(frozen=True)
class Fill:
    """An initializer with the same `value` for every element."""

    value: float

    def op(self, shape: tuple[int, ...], dtype: DType, key: str, seed: int) -> Op:
        return Constant(shape, dtype, self.value if dtype.is_float else int(self.value))


@dataclass(frozen=True)
class Uniform:
    """An initializer with the distribution U[low, high); integer variables are integers in [low, high)."""

    low: float
    high: float

    def op(self, shape: tuple[int, ...], dtype: DType, key: str, seed: int) -> Op:
        if dtype.is_integer:
            return RandomInt(shape, dtype, key, seed=seed, low=int(self.low), high=int(self.high))
        return RandomUniform(shape, dtype, key, seed=seed, low=float(self.low), high=float(self.high))


@dataclass(frozen=True)
class Normal:
    """An initializer with the distribution N(mean, std^2)."""

    mean: float
    std: float
    op_class: ClassVar[type[RandomNormal | TruncatedNormal]] = RandomNormal

    def op(self, shape: tuple[int, ...], dtype: DType, key: str, seed: int) -> Op:
        return self.op_class(shape, dtype, key, seed=seed, mean=self.mean, std=self.std)


class Truncated(Normal):
    """An initializer with the distribution N(mean, std^2), truncated at 2 std from the mean."""

    op_class = TruncatedNormal


def fans(shape: Sequence[int], data_format: str) -> tuple[int, int]:
    """Return (fan_in, fan_out) of a weight of `shape`: prod(shape[1:]) and shape[0] times the number of kernel positions.

    A `data_format` of "" means one position.
    """
    fan_in = math.prod(shape[1:])
    if len(shape) <= 2 or not data_format:
        positions = 1
    elif data_format.upper().startswith("NC"):
        positions = math.prod(shape[2:])
    else:
        positions = math.prod(shape[1:-1])
    return fan_in, (shape[0] if shape else 1) * positions


def _fan(shape: Sequence[int], mode: str, data_format: str) -> float:
    fan_in, fan_out = fans(shape, data_format)
    return max({"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}[mode], 1.0)


def _spread(distribution: str, std: float) -> Initializer:
    """Return the zero-mean initializer for `distribution` with standard deviation `std`."""
    if distribution == "random_uniform":
        return Uniform(-math.sqrt(3.0) * std, math.sqrt(3.0) * std)
    return Normal(0.0, std) if distribution == "random_normal" else Truncated(0.0, std / _TRUNCATED_STD)


@dataclass(frozen=True)
class VarianceScaling:
    """An initializer with mean zero and variance scale / fan; `mode` names the fan, and `distribution` the distribution."""

    scale: float
    mode: str
    distribution: str
    data_format: str

    def op(self, shape: tuple[int, ...], dtype: DType, key: str, seed: int) -> Op:
        std = math.sqrt(self.scale / _fan(shape, self.mode, self.data_format))
        return _spread(self.distribution, std).op(shape, dtype, key, seed)


_MODES = ("fan_in", "fan_out", "fan_avg")
_DISTRIBUTIONS = ("truncated_normal", "random_normal", "random_uniform")


def empty_initializer(dtype: DType = float32) -> Initializer:
    """Return an initializer for variables whose values do not matter; it fills them with 0."""
    return Fill(0)


def constant_initializer(value: float = 0, dtype: DType = float32) -> Initializer:
    """Return an initializer with `value` for every element."""
    return Fill(float(value) if dtype.is_float else int(value))


def zeros_initializer(dtype: DType = float32) -> Initializer:
    """Return an initializer of zeros."""
    return constant_initializer(0, dtype)


def ones_initializer(dtype: DType = float32) -> Initializer:
    """Return an initializer of ones."""
    return constant_initializer(1, dtype)


def _check_finite(what: str, **arguments: float) -> None:
    """Raise ArgumentError if an argument is infinite or NaN."""
    for name, value in arguments.items():
        if not math.isfinite(value):
            raise ArgumentError(f"{what} at {user_line()}: {name} must be finite, not {value}")


def random_uniform_initializer(minval: float = 0, maxval: float = 1, dtype: DType = float32) -> Initializer:
    """Return an initializer with the distribution U[minval, maxval); integer variables are integers of that range."""
    _check_finite("random_uniform_initializer", minval=minval, maxval=maxval)
    if minval > maxval:
        raise ArgumentError(f"random_uniform_initializer at {user_line()}: minval {minval} is above maxval {maxval}")
    return Uniform(minval, maxval)


def random_normal_initializer(mean: float = 0.0, stddev: float = 1.0, seed: int | None = None, dtype: DType | None = None) -> Initializer:
    """Return an initializer with the distribution N(mean, stddev^2).

    `seed` and `dtype` must be None; they are arguments of get_variable.
    """
    if seed is not None or dtype is not None:
        raise ArgumentError(f"random_normal_initializer at {user_line()}: seed and dtype must be None; pass random_seed and dtype to get_variable")
    _check_finite("random_normal_initializer", mean=mean, stddev=stddev)
    return Normal(mean, stddev)


def truncated_normal_initializer(mean: float = 0.0, stddev: float = 1.0) -> Initializer:
    """Return an initializer with the distribution N(mean, stddev^2) truncated at 2 stddev; its standard deviation is 0.88 stddev."""
    _check_finite("truncated_normal_initializer", mean=mean, stddev=stddev)
    return Truncated(mean, stddev)


def truncated_normal(stddev: float = 1.0) -> Initializer:
    """Return an initializer with the distribution N(0, stddev^2) truncated at 2 stddev; its standard deviation is 0.88 stddev."""
    return Truncated(0.0, stddev)


def variance_scaling_initializer(
    scale: float = 1.0, mode: str = "fan_in", distribution: str = "truncated_normal", data_format: str = ""
) -> Initializer:
    """Return an initializer with mean zero and variance scale / fan; `mode` selects "fan_in", "fan_out" or "fan_avg".

    `distribution` is "truncated_normal", "random_normal" or "random_uniform". Raises: ArgumentError for a `scale` that is negative or not finite.
    """
    what = "variance_scaling_initializer"
    _check_finite(what, scale=scale)
    if scale < 0:
        raise ArgumentError(f"{what} at {user_line()}: scale must be at least 0, not {scale}")
    return VarianceScaling(scale, one_of(what, "mode", mode, _MODES), one_of(what, "distribution", distribution, _DISTRIBUTIONS), data_format)


def xavier_uniform_initializer(data_format: str = "") -> Initializer:
    """Return an initializer with the distribution U(-a, a), a = sqrt(6 / (fan_in + fan_out))."""
    return VarianceScaling(1.0, "fan_avg", "random_uniform", data_format)


def xavier_normal_initializer(data_format: str = "") -> Initializer:
    """Return an initializer with the distribution N(0, 2 / (fan_in + fan_out))."""
    return VarianceScaling(1.0, "fan_avg", "random_normal", data_format)


#: factor of the standard deviation 1 / sqrt(fan) by the activation after a layer
GAINS = {
    **dict.fromkeys(("linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "sigmoid"), 1.0),
    "tanh": 5 / 3,
    "relu": math.sqrt(2.0),
    "selu": 3 / 4,
}


NONLINEARITIES = (*GAINS, "leaky_relu")


def gain_of(nonlinearity: str, slope: float) -> float:
    """Return the gain of `nonlinearity`, one of NONLINEARITIES; `slope` is the negative slope of leaky_relu."""
    return math.sqrt(2.0 / (1.0 + slope * slope)) if nonlinearity == "leaky_relu" else GAINS[nonlinearity]


def kaiming_initializer(
    shape: Sequence[int],
    distribution: str = "random_normal",
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    negative_slope: float = 0.0,
    data_format: str = "NCHW",
) -> Initializer:
    """Return an initializer with mean zero and standard deviation gain / sqrt(fan) for a weight of `shape`.

    `mode` selects "fan_in", "fan_out" or "fan_avg". `distribution` is "random_normal" or "random_uniform".
    The gain is 5/3 for tanh, sqrt(2) for relu, sqrt(2 / (1 + negative_slope^2)) for leaky_relu and 3/4 for selu.
    It is 1 for linear, sigmoid and convolutions.
    """
    what = "kaiming_initializer"
    _check_finite(what, negative_slope=negative_slope)
    fan = _fan(shape, one_of(what, "mode", mode, _MODES), data_format)
    std = gain_of(one_of(what, "nonlinearity", nonlinearity, NONLINEARITIES), negative_slope) / math.sqrt(fan)
    return _spread(one_of(what, "distribution", distribution, ("random_normal", "random_uniform")), std)


_CONF: dict[str, Callable[[Mapping[str, Any]], Initializer]] = {
    "constant_conf": lambda c: Fill(float(c.get("value", 0))),
    "constant_int_conf": lambda c: Fill(int(c.get("value", 0))),
    "random_uniform_conf": lambda c: Uniform(c.get("min", 0.0), c.get("max", 1.0)),
    "random_uniform_int_conf": lambda c: Uniform(c.get("min", 0), c.get("max", 1)),
    "random_normal_conf": lambda c: Normal(c.get("mean", 0.0), c.get("std", 1.0)),
    "truncated_normal_conf": lambda c: Truncated(c.get("mean", 0.0), c.get("std", 1.0)),
    "xavier_conf": lambda c: xavier_uniform_initializer(c.get("data_format", "")),
    "empty_conf": lambda c: Fill(0),
}


def from_conf(conf: Mapping[str, Any]) -> Initializer:
    """Return the initializer for a dictionary in the older form, for example ``{"constant_conf": {"value": 10}}``.

    Raises: ConfigError unless `conf` has exactly one known key.
    """
    if len(conf) != 1 or next(iter(conf)) not in _CONF:
        wrong = next((key for key in conf if key not in _CONF), "")
        raise ConfigError(f"default_initializer_conf {dict(conf)} must have exactly one of the keys {', '.join(_CONF)}{did_you_mean(wrong, _CONF)}")
    ((kind, fields),) = conf.items()
    return _CONF[kind](fields)


globals().update(all_of(__name__, globals(), __name__, of_kinds))
glorot_uniform_initializer = xavier_uniform_initializer
glorot_normal_initializer = xavier_normal_initializer
