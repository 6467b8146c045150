"""Pooling to a requested output size.

Along an axis of n elements and m outputs, output i is the mean of the elements from floor(i n / m) to ceil((i + 1) n / m).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from jobflow.core.errors import ShapeError
from jobflow.core.layout import Rule
from jobflow.core.types import Array, Tensor, TensorType, Xp
from jobflow.ops.op import Grads, Op, Sample, sample
from jobflow.ops.pointwise import FLOATS, call, check_dtypes, sample_data
from jobflow.ops.pool import avg_pool, max_pool

_AXES = "XYZ"


def windows(n: int, m: int) -> list[tuple[int, int]]:
    """Return the (start, stop) window of each of m outputs on an axis of n elements."""
    return [(i * n // m, -(-(i + 1) * n // m)) for i in range(m)]


class _Adaptive(Op):
    abstract = True
    precision = "follows"
    sizes: tuple[int, ...]

    def rule(self, x: TensorType) -> Rule:
        word = "nc" + _AXES[: len(self.sizes)]
        return Rule(f"{word}->{word}", linear=((0,),))

    def _check(self, name: str, x: TensorType) -> None:
        check_dtypes(self.word(), FLOATS, x)
        if x.ndim != len(self.sizes) + 2:
            raise ShapeError(f"{self.word()}: {name} {x} must have {len(self.sizes) + 2} axes: batch, channels, one per size in {list(self.sizes)}")
        if not all((*x.shape[2:], *self.sizes)):
            raise ShapeError(f"{self.word()}: spatial axes of {name} {x} and the sizes {list(self.sizes)} must not be 0")


class AdaptiveAvgPool(_Adaptive):
    """Adaptive average pooling: y[n,c,i] = mean of x[n,c,j] over the window of output i.

    `sizes` is the number of outputs along each spatial axis.
    """

    def infer(self, x: TensorType) -> TensorType:
        self._check("x", x)
        return x.with_shape((*x.shape[:2], *self.sizes))

    def kernel(self, xp: Xp, x: Array, y: Array) -> None:
        value = x
        for axis, m in enumerate(self.sizes, 2):
            value = xp.moveaxis(value, axis, 0)
            value = xp.stack([value[a:b].mean(axis=0) for a, b in windows(len(value), m)], axis=axis)
        y[...] = value

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (call(AdaptiveAvgPoolGrad(x.tensor_type.shape[2:]), dy),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls((3,)), sample_data(1, 3, 2, 5))
        yield sample(cls((2, 3)), sample_data(2, 2, 3, 5, 7))
        yield sample(cls((1, 4)), sample_data(3, 5, 2, 3, 2))


class AdaptiveAvgPoolGrad(_Adaptive):
    """Adjoint of AdaptiveAvgPool: dx[n,c,j] = sum of dy[n,c,i] / count[i] over the windows i that contain j.

    `sizes` are the spatial sizes of dx.
    """

    def infer(self, dy: TensorType) -> TensorType:
        self._check("dy", dy)
        return dy.with_shape((*dy.shape[:2], *self.sizes))

    def kernel(self, xp: Xp, dy: Array, dx: Array) -> None:
        value = dy
        for axis, n in enumerate(self.sizes, 2):
            value = xp.moveaxis(value, axis, 0)
            total = xp.zeros((n, *value.shape[1:]), value.dtype)
            for part, (a, b) in zip(value, windows(n, len(value)), strict=True):
                total[a:b] += part / (b - a)
            value = xp.moveaxis(total, 0, axis)
        dx[...] = value

    def grad(self, dy: Tensor, dx: Tensor, ddx: Tensor) -> Grads:
        return (call(AdaptiveAvgPool(dy.tensor_type.shape[2:]), ddx),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls((5,)), sample_data(1, 3, 2, 3))
        yield sample(cls((5, 7)), sample_data(2, 2, 3, 2, 3))


def _divides(x: Tensor, sizes: Sequence[int]) -> tuple[int, ...] | None:
    """Return the window sizes of the pooling with equal windows that equals adaptive pooling of x to the output sizes `sizes`.

    Returns None if `sizes` does not have one entry per spatial axis of x, contains 0, or does not divide these axes.
    """
    spatial = x.tensor_type.shape[2:]
    fits = len(sizes) == len(spatial) and math.prod(sizes) > 0 and not any(n % m for n, m in zip(spatial, sizes, strict=True))
    return tuple(n // m for n, m in zip(spatial, sizes, strict=True)) if fits else None


def adaptive_avg_pool(x: Tensor, sizes: Sequence[int], *, name: str | None = None) -> Tensor:
    """Divide spatial axis i of x [n,c,*spatial] into sizes[i] windows, which may overlap, and return the mean of each window.

    The result has the shape [n,c,*sizes]. Raises ShapeError unless `sizes` has one entry per spatial axis and no size is 0.
    """
    window = _divides(x, sizes)
    pooled: Tensor = call(AdaptiveAvgPool(tuple(sizes)), x, name=name) if window is None else avg_pool(x, window, name=name)
    return pooled


def adaptive_max_pool(x: Tensor, sizes: Sequence[int], *, name: str | None = None) -> Tensor:
    """Divide spatial axis i of x [n,c,*spatial] into sizes[i] equal windows, and return the maximum of each window.

    The result has the shape [n,c,*sizes]. Raises ShapeError unless `sizes` has one positive entry per spatial axis, which divides this axis.
    """
    window = _divides(x, sizes)
    if window is None:
        raise ShapeError(f"adaptive_max_pool: the sizes {list(sizes)} do not divide the spatial axes of {x.tensor_type}; crop or pad it first")
    pooled: Tensor = max_pool(x, window, name=name)
    return pooled
