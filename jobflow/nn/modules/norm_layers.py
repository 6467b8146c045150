"""Normalization modules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import InitVar, field
from typing import Any, ClassVar

from jobflow.core.errors import ArgumentError, ShapeError, user_line
from jobflow.core.types import int64
from jobflow.functional import nn_norm as F
from jobflow.functional.creation import ones, zeros
from jobflow.functional.nn_base import flag, shape_of_rows
from jobflow.functional.shapes import squeeze, unsqueeze
from jobflow.functional.tensor_class import Tensor
from jobflow.nn.modules.checked_layers import check_layers
from jobflow.nn.modules.module import Module
from jobflow.nn.modules.option_modules import OfOne, WithOptions
from jobflow.nn.parameter import Parameter
from jobflow.ops.update import Increment

__all__ = [
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "GroupNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LayerNorm",
    "LocalResponseNorm",
    "RMSNorm",
]


class _BatchStatistics(WithOptions, shared=True):
    """Base class of BatchNorm and InstanceNorm: weight and bias if `affine`, and running statistics if `track_running_stats`."""

    ndims: ClassVar[tuple[int, ...]]
    num_features: int
    eps: float = 1e-5
    momentum: float | None = 0.1
    affine: bool = True
    track_running_stats: bool = True
    device: InitVar[Any] = None
    dtype: InitVar[Any] = None
    bias: InitVar[bool] = field(default=True, kw_only=True)

    def __post_init__(self, device: Any, dtype: Any, bias: bool) -> None:
        super().__post_init__()
        place, size, affine, tracked = {"device": device, "dtype": dtype}, self.num_features, self.affine, self.track_running_stats
        bias = flag(type(self).__name__, "bias", bias)
        self.register_parameter("weight", Parameter(ones(size, **place)) if affine else None)
        self.register_parameter("bias", Parameter(zeros(size, **place)) if affine and bias else None)
        self.register_buffer("running_mean", zeros(size, **place) if tracked else None)
        self.register_buffer("running_var", ones(size, **place) if tracked else None)
        self.register_buffer("num_batches_tracked", zeros((), device=device, dtype=int64) if tracked else None)

    def _check(self, input: Tensor) -> None:
        if input.ndim not in self.ndims:
            axes = " or ".join(map(str, self.ndims))
            raise ShapeError(f"{type(self).__name__} at {user_line()}: input {input.tensor_type} must have {axes} axes")

    def extra_repr(self) -> str:
        shown = f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}"
        return f"{shown}, track_running_stats={self.track_running_stats}"


class _BatchNorm(_BatchStatistics):
    def forward(self, input: Tensor) -> Tensor:
        self._check(input)
        momentum = self._count()
        own = self.training or self.running_mean is None
        mean, var = (self.running_mean, self.running_var) if self.track_running_stats else (None, None)
        return F.batch_norm(input, mean, var, self.weight, self.bias, own, momentum, self.eps)

    def _count(self) -> float:
        """Increment the number of batches in training, and return the weight of this batch in the running statistics.

        Raises: ArgumentError for momentum=None in a graph or a job.
        """
        if self.num_batches_tracked is None or not self.training:
            return self.momentum or 0.0
        if self.momentum is None and F.building():
            raise ArgumentError(f"{type(self).__name__} at {user_line()}: momentum=None is not supported in a graph or a job; pass a number")
        F.update(Increment(), self.num_batches_tracked)
        return 1.0 / float(self.num_batches_tracked.item()) if self.momentum is None else self.momentum


class BatchNorm1d(_BatchNorm, ndims=(2, 3)):
    """Batch normalization of [n, c] or [n, c, l] to mean 0 and variance 1 per channel, times weight plus bias (Ioffe and Szegedy 2015).

    The statistics cover the whole logical batch. Evaluation uses running statistics, which become (1 - momentum) * old + momentum * new in
    training. With `momentum=None`, the running statistics are the mean over all batches.
    """


class BatchNorm2d(_BatchNorm, ndims=(4,)):
    """Batch normalization of [n, c, h, w]; see BatchNorm1d.

    Examples:
        >>> layer = nn.BatchNorm2d(16)
        >>> layer(flow.randn(8, 16, 32, 32)).mean().abs() < 1e-4
        tensor(True, dtype=jobflow.bool)
    """


class BatchNorm3d(_BatchNorm, ndims=(5,)):
    """Batch normalization of [n, c, d, h, w]; see BatchNorm1d."""


class _InstanceNorm(_BatchStatistics, shared=True):
    affine: bool = False
    track_running_stats: bool = False

    def forward(self, input: Tensor) -> Tensor:
        self._check(input)
        if input.ndim < max(self.ndims):
            return squeeze(self._normalized(unsqueeze(input, 0)), 0)
        return self._normalized(input)

    def _normalized(self, input: Tensor) -> Tensor:
        own = self.training or not self.track_running_stats
        mean, var = (self.running_mean, self.running_var) if self.track_running_stats else (None, None)
        return F.instance_norm(input, mean, var, self.weight, self.bias, own, self.momentum or 0.0, self.eps)


class InstanceNorm1d(_InstanceNorm, ndims=(2, 3)):
    job_functions = "jobflow.legacy.normalization"
    """Normalization of [n, c, l] or [c, l] to mean 0 and variance 1 per sample and channel (Ulyanov et al. 2016).

    With `affine`, the result is multiplied by weight, and bias is added. With `track_running_stats`, evaluation uses running statistics.
    """


class InstanceNorm2d(_InstanceNorm, ndims=(3, 4)):
    """Normalization of [n, c, h, w] per sample and channel; see InstanceNorm1d."""

    job_functions = "jobflow.legacy.normalization"


class InstanceNorm3d(_InstanceNorm, ndims=(4, 5)):
    """Normalization of [n, c, d, h, w] per sample and channel; see InstanceNorm1d."""

    job_functions = "jobflow.legacy.normalization"


class LocalResponseNorm(OfOne, function=F.local_response_norm):
    """Division of [n, c, ...] by (k + alpha * m)^beta, where m is the mean square of `size` neighbouring channels (Krizhevsky et al. 2012)."""

    size: int
    alpha: float = 1e-4
    beta: float = 0.75
    k: float = 1.0


class GroupNorm(Module):
    job_functions = "jobflow.legacy.normalization"
    """Normalization of [n, c, ...] to mean 0 and variance 1 in each of `num_groups` groups of channels (Wu and He 2018).

    With `affine`, each channel is multiplied by its weight, and its bias is added. Raises: ArgumentError unless `num_groups` divides `num_channels`.
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        bias = flag("GroupNorm", "bias", bias)
        if num_groups < 1 or num_channels % num_groups:
            raise ArgumentError(f"GroupNorm at {user_line()}: num_channels {num_channels} cannot be divided into {num_groups} equal groups")
        self.num_groups, self.num_channels, self.eps, self.affine = num_groups, num_channels, eps, affine
        self.register_parameter("weight", Parameter(ones(num_channels, device=device, dtype=dtype)) if affine else None)
        self.register_parameter("bias", Parameter(zeros(num_channels, device=device, dtype=dtype)) if affine and bias else None)

    def forward(self, input: Tensor) -> Tensor:
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}"


