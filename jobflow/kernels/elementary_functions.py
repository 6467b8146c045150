"""Exponentials, logarithms, hyperbolic and error functions, and powers, from operations that machines have.

Each function is an expression of additions, products, comparisons, fused multiply-adds, and integer operations on the bits of floats.  Every
printer prints the same operations, so the results are bit-equal on all machines.  `decompositions.MAXIMAL_ERROR` bounds their distance from
the true value.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from jobflow.core.dataclass import dataclass
from jobflow.core.types import DType, float32, float64, int32, int64
from jobflow.expressions import language as f
from jobflow.expressions.error_function import ERFC_END, ERFC_SINGLE, LARGE, MIDDLE, ONE_OVER_ROOT_PI, SMALL
from jobflow.expressions.language import Expression
from jobflow.expressions.on_arrays import exponent_limit
from jobflow.kernels.integer_functions import integer_power


def polynomial(x: Expression, *coefficients: float) -> Expression:
    """Evaluate a polynomial by Horner's rule with fused multiply-adds, the highest power first."""
    value: Expression | float = coefficients[0]
    for c in coefficients[1:]:
        value = f.fma(value, x, c)
    assert isinstance(value, Expression)
    return value


@dataclass(frozen=True)
class _Format:
    """Constants of a float type."""

    bits: DType
    #: bits of the fraction, and the bias of the stored exponent
    digits: int
    bias: int
    #: mask of the exponent, and the bits of the smallest m in x = m 2^k that the logarithm uses
    exponent: int
    lowest: int
    #: log(2) in two parts; products of the first with small integers are exact
    log2: tuple[float, float]
    #: the ends of e^x, 0 below and infinite above, and those of 2^x
    ends: tuple[float, float]
    ends2: tuple[float, float]
    #: coefficients of e^x, and of (e^x - 1 - x) / x^2, for |x| <= log(2) / 2
    exp: tuple[float, ...]
    expm1: tuple[float, ...]

    @property
    def magic(self) -> float:
        """A number that, added to x, leaves the integer nearest to x in the last bits of the sum."""
        return 1.5 * 2.0**self.digits

    @property
    def magic_bits(self) -> int:
        return ((self.bias + self.digits) << self.digits) + (1 << self.digits - 1)


_TAYLOR = tuple(1 / math.factorial(n) for n in range(14, -1, -1))
_SINGLE = _Format(
    *(int32, 23, 127, -1 << 23, 0x3F2AAAAB),
    (float.fromhex("0x1.62e400p-1"), float.fromhex("0x1.7f7d1cp-20")),
    *((-104.0, 89.0), (-151.0, 129.0)),
    (1.37805939e-3, 8.37312452e-3, 4.16695364e-2, 1.66664720e-1, 4.99999851e-1, 1.0, 1.0),
    (1.97350979e-4, 1.39309070e-3, 8.33343994e-3, 4.16668020e-2, 1.66666716e-1, 4.99999970e-1),
)
_DOUBLE = _Format(
    *(int64, 52, 1023, -1 << 52, 0x3FE6A09E667F3BCD),
    (float.fromhex("0x1.62e42fee00000p-1"), float.fromhex("0x1.a39ef35793c76p-33")),
    *((-746.0, 710.0), (-1076.0, 1025.0)),
    _TAYLOR[1:],
    _TAYLOR[:-2],
)


def format_of(x: Expression) -> _Format:
    return _SINGLE if x.dtype is float32 else _DOUBLE


# ----------------------------------------------------------------------------------------------- exponentials


def ldexp(x: Expression, n: Expression) -> Expression:
    """Return x 2^n, for n up to twice the range of normal exponents.

    The product has two steps, so that neither overflows nor loses digits before the result does.
    """
    form = format_of(x)
    n = f.cast(n, form.bits)
    half = f.right_shift(n, 1)
    first, second = (f.reinterpret(f.left_shift(k + form.bias, form.digits), x.dtype) for k in (half, n - half))
    return x * first * second


