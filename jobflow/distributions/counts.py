"""Distributions of counts in several trials: binomial and multinomial."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from jobflow.core.errors import ArgumentError, user_line
from jobflow.distributions.discrete import Categorical, OfClasses, OfTrials, numbered
from jobflow.distributions.distribution import bounded, broadcast, uniform
from jobflow.functional.nn_base import whole
from jobflow.functional.nn_linear import one_hot
from jobflow.functional.tensor_class import Tensor
from jobflow.functional.values import value_of
from jobflow.tensors.state import gradients


class Binomial(OfTrials):
    """The distribution of the number of successes in `total_count` trials, each with probability `probs`; `logits` are the log-odds."""

    has_enumerate_support = True
    PARAMETERS = ("total_count", "_probs", "_logits")

    def __init__(self, total_count: Any = 1, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        (self.total_count,) = self._set(probs, logits, validate_args, total_count=total_count)
        self.total_count = self._asserted("total_count", self.total_count, low=0, whole=True)
        self._most = int(total_count) if not isinstance(total_count, Tensor) else None

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Binomial:
        result = super().expand(batch_shape)
        result._most = self._most
        return result

    def _largest(self, method: str) -> int:
        """Return the largest element of `total_count`, which determines the shape of the samples; raise JobError while a program is traced."""
        if self._most is None:
            self._most = int(value_of(self.total_count.detach(), self._what(method)).max(initial=0))
        return self._most

    @property
    def mean(self) -> Tensor:
        return self.total_count * self.probs

    @property
    def mode(self) -> Tensor:
        return ((self.total_count + 1) * self.probs).floor().minimum(self.total_count)

    @property
    def variance(self) -> Tensor:
        return self.total_count * self.probs * (1 - self.probs)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        with gradients(False):
            shape, most = self._extended_shape(sample_shape), self._largest("sample")
            successes = uniform(self._own, (most, *shape)) < self.probs.detach()
            trials = numbered(self._own, most, shape, False)
            return (successes * (trials < self.total_count)).type_as(self._own).sum(0)

    def log_prob(self, value: Tensor) -> Tensor:
        value = self._value("log_prob", value, low=0, whole=True)
        if self._validate_args:
            bounded(self._what("log_prob"), "total_count - value =", self.total_count - value, low=0)
        value, logits, n = broadcast(self._what("log_prob"), value=value, logits=self.logits, total_count=self.total_count)
        normalizer = n * logits.clamp(min=0) + n * (-logits.abs()).exp().log1p() - (n + 1).lgamma()
        return value * logits - (value + 1).lgamma() - (n - value + 1).lgamma() - normalizer

    def _equal_count(self, method: str) -> int:
        if self._most is None and int(value_of(self.total_count.detach(), self._what(method)).min()) != self._largest(method):
            raise ArgumentError(f"{self._what(method)} at {user_line()}: elements of total_count differ; use one distribution per count")
        return self._largest(method)

    def entropy(self) -> Tensor:
        self._equal_count("entropy")
        logarithms = Binomial(self.total_count, logits=self.logits, validate_args=False).log_prob(self.enumerate_support(False))
        return -(logarithms.exp() * logarithms).sum(0)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        return numbered(self._own, 1 + self._equal_count("enumerate_support"), self._batch_shape, expand)


class Multinomial(OfClasses):
    """The distribution of the counts of classes in `total_count` trials; `probs` or `logits` are the parameters of `Categorical`."""

    PARAMETERS = ("total_count", "_probs", "_logits")
    PARAMETER_AXES = 1

    def __init__(self, total_count: int = 1, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        if whole(self._what(), "total_count", total_count) < 0:
            raise ArgumentError(f"{self._what()} at {user_line()}: total_count must not be negative; got {total_count}")
        self.total_count = int(total_count)
        self._set(probs, logits, validate_args, one_hot=True)

    @property
    def mean(self) -> Tensor:
        return self.probs * self.total_count

    @property
    def variance(self) -> Tensor:
        return self.total_count * self.probs * (1 - self.probs)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        extended = self._shape_of(sample_shape)
        leading = (self.total_count, *extended[: len(extended) - len(self._batch_shape)])
        return one_hot(self._drawn(leading), self._num_events).sum(0).type_as(self._own)

    def log_prob(self, value: Tensor) -> Tensor:
        value = self._value("log_prob", value, low=0, whole=True)
        if self._validate_args:
            bounded(self._what("log_prob"), "sum of value =", value.sum(-1), low=self.total_count, high=self.total_count)
        logits, value = broadcast(self._what("log_prob"), logits=self.logits, value=value)
        powers = logits.masked_fill((value == 0) * (logits == -math.inf), 0.0) * value
        return (value.sum(-1) + 1).lgamma() - (value + 1).lgamma().sum(-1) + powers.sum(-1)

    def entropy(self) -> Tensor:
        n = self.total_count
        trials = Binomial(n, probs=self.probs, validate_args=False)
        support = trials.enumerate_support(False)[1:]
        weights = trials.log_prob(support).exp() * (support + 1).lgamma()
        single = Categorical(logits=self.logits, validate_args=False).entropy()
        return n * single - (support[-1:].sum() + 1).lgamma() + weights.sum((0, -1)) if n else single * 0
