"""Sines, tangents and their inverses, from operations that machines have."""

from __future__ import annotations

import math

from jobflow.core.types import float32, float64
from jobflow.expressions import language as f
from jobflow.expressions.language import Expression
from jobflow.kernels.elementary_functions import nearest, polynomial

# ----------------------------------------------------------------------------------------------- sines and tangents

#: pi / 2 in three parts, each rounded to the type
_HALF_PI_SINGLE = (float.fromhex("0x1.921fb6p+0"), float.fromhex("-0x1.777a5cp-25"), float.fromhex("-0x1.ee59dap-50"))
_HALF_PI_DOUBLE = (float.fromhex("0x1.921fb54442d18p+0"), float.fromhex("0x1.1a62633145c07p-54"), float.fromhex("-0x1.f1976b7ed8fbcp-110"))
# coefficients of S. L. Moshier's Cephes library, for |r| <= pi / 4: (sin(r) - r) / r^3 and (cos(r) - 1 + r^2 / 2) / r^4 in r^2
_SIN_SINGLE = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
_COS_SINGLE = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)
_SIN_DOUBLE = (
    *(1.58962301576546568060e-10, -2.50507477628578072866e-8, 2.75573136213857245213e-6),
    *(-1.98412698295895385996e-4, 8.33333333332211858878e-3, -1.66666666666666307295e-1),
)
_COS_DOUBLE = (
    *(-1.13585365213876817300e-11, 2.08757008419747316778e-9, -2.75573141792967388112e-7),
    *(2.48015872888517045348e-5, -1.38888888888730564116e-3, 4.16666666666665929218e-2),
)
#: largest |x| for which three parts of pi / 2 suffice
_FURTHEST_SINGLE, _FURTHEST_DOUBLE = 2.0**16, 2.0**29


def _quarters(x: Expression) -> tuple[Expression, Expression, Expression]:
    """Return sin(r), cos(r) and n with x = n pi / 2 + r, |r| <= pi / 4, for |x| up to `_FURTHEST_SINGLE` or `_FURTHEST_DOUBLE`."""
    single = x.dtype is float32
    n, whole = nearest(x, 2 / math.pi)
    r = x
    for part in _HALF_PI_SINGLE if single else _HALF_PI_DOUBLE:
        r = f.fma(n, -part, r)
    square = r * r
    sine = f.fma(polynomial(square, *(_SIN_SINGLE if single else _SIN_DOUBLE)), square * r, r)
    cosine = f.fma(polynomial(square, *(_COS_SINGLE if single else _COS_DOUBLE)), square * square, f.fma(square, -0.5, 1.0))
    return sine, cosine, whole


def _far(name: str, x: Expression, near: Expression) -> Expression:
    """Return `near`, replaced by the result of the C library where |x| is above `_FURTHEST_SINGLE` or `_FURTHEST_DOUBLE`."""
    furthest = _FURTHEST_SINGLE if x.dtype is float32 else _FURTHEST_DOUBLE
    return f.rare_where(f.absolute(x) > furthest, f.cast(f.library(name, f.cast(x, float64)), x.dtype), near)


def _bit(whole: Expression, bit: int) -> Expression:
    return f.not_equal(f.bitwise_and(whole, bit), 0)


def sin(x: Expression) -> Expression:
    sine, cosine, n = _quarters(x)
    size = f.where(_bit(n, 1), cosine, sine)
    return _far("sin", x, f.where(f.equal(x, 0.0), x, f.where(_bit(n, 2), -size, size)))


def cos(x: Expression) -> Expression:
    sine, cosine, n = _quarters(x)
    size = f.where(_bit(n, 1), sine, cosine)
    return _far("cos", x, f.where(_bit(n + 1, 2), -size, size))


def tan(x: Expression) -> Expression:
    sine, cosine, n = _quarters(x)
    odd = _bit(n, 1)
    return _far("tan", x, f.where(f.equal(x, 0.0), x, f.where(odd, -cosine, sine) / f.where(odd, sine, cosine)))


# ----------------------------------------------------------------------------------------------- inverses

