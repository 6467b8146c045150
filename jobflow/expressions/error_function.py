"""The error function, accurate to the last bits of float64."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from jobflow.core.types import Array, Xp

# Rational minimax approximations of W. J. Cody, "Rational Chebyshev approximations for the error function",
# Math. Comp. 23 (1969): erf(x)/x in x^2 for |x| <= 0.46875; exp(x^2) erfc(x) in x up to 4, and in 1/x^2 beyond.
SMALL = (
    (1.85777706184603153e-1, 3.16112374387056560, 1.13864154151050156e2, 3.77485237685302021e2, 3.20937758913846947e3),
    (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3),
)
MIDDLE = (
    (
        *(2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594, 6.61191906371416295e1, 2.98635138197400131e2),
        *(8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3, 1.23033935479799725e3),
    ),
    (
        *(1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2, 1.62138957456669019e3),
        *(3.29079923573345963e3, 4.36261909014324716e3, 3.43936767414372164e3, 1.23033935480374942e3),
    ),
)
LARGE = (
    (1.63153871373020978e-2, 3.05326634961232344e-1, 3.60344899949804439e-1, 1.25781726111229246e-1, 1.60837851487422766e-2, 6.58749161529837803e-4),
    (1.0, 2.56852019228982242, 1.87295284992346725, 5.27905102951428412e-1, 6.05183413124413191e-2, 2.33520497626869185e-3),
)
ONE_OVER_ROOT_PI = 5.6418958354775628695e-1
#: (1 + 2 x) exp(x^2) erfc(x) - 1 in (x - 2) / (x + 2), for 0 <= x <= ERFC_END; beyond, erfc is 0 in float32.  Fitted for minimal relative error
ERFC_SINGLE = (
    *(-3.994496073573828e-4, -1.2280023656785488e-3, 1.313309883698821e-3, 8.630097843706608e-3, -8.060143329203129e-3),
    *(-5.4203882813453674e-2, 1.6405542194843292e-1, -1.6603146493434906e-1, -9.27639827132225e-2, 2.7697840332984924e-1),
)
ERFC_END = 10.2


def _polynomial(coefficients: Sequence[float], x: Array) -> Array:
    """Evaluate a polynomial by Horner's rule; coefficients start with the highest power."""
    value = coefficients[0] * x + coefficients[1]
    for c in coefficients[2:]:
        value = value * x + c
    return value


def _ratio(coefficients: tuple[tuple[float, ...], tuple[float, ...]], x: Array) -> Array:
    above, below = coefficients
    return _polynomial(above, x) / _polynomial(below, x)


def _tail(xp: Xp, size: Array) -> Array:
    """Return erfc(size) for size >= 0.46875."""
    a = xp.minimum(size, 4.0)
    b = xp.maximum(size, 4.0)
    inverse = 1.0 / (b * b)
    scaled = xp.where(size <= 4.0, _ratio(MIDDLE, a), (ONE_OVER_ROOT_PI - inverse * _ratio(LARGE, inverse)) / b)
    near = xp.trunc(xp.minimum(size, 30.0) * 16.0) / 16.0  # split x^2 into two summands, so that exp loses no digits
    rest = (xp.minimum(size, 30.0) - near) * (xp.minimum(size, 30.0) + near)
    return xp.exp(-near * near) * xp.exp(-rest) * scaled


def _centre(xp: Xp, x: Array) -> Array:
    """Return erf(x) for |x| <= 0.46875."""
    inside = xp.clip(x, -0.46875, 0.46875)
    return inside * _ratio(SMALL, inside * inside)


def _cupy_special() -> Any:
    return importlib.import_module("cupyx.scipy.special")  # a slow import, needed on GPUs only


def erf(xp: Xp, x: Array) -> Array:
    """Return the error function of x, with a relative error below 5e-16 in float64."""
    if xp is not np:
        return _cupy_special().erf(x)
    wide = x.astype(xp.float64)
    size = xp.abs(wide)
    far = xp.copysign(1.0 - _tail(xp, xp.maximum(size, 0.46875)), wide)
    return xp.where(size <= 0.46875, _centre(xp, wide), far).astype(x.dtype)


def erfc(xp: Xp, x: Array) -> Array:
    """Return 1 - erf(x), with a relative error below 1e-15 in float64 even for small results."""
    if xp is not np:
        return _cupy_special().erfc(x)
    wide = x.astype(xp.float64)
    size = xp.abs(wide)
    tail = _tail(xp, xp.maximum(size, 0.46875))
    return xp.where(size <= 0.46875, 1.0 - _centre(xp, wide), xp.where(wide > 0, tail, 2.0 - tail)).astype(x.dtype)