def nearest(x: Expression, factor: float) -> tuple[Expression, Expression]:
    """Return the integer nearest to x * factor, as a float and as an integer; the result is arbitrary if x is NaN."""
    form = format_of(x)
    shifted = f.fma(x, factor, form.magic)
    return shifted - form.magic, f.cast(f.reinterpret(shifted, form.bits) - form.magic_bits, int32)


def _limited(x: Expression, low: float, high: float) -> Expression:
    return f.minimum(f.maximum(x, low), high)


def _reduced(x: Expression) -> tuple[Expression, Expression, Expression]:
    """Return n, n as an integer, and r with x = n log(2) + r, |r| <= log(2) / 2."""
    high, low = format_of(x).log2
    n, whole = nearest(x, math.log2(math.e))
    return n, whole, f.fma(n, -low, f.fma(n, -high, x))


def exp(x: Expression) -> Expression:
    """Return e^x.

    Zeros are selected where the result underflows, because subnormal products take a hundred times as long, and masks produce many of them.
    """
    form = format_of(x)
    low, high = form.ends
    none = f.less(x, low)
    _, n, r = _reduced(f.minimum(f.where(none, 0.0, x), high))
    return f.where(none, 0.0, f.ldexp(polynomial(r, *form.exp), n))


def exp2(x: Expression) -> Expression:
    form = format_of(x)
    x = _limited(x, *form.ends2)
    n, whole = nearest(x, 1.0)
    return f.ldexp(polynomial((x - n) * math.log(2), *form.exp), whole)


def expm1(x: Expression) -> Expression:
    """Return e^x - 1 as 2 (2^n / 2 (e^r - 1) + 2^n / 2 - 1/2), including the rounding error of 2^n / 2 - 1/2."""
    form = format_of(x)
    n, whole, r = _reduced(_limited(x, -64.0, form.ends[1]))
    one = f.equal(n, 1.0)
    rest = f.fma(polynomial(r, *form.expm1), r * r, f.where(one, r + 0.5, r))
    half = f.ldexp(f.constant(0.5, x.dtype), whole)
    less = half - 0.5
    sum_ = f.fma(rest, half, (half - less) - 0.5) + less
    result = f.where(f.equal(n, 0.0), rest, f.where(one, rest + rest, sum_ + sum_))
    return f.where(f.equal(x, 0.0), x, result)


# ----------------------------------------------------------------------------------------------- logarithms

_LOG_SINGLE = (*(-0.130310059, 0.140869141, -0.121483512, 0.139814854, -0.166846126, 0.200120345, -0.249996200, 0.333331972, -0.5),)
#: coefficients of log(1 + x) on [-0.25, 0.5]
_LOG1P_SINGLE = (-4.54559326e-2, 1.05529785e-1, -1.32279143e-1, 1.44911006e-1, -1.66416913e-1, 1.99886635e-1, -2.50001878e-1, 3.33335280e-1, -0.5)
#: coefficients of fdlibm: log(1 + x) = x - (x^2 / 2 - s (x^2 / 2 + R)), s = x / (2 + x), R a polynomial in s^2
_LOG_DOUBLE = (
    *(1.479819860511658591e-01, 1.531383769920937332e-01, 1.818357216161805012e-01, 2.222219843214978396e-01),
    *(2.857142874366239149e-01, 3.999999999940941908e-01, 6.666666666666735130e-01, 0.0),
)


def _split(x: Expression, lowest: int) -> tuple[Expression, Expression]:
    """Return the exponent k of a positive number, as bits in their position in the number, and as a float.

    `lowest` is the bit pattern of the smallest number with k = 0.
    """
    form = format_of(x)
    exponent_bits = f.bitwise_and(f.reinterpret(x, form.bits) - lowest, form.exponent)
    k = f.right_shift(exponent_bits, form.digits)
    return exponent_bits, f.reinterpret(k + form.magic_bits, x.dtype) - form.magic


