"""Special functions of one tensor: inverses of the error function, Bessel functions, and derivatives of the digamma function.

The formulas compute in float64 and round once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jobflow.core.types import Tensor, float64
from jobflow.expressions.error_function import LARGE, MIDDLE, ONE_OVER_ROOT_PI
from jobflow.ops.arithmetic import multiply, subtract
from jobflow.ops.op import Grads, Sample, sample
from jobflow.ops.pointwise import Unary, call, sample_data
from jobflow.ops.scalar import Sign, scale
from jobflow.ops.transcendental import exp, square

# Inverses of the error function -----------------------------------------------------------------------------------------

#: M. Giles, "Approximating the erfinv function": polynomials in w - 5/2 for w < 5, and in sqrt(w) - 3 elsewhere, with w = -ln(1 - y^2)
_CENTER = (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164, 0.246640727, 1.50140941)
_TAIL = (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047, 1.00167406, 2.83297682)
#: the argument below which erfc is not small
_CENTRE = 0.46875
#: refinements of the approximation, each of third order
_REFINEMENTS = 2


def polynomial(coefficients: Sequence[float], x: Any) -> Any:
    """Evaluate a polynomial, with the highest power first, by Horner's scheme."""
    total = x * coefficients[0] + coefficients[1]
    for each in coefficients[2:]:
        total = total * x + each
    return total


def _inverse_tail(f: Any, w: Any) -> Any:
    """Return erfinv(y) / y, to about six digits, from w = -ln(1 - y^2)."""
    root = f.sqrt(f.where(f.less(w, 5.0), 5.0, w))
    return f.where(f.less(w, 5.0), polynomial(_CENTER, w - 2.5), polynomial(_TAIL, root - 3.0))


def _refined(f: Any, x: Any, excess: Any) -> Any:
    """Return a better root of a function with the derivative 2/sqrt(pi) exp(-x^2); `excess` is its value at x (Halley's method)."""
    step = excess * (math.sqrt(math.pi) / 2) * f.exp(f.square(x))
    return x - step / (x * step + 1.0)


