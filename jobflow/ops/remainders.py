"""Quotients rounded to whole numbers, and what remains: exact also where an array module's own are not.

CuPy's `floor_divide` of floats is floor(x / y) and its `remainder` x - floor(x / y) y: for 1.0 and 0.1 they give 10 and about 0, and
remainder(1, inf) is NaN.  Its `fmod` of integers computes in double, which is wrong beyond 2^53.  Here everything follows from `fmod`
of floats and `remainder` of integers, which are exact; the results are those of NumPy.
"""

from __future__ import annotations

from jobflow.core.types import Array, Xp


def floor_divide(xp: Xp, x: Array, y: Array, z: Array) -> None:
    """z = floor(x / y)"""
    if z.dtype.kind != "f":
        xp.floor_divide(x, y, out=z)
        return
    rest = xp.fmod(x, y)
    other_sign = (rest != 0) & ((rest < 0) != (y < 0))
    whole = (x - rest) / y - other_sign.astype(z.dtype)
    below = xp.floor(whole)
    nearest = below + (whole - below > 0.5)  # the division may have rounded a whole number down
    found = xp.where(whole != 0, nearest, xp.copysign(xp.zeros_like(whole), x / y))
    z[...] = xp.where(y != 0, found, x / y)


def remainder(xp: Xp, x: Array, y: Array, z: Array) -> None:
    """z = x - y floor(x / y), with the sign of y"""
    if z.dtype.kind != "f":
        xp.remainder(x, y, out=z)
        return
    rest = xp.fmod(x, y)
    other_sign = (rest != 0) & ((rest < 0) != (y < 0))
    found = xp.where(rest != 0, rest, xp.copysign(rest, y))
    z[...] = xp.where(other_sign, rest + y, found)


def fmod(xp: Xp, x: Array, y: Array, z: Array) -> None:
    """z = x - y trunc(x / y), with the sign of x"""
    if z.dtype.kind == "f":
        xp.fmod(x, y, out=z)
        return
    rest = xp.remainder(x, y)
    z[...] = rest - xp.where((rest != 0) & ((rest < 0) != (x < 0)), y, xp.zeros_like(rest))