def _log_of_sum(x: Expression, k: Expression, coefficients: tuple[float, ...] = _LOG_SINGLE) -> Expression:
    """Return log(1 + x) + k log(2)."""
    if x.dtype is float32:
        return f.fma(k, math.log(2), f.fma(polynomial(x, *coefficients), x * x, x))
    high, low = 6.93147180369123816490e-01, 1.90821492927058770002e-10
    s = x / (x + 2.0)
    half = x * x * 0.5
    r = polynomial(s * s, *_LOG_DOUBLE)
    return f.fma(k, high, x - (half - f.fma(s, half + r, k * low)))


def _normal(x: Expression) -> tuple[Expression, Expression]:
    """Scale x by a power of two to a normal number; return the product, and the number to add to the product's exponent."""
    tiny, digits = (2.0**-126, 23.0) if x.dtype is float32 else (2.0**-1022, 52.0)
    small = x < tiny
    return f.where(small, x * 2.0**digits, x), f.where(small, f.constant(-digits, x.dtype), 0.0)


def _logarithm(x: Expression, combined: Callable[[Expression, Expression], Expression]) -> Expression:
    """Return combined(m, k) for x = (1 + m) 2^k, and the values for zero, negative numbers, infinity and NaN."""
    form = format_of(x)
    normal, below = _normal(x)
    exponent_bits, k = _split(normal, form.lowest)
    m = f.reinterpret(f.reinterpret(normal, form.bits) - exponent_bits, x.dtype) - 1.0
    result = combined(m, k + below)
    result = f.where(x < math.inf, result, x)  # infinity and NaN
    return f.where(x > 0.0, result, f.where(f.equal(x, 0.0), f.constant(-math.inf, x.dtype), math.nan))


def log(x: Expression) -> Expression:
    return _logarithm(x, _log_of_sum)


def log2(x: Expression) -> Expression:
    def combined(m: Expression, k: Expression) -> Expression:
        return f.fma(_log_of_sum(m, k * 0.0), math.log2(math.e), k)

    return _logarithm(x, combined)


def log10(x: Expression) -> Expression:
    def combined(m: Expression, k: Expression) -> Expression:
        return f.fma(k, math.log10(2), _log_of_sum(m, k * 0.0) * math.log10(math.e))

    return _logarithm(x, combined)


def log1p(x: Expression) -> Expression:
    """Return log(1 + x), as the logarithm of 1 + m with m = x 2^-k + (2^-k - 1), so that x loses no digits."""
    form = format_of(x)
    exponent_bits, k = _split(x + 1.0, 0x3F400000 if x.dtype is float32 else form.lowest)
    scaled = f.reinterpret(f.reinterpret(x, form.bits) - exponent_bits, x.dtype)
    four = (form.bias + 2) << form.digits
    m = scaled + f.fma(f.reinterpret(four - exponent_bits, x.dtype), 0.25, -1.0)
    result = _log_of_sum(m, k, _LOG1P_SINGLE)
    result = f.where(x < math.inf, result, x)
    result = f.where(x > -1.0, result, f.where(f.equal(x, -1.0), f.constant(-math.inf, x.dtype), math.nan))
    return f.where(f.equal(x, 0.0), x, result)


# ----------------------------------------------------------------------------------------------- sigmoids and hyperbolic functions

_TANH_SINGLE = (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)


def tanh(x: Expression) -> Expression:
    size = f.absolute(x)
    if x.dtype is float64:
        t = f.expm1(size * -2.0)
        return f.copysign(-t / (t + 2.0), x)
    far = 1.0 - 2.0 / (f.exp(size * 2.0) + 1.0)
    near = f.fma(polynomial(size * size, *_TANH_SINGLE), size * size * size, size)
    return f.copysign(f.where(size < 0.625, near, far), x)


