"""Group normalisation: statistics of groups of channels, a factor and an offset for each channel.

    x [n, c, ...]  is seen as  [n, g, k, s]     g groups of k channels, s places in each

    RowStatistics       mean, inv_std [n, g]    a row is [k, s]
    GroupNormalize      y [n, g, k, s]          of gamma, beta [g, k]; elementwise, so it is joined with what follows
    GroupSums           [n, g, k]               for its gradient: a row is [s]
    GroupNormalizeGrad  dx [n, g, k, s]

Instance normalisation has one channel in a group.  As in batch_norm, the gradient goes through the statistics, which get none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from jobflow.core.layout import Rule
from jobflow.core.types import Tensor, TensorType
from jobflow.ops.arithmetic import multiply, subtract
from jobflow.ops.axes import reshape
from jobflow.ops.derivative import through
from jobflow.ops.indexed import Indexed
from jobflow.ops.norm import RowStatistics
from jobflow.ops.op import OVER_FIRST, Grads, Sample, apply, sample
from jobflow.ops.pointwise import FLOATS, call, check_dtypes, numbers
from jobflow.ops.reduce import reduce_sum
from jobflow.ops.scalar import scale
from jobflow.ops.source import constant


def _groups(numbers: Tensor) -> Tensor:
    """[n, g] or [n, g, k] shaped to broadcast along [n, g, k, s]."""
    return reshape(numbers, (*numbers.tensor_type.shape, *[1] * (4 - numbers.tensor_type.ndim)))


def _channels(numbers: Tensor) -> Tensor:
    """[g, k] likewise."""
    return reshape(numbers, (*numbers.tensor_type.shape, 1))


class GroupNormalize(Indexed):
    """y = (x - mean) inv_std gamma + beta, where mean and inv_std are statistics of x."""

    in_place = OVER_FIRST

    def infer(self, x: TensorType, mean: TensorType, inv_std: TensorType, gamma: TensorType, beta: TensorType) -> TensorType:
        check_dtypes("group_norm", FLOATS, x, mean, inv_std, gamma, beta)
        return x

    def rule(self, *types: TensorType) -> Rule:
        return Rule("ngks,ng,ng,gk,gk->ngks")

    def formula(self, f: Any, x: Any, mean: Any, inv_std: Any, gamma: Any, beta: Any) -> Any:
        return (x - mean) * (inv_std * gamma) + beta

    def grad(self, x: Tensor, mean: Tensor, inv_std: Tensor, gamma: Tensor, beta: Tensor, y: Tensor, dy: Tensor) -> Grads:
        sums, slopes = apply(GroupSums(), dy, x, mean, inv_std)
        part = 1.0 / max(math.prod(x.tensor_type.shape[2:]), 1)
        means = [scale(reduce_sum(multiply(each, gamma), 2), part) for each in (sums, slopes)]
        dx = call(GroupNormalizeGrad(), dy, x, mean, inv_std, gamma, *means)
        return dx, None, None, reduce_sum(slopes, 0), reduce_sum(sums, 0)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        given = numbers(2, 2, 3), numbers(3, 2, 3, low=0.5), numbers(4, 3, 2), numbers(5, 3, 2)
        yield sample(cls(), numbers(1, 2, 3, 2, 5), *given, differentiable=())


class GroupSums(Indexed):
    """Sums over the places of a channel: of dy, and of dy (x - mean) inv_std."""

    results = 2

    def infer(self, dy: TensorType, x: TensorType, mean: TensorType, inv_std: TensorType) -> tuple[TensorType, TensorType]:
        channels = x.with_shape(x.shape[:3])
        return channels, channels

    def rule(self, *types: TensorType) -> Rule:
        return Rule("ngkS,ngkS,ng,ng->ngk,ngk", linear=((0,),))

    def formula(self, f: Any, dy: Any, x: Any, mean: Any, inv_std: Any) -> Any:
        return f.row_sum(dy), f.row_sum(dy * (x - mean)) * inv_std

    def smaller(self, dy: Tensor, x: Tensor, mean: Tensor, inv_std: Tensor) -> tuple[Tensor, Tensor]:
        slopes = multiply(reduce_sum(multiply(dy, subtract(x, _groups(mean))), 3), reshape(inv_std, (*inv_std.tensor_type.shape, 1)))
        return reduce_sum(dy, 3), slopes

    def grad(self, dy: Tensor, x: Tensor, mean: Tensor, inv_std: Tensor, *rest: Tensor | None) -> Grads:
        return through(self.smaller, (dy, x, mean, inv_std), rest[2:])

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), numbers(1, 2, 3, 2, 5), numbers(2, 2, 3, 2, 5), numbers(3, 2, 3), numbers(4, 2, 3, low=0.5))


class GroupNormalizeGrad(Indexed):
    """dx = inv_std (gamma dy - share - n slope);  n = (x - mean) inv_std, share and slope the means of gamma dy and gamma dy n."""

    in_place = OVER_FIRST

    def infer(self, dy: TensorType, x: TensorType, *numbers: TensorType) -> TensorType:
        return x

    def rule(self, *types: TensorType) -> Rule:
        return Rule("ngks,ngks,ng,ng,gk,ng,ng->ngks")

    def formula(self, f: Any, dy: Any, x: Any, mean: Any, inv_std: Any, gamma: Any, share: Any, slope: Any) -> Any:
        return dy * (inv_std * gamma) - ((x - mean) * (inv_std * inv_std * slope) + inv_std * share)

    def _parts(self, dy: Tensor, x: Tensor, mean: Tensor, inv_std: Tensor, gamma: Tensor, share: Tensor, slope: Tensor) -> tuple[Tensor]:
        n = multiply(subtract(x, _groups(mean)), _groups(inv_std))
        away = subtract(subtract(multiply(dy, _channels(gamma)), _groups(share)), multiply(n, _groups(slope)))
        return (multiply(away, _groups(inv_std)),)

    def grad(self, *tensors: Tensor) -> Grads:
        return through(self._parts, tensors[:7], tensors[8:])

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        given = numbers(3, 2, 3), numbers(4, 2, 3, low=0.5), numbers(5, 3, 2), numbers(6, 2, 3), numbers(7, 2, 3)
        yield sample(cls(), numbers(1, 2, 3, 2, 5), numbers(2, 2, 3, 2, 5), *given)


def group_norm(
    x: Tensor, groups: int, gamma: Tensor | None = None, beta: Tensor | None = None, epsilon: float = 1e-5, *, name: str | None = None
) -> Tensor:
    """x [n, c, ...] with mean 0 and variance 1 in each group of channels, times gamma plus beta, which have a number for each channel."""
    batch, channels, *places = x.tensor_type.shape
    shape = groups, channels // max(groups, 1)
    wide = reshape(x, (batch, *shape, math.prod(places)))
    numbers = [constant(value, shape, x.tensor_type.dtype) if p is None else reshape(p, shape) for p, value in ((gamma, 1.0), (beta, 0.0))]
    y = call(GroupNormalize(), wide, *apply(RowStatistics(2, epsilon), wide), *numbers)
    return reshape(y, x.tensor_type.shape, name=name)
