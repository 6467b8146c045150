"""Quotients and remainders that equal NumPy's on every array module.

CuPy's `floor_divide` of floats is floor(x / y) and its `remainder` x - floor(x / y) y: for 1.0 and 0.1 they return 10 and about 0, and
remainder(1, inf) is NaN.  CuPy's `fmod` of integers computes in double precision, which is wrong beyond 2^53.  These functions use only `fmod` of
floats and `remainder` of integers, which are exact.

The functions are formulas for expressions or arrays; `f` provides the operations.
"""

from __future__ import annotations

from typing import Any

from jobflow.core.types import dtype_of


def floor_divide(f: Any, x: Any, y: Any) -> Any:
    """Return floor(x / y), or x / y for a floating point y of 0."""
    if dtype_of(x.dtype).is_integer:
        return f.floor_divide(x, y)
    rest = f.fmod(x, y)
    whole = (x - rest) / y - f.cast(_other_sign(f, rest, y), x.dtype)
    below = f.floor(whole)
    nearest = below + f.cast(whole - below > 0.5, x.dtype)  # the division may have rounded an integer down
    quotient = f.where(f.not_equal(whole, 0.0), nearest, f.copysign(f.constant(0.0, x.dtype), x / y))
    return f.where(f.not_equal(y, 0.0), quotient, x / y)


def truncate_divide(f: Any, x: Any, y: Any) -> Any:
    """Return trunc(x / y)."""
    if not dtype_of(x.dtype).is_integer:
        return f.trunc(x / y)
    below = f.floor_divide(x, y)
    return below + f.cast(f.logical_and(below < 0, f.not_equal(f.remainder(x, y), 0)), x.dtype)


def remainder(f: Any, x: Any, y: Any) -> Any:
    """Return x - y floor(x / y), with the sign of y."""
    if dtype_of(x.dtype).is_integer:
        return f.remainder(x, y)
    rest = f.fmod(x, y)
    return f.where(_other_sign(f, rest, y), rest + y, f.where(f.not_equal(rest, 0.0), rest, f.copysign(rest, y)))


def fmod(f: Any, x: Any, y: Any) -> Any:
    """Return x - y trunc(x / y), with the sign of x."""
    if not dtype_of(x.dtype).is_integer:
        return f.fmod(x, y)
    rest = f.remainder(x, y)
    return rest - f.where(_other_sign(f, rest, x), y, f.constant(0, y.dtype))


def _other_sign(f: Any, rest: Any, y: Any) -> Any:
    return f.logical_and(f.not_equal(rest, 0), f.not_equal(rest < 0, y < 0))
