"""Distributions of booleans, classes and numbers of failures: Bernoulli, geometric, categorical and one-hot categorical."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from jobflow.core.errors import ArgumentError, ShapeError, user_line
from jobflow.core.types import int64
from jobflow.distributions.distribution import Distribution, bounded, broadcast, epsilon, one_of_two, uniform
from jobflow.functional.casting import finfo
from jobflow.functional.creation import arange, eye
from jobflow.functional.nn_linear import one_hot
from jobflow.functional.nn_losses import binary_cross_entropy_with_logits
from jobflow.functional.promotion import as_float
from jobflow.functional.tensor_class import Tensor
from jobflow.tensors.state import gradients


def log_odds(probs: Tensor) -> Tensor:
    """Return ln(p / (1 - p)) for probabilities, limited to [eps, 1 - eps]."""
    limited = probs.clamp(min=epsilon(probs), max=1 - epsilon(probs))
    return limited.log() - (-limited).log1p()


def cross_entropy_of_bits(logits: Tensor, target: Tensor) -> Tensor:
    """Return the elementwise cross entropy of Bernoulli distributions."""
    return binary_cross_entropy_with_logits(logits, target, reduction="none")


class OfTrials(Distribution):
    """Base class of distributions of independent trials, with the probability `probs` of success or its log-odds `logits`."""

    PARAMETERS: ClassVar[tuple[str, ...]] = ("_probs", "_logits")
    _probs: Tensor | None
    _logits: Tensor | None

    def _set(self, probs: Any, logits: Any, validate_args: bool | None, **others: Any) -> list[Tensor]:
        """Set the parameters and shapes; return `others`, broadcast to the parameters."""
        by_probs = one_of_two(self._what(), probs, logits)
        x, *rest = broadcast(self._what(), **{"probs" if by_probs else "logits": probs if by_probs else logits}, **others)
        Distribution.__init__(self, x.shape, (), validate_args)
        self._probs = self._asserted("probs", x, low=0.0, high=1.0) if by_probs else None
        self._logits = None if by_probs else self._asserted("logits", x)
        return rest

    @property
    def probs(self) -> Tensor:
        """The probability of success."""
        if self._probs is not None:
            return self._probs
        assert self._logits is not None
        return self._logits.sigmoid()

    @property
    def logits(self) -> Tensor:
        """The log-odds of success."""
        if self._logits is not None:
            return self._logits
        assert self._probs is not None
        return log_odds(self._probs)

    @property
    def param_shape(self) -> Any:
        return self._own.shape

    @property
    def _own(self) -> Tensor:
        x = self._logits if self._probs is None else self._probs
        assert x is not None
        return x


class Bernoulli(OfTrials):
    """The distribution of 1 with probability `probs`, else 0; `logits` are the log-odds."""

    has_enumerate_support = True

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        self._set(probs, logits, validate_args)

    @property
    def mean(self) -> Tensor:
        return self.probs

    @property
    def mode(self) -> Tensor:
        p = self.probs
        return (p >= 0.5).type_as(p).masked_fill(p == 0.5, math.nan)

    @property
    def variance(self) -> Tensor:
        return self.probs * (1 - self.probs)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        with gradients(False):
            return (uniform(self._own, self._extended_shape(sample_shape)) < self.probs.detach()).type_as(self._own)

    def log_prob(self, value: Tensor) -> Tensor:
        value = self._value("log_prob", value, low=0, high=1, whole=True)
        logits, value = broadcast(self._what("log_prob"), logits=self.logits, value=value)
        return -cross_entropy_of_bits(logits, value)

    def entropy(self) -> Tensor:
        return cross_entropy_of_bits(self.logits, self.probs)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        return numbered(self._own, 2, self._batch_shape, expand)


def numbered(like: Tensor, count: int, batch: Sequence[int], expand: bool, dtype: Any = None) -> Tensor:
    """Return 0 to count - 1 along a new first axis, in the type of `like` and on its placement."""
    values = arange(count, dtype=dtype or like.dtype, device=like.device).reshape(count, *(1,) * len(batch))
    return values.expand(count, *batch) if expand else values


class Geometric(OfTrials):
    """The distribution of the number of failures before the first success, which has the probability `probs`."""

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        self._set(probs, logits, validate_args)
        if self._validate_args and probs is not None:
            self._probs = bounded(self._what(), "probs", self._own, positive=True)

    @property
    def mean(self) -> Tensor:
        return 1 / self.probs - 1

    @property
    def mode(self) -> Tensor:
        return self.probs * 0

    @property
    def variance(self) -> Tensor:
        return (1 / self.probs - 1) / self.probs

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        with gradients(False):
            u = uniform(self._own, self._extended_shape(sample_shape))
            return ((-u).log1p() / (-self.probs.detach()).log1p()).floor()

    def log_prob(self, value: Tensor) -> Tensor:
        value = self._value("log_prob", value, low=0, whole=True)
        value, p = broadcast(self._what("log_prob"), value=value, probs=self.probs)
        failure = p.masked_fill((p == 1) * (value == 0), 0.0)
        return value * (-failure).log1p() + self.probs.log()

    def entropy(self) -> Tensor:
        return cross_entropy_of_bits(self.logits, self.probs) / self.probs


class OfClasses(Distribution):
    """Base class of distributions over the last axis of `probs` or `logits`, which are normalized."""

    PARAMETERS: ClassVar[tuple[str, ...]] = ("_probs", "_logits")
    PARAMETER_AXES = 1
    _probs: Tensor | None
    _logits: Tensor | None

    def _set(self, probs: Any, logits: Any, validate_args: bool | None, one_hot: bool = False) -> None:
        by_probs = one_of_two(self._what(), probs, logits)
        x = probs if by_probs else logits
        name = "probs" if by_probs else "logits"
        if not isinstance(x, Tensor):
            raise ArgumentError(f"{self._what()} at {user_line()}: {name} must be a tensor, not {type(x).__name__}; convert it with flow.tensor")
        if x.ndim < 1 or not x.shape[-1]:
            raise ShapeError(f"{self._what()} at {user_line()}: {name} {x.tensor_type} must have a last axis of classes")
        x = as_float(x)
        Distribution.__init__(self, tuple(x.shape)[:-1], tuple(x.shape)[-1:] if one_hot else (), validate_args)
        x = self._asserted(name, x, **({"low": 0.0} if by_probs else {}))
        self._probs = x / x.sum(-1, keepdim=True) if by_probs else None
        self._logits = None if by_probs else x - x.logsumexp(-1, keepdim=True)

    @property
    def _num_events(self) -> int:
        return int(self._own.shape[-1])

    @property
    def _own(self) -> Tensor:
        x = self._logits if self._probs is None else self._probs
        assert x is not None
        return x

    @property
    def probs(self) -> Tensor:
        """The probabilities of the classes, which sum to 1."""
        if self._probs is not None:
            return self._probs
        assert self._logits is not None
        return self._logits.softmax(-1)

    @property
    def logits(self) -> Tensor:
        """The logarithms of the probabilities."""
        if self._logits is not None:
            return self._logits
        assert self._probs is not None
        return self._probs.clamp(min=epsilon(self._probs), max=1 - epsilon(self._probs)).log()

    @property
    def param_shape(self) -> Any:
        return self._own.shape

    def entropy(self) -> Tensor:
        limited = self.logits.clamp(min=float(finfo(self._own.dtype).min))
        return -(limited * self.probs).sum(-1)

    def _drawn(self, sample_shape: Sequence[int]) -> Tensor:
        """Return sampled classes: the indices of the largest sums of log-probability and Gumbel noise."""
        with gradients(False):
            logits = self._own.detach() if self._probs is None else self._own.detach().log()
            shape = (*self._shape_of(sample_shape), self._num_events)
            return (logits - (-uniform(logits, shape).log()).log()).argmax(-1)

    def _shape_of(self, sample_shape: Sequence[int]) -> tuple[int, ...]:
        extended = tuple(self._extended_shape(sample_shape))
        return extended[: len(extended) - len(self._event_shape)]


class Categorical(OfClasses):
    """The distribution of a class along the last axis of the probabilities `probs` or of the unnormalized log-probabilities `logits`."""

    has_enumerate_support = True

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        self._set(probs, logits, validate_args)

    @property
    def mean(self) -> Tensor:
        return self.probs.sum(-1) * math.nan

    @property
    def mode(self) -> Tensor:
        return self.probs.argmax(-1)

    @property
    def variance(self) -> Tensor:
        return self.probs.sum(-1) * math.nan

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self._drawn(sample_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        value = self._value("log_prob", value, low=0, high=self._num_events - 1, whole=True).to(int64)
        logits = self.logits
        batch = _broadcast(self._what("log_prob"), value, tuple(logits.shape)[:-1])
        return logits.expand(*batch, self._num_events).gather(-1, value.expand(*batch).unsqueeze(-1)).squeeze(-1)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        return numbered(self._own, self._num_events, self._batch_shape, expand, int64)


def _broadcast(what: str, value: Tensor, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape to which `value` and the batch shape `shape` broadcast.  Raises: ShapeError if there is none."""
    missing = max(value.ndim, len(shape))
    padded = [(1,) * (missing - len(s)) + tuple(s) for s in (tuple(value.shape), shape)]
    if any(m != n and 1 not in (m, n) for m, n in zip(*padded, strict=True)):
        raise ShapeError(f"{what} at {user_line()}: value {value.tensor_type} must broadcast with the batch shape {list(shape)}")
    return tuple(n if m == 1 else m for m, n in zip(*padded, strict=True))


