"""The base class of distributions, and checks of their parameters and values.

Checks are runtime assertions, so they also hold in graphs and in compiled functions.  Samples of global parameters are global.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np

from jobflow.core.errors import ArgumentError, JobError, ShapeError, user_line
from jobflow.functional.casting import finfo
from jobflow.functional.creation import tensor
from jobflow.functional.promotion import as_float, cast, constant, result_type
from jobflow.functional.sampling import rand_like, randn_like
from jobflow.functional.tensor_class import Tensor
from jobflow.ops.runtime_assertions import RuntimeAssertion
from jobflow.tensors.run import run
from jobflow.tensors.state import gradients, state
from jobflow.tensors.tensor import Size


class Distribution:
    """Base class of distributions: `batch_shape` is the shape of the parameters, `event_shape` the shape of one sample.

    With `validate_args`, parameters and values outside of their domain raise ArgumentError.
    """

    has_rsample = False
    has_enumerate_support = False
    _validate_args: bool = True
    #: attributes with the parameters, and the number of their last axes that belong to the event
    PARAMETERS: ClassVar[tuple[str, ...]] = ()
    PARAMETER_AXES: ClassVar[int] = 0

    def __init__(self, batch_shape: Sequence[int] = (), event_shape: Sequence[int] = (), validate_args: bool | None = None) -> None:
        self._batch_shape, self._event_shape = Size(batch_shape), Size(event_shape)
        if validate_args is not None:
            self._validate_args = bool(validate_args)

    @staticmethod
    def set_default_validate_args(value: bool) -> None:
        """Enable or disable validation in all distributions that do not set `validate_args`.  Raises: ArgumentError unless `value` is a bool."""
        if not isinstance(value, bool):
            raise ArgumentError(f"set_default_validate_args at {user_line()}: value must be True or False; got {value!r}")
        Distribution._validate_args = value

    # ---------------------------------------------------------------- shapes

    @property
    def batch_shape(self) -> Size:
        return self._batch_shape

    @property
    def event_shape(self) -> Size:
        return self._event_shape

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Self:
        """Return the distribution with its parameters expanded to `batch_shape`."""
        shape = checked_shape(self._what("expand"), batch_shape)
        result = type(self).__new__(type(self))
        Distribution.__init__(result, shape, self._event_shape, self._validate_args)
        for name in self.PARAMETERS:
            value = vars(self).get(name)
            if isinstance(value, Tensor):
                value = value.expand(*shape, *tuple(value.shape)[value.ndim - self.PARAMETER_AXES :])
            vars(result)[name] = value
        return result

    def _extended_shape(self, sample_shape: Sequence[int] = ()) -> Size:
        return Size((*checked_shape(self._what("sample"), sample_shape), *self._batch_shape, *self._event_shape))

    # ---------------------------------------------------------------- checks

    def _what(self, method: str = "") -> str:
        return f"distributions.{type(self).__name__}{'.' if method else ''}{method}"

    def _asserted(self, name: str, x: Tensor, **bounds: Any) -> Tensor:
        """Return the parameter x, with a runtime assertion of its bounds if arguments are validated."""
        return bounded(self._what(), name, x, **bounds) if self._validate_args else x

    def _value(self, method: str, value: Any, **bounds: Any) -> Tensor:
        """Return the argument of `log_prob` or `cdf`, with checks of its shape and bounds if arguments are validated."""
        what = self._what(method)
        if not isinstance(value, Tensor):
            raise ArgumentError(f"{what} at {user_line()}: value must be a tensor, not {type(value).__name__}; convert it with flow.tensor")
        if not self._validate_args:
            return value
        expected = (*self._batch_shape, *self._event_shape)
        event = tuple(value.shape)[value.ndim - len(self._event_shape) :] if value.ndim >= len(self._event_shape) else None
        pairs = zip(reversed(value.shape), reversed(expected), strict=False)
        if event != tuple(self._event_shape) or any(m != n and 1 not in (m, n) for m, n in pairs):
            raise ShapeError(f"{what} at {user_line()}: value {value.tensor_type} must broadcast to batch and event shape {list(expected)}")
        return bounded(what, "value", value, **bounds) if bounds else value

    def _missing(self, what: str) -> JobError:
        return JobError(f"{self._what(what)} at {user_line()}: {type(self).__name__} has no {what}; use another distribution or estimate it")

    # ---------------------------------------------------------------- to be defined by subclasses

    @property
    def mean(self) -> Tensor:
        raise self._missing("mean")

    @property
    def mode(self) -> Tensor:
        raise self._missing("mode")

    @property
    def variance(self) -> Tensor:
        raise self._missing("variance")

    @property
    def stddev(self) -> Tensor:
        return self.variance.sqrt()

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Return samples of shape [*sample_shape, *batch_shape, *event_shape], which receive no gradients."""
        with gradients(False):
            return self.rsample(sample_shape).detach()

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Return samples that are differentiable functions of the parameters.  Raises: JobError for distributions without `has_rsample`."""
        raise self._missing("rsample")

    def sample_n(self, n: int) -> Tensor:
        """Return `n` samples, as `sample((n,))` does."""
        return self.sample((n,))

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density or probability of `value`."""
        raise self._missing("log_prob")

    def cdf(self, value: Tensor) -> Tensor:
        """Return the probability that a sample is at most `value`."""
        raise self._missing("cdf")

    def icdf(self, value: Tensor) -> Tensor:
        """Return the inverse of `cdf`."""
        raise self._missing("icdf")

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """Return all possible samples along a new first axis, expanded to `batch_shape` if `expand`."""
        raise self._missing("enumerate_support")

    def entropy(self) -> Tensor:
        """Return the entropy, in the shape `batch_shape`."""
        raise self._missing("entropy")

    def perplexity(self) -> Tensor:
        """Return exp(entropy)."""
        return self.entropy().exp()

    def __repr__(self) -> str:
        entries = []
        for name in self.PARAMETERS:
            x = vars(self).get(name)
            if x is not None:
                shown = x.item() if isinstance(x, Tensor) and x.numel() == 1 and x.traced is None else tuple(x.shape) if isinstance(x, Tensor) else x
                entries.append(f"{name.strip('_')}: {shown}")
        return f"{type(self).__name__}({', '.join(entries)})"


