"""Gamma, chi-squared, beta and Dirichlet distributions.

Samples of the gamma distribution use the method of Marsaglia and Tsang (2000): of several proposals, the first accepted one is the sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jobflow.core.errors import ArgumentError, JobError, ShapeError, user_line
from jobflow.distributions.distribution import Distribution, bounded, broadcast, epsilon, gaussian, tiny, uniform
from jobflow.functional.joining import stack
from jobflow.functional.nn_linear import one_hot
from jobflow.functional.promotion import as_float
from jobflow.functional.selecting import where
from jobflow.functional.special_functions import xlogy
from jobflow.functional.tensor_class import Tensor
from jobflow.tensors.state import gradients

#: proposals per sample; one is rejected with a probability below 0.05, all with one below 1e-13
PROPOSALS = 10


def gamma_logarithms(concentration: Tensor, shape: Sequence[int]) -> Tensor:
    """Return logarithms of samples of the gamma distribution with rate 1."""
    with gradients(False):
        alpha = concentration.detach().expand(*shape)
        raised = where(alpha < 1, alpha + 1, alpha)
        d = raised - 1 / 3
        noise = gaussian(alpha, (PROPOSALS, *shape))
        root = 1 + noise / (9 * d).sqrt()
        v = root.clamp(min=1e-30) ** 3
        accepted = (root > 0) * ((1 - uniform(alpha, (PROPOSALS, *shape))).log() < 0.5 * noise**2 + d - d * v + d * v.log())
        first = accepted.type_as(alpha).argmax(0).unsqueeze(0)
        logarithm = (d * v).gather(0, first).squeeze(0).log()
        return where(alpha < 1, logarithm + (1 - uniform(alpha, shape)).log() / alpha, logarithm)


class _Sampled(Distribution):
    """Base class of distributions whose samples do not receive gradients."""

    has_rsample = True

    def _drawn(self, sample_shape: Sequence[int]) -> Tensor:
        raise self._missing("sample")

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        with gradients(False):
            return self._drawn(sample_shape)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Return samples.  Raises: JobError for parameters that require gradients, because samples do not propagate gradients to them."""
        for name in self.PARAMETERS:
            x = vars(self).get(name)
            if isinstance(x, Tensor) and x.requires_grad:
                raise JobError(
                    f"{self._what('rsample')} at {user_line()}: gradients of samples with respect to {name} are not supported; use sample(), or "
                    f"parameters without gradients"
                )
        return self.sample(sample_shape)


class Gamma(_Sampled):
    """The gamma distribution, with density proportional to x^(concentration - 1) exp(-rate x)."""

    PARAMETERS = ("concentration", "rate")

    def __init__(self, concentration: Any, rate: Any, validate_args: bool | None = None) -> None:
        self.concentration, self.rate = broadcast(self._what(), concentration=concentration, rate=rate)
        super().__init__(self.concentration.shape, (), validate_args)
        self.concentration = self._asserted("concentration", self.concentration, positive=True)
        self.rate = self._asserted("rate", self.rate, positive=True)

    @property
    def mean(self) -> Tensor:
        return self.concentration / self.rate

    @property
    def mode(self) -> Tensor:
        return ((self.concentration - 1) / self.rate).clamp(min=0)

    @property
    def variance(self) -> Tensor:
        return self.concentration / self.rate**2

    def _drawn(self, sample_shape: Sequence[int]) -> Tensor:
        logarithm = gamma_logarithms(self.concentration, self._extended_shape(sample_shape))
        return (logarithm - self.rate.detach().log()).exp().clamp(min=tiny(logarithm))

    def log_prob(self, value: Tensor) -> Tensor:
        value = self._value("log_prob", value, low=0.0)
        value, a, rate = broadcast(self._what("log_prob"), value=value, concentration=self.concentration, rate=self.rate)
        return xlogy(a, rate) + xlogy(a - 1, value) - rate * value - a.lgamma()

    def entropy(self) -> Tensor:
        a = self.concentration
        return a - self.rate.log() + a.lgamma() + (1.0 - a) * a.digamma()


class Chi2(Gamma):
    """The chi-squared distribution with `df` degrees of freedom."""

    def __init__(self, df: Any, validate_args: bool | None = None) -> None:
        (count,) = broadcast(self._what(), df=df)
        super().__init__(0.5 * count, 0.5, validate_args)

    @property
    def df(self) -> Tensor:
        """The degrees of freedom."""
        return self.concentration * 2