def sigmoid(x: Expression) -> Expression:
    """Return 1 / (1 + e^-x), which is never 0; so products with infinite factors are the same as for `on_arrays.sigmoid`."""
    e = f.exp(-f.minimum(f.absolute(x), exponent_limit(x.dtype.numpy)))
    return f.where(x < 0.0, e, 1.0) / (e + 1.0)


def softplus(x: Expression) -> Expression:
    return f.maximum(x, 0.0) + f.log1p(f.exp(-f.absolute(x)))


def sinh(x: Expression) -> Expression:
    size = f.absolute(x)
    t = f.expm1(size)
    e = f.exp(size * 0.5)
    return f.copysign(f.where(size < format_of(x).ends[1] - 2.0, (t + t / (t + 1.0)) * 0.5, e * 0.5 * e), x)


def cosh(x: Expression) -> Expression:
    e = f.exp(f.absolute(x) * 0.5)
    half = e * 0.5
    return f.fma(half, e, 0.5 / (e * e))


def arcsinh(x: Expression) -> Expression:
    """Return the inverse hyperbolic sine, log(|x| + sqrt(x^2 + 1)) with the sign of x, computed by log1p."""
    size = f.absolute(x)
    far = size > _far(x)
    inside = f.where(far, 1.0, size)
    square = inside * inside
    more = f.where(far, size, inside + square / (f.sqrt(square + 1.0) + 1.0))
    return f.copysign(f.log1p(more) + f.where(far, f.constant(math.log(2), x.dtype), 0.0), x)


def arccosh(x: Expression) -> Expression:
    far = x > _far(x)
    t = f.where(far, 1.0, x - 1.0)
    result = f.log1p(f.where(far, x, t + f.sqrt(f.fma(t, t, t + t)))) + f.where(far, f.constant(math.log(2), x.dtype), 0.0)
    return f.where(x < 1.0, math.nan, result)


def arctanh(x: Expression) -> Expression:
    size = f.absolute(x)
    return f.copysign(f.log1p((size + size) / (1.0 - size)) * 0.5, x)


def _far(x: Expression) -> float:
    """Return a bound above which x^2 + 1 rounds to x^2; x^2 is still finite there."""
    return 2.0**30 if x.dtype is float32 else 2.0**300


# ----------------------------------------------------------------------------------------------- error functions

_ERF_CENTRE = (-5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1, 1.28379166e-1)
_ERF_FAR = (-1.72853470e-5, 3.83197126e-4, -3.88396438e-3, 2.42546219e-2, -1.06777877e-1, -6.34846687e-1, -1.28717512e-1)


def _ratio(coefficients: tuple[tuple[float, ...], tuple[float, ...]], x: Expression) -> Expression:
    above, below = coefficients
    return polynomial(x, *above) / polynomial(x, *below)


def _erf_centre(x: Expression) -> Expression:
    """Return erf of float64 for |x| <= 0.46875; see `jobflow.expressions.error_function`."""
    inside = _limited(x, -0.46875, 0.46875)
    return inside * _ratio(SMALL, inside * inside)


def _erfc_far(size: Expression) -> Expression:
    """Return erfc of float64 for size >= 0.46875."""
    a, b, limited = f.minimum(size, 4.0), f.maximum(size, 4.0), f.minimum(size, 30.0)
    inverse = 1.0 / (b * b)
    scaled = f.where(f.less_equal(size, 4.0), _ratio(MIDDLE, a), (ONE_OVER_ROOT_PI - inverse * _ratio(LARGE, inverse)) / b)
    near = f.trunc(limited * 16.0) * (1 / 16)
    return f.exp(-(near * near)) * f.exp(-((limited - near) * (limited + near))) * scaled


