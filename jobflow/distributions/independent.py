"""A distribution whose last batch axes belong to the event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jobflow.core.errors import ArgumentError, user_line
from jobflow.distributions.distribution import Distribution, checked_shape
from jobflow.functional.nn_base import whole
from jobflow.functional.tensor_class import Tensor


class Independent(Distribution):
    """The distribution `base_distribution`, whose last `reinterpreted_batch_ndims` batch axes belong to the event.

    Independent(Normal(loc, scale), 1) is a normal distribution of vectors with a diagonal covariance.
    """

    def __init__(self, base_distribution: Distribution, reinterpreted_batch_ndims: int, validate_args: bool | None = None) -> None:
        what = self._what()
        if not isinstance(base_distribution, Distribution):
            raise ArgumentError(f"{what} at {user_line()}: base_distribution must be a distribution, not {type(base_distribution).__name__}")
        axes = whole(what, "reinterpreted_batch_ndims", reinterpreted_batch_ndims)
        batch = base_distribution.batch_shape
        if not 0 <= axes <= len(batch):
            raise ArgumentError(f"{what} at {user_line()}: reinterpreted_batch_ndims must be in [0, {len(batch)}], the batch axes; got {axes}")
        self.base_dist, self.reinterpreted_batch_ndims = base_distribution, axes
        at = len(batch) - axes
        super().__init__(batch[:at], (*batch[at:], *base_distribution.event_shape), validate_args)

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        return self.base_dist.has_rsample

    @property
    def has_enumerate_support(self) -> bool:  # type: ignore[override]
        return self.reinterpreted_batch_ndims == 0 and self.base_dist.has_enumerate_support

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Independent:
        event = tuple(self.event_shape)[: self.reinterpreted_batch_ndims]
        return Independent(
            self.base_dist.expand((*checked_shape(self._what("expand"), batch_shape), *event)), self.reinterpreted_batch_ndims, self._validate_args
        )

    @property
    def mean(self) -> Tensor:
        return self.base_dist.mean

    @property
    def mode(self) -> Tensor:
        return self.base_dist.mode

    @property
    def variance(self) -> Tensor:
        return self.base_dist.variance

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.base_dist.sample(sample_shape)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.base_dist.rsample(sample_shape)

    def summed(self, x: Tensor) -> Tensor:
        """Return the sums of x over the axes that belong to the event."""
        axes = tuple(range(x.ndim - self.reinterpreted_batch_ndims, x.ndim))
        return x.sum(axes) if axes else x

    def log_prob(self, value: Tensor) -> Tensor:
        return self.summed(self.base_dist.log_prob(value))

    def entropy(self) -> Tensor:
        return self.summed(self.base_dist.entropy())

    def enumerate_support(self, expand: bool = True) -> Tensor:
        if self.reinterpreted_batch_ndims:
            raise self._missing("enumerate_support")
        return self.base_dist.enumerate_support(expand)

    def __repr__(self) -> str:
        return f"Independent({self.base_dist!r}, {self.reinterpreted_batch_ndims})"