class OneHotCategorical(OfClasses):
    """The distribution of `Categorical`, with samples that have 1 at the class and 0 elsewhere."""

    has_enumerate_support = True

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        self._set(probs, logits, validate_args, one_hot=True)

    @property
    def mean(self) -> Tensor:
        return self.probs

    @property
    def mode(self) -> Tensor:
        return one_hot(self.probs.argmax(-1), self._num_events).type_as(self._own)

    @property
    def variance(self) -> Tensor:
        return self.probs * (1 - self.probs)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return one_hot(self._drawn(sample_shape), self._num_events).type_as(self._own)

    def log_prob(self, value: Tensor) -> Tensor:
        value = self._value("log_prob", value, low=0, high=1, whole=True)
        if self._validate_args:
            bounded(self._what("log_prob"), "sum of value =", value.sum(-1), low=1, high=1)
        return _picked(self.logits, value)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        n = self._num_events
        values = eye(n, dtype=self._own.dtype, device=self._own.device).reshape(n, *(1,) * len(self._batch_shape), n)
        return values.expand(n, *self._batch_shape, n) if expand else values


def _picked(logits: Tensor, value: Tensor) -> Tensor:
    classes = value.argmax(-1)
    batch = _broadcast("distributions.OneHotCategorical.log_prob", classes, tuple(logits.shape)[:-1])
    return logits.expand(*batch, logits.shape[-1]).gather(-1, classes.expand(*batch).unsqueeze(-1)).squeeze(-1)


class OneHotCategoricalStraightThrough(OneHotCategorical):
    """`OneHotCategorical` whose samples have the gradient of the probabilities (Bengio et al. 2013)."""

    has_rsample = True

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.sample(sample_shape) + (self.probs - self.probs.detach())
