"""Distributions of real numbers: normal, log-normal, uniform, Laplace and exponential."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from jobflow.distributions.distribution import Distribution, bounded, broadcast, gaussian, uniform
from jobflow.functional.tensor_class import Tensor

_ROOT = math.sqrt(2.0)
_LOG_ROOT = 0.5 * math.log(2.0 * math.pi)


class _Symmetric(Distribution):
    """Base class of distributions that are symmetric around their mean `loc`, with the width `scale`."""

    has_rsample = True
    PARAMETERS = ("loc", "scale")

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale = broadcast(self._what(), loc=loc, scale=scale)
        super().__init__(self.loc.shape, (), validate_args)
        self.loc, self.scale = self._asserted("loc", self.loc), self._asserted("scale", self.scale, positive=True)

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc


class Normal(_Symmetric):
    """The normal distribution with mean `loc` and standard deviation `scale`.

    Examples:
        >>> normal = flow.distributions.Normal(flow.zeros(3), flow.ones(3))
        >>> normal.sample((5,)).shape
        jobflow.Size([5, 3])
        >>> normal.log_prob(flow.zeros(3))
        tensor([-0.9189, -0.9189, -0.9189], dtype=jobflow.float32)
    """

    @property
    def stddev(self) -> Tensor:
        return self.scale

    @property
    def variance(self) -> Tensor:
        return self.stddev**2

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.loc + gaussian(self.loc, self._extended_shape(sample_shape)) * self.scale

    def log_prob(self, value: Tensor) -> Tensor:
        value = self._value("log_prob", value)
        return -((value - self.loc) ** 2) / (2 * self.scale**2) - self.scale.log() - _LOG_ROOT

    def cdf(self, value: Tensor) -> Tensor:
        value = self._value("cdf", value)
        return 0.5 * (1 + ((value - self.loc) / self.scale / _ROOT).erf())

    def icdf(self, value: Tensor) -> Tensor:
        return self.loc + self.scale * (2 * self._value("icdf", value) - 1).erfinv() * _ROOT

    def entropy(self) -> Tensor:
        return 0.5 + _LOG_ROOT + self.scale.log()


class LogNormal(Distribution):
    """The distribution of exp(x) for normal x with mean `loc` and standard deviation `scale`."""

    has_rsample = True
    PARAMETERS = ("loc", "scale")

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        base = Normal(loc, scale, validate_args)
        self.loc, self.scale = base.loc, base.scale
        super().__init__(base.batch_shape, (), validate_args)

    @property
    def base_dist(self) -> Normal:
        """The normal distribution of the logarithm."""
        return Normal(self.loc, self.scale, False)

    @property
    def mean(self) -> Tensor:
        return (self.loc + self.scale**2 / 2).exp()

    @property
    def mode(self) -> Tensor:
        return (self.loc - self.scale**2).exp()

    @property
    def variance(self) -> Tensor:
        square = self.scale**2
        return square.expm1() * (2 * self.loc + square).exp()

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.base_dist.rsample(sample_shape).exp()

    def log_prob(self, value: Tensor) -> Tensor:
        logarithm = self._value("log_prob", value, positive=True).log()
        return self.base_dist.log_prob(logarithm) - logarithm

    def cdf(self, value: Tensor) -> Tensor:
        return self.base_dist.cdf(self._value("cdf", value, positive=True).log())

    def icdf(self, value: Tensor) -> Tensor:
        return self.base_dist.icdf(self._value("icdf", value)).exp()

    def entropy(self) -> Tensor:
        return self.base_dist.entropy() + self.loc


class Uniform(Distribution):
    """The uniform distribution on [low, high)."""

    has_rsample = True
    PARAMETERS = ("low", "high")

    def __init__(self, low: Any, high: Any, validate_args: bool | None = None) -> None:
        self.low, self.high = broadcast(self._what(), low=low, high=high)
        super().__init__(self.low.shape, (), validate_args)
        if self._validate_args:
            bounded(self._what(), "high - low =", self.high - self.low, positive=True)

    @property
    def mean(self) -> Tensor:
        return (self.high + self.low) / 2

    @property
    def mode(self) -> Tensor:
        return math.nan * self.high

    @property
    def stddev(self) -> Tensor:
        return (self.high - self.low) / math.sqrt(12.0)

    @property
    def variance(self) -> Tensor:
        return (self.high - self.low) ** 2 / 12

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.low + uniform(self.low, self._extended_shape(sample_shape)) * (self.high - self.low)

    def _inside(self, method: str, value: Tensor) -> Tensor:
        value = self._value(method, value)
        if not self._validate_args:
            return value
        bounded(self._what(method), "value - low =", value - self.low, low=0.0)
        bounded(self._what(method), "high - value =", self.high - value, low=0.0)
        return value

    def log_prob(self, value: Tensor) -> Tensor:
        value = self._inside("log_prob", value)
        return ((self.low <= value) * (self.high > value)).type_as(self.low).log() - (self.high - self.low).log()

    def cdf(self, value: Tensor) -> Tensor:
        value = self._inside("cdf", value)
        return ((value - self.low) / (self.high - self.low)).clamp(min=0, max=1)

    def icdf(self, value: Tensor) -> Tensor:
        return self._value("icdf", value) * (self.high - self.low) + self.low

    def entropy(self) -> Tensor:
        return (self.high - self.low).log()


class Laplace(_Symmetric):
    """The Laplace distribution, with density exp(-|x - loc| / scale) / (2 scale)."""

    @property
    def variance(self) -> Tensor:
        return 2 * self.scale**2

    @property
    def stddev(self) -> Tensor:
        return _ROOT * self.scale

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        u = 1 - 2 * uniform(self.loc, self._extended_shape(sample_shape))  # in (-1, 1]
        u = u.clamp(max=1 - 2.0**-24)
        return self.loc - self.scale * u.sign() * (-u.abs()).log1p()

    def log_prob(self, value: Tensor) -> Tensor:
        return -(2 * self.scale).log() - (self._value("log_prob", value) - self.loc).abs() / self.scale

    def cdf(self, value: Tensor) -> Tensor:
        distance = self._value("cdf", value) - self.loc
        return 0.5 - 0.5 * distance.sign() * (-distance.abs() / self.scale).expm1()

    def icdf(self, value: Tensor) -> Tensor:
        term = self._value("icdf", value) - 0.5
        return self.loc - self.scale * term.sign() * (-2 * term.abs()).log1p()

    def entropy(self) -> Tensor:
        return 1 + (2 * self.scale).log()


class Exponential(Distribution):
    """The exponential distribution, with density rate exp(-rate x) for x >= 0."""

    has_rsample = True
    PARAMETERS = ("rate",)

    def __init__(self, rate: Any, validate_args: bool | None = None) -> None:
        (self.rate,) = broadcast(self._what(), rate=rate)
        super().__init__(self.rate.shape, (), validate_args)
        self.rate = self._asserted("rate", self.rate, positive=True)

    @property
    def mean(self) -> Tensor:
        return self.rate.reciprocal()

    @property
    def mode(self) -> Tensor:
        return self.rate * 0

    @property
    def stddev(self) -> Tensor:
        return self.rate.reciprocal()

    @property
    def variance(self) -> Tensor:
        return self.rate**-2

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return -(-uniform(self.rate, self._extended_shape(sample_shape))).log1p() / self.rate

    def log_prob(self, value: Tensor) -> Tensor:
        return self.rate.log() - self.rate * self._value("log_prob", value, low=0.0)

    def cdf(self, value: Tensor) -> Tensor:
        return 1 - (-self.rate * self._value("cdf", value, low=0.0)).exp()

    def icdf(self, value: Tensor) -> Tensor:
        return -(-self._value("icdf", value)).log1p() / self.rate

    def entropy(self) -> Tensor:
        return 1.0 - self.rate.log()
