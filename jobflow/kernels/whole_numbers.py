"""Quotients and powers of integers."""

from __future__ import annotations

from jobflow.core.types import float64, int64
from jobflow.expressions import language as f
from jobflow.expressions.language import Expression


def floor_divide(x: Expression, y: Expression) -> Expression:
    """floor(x / y), 0 where y is 0.

    In float64 the quotient of integers of four bytes is never rounded to another whole number: it is further from the next one than that.
    """
    if x.dtype.itemsize < 8:
        wide = f.cast(f.floor(f.cast(x, float64) / f.cast(f.where(f.equal(y, 0), 1, y), float64)), int64)
        return f.where(f.equal(y, 0), 0, f.cast(wide, x.dtype))
    # what a machine does not divide: by 0, and the least number by -1
    unfit = f.logical_or(f.equal(y, 0), f.equal(y, -1))
    safe = f.where(unfit, 1, y)
    quotient = f.quotient(x, safe)
    left = x - quotient * safe
    down = f.logical_and(f.not_equal(left, 0), f.logical_xor(left < 0, safe < 0))
    quotient = quotient - f.where(down, f.constant(1, x.dtype), 0)
    return f.where(f.equal(y, 0), 0, f.where(f.equal(y, -1), -x, quotient))


def remainder(x: Expression, y: Expression) -> Expression:
    """x - y floor(x / y), with the sign of y; 0 where y is 0."""
    return f.where(f.equal(y, 0), 0, x - floor_divide(x, y) * y)


def whole_power(x: Expression, y: Expression) -> Expression:
    """x^y for a constant y >= 0 by squares."""
    exponent = int(str(y.attribute))
    result, square = f.constant(1, x.dtype), x
    while exponent:
        if exponent & 1:
            result = result * square
        exponent >>= 1
        square = square * square
    return result
