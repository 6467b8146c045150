"""Elementwise powers, exponentials, trigonometric and error functions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from jobflow.core.errors import DtypeError
from jobflow.core.types import Tensor, TensorType
from jobflow.ops.op import Sample, sample
from jobflow.ops.pointwise import FLOATS, NUMBERS, Binary, Unary, binary_function, call, sample_data, unary_function
from jobflow.ops.runtime_assertions import check, exponent_assertion
from jobflow.ops.scalar import WithNumber, representable


class Square(Unary):
    """Square: y = x^2."""

    precision = "follows"
    ufunc = "square"
    kinds = NUMBERS


class Absolute(Unary):
    """Absolute value: y = |x|. The gradient at 0 is 0."""

    precision = "any"
    ufunc = "absolute"
    kinds = NUMBERS


class ScalarPower(WithNumber):
    """Power with a constant exponent: y = x^number. Integer tensors accept exponents from 0 to the largest value of their type."""

    primitive = "power"

    def infer(self, *types: TensorType) -> TensorType:
        (x,) = types
        if x.dtype.is_integer and not 0 <= self.number <= np.iinfo(x.dtype.numpy).max:
            raise DtypeError(f"scalarpower: the exponent {self.number:g} of {x} is out of range for integers; cast x to a float type first")
        return super().infer(x)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(3.0), sample_data(1, 5, 3))
        yield sample(cls(-0.5), sample_data(2, 4, low=0.5))
        yield sample(cls(0.0), np.array([0.0, 1.0, -2.0]))


class Power(Binary):
    """Power: z = x^y. The gradient of y is 0 where x <= 0. The function `power` rejects negative y of integers."""

    ufunc = "power"
    low = 0.3

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        yield sample(cls(), np.array([0.0, 0.0, -1.5]), np.array([0.0, 2.0, 3.0]), differentiable=(0,))
        yield sample(cls(), np.array([2, -3, 0]), np.array([3, 2, 0]))


class Atan2(Binary):
    """Angle of the point (y, x) in radians: z = atan2(x, y) as in NumPy."""

    ufunc = "arctan2"
    kinds = FLOATS
    low = 0.2


class Exp(Unary):
    """Exponential function: y = e^x."""

    ufunc = "exp"


class Expm1(Unary):
    """Exponential function minus one, accurate near 0: y = e^x - 1."""

    ufunc = "expm1"


class Log(Unary):
    """Natural logarithm: y = ln x."""

    ufunc = "log"
    low = 0.2


class Log1p(Unary):
    """Logarithm of 1 + x, accurate near 0: y = ln(1 + x)."""

    ufunc = "log1p"
    low = -0.8


class Logit(Unary):
    """Inverse of the sigmoid: y = ln(x / (1 - x))."""

    low, high = 0.1, 0.9

    def formula(self, f: Any, *elements: Any) -> Any:
        (x,) = elements
        return f.log(x / (1.0 - x))


class Sqrt(Unary):
    """Square root: y = x^(1/2)."""

    precision = "follows"
    ufunc = "sqrt"
    low = 0.2


class Rsqrt(Unary):
    """Reciprocal square root: y = x^(-1/2)."""

    low = 0.2

    def formula(self, f: Any, *elements: Any) -> Any:
        return f.rsqrt(*elements)


class Reciprocal(Unary):
    """Reciprocal: y = 1 / x."""

    ufunc = "reciprocal"
    low = 0.3


class ReciprocalNoNan(Unary):
    """Reciprocal: y = 1 / x, or 0 where x is 0."""

    low = 0.3

    def formula(self, f: Any, x: Any) -> Any:
        zero = f.equal(x, 0.0)
        return f.where(zero, x, f.reciprocal(f.where(zero, 1.0, x)))

    def gradient(self, f: Any, x: Any, y: Any, dy: Any) -> Any:
        return -(dy * (y * y))


class Sin(Unary):
    """Sine: y = sin x."""

    ufunc = "sin"


class Cos(Unary):
    """Cosine: y = cos x."""

    ufunc = "cos"


class Tan(Unary):
    """Tangent: y = tan x."""

    ufunc = "tan"
    low = -1.2
    high = 1.2


class Asin(Unary):
    """Inverse sine: y = arcsin x."""

    ufunc = "arcsin"
    low = -0.9
    high = 0.9


class Acos(Unary):
    """Inverse cosine: y = arccos x."""

    ufunc = "arccos"
    low = -0.9
    high = 0.9


class Atan(Unary):
    """Inverse tangent: y = arctan x."""

    ufunc = "arctan"


class Sinh(Unary):
    """Hyperbolic sine: y = sinh x."""

    ufunc = "sinh"


class Cosh(Unary):
    """Hyperbolic cosine: y = cosh x."""

    ufunc = "cosh"


class Asinh(Unary):
    """Inverse hyperbolic sine: y = arsinh x."""

    ufunc = "arcsinh"


class Acosh(Unary):
    """Inverse hyperbolic cosine: y = arcosh x."""

    ufunc = "arccosh"
    low = 1.3
    high = 3.0


class Atanh(Unary):
    """Inverse hyperbolic tangent: y = artanh x."""

    ufunc = "arctanh"
    low = -0.9
    high = 0.9


class Erf(Unary):
    """Error function: y = 2/sqrt(pi) times the integral of exp(-t^2) from 0 to x."""

    low = -5.0
    high = 5.0

    def formula(self, f: Any, *elements: Any) -> Any:
        return f.erf(*elements)


class Erfc(Unary):
    """Complementary error function: y = 1 - erf(x), with a small relative error for large x."""

    low = -5.0
    high = 5.0

    def formula(self, f: Any, *elements: Any) -> Any:
        return f.erfc(*elements)


square = unary_function(Square)
absolute = unary_function(Absolute)


def scalar_power(x: Tensor, exponent: float, *, name: str | None = None) -> Tensor:
    """Return x ** exponent."""
    return call(ScalarPower(representable("scalar_power", x, exponent)), x, name=name)


def power(x: Tensor, y: Tensor, *, name: str | None = None) -> Tensor:
    return call(Power(), x, check(exponent_assertion("pow"), y) if y.tensor_type.dtype.is_integer else y, name=name)


atan2 = binary_function(Atan2)
exp = unary_function(Exp)
expm1 = unary_function(Expm1)
log = unary_function(Log)
log1p = unary_function(Log1p)
sqrt = unary_function(Sqrt)
rsqrt = unary_function(Rsqrt)
reciprocal = unary_function(Reciprocal)
reciprocal_no_nan = unary_function(ReciprocalNoNan)
sin = unary_function(Sin)
cos = unary_function(Cos)
tan = unary_function(Tan)
asin = unary_function(Asin)
acos = unary_function(Acos)
atan = unary_function(Atan)
sinh = unary_function(Sinh)
cosh = unary_function(Cosh)
asinh = unary_function(Asinh)
acosh = unary_function(Acosh)
atanh = unary_function(Atanh)
erf = unary_function(Erf)
erfc = unary_function(Erfc)