class LayerNorm(Module):
    """Normalization of the last axes, of shape `normalized_shape`, to mean 0 and variance 1, times weight plus bias (Ba et al. 2016).

    Examples:
        >>> nn.LayerNorm(64)(flow.randn(8, 10, 64)).shape
        jobflow.Size([8, 10, 64])
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.normalized_shape, self.eps, self.elementwise_affine = shape_of_rows(type(self).__name__, normalized_shape), eps, elementwise_affine
        place = {"device": device, "dtype": dtype}
        self.register_parameter("weight", Parameter(ones(self.normalized_shape, **place)) if elementwise_affine else None)
        self.register_parameter("bias", Parameter(zeros(self.normalized_shape, **place)) if elementwise_affine and bias else None)

    def forward(self, input: Tensor) -> Tensor:
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class RMSNorm(Module):
    """Division of the last axes, of shape `normalized_shape`, by their root mean square, times weight (Zhang and Sennrich 2019)."""

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.normalized_shape, self.eps, self.elementwise_affine = shape_of_rows(type(self).__name__, normalized_shape), eps, elementwise_affine
        self.register_parameter("weight", Parameter(ones(self.normalized_shape, device=device, dtype=dtype)) if elementwise_affine else None)

    def forward(self, input: Tensor) -> Tensor:
        return F.rms_norm(input, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


check_layers(globals(), "_BatchNorm", "_InstanceNorm")
