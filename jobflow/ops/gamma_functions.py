"""The logarithm of the gamma function and its derivative, computed in float64.

Arguments below ten are increased by ten, where the asymptotic series (Abramowitz and Stegun 6.1.41 and 6.3.18) are exact to 1e-16.
Arguments below 1/2 are reflected (6.1.17, 6.3.7).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from jobflow.core.types import float64
from jobflow.ops.arithmetic import multiply
from jobflow.ops.op import Grads, Sample, sample
from jobflow.ops.pointwise import Unary, sample_data, unary_function

#: Bernoulli numbers B_2, B_4, ...
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)
#: the shift of arguments below `_HIGH`
_STEPS, _HIGH = 10, 10.0


def _moved(f: Any, x: Any) -> tuple[Any, Any, Any, Any, Any, Any]:
    """Prepare x for the asymptotic series: reflect arguments below 1/2, then add ten to arguments below ten.

    Returns x in float64, the mask of reflected elements, the distance of x from the nearest integer, and the mask of shifted elements.
    Returns also the shifted elements before the shift, with 1 for other elements, and the argument of the series.
    """
    wide = f.cast(x, float64)
    finite = f.where(f.isfinite(wide), wide, 0.0)
    reflected = f.less(wide, 0.5)
    z = f.where(reflected, 1.0 - wide, wide)
    low = f.less(z, _HIGH)
    start = f.where(low, z, 1.0)
    return wide, reflected, finite - f.rint(finite), low, start, f.where(low, z + float(_STEPS), z)


def _series(f: Any, coefficients: list[float], square: Any) -> Any:
    """Evaluate the polynomial with these coefficients at `square` by Horner's scheme."""
    total = f.where(f.less(square, 0.0), square, coefficients[-1])
    for each in reversed(coefficients[:-1]):
        total = total * square + each
    return total


class Lgamma(Unary):
    """Logarithm of the gamma function: y = ln |gamma(x)|, which is inf at 0, -1, -2, ..."""

    low = 0.3
    high = 12.0

    def formula(self, f: Any, x: Any) -> Any:
        wide, reflected, distance, low, start, w = _moved(f, x)
        finite = f.isfinite(w)
        w = f.where(finite, w, 1.0)
        product = start
        for i in range(1, _STEPS):
            product = product * (start + float(i))
        one = 1.0 / w
        series = one * _series(f, [b / (2 * k * (2 * k - 1)) for k, b in enumerate(_BERNOULLI, 1)], one * one)
        y = (w - 0.5) * f.log(w) - w + (0.5 * math.log(2 * math.pi) + series) - f.where(low, f.log(product), 0.0)
        pole = f.logical_and(reflected, f.equal(distance, 0.0))
        sine = f.where(f.logical_and(reflected, f.not_equal(distance, 0.0)), f.absolute(f.sin(math.pi * distance)), 1.0)
        y = f.where(reflected, math.log(math.pi) - f.log(sine) - y, y)
        y = f.where(f.logical_or(pole, f.isinf(wide)), math.inf, f.where(f.isnan(wide), wide, y))
        return f.cast(y, x.dtype)

    def grad(self, *tensors: Any) -> Grads:
        x, _, dy = tensors
        return (None if dy is None else multiply(dy, digamma(x)),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        yield sample(cls(), np.array([0.25, -0.5, -1.3, -7.7, 1.0, 2.0, 30.0]), note=" reflected")
        yield sample(cls(), np.array([0.0, -3.0, np.inf, -np.inf]), differentiable=(), note=" infinite")


class Digamma(Unary):
    """Digamma function: y = d/dx ln gamma(x), which is -inf at 0 and NaN at -1, -2, ..."""

    low = 0.3
    high = 12.0

    def formula(self, f: Any, x: Any) -> Any:
        wide, reflected, distance, low, start, w = _moved(f, x)
        finite = f.isfinite(w)
        w = f.where(finite, w, 1.0)
        before = 1.0 / start
        for i in range(1, _STEPS):
            before = before + 1.0 / (start + float(i))
        one = 1.0 / w
        square = one * one
        y = f.log(w) - 0.5 * one - square * _series(f, [b / (2 * k) for k, b in enumerate(_BERNOULLI, 1)], square) - f.where(low, before, 0.0)
        pole = f.logical_and(reflected, f.equal(distance, 0.0))
        angle = f.where(f.logical_and(reflected, f.not_equal(distance, 0.0)), math.pi * distance, 1.0)
        y = f.where(reflected, y - math.pi * f.cos(angle) / f.sin(angle), y)
        y = f.where(pole, f.where(f.equal(wide, 0.0), f.copysign(math.inf, -wide), math.nan), y)
        y = f.where(f.isinf(wide), f.where(wide > 0.0, wide, math.nan), f.where(f.isnan(wide), wide, y))
        return f.cast(y, x.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), sample_data(1, 5, 3, low=cls.low, high=cls.high))
        yield sample(cls(), np.array([0.25, -0.5, -1.3, -7.7, 30.0]), note=" reflected")
        yield sample(cls(), np.array([0.0, np.inf]), differentiable=(), note=" infinite")


lgamma = unary_function(Lgamma)
digamma = unary_function(Digamma)