def checked_shape(what: str, shape: Any) -> tuple[int, ...]:
    """Return a shape as a tuple.  Raises: ShapeError unless it is a sequence of integers of at least 0."""
    try:
        result = tuple(int(n) for n in shape)
    except (TypeError, ValueError):
        result = (-1,)
    if min(result, default=0) < 0:
        raise ShapeError(f"{what} at {user_line()}: the shape must be a sequence of integers of at least 0; got {shape!r}")
    return result


def bounded(
    what: str, name: str, x: Tensor, low: float | None = None, high: float | None = None, positive: bool = False, whole: bool = False
) -> Tensor:
    """Return x with a runtime assertion that its elements are in [low, high], greater than 0 if `positive`, and whole numbers if `whole`."""
    low = 0.0 if positive else -math.inf if low is None and high is None else low
    problem = "must be greater than 0" if positive else ""
    if low == -math.inf:
        problem = "must be a number, not NaN"
    if whole:
        problem = f"is not a whole number in [{low}, {'inf)' if high is None else f'{high}]'}"
    return run(RuntimeAssertion(what, name, low, high, nonzero=positive, problem=problem, whole=whole), x)


def broadcast(what: str, **values: Any) -> list[Tensor]:
    """Return parameters, tensors or numbers, as floating point tensors of one shape and type.

    Raises: ArgumentError for another parameter, ShapeError if the shapes do not broadcast.
    """
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, Tensor | int | float | np.number):
            raise ArgumentError(f"{what} at {user_line()}: {name} must be a tensor or a number; got {value!r}")
    tensors = [as_float(x) for x in values.values() if isinstance(x, Tensor)]
    dtype = result_type(*tensors) if tensors else state().default_dtype
    like = next(iter(tensors), None)
    result = []
    for value in values.values():
        if isinstance(value, Tensor):
            result.append(cast(as_float(value), dtype))
        else:
            result.append(tensor(float(value), dtype=dtype) if like is None else constant(like, float(value), dtype))
    try:
        shape = np.broadcast_shapes(*(tuple(x.shape) for x in result))
    except ValueError:
        shapes = ", ".join(f"{name} {x.tensor_type}" for name, x in zip(values, result, strict=True))
        raise ShapeError(f"{what} at {user_line()}: {shapes} do not broadcast; pass numbers, or tensors of one shape") from None
    return [x if tuple(x.shape) == shape else x.expand(*shape) for x in result]


def one_of_two(what: str, probs: Any, logits: Any) -> bool:
    """Return True if `probs` is passed, and False if `logits` is passed; raise ArgumentError unless exactly one of them is passed."""
    if (probs is None) == (logits is None):
        raise ArgumentError(f"{what} at {user_line()}: pass either probs or logits; got {'none' if probs is None else 'both'}")
    return probs is not None


def uniform(like: Tensor, shape: Sequence[int]) -> Tensor:
    """Return uniform samples in [0, 1) of a shape, in the type and on the placement of `like`, whose shape is a suffix of `shape`."""
    return rand_like(like.detach().expand(*shape))


def gaussian(like: Tensor, shape: Sequence[int]) -> Tensor:
    """Return samples of the standard normal distribution, in the shape, type and placement that `uniform` describes."""
    return randn_like(like.detach().expand(*shape))


def epsilon(x: Tensor) -> float:
    """Return the machine epsilon of the element type of x."""
    return float(finfo(x.dtype).eps)


def tiny(x: Tensor) -> float:
    """Return the smallest normal number of the element type of x."""
    return float(finfo(x.dtype).tiny)