#: pi / 2 rounded to either type, and its rounding error
_HALF_PI = {
    float32: (float.fromhex("0x1.921fb6p+0"), float.fromhex("-0x1.777a5cp-25")),
    float64: (math.pi / 2, float.fromhex("0x1.1a62633145c07p-54")),
}
# Cephes: (arcsin(x) - x) / x^3 and (arctan(x) - x) / x^3 in x^2; fdlibm's for float64, the first as a quotient
_ARCSIN_SINGLE = (4.2163199048e-2, 2.4181311049e-2, 4.5470025998e-2, 7.4953002686e-2, 1.6666752422e-1)
_ARCTAN_SINGLE = (8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1)
_ARCSIN_ABOVE = (
    *(3.47933107596021167570e-05, 7.91534994289814532176e-04, -4.00555345006794114027e-02),
    *(2.01212532134862925881e-01, -3.25565818622400915405e-01, 1.66666666666666657415e-01),
)
_ARCSIN_BELOW = (7.70381505559019352791e-02, -6.88283971605453293030e-01, 2.02094576023350569471e00, -2.40339491173441421878e00, 1.0)
_ARCTAN_DOUBLE = (
    *(-1.62858201153657823623e-02, 3.65315727442169155270e-02, -4.97687799461593236017e-02, 5.83357013379057348645e-02),
    *(-6.66107313738753120669e-02, 7.69187620504482999495e-02, -9.09088713343650656196e-02, 1.11111104054623557880e-01),
    *(-1.42857142725034663711e-01, 1.99999999998764832476e-01, -3.33333333333329318027e-01),
)


def _arcsin_of_half(x: Expression, square: Expression) -> Expression:
    """Return arcsin(x) for 0 <= x <= 1/2, with `square` = x^2."""
    if x.dtype is float32:
        ratio = polynomial(square, *_ARCSIN_SINGLE)
    else:
        ratio = polynomial(square, *_ARCSIN_ABOVE) / polynomial(square, *_ARCSIN_BELOW)
    return f.fma(ratio, x * square, x)


def _half_of_arc(x: Expression) -> tuple[Expression, Expression]:
    """Return the condition |x| > 1/2, and an arcsine: arcsin(sqrt((1 - |x|) / 2)) where the condition holds, arcsin(|x|) elsewhere."""
    size = f.absolute(x)
    large = size > 0.5
    square = f.where(large, f.fma(size, -0.5, 0.5), x * x)
    return large, _arcsin_of_half(f.where(large, f.sqrt(square), size), square)


def arcsin(x: Expression) -> Expression:
    large, part = _half_of_arc(x)
    high, low = _HALF_PI[x.dtype]
    return f.copysign(f.where(large, high - (part * 2.0 - low), part), x)


def arccos(x: Expression) -> Expression:
    large, part = _half_of_arc(x)
    high, low = _HALF_PI[x.dtype]
    twice = part * 2.0
    middle = high - (f.copysign(part, x) - low)
    return f.where(large, f.where(x < 0.0, 2.0 * high - (twice - 2.0 * low), twice), middle)


def _arctan_of_ratio(y: Expression, x: Expression) -> Expression:
    """Return arctan(y / x) for y >= 0 and x >= 0, with one division: of y / x, (y - x) / (y + x) or -x / y."""
    high, low = _HALF_PI[x.dtype]
    steep, middle = y > x * 2.414213562373095, y > x * 0.4142135623730950
    above = f.where(steep, -x, f.where(middle, y - x, y))
    below = f.where(steep, y, f.where(middle, y + x, x))
    t = above / below
    square = t * t
    small = f.fma(polynomial(square, *(_ARCTAN_SINGLE if x.dtype is float32 else _ARCTAN_DOUBLE)), square * t, t)

    def part(whole: float) -> Expression:
        return f.where(steep, whole, f.where(middle, f.constant(whole / 2, x.dtype), 0.0))

    return part(high) + (small + part(low))


def arctan(x: Expression) -> Expression:
    return f.copysign(_arctan_of_ratio(f.absolute(x), f.constant(1.0, x.dtype)), x)


def arctan2(y: Expression, x: Expression) -> Expression:
    """Return the angle of the point (x, y): the angle of (|x|, |y|), mirrored for negative x, with the sign of y."""
    a, b = f.absolute(y), f.absolute(x)
    scale = f.where(f.maximum(a, b) > 1.0, f.constant(0.25, x.dtype), 1.0)  # so that their sum is finite
    infinite = f.logical_and(f.isinf(a), f.isinf(b))
    nothing = f.logical_and(f.equal(a, 0.0), f.equal(b, 0.0))
    angle = _arctan_of_ratio(f.where(infinite, 1.0, a * scale), f.where(f.logical_or(infinite, nothing), 1.0, b * scale))
    high, low = _HALF_PI[x.dtype]
    back = f.copysign(f.constant(1.0, x.dtype), x) < 0.0
    return f.copysign(f.where(back, 2.0 * high - (angle - 2.0 * low), angle), y)