class Erfinv(Unary):
    """Inverse error function: erf(y) = x; infinite at -1 and 1, and NaN outside of [-1, 1]."""

    low = -0.95
    high = 0.95

    def formula(self, f: Any, *elements: Any) -> Any:
        (x,) = elements
        wide = f.cast(x, float64)
        size = f.absolute(wide)
        inside = f.less(size, 1.0)
        z = f.where(inside, size, 0.0)
        y = z * _inverse_tail(f, -f.log1p(-f.square(z)))
        for _ in range(_REFINEMENTS):
            # near 1, the complements have the smaller rounding error
            y = _refined(f, y, f.where(f.less(z, 0.5), f.erf(y) - z, (1.0 - z) - f.erfc(y)))
        y = f.where(inside, y, f.where(f.equal(size, 1.0), math.inf, size * math.nan))
        return f.cast(f.copysign(y, wide), x.dtype)

    def grad(self, *tensors: Any) -> Grads:
        _, y, dy = tensors
        return (None if dy is None else multiply(dy, scale(exp(square(y)), math.sqrt(math.pi) / 2)),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        yield sample(cls(), np.array([-1.0, 0.0, 1.0, 1 - 1e-15, 1e-300]), differentiable=(), note=" ends")


class Erfcx(Unary):
    """Scaled complementary error function: y = exp(x^2) erfc(x)."""

    low = -2.0
    high = 6.0

    def formula(self, f: Any, *elements: Any) -> Any:
        (x,) = elements
        wide = f.cast(x, float64)
        size = f.absolute(wide)
        middle = f.where(f.less(4.0, size), 4.0, size)
        far = f.where(f.less(size, 4.0), 4.0, size)
        inverse = 1.0 / far
        square = inverse * inverse
        near, tail = (polynomial(above, at) / polynomial(below, at) for (above, below), at in ((MIDDLE, middle), (LARGE, square)))
        scaled = f.where(f.less(4.0, size), (ONE_OVER_ROOT_PI - square * tail) * inverse, near)
        low = f.where(f.less(wide, _CENTRE), wide, 0.0)
        power = f.exp(low * low)
        y = f.where(f.less(size, _CENTRE), power * f.erfc(wide), f.where(f.less(wide, 0.0), 2.0 * power - scaled, scaled))
        return f.cast(y, x.dtype)

    def gradient(self, f: Any, x: Any, y: Any, dy: Any) -> Any:
        near = f.less(x, 1e8)  # beyond, the slope is below 1e-16
        return (dy * f.where(near, 2.0 * (f.where(near, x, 0.0) * y - ONE_OVER_ROOT_PI), 0.0),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        yield sample(cls(), np.array([-3.0, 0.25, 5.0, 300.0, np.inf]), differentiable=(), note=" ends")


class Ndtri(Unary):
    """Inverse of the distribution function of the standard normal distribution; infinite at 0 and 1, and NaN outside of [0, 1]."""

    low = 0.02
    high = 0.98

    def formula(self, f: Any, *elements: Any) -> Any:
        (x,) = elements
        wide = f.cast(x, float64)
        inside = f.logical_and(f.less(0.0, wide), f.less(wide, 1.0))
        p = f.where(inside, wide, 0.5)
        upper = f.less(0.5, p)
        q = f.where(upper, 1.0 - p, p)  # the smaller tail
        # y = -erfcinv(2 q) / sqrt(2) below the median
        w = -f.log(4.0 * q * (1.0 - q))
        length = -f.log(2.0 * q)
        far = f.where(f.less(length, 15.0), 15.0, length)
        y = f.where(f.less(length, 15.0), (1.0 - 2.0 * q) * _inverse_tail(f, w), f.sqrt(far - 0.5 * f.log(math.pi * far)))
        for _ in range(_REFINEMENTS + 1):
            y = _refined(f, y, 2.0 * q - f.erfc(y))
        y = math.sqrt(2.0) * f.where(upper, y, -y)
        ends = f.where(f.equal(wide, 0.0), -math.inf, f.where(f.equal(wide, 1.0), math.inf, wide * math.nan))
        return f.cast(f.where(inside, y, ends), x.dtype)

    def grad(self, *tensors: Any) -> Grads:
        _, y, dy = tensors
        return (None if dy is None else multiply(dy, scale(exp(scale(square(y), 0.5)), math.sqrt(2 * math.pi))),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        yield sample(cls(), np.array([0.0, 0.5, 1.0, 1e-12]), differentiable=(), note=" ends")


# Bessel functions -------------------------------------------------------------------------------------------------------

#: coefficients of Chebyshev polynomials
_I0_LOW = (
    0.33839763720473798,
    -0.3046826723431984,
    0.17162090152220871,
    -0.094901097048047584,
    0.049305284239670594,
    -0.023737414805899394,
    0.010546460394594859,
    -0.0043243099950504363,
    0.0016394756169410083,
    -0.00057637557453825991,
    0.00018850288509531172,
    -5.7541950100386688e-05,
    1.6448448070051408e-05,
    -4.416738357916873e-06,
    1.1173875383368798e-06,
    -2.6707938466066476e-07,
    6.0469949129280546e-08,
    -1.3000249279602769e-08,
    2.6598226514332344e-09,
    -5.1897880231982289e-10,
    9.6757176345126553e-11,
    -1.7267607097279678e-11,
    2.9542294536592331e-12,
    -4.8506877527011564e-13,
    7.6101676400926236e-14,
    -1.1133069774713375e-14,
    9.8943487148306767e-16,
)
_I0_HIGH = (
    0.40224520550705439,
    0.0033691164782556821,
    6.8897583469101662e-05,
    2.8913705208338563e-06,
    2.0489185877405602e-07,
    2.2666689916321828e-08,
    3.396231725801304e-09,
    4.9406022389173268e-10,
    1.1888673620442996e-11,
    -3.1499180075872139e-11,
    -1.3216423124988623e-11,
    -1.7941783324737986e-12,
    7.174599079091778e-13,
    3.8526669777144456e-13,
    1.496387554929559e-14,
    -4.150001598407263e-14,
    -1.0083117915495104e-14,
    3.80130709518396e-15,
    1.0764336282235213e-15,
    -3.5720219053157211e-16,
    -1.1560800625988043e-15,
    1.9308226515220113e-17,
    -9.5696397666059692e-16,
)
_I1_LOW = (
    0.1262935932218168,
    -0.17641651835783401,
    0.10264365868984705,
    -0.052945981208094933,
    0.024726449030626454,
    -0.010564084894626133,
    0.0041564229443128058,
    -0.0015135724506311458,
    0.00051228595616842874,
    -0.00016176081582570319,
    4.7815651075264484e-05,
    -1.3273163655775392e-05,
    3.4702513078298866e-06,
    -8.5687202615057372e-07,
    2.0032947497389264e-07,
    -4.4450590879393147e-08,
    9.3815369009842412e-09,
    -1.8872492991919432e-09,
    3.625585494833954e-10,
    -6.663447137816858e-11,
    1.1735773232842325e-11,
    -1.9836147899140909e-12,
    3.2203046813534726e-13,
    -5.0110507307418625e-14,
    7.3121164473127564e-15,
    -8.2258017270115038e-16,
    -1.6987440261046955e-16,
)
_I1_HIGH = (
    0.38928811750914,
    -0.0097610974913614722,
    -0.0001105889387626723,
    -3.8825648088624618e-06,
    -2.512236239714189e-07,
    -2.6314688447594329e-08,
    -3.8353806748905031e-09,
    -5.5897432334979817e-10,
    -1.8975426302711309e-11,
    3.2526066381329293e-11,
    1.4125217903550373e-11,
    2.0356518403297703e-12,
    -7.2037545011297599e-13,
    -4.0833278787218935e-13,
    -2.1427304375265521e-14,
    4.2732122188575118e-14,
    9.8761578625350885e-15,
    -3.8037206234983623e-15,
    -2.5583400132666652e-15,
    3.4754807727396206e-16,
    -5.3821681411176064e-16,
    -4.585703797364777e-17,
    -1.0571254017083013e-15,
)


def _chebyshev(coefficients: Sequence[float], x: Any) -> Any:
    """Evaluate a series of Chebyshev polynomials by Clenshaw's recurrence."""
    later, latest = x * 0.0, x * 0.0 + coefficients[-1]
    for each in coefficients[-2:0:-1]:
        later, latest = latest, latest * (2.0 * x) - later + each
    return latest * x - later + coefficients[0]


def _bessel(f: Any, x: Any, low: Sequence[float], high: Sequence[float], odd: bool) -> Any:
    """Return exp(-|x|) I(x) from series in |x| / 4 - 1 up to 8, and in 16 / |x| - 1 beyond."""
    size = f.absolute(x)
    near = f.less(size, 8.0)
    a = f.where(near, size, 8.0)
    b = f.where(near, 8.0, size)
    first = _chebyshev(low, a * 0.25 - 1.0)
    if odd:
        first = first * a
    y = f.where(near, first, _chebyshev(high, 16.0 / b - 1.0) / f.sqrt(b))
    return f.copysign(y, x) if odd else y


class I0e(Unary):
    """Modified Bessel function of order 0, exponentially scaled: y = exp(-|x|) I0(x)."""

    low = -12.0
    high = 12.0

    def formula(self, f: Any, *elements: Any) -> Any:
        (x,) = elements
        return f.cast(_bessel(f, f.cast(x, float64), _I0_LOW, _I0_HIGH, odd=False), x.dtype)

    def grad(self, *tensors: Any) -> Grads:
        x, y, dy = tensors
        return (None if dy is None else multiply(dy, subtract(call(I1e(), x), multiply(_sign(x), y))),)


class I1e(Unary):
    """Modified Bessel function of order 1, exponentially scaled: y = exp(-|x|) I1(x)."""

    low = -12.0
    high = 12.0

    def formula(self, f: Any, *elements: Any) -> Any:
        (x,) = elements
        return f.cast(_bessel(f, f.cast(x, float64), _I1_LOW, _I1_HIGH, odd=True), x.dtype)

    def grad(self, *tensors: Any) -> Grads:
        x, y, dy = tensors
        return (None if dy is None else multiply(dy, call(I1eSlope(), x, y)),)


class I1eSlope(Unary):
    """Derivative of I1e: exp(-|x|) (I0(x) - I1(x) / x) - sign(x) y, for y = I1e(x); 1/2 at 0."""

    low = 0.5
    high = 3.0
    kinds = "fV"

    def formula(self, f: Any, *elements: Any) -> Any:
        x, y = elements
        wide, slope = f.cast(x, float64), f.cast(y, float64)
        zero = f.equal(wide, 0.0)
        divisor = f.where(zero, 1.0, wide)
        value = _bessel(f, wide, _I0_LOW, _I0_HIGH, odd=False) - slope * (1.0 / divisor + f.sign(wide))
        return f.cast(f.where(zero, 0.5, value), x.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), sample_data(1, 5, 3, low=0.5, high=3.0), sample_data(2, 5, 3))


def _sign(x: Tensor) -> Tensor:
    return call(Sign(), x)


# Polygamma functions ----------------------------------------------------------------------------------------------------

#: terms of the sum before the series of Euler and Maclaurin, which begins at x + 20
TERMS = 20
#: B_2k / (2k)! for k = 1, 2, ...
EULER_MACLAURIN = (1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000, 1 / 74724249600)


class Polygamma(Unary):
    """Derivative of order n >= 1 of the digamma function: (-1)^(n+1) n! zeta(n + 1, x), for x > -15; infinite at 0, -1, -2, ..."""

    n: int
    low = 0.3
    high = 6.0

    def formula(self, f: Any, *elements: Any) -> Any:
        (x,) = elements
        wide = f.cast(x, float64)
        s = self.n + 1
        total = _inverse_power(wide, s)
        for k in range(1, TERMS):
            total = total + _inverse_power(wide + float(k), s)
        w = wide + float(TERMS)
        one = 1.0 / w
        tail = w * (1.0 / (s - 1)) + 0.5
        factor, power = float(s), one
        for k, each in enumerate(EULER_MACLAURIN):
            tail = tail + power * (factor * each)
            factor *= (s + 2 * k + 1) * (s + 2 * k + 2)
            power = power * one * one
        total = total + tail * _inverse_power(w, s)
        total = f.where(f.isinf(wide), f.where(f.less(0.0, wide), 0.0, wide - wide), total)
        return f.cast(total * ((-1.0) ** s * math.factorial(self.n)), x.dtype)

    def grad(self, *tensors: Any) -> Grads:
        x, _, dy = tensors
        return (None if dy is None else multiply(dy, call(Polygamma(self.n + 1), x)),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for n in (1, 2, 4):
            yield sample(cls(n), sample_data(n, 5, 3, low=cls.low, high=cls.high), tolerance=1e-5)


def _inverse_power(x: Any, s: int) -> Any:
    inverse = 1.0 / x
    total = inverse
    for _ in range(s - 1):
        total = total * inverse
    return total