class Beta(_Sampled):
    """The beta distribution, with density proportional to x^(concentration1 - 1) (1 - x)^(concentration0 - 1)."""

    PARAMETERS = ("concentration1", "concentration0")

    def __init__(self, concentration1: Any, concentration0: Any, validate_args: bool | None = None) -> None:
        self.concentration1, self.concentration0 = broadcast(self._what(), concentration1=concentration1, concentration0=concentration0)
        super().__init__(self.concentration1.shape, (), validate_args)
        self.concentration1 = self._asserted("concentration1", self.concentration1, positive=True)
        self.concentration0 = self._asserted("concentration0", self.concentration0, positive=True)

    @property
    def _both(self) -> Dirichlet:
        return Dirichlet(stack([self.concentration1, self.concentration0], -1), validate_args=False)

    @property
    def mean(self) -> Tensor:
        return self.concentration1 / (self.concentration1 + self.concentration0)

    @property
    def mode(self) -> Tensor:
        return self._both.mode.select(-1, 0)

    @property
    def variance(self) -> Tensor:
        total = self.concentration1 + self.concentration0
        return self.concentration1 * self.concentration0 / (total**2 * (total + 1))

    def _drawn(self, sample_shape: Sequence[int]) -> Tensor:
        return self._both._drawn(sample_shape).select(-1, 0)

    def log_prob(self, value: Tensor) -> Tensor:
        value = self._value("log_prob", value, low=0.0, high=1.0)
        value, a, b = broadcast(self._what("log_prob"), value=value, a=self.concentration1, b=self.concentration0)
        return xlogy(a - 1.0, value) + xlogy(b - 1.0, 1.0 - value) + (a + b).lgamma() - a.lgamma() - b.lgamma()

    def entropy(self) -> Tensor:
        return self._both.entropy()


class Dirichlet(_Sampled):
    """The Dirichlet distribution over probabilities along the last axis of `concentration`."""

    PARAMETERS = ("concentration",)
    PARAMETER_AXES = 1

    def __init__(self, concentration: Any, validate_args: bool | None = None) -> None:
        if not isinstance(concentration, Tensor):
            kind = type(concentration).__name__
            raise ArgumentError(f"{self._what()} at {user_line()}: concentration must be a tensor, not {kind}; convert it with flow.tensor")
        if concentration.ndim < 1:
            raise ShapeError(f"{self._what()} at {user_line()}: concentration {concentration.tensor_type} must have at least one axis")
        self.concentration = as_float(concentration)
        super().__init__(tuple(concentration.shape)[:-1], tuple(concentration.shape)[-1:], validate_args)
        self.concentration = self._asserted("concentration", self.concentration, positive=True)

    @property
    def mean(self) -> Tensor:
        return self.concentration / self.concentration.sum(-1, keepdim=True)

    @property
    def mode(self) -> Tensor:
        excess = (self.concentration - 1).clamp(min=0.0)
        corner = one_hot(self.concentration.argmax(-1), self.concentration.shape[-1]).type_as(excess)
        below = (self.concentration < 1).all(-1).unsqueeze(-1)
        return where(below, corner, excess / where(below, excess + 1, excess).sum(-1, keepdim=True))

    @property
    def variance(self) -> Tensor:
        total = self.concentration.sum(-1, keepdim=True)
        return self.concentration * (total - self.concentration) / (total**2 * (total + 1))

    def _drawn(self, sample_shape: Sequence[int]) -> Tensor:
        shares = gamma_logarithms(self.concentration, self._extended_shape(sample_shape)).softmax(-1)
        return shares.clamp(min=tiny(shares), max=1 - epsilon(shares) / 2)

    def log_prob(self, value: Tensor) -> Tensor:
        value = self._value("log_prob", value, low=0.0)
        if self._validate_args:
            bounded(self._what("log_prob"), "sum of value =", value.sum(-1), low=1 - 1e-6, high=1 + 1e-6)
        value, a = broadcast(self._what("log_prob"), value=value, concentration=self.concentration)
        return xlogy(a - 1.0, value).sum(-1) + a.sum(-1).lgamma() - a.lgamma().sum(-1)

    def entropy(self) -> Tensor:
        a, k = self.concentration, int(self.concentration.shape[-1])
        total = a.sum(-1)
        return a.lgamma().sum(-1) - total.lgamma() - (k - total) * total.digamma() - ((a - 1.0) * a.digamma()).sum(-1)
