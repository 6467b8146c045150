"""Functions that machines do not have, made of those that they have.

Each is an expression of additions, products, comparisons, fused multiply-adds and whole numbers that are a float's bits, so every printer
prints the same, and the results are the same bits on all machines.  `MAXIMAL_ERROR` says how far they may be from the true value, in
units of the last place, over all arguments; the tests look at arguments of every exponent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from jobflow.core.types import DType, bool_, float32, float64, int32, int64
from jobflow.expressions import language as f
from jobflow.expressions.language import Expression, in_order, make

Formula: TypeAlias = Callable[..., Expression]


def polynomial(x: Expression, *coefficients: float) -> Expression:
    """Horner's rule with fused multiply-adds, the highest power first."""
    value: Expression | float = coefficients[0]
    for c in coefficients[1:]:
        value = f.fma(value, x, c)
    assert isinstance(value, Expression)
    return value


class _Format:
    """What the functions below need to know of a float type."""

    def __init__(self, dtype: DType, bits: DType, mantissa: int, bias: int, log2: tuple[float, float]) -> None:
        self.dtype, self.bits, self.mantissa, self.bias = dtype, bits, mantissa, bias
        #: added to a number, its last bits are the nearest integer
        self.magic = 1.5 * 2.0**mantissa
        #: log(2) in two parts, of which the first has few digits
        self.log2 = log2
        (self.magic_bits,) = memoryview(_packed(self.magic, dtype)).cast("B").cast("i" if dtype is float32 else "q")

    def power_of_two(self, n: Expression) -> Expression:
        """2^n for a whole number n of a normal number's range."""
        return f.reinterpret(f.left_shift(n + self.bias, self.mantissa), self.dtype)


def _packed(value: float, dtype: DType) -> bytes:
    return bytes(dtype.numpy.type(value).tobytes())


_SINGLE = _Format(float32, int32, 23, 127, (float.fromhex("0x1.62e400p-1"), float.fromhex("0x1.7f7d1cp-20")))
_DOUBLE = _Format(float64, int64, 52, 1023, (float.fromhex("0x1.62e42fefa0000p-1"), float.fromhex("0x1.cf79abc9e3b3ap-40")))


def _format(x: Expression) -> _Format:
    return _SINGLE if x.dtype is float32 else _DOUBLE


# ----------------------------------------------------------------------------------------------- exponentials


def _times_power_of_two(y: Expression, shifted: Expression, form: _Format) -> Expression:
    """y 2^n, n the last bits of `shifted`, in two steps: neither overflows nor loses digits before the result does."""
    n = f.reinterpret(shifted, form.bits) - form.magic_bits
    half = f.right_shift(n, 1)
    return y * form.power_of_two(half) * form.power_of_two(n - half)


_EXP_SINGLE = (1.37805939e-3, 8.37312452e-3, 4.16695364e-2, 1.66664720e-1, 4.99999851e-1, 1.0, 1.0)
_EXP_DOUBLE = tuple(1 / math.factorial(n) for n in range(13, -1, -1))


def _exp_polynomial(r: Expression) -> Expression:
    """e^r for |r| <= log(2) / 2."""
    return polynomial(r, *(_EXP_SINGLE if r.dtype is float32 else _EXP_DOUBLE))


def _limited(x: Expression, low: float, high: float) -> Expression:
    return f.minimum(f.maximum(x, low), high)


def exp(x: Expression) -> Expression:
    form = _format(x)
    x = _limited(x, *((-104.0, 89.0) if x.dtype is float32 else (-746.0, 710.0)))
    shifted = f.fma(x, math.log2(math.e), form.magic)
    n = shifted - form.magic
    r = f.fma(n, -form.log2[1], f.fma(n, -form.log2[0], x))
    return _times_power_of_two(_exp_polynomial(r), shifted, form)


DECOMPOSITIONS: dict[str, Formula] = {"exp": exp}


def lowered(outputs: Sequence[Expression]) -> tuple[list[Expression], set[Expression]]:
    """The outputs with every function taken apart, and which expressions are the results of one: dear to compute again."""
    known: dict[Expression, Expression] = {}
    dear: set[Expression] = set()
    for x in in_order(outputs):
        arguments = tuple(known[y] for y in x.arguments)
        single = x.dtype.is_half or any(y.dtype.is_half for y in arguments)
        if single and x.primitive not in KEEPS_HALF:
            arguments = tuple(f.cast(y, y.dtype.arithmetic) for y in arguments)
        made = _apart(x, arguments)
        known[x] = made if made.dtype is x.dtype else f.cast(made, x.dtype)
        if x.primitive in DECOMPOSITIONS:
            dear.add(known[x])
    return [known[x] for x in outputs], dear


#: what is done with numbers of two bytes as they are; all else is done in float32 and rounded
KEEPS_HALF = {"element", "number", "constant", "cast", "where", "reinterpret"}


def _apart(x: Expression, arguments: tuple[Expression, ...]) -> Expression:
    formula = DECOMPOSITIONS.get(x.primitive)
    if formula is not None:
        return lowered([formula(*arguments)])[0][0]
    dtype = x.dtype if x.primitive in KEEPS_HALF or x.dtype is bool_ else x.dtype.arithmetic
    return x if arguments == x.arguments and dtype is x.dtype else make(x.primitive, arguments, dtype, x.attribute)