def _erfc_single(x: Expression) -> Expression:
    """Return erfc(x) of float32: exp(-x^2) times a polynomial over 1 + 2 x, corrected for the rounding errors of quotient and square."""
    size = f.minimum(f.absolute(x), ERFC_END)
    above = polynomial((size - 2.0) / (size + 2.0), *ERFC_SINGLE)
    twice = size + size
    inverse = 1.0 / (twice + 1.0)
    quotient = f.fma(above, inverse, inverse)
    scaled = f.fma((above - quotient) + f.fma(quotient, -twice, 1.0), inverse, quotient)
    square = size * size
    left = f.fma(-size, size, square)
    power = f.exp(-square)
    tail = f.fma(power * scaled, left, power * scaled)
    return f.where(x < 0.0, 2.0 - tail, tail)


def erfc(x: Expression) -> Expression:
    if x.dtype is float32:
        return _erfc_single(x)
    size = f.absolute(x)
    tail = _erfc_far(f.maximum(size, 0.46875))
    far = f.where(x > 0.0, tail, 2.0 - tail)
    return f.where(f.less_equal(size, 0.46875), 1.0 - _erf_centre(x), far)


def erf(x: Expression) -> Expression:
    size = f.absolute(x)
    if x.dtype is float64:
        far = f.copysign(1.0 - _erfc_far(f.maximum(size, 0.46875)), x)
        return f.where(f.less_equal(size, 0.46875), _erf_centre(x), far)
    near = f.fma(polynomial(x * x, *_ERF_CENTRE), x, x)
    limited = f.minimum(size, 4.0)
    power = f.fma(polynomial(limited, *_ERF_FAR), limited, -limited)
    return f.where(size > 0.927734375, f.copysign(1.0 - f.exp(power), x), near)


# ----------------------------------------------------------------------------------------------- powers


def fmod(x: Expression, y: Expression) -> Expression:
    """Return x - y trunc(x / y), exactly.

    The rounded quotient is wrong by at most one, which is corrected.  If a quotient has too many digits, the C library computes the result.
    """
    many = 2.0 ** (22 if x.dtype is float32 else 51)
    times = f.trunc(x / y)
    left, step = f.fma(-times, y, x), f.copysign(f.absolute(y), x)
    left = f.where(left * f.sign(x) < 0.0, left + step, left)
    left = f.where(f.less_equal(f.absolute(y), f.absolute(left)), left - step, left)
    easy = f.logical_and(f.absolute(times) < many, f.isfinite(y))
    return f.rare_where(f.logical_not(easy), f.library("fmod", x, y), f.copysign(left, x))


def power(x: Expression, y: Expression) -> Expression:
    """Return x^y, with the special values of C's pow.

    Powers of integers, and small constant powers, are products.  Otherwise, the result is e^(y log|x|) in float64.  For float64, the C library
    computes the power, because the formula needs more digits than float64 has.
    """
    if not x.dtype.is_float:
        return integer_power(x, int(str(y.attribute)))
    if y.primitive == "constant" and y.attribute in ((2.0, 3.0) if x.dtype is float64 else (2.0, 3.0, 4.0)):
        return f.cast(integer_power(f.cast(x, float64), int(float(str(y.attribute)))), x.dtype)
    if x.dtype is float64:
        return f.library("power", x, y)
    a, b = f.cast(x, float64), f.cast(y, float64)
    size = f.absolute(a)
    result = f.where(f.equal(size, 1.0), 1.0, f.exp(b * f.log(size)))
    whole, even = f.equal(f.trunc(b), b), f.equal(f.trunc(b * 0.5), b * 0.5)
    sign = f.where(f.logical_and(whole, f.logical_not(even)), f.copysign(f.constant(1.0, float64), a), 1.0)
    defined = f.logical_or(f.logical_or(whole, f.isinf(a)), f.logical_not(a < 0.0))
    result = f.where(defined, result * sign, math.nan)
    return f.cast(f.where(f.equal(b, 0.0), 1.0, result), x.dtype)
