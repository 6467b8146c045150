"""Division, remainder and powers of integers, and random integers."""

from __future__ import annotations

from collections.abc import Sequence

from jobflow.core.types import float64, int64
from jobflow.expressions import language as f
from jobflow.expressions import philox
from jobflow.expressions.language import Expression


def floor_divide(x: Expression, y: Expression) -> Expression:
    """Return floor(x / y), or 0 if y is 0.

    For integers of up to four bytes, the float64 quotient cannot round up to the next integer: the distance exceeds the rounding error.
    """
    if x.dtype.itemsize < 8:
        wide = f.cast(f.floor(f.cast(x, float64) / f.cast(f.where(f.equal(y, 0), 1, y), float64)), int64)
        return f.where(f.equal(y, 0), 0, f.cast(wide, x.dtype))
    # divisions that trap on a machine: by 0, and of the smallest integer by -1
    unfit = f.logical_or(f.equal(y, 0), f.equal(y, -1))
    safe = f.where(unfit, 1, y)
    quotient = f.quotient(x, safe)
    left = x - quotient * safe
    down = f.logical_and(f.not_equal(left, 0), f.logical_xor(left < 0, safe < 0))
    quotient = quotient - f.where(down, f.constant(1, x.dtype), 0)
    return f.where(f.equal(y, 0), 0, f.where(f.equal(y, -1), -x, quotient))


def remainder(x: Expression, y: Expression) -> Expression:
    """Return x - y floor(x / y), with the sign of y, or 0 if y is 0."""
    return f.where(f.equal(y, 0), 0, x - floor_divide(x, y) * y)


def integer_power(x: Expression, exponent: int) -> Expression:
    """Return x^exponent for exponent >= 0, by repeated squaring."""
    result, square = f.constant(1, x.dtype), x
    while exponent:
        if exponent & 1:
            result = result * square
        exponent >>= 1
        square = square * square
    return result


def random_word(number: Expression, stream: Expression, first: int, second: int, plane: int) -> Expression:
    """Return the random 32-bit word of the element `number` of a stream, for the key (`first`, `second`); see `expressions.philox`."""
    low = f.bitwise_and(number, philox.LANES - 1)
    lane = f.left_shift(f.right_shift(number, 6), 4) + low
    words = random_words(lane, stream, (first, second), plane)
    word = f.bitwise_and(f.right_shift(number, 4), 3)
    upper = f.not_equal(f.bitwise_and(word, 2), 0)
    chosen = [f.where(upper, b, a) for a, b in (words[::2], words[1::2])]
    return f.where(f.not_equal(f.bitwise_and(word, 1), 0), chosen[1], chosen[0])


def random_words(lane: Expression, stream: Expression, keys: Sequence[Expression | int], plane: Expression | int) -> list[Expression]:
    """Return the four random 32-bit words of a lane; `lane` and `stream` are split into halves of 32 bits, so that products fit into 64 bits."""
    even = [_low(lane), _low(stream)]
    odd = [_low(f.right_shift(lane, 32)), _low(f.bitwise_or(f.left_shift(f.right_shift(stream, 32), 8), plane))]
    for _ in range(philox.ROUNDS):
        products = [x * m for x, m in zip(even, philox.MULTIPLIERS, strict=True)]
        mixed = [f.bitwise_xor(x, k) for x, k in zip(odd, keys, strict=True)]
        even = [f.bitwise_xor(_low(f.right_shift(p, 32)), x) for p, x in zip(reversed(products), mixed, strict=True)]
        odd = [_low(p) for p in reversed(products)]
        keys = [(k + w) & philox.MASK if isinstance(k, int) else _low(k + w) for k, w in zip(keys, philox.WEYL, strict=True)]
    return [even[0], odd[0], even[1], odd[1]]


def _low(x: Expression) -> Expression:
    """Return the lower 32 bits of x."""
    return f.bitwise_and(x, philox.MASK)
