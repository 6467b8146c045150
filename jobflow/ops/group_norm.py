"""Group normalization: statistics of groups of channels, with a factor and an offset per channel.

    x [n, c, ...]  is reshaped to  [n, g, k, s]     g groups of k channels with s elements each
    RowStatistics       mean, inv_std [n, g]    a row is [k, s]
    GroupNormalize      y [n, g, k, s]          with gamma, beta [g, k]; elementwise, so it is fused with its readers
    GroupSums           [n, g, k]               for the gradient: a row is [s]
    GroupNormalizeGrad  dx [n, g, k, s]

Instance normalization has one channel per group.  As in batch_norm, the gradient of x includes the effect of x on the statistics; the
statistics themselves get no gradient.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from jobflow.core.layout import B, P, Rule, Signature
from jobflow.core.types import Tensor, TensorType
from jobflow.ops.arithmetic import multiply, subtract
from jobflow.ops.axes import reshape
from jobflow.ops.derivative import through
from jobflow.ops.indexed import Indexed
from jobflow.ops.norm import RowStatistics
from jobflow.ops.op import OVER_FIRST, Grads, Sample, apply, sample
from jobflow.ops.pointwise import FLOATS, call, check_dtypes, sample_data
from jobflow.ops.reduce import reduce_sum
from jobflow.ops.scalar import scale
from jobflow.ops.source import constant


def _groups(values: Tensor) -> Tensor:
    """Reshape `values` [n, g] or [n, g, k] to broadcast along [n, g, k, s]."""
    return reshape(values, (*values.tensor_type.shape, *[1] * (4 - values.tensor_type.ndim)))


def _channels(values: Tensor) -> Tensor:
    """Reshape `values` [g, k] to broadcast along [n, g, k, s]."""
    return reshape(values, (*values.tensor_type.shape, 1))


class GroupNormalize(Indexed):
    """Normalization by the statistics of x: y = (x - mean) inv_std gamma + beta."""

    in_place = OVER_FIRST

    def infer(self, x: TensorType, mean: TensorType, inv_std: TensorType, gamma: TensorType, beta: TensorType) -> TensorType:
        check_dtypes("group_norm", FLOATS, x, mean, inv_std, gamma, beta)
        return x

    def rule(self, *types: TensorType) -> Rule:
        return Rule("ngks,ng,ng,gk,gk->ngks")

    def formula(self, f: Any, x: Any, mean: Any, inv_std: Any, gamma: Any, beta: Any) -> Any:
        return (x - mean) * (inv_std * gamma) + beta

    def grad(self, x: Tensor, mean: Tensor, inv_std: Tensor, gamma: Tensor, beta: Tensor, y: Tensor, dy: Tensor) -> Grads:
        sums, slopes, excess = apply(GroupSums(), dy, x, mean, inv_std)
        of_groups = [reduce_sum(each, 2) for each in (multiply(sums, gamma), multiply(slopes, gamma), excess)]
        dx = call(GroupNormalizeGrad(math.prod(x.tensor_type.shape[2:])), dy, x, mean, inv_std, gamma, *of_groups)
        return dx, None, None, reduce_sum(slopes, 0), reduce_sum(sums, 0)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        statistics = sample_data(2, 2, 3), sample_data(3, 2, 3, low=0.5), sample_data(4, 3, 2), sample_data(5, 3, 2)
        yield sample(cls(), sample_data(1, 2, 3, 2, 5), *statistics, differentiable=())


class GroupSums(Indexed):
    """Sums over the elements of a channel: of dy, of dy n, and of n, where n = (x - mean) inv_std.

    With an exact mean, the sum of n over a group would be 0.  The gradient uses the third sum to correct the rounding of the mean.
    """

    results = 3

    def infer(self, dy: TensorType, x: TensorType, mean: TensorType, inv_std: TensorType) -> tuple[TensorType, ...]:
        channels = x.with_shape(x.shape[:3])
        return channels, channels, channels

    def rule(self, *types: TensorType) -> Rule:
        return Rule("ngkS,ngkS,ng,ng->ngk,ngk,ngk", also=(Signature((P, B, B, B), (P, P, B)),))  # the last does not depend on dy

    def formula(self, f: Any, dy: Any, x: Any, mean: Any, inv_std: Any) -> Any:
        centred = x - mean
        return f.row_sum(dy), f.row_sum(dy * centred) * inv_std, f.row_sum(centred) * inv_std

    def decompose(self, dy: Tensor, x: Tensor, mean: Tensor, inv_std: Tensor) -> tuple[Tensor, ...]:
        centred, factor = subtract(x, _groups(mean)), reshape(inv_std, (*inv_std.tensor_type.shape, 1))
        return reduce_sum(dy, 3), *(multiply(reduce_sum(each, 3), factor) for each in (multiply(dy, centred), centred))

    def grad(self, dy: Tensor, x: Tensor, mean: Tensor, inv_std: Tensor, *rest: Tensor | None) -> Grads:
        return through(self.decompose, (dy, x, mean, inv_std), rest[3:])

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), sample_data(1, 2, 3, 2, 5), sample_data(2, 2, 3, 2, 5), sample_data(3, 2, 3), sample_data(4, 2, 3, low=0.5))


class GroupNormalizeGrad(Indexed):
    """Gradient of x of GroupNormalize: dx = inv_std (gamma dy - share - (n - rest) slope), where n = (x - mean) inv_std.

    The last three inputs are sums over a group: of gamma dy, gamma dy n and n.  Divided by `count` they are share, s and rest.
    slope = s - share rest is the mean of gamma dy (n - rest).
    """

    in_place = OVER_FIRST
    count: int

    def infer(self, dy: TensorType, x: TensorType, *sums: TensorType) -> TensorType:
        return x

    def rule(self, *types: TensorType) -> Rule:
        return Rule("ngks,ngks,ng,ng,gk,ng,ng,ng->ngks")

    def formula(self, f: Any, dy: Any, x: Any, mean: Any, inv_std: Any, gamma: Any, *sums: Any) -> Any:
        share, slope, rest = (each * (1 / max(self.count, 1)) for each in sums)
        slope = slope - share * rest
        return dy * (inv_std * gamma) - ((x - mean) * (inv_std * inv_std * slope) + inv_std * (share - rest * slope))

    def _parts(self, dy: Tensor, x: Tensor, mean: Tensor, inv_std: Tensor, gamma: Tensor, *sums: Tensor) -> tuple[Tensor]:
        share, slope, rest = (scale(each, 1 / max(self.count, 1)) for each in sums)
        slope = subtract(slope, multiply(share, rest))
        n = subtract(multiply(subtract(x, _groups(mean)), _groups(inv_std)), _groups(rest))
        away = subtract(subtract(multiply(dy, _channels(gamma)), _groups(share)), multiply(n, _groups(slope)))
        return (multiply(away, _groups(inv_std)),)

    def grad(self, *tensors: Tensor) -> Grads:
        return through(self._parts, tensors[:8], tensors[9:])

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        statistics = sample_data(3, 2, 3), sample_data(4, 2, 3, low=0.5), sample_data(5, 3, 2), *(sample_data(i, 2, 3) for i in (6, 7, 8))
        yield sample(cls(10), sample_data(1, 2, 3, 2, 5), sample_data(2, 2, 3, 2, 5), *statistics)


def group_norm(
    x: Tensor, groups: int, gamma: Tensor | None = None, beta: Tensor | None = None, epsilon: float = 1e-5, *, name: str | None = None
) -> Tensor:
    """Normalize each group of channels of x [n, c, ...] to mean 0 and variance 1, then multiply by gamma [c] and add beta [c]."""
    batch, channels, *places = x.tensor_type.shape
    shape = groups, channels // max(groups, 1)
    wide = reshape(x, (batch, *shape, math.prod(places)))
    parameters = [constant(value, shape, x.tensor_type.dtype) if p is None else reshape(p, shape) for p, value in ((gamma, 1.0), (beta, 0.0))]
    y = call(GroupNormalize(), wide, *apply(RowStatistics(2, epsilon), wide), *parameters)
    return reshape(y, x.tensor_type.shape, name=name)
