"""Powers, exponentials, trigonometric and error functions, element by element."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from jobflow.core.errors import DtypeError
from jobflow.core.types import Tensor, TensorType
from jobflow.ops.arithmetic import add, divide, multiply, where
from jobflow.ops.broadcast import sum_to
from jobflow.ops.checked import check, whole_exponent
from jobflow.ops.compare import equal, greater
from jobflow.ops.op import Grads, Sample, sample
from jobflow.ops.pointwise import FLOATS, NUMBERS, Binary, Unary, call, numbers
from jobflow.ops.scalar import WithNumber, fill_like, fitting, negate, scale, shift, sign


@dataclass(frozen=True)
class Square(Unary):
    """y = x^2"""

    precision = "follows"
    ufunc = "square"
    kinds = NUMBERS

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (multiply(dy, scale(x, 2.0)),)


@dataclass(frozen=True)
class Absolute(Unary):
    """y = |x|; the gradient at 0 is 0"""

    precision = "any"
    ufunc = "absolute"
    kinds = NUMBERS

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (multiply(dy, sign(x)),)


@dataclass(frozen=True)
class ScalarPower(WithNumber):
    """y = x^number; integers take powers from 0 to the largest of their type"""

    primitive = "power"

    def infer(self, *types: TensorType) -> TensorType:
        (x,) = types
        if x.dtype.is_integer and not 0 <= self.number <= np.iinfo(x.dtype.numpy).max:
            raise DtypeError(f"scalarpower: {x} to the power of {self.number:g}; cast it to a float type first")
        return super().infer(x)

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (multiply(dy, scale(scalar_power(x, self.number - 1.0), self.number)) if self.number else None,)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(3.0), numbers(1, 5, 3))
        yield sample(cls(-0.5), numbers(2, 4, low=0.5))
        yield sample(cls(0.0), np.array([0.0, 1.0, -2.0]))


@dataclass(frozen=True)
class Power(Binary):
    """z = x^y; the gradient of y is 0 where x <= 0; the function refuses negative y of integers"""

    ufunc = "power"
    low = 0.3

    def grad(self, x: Tensor, y: Tensor, z: Tensor, dz: Tensor) -> Grads:
        one = fill_like(x, 1.0)
        exponent = where(equal(y, fill_like(y, 0.0)), fill_like(y, 1.0), shift(y, -1.0))  # y x^(y - 1) is 0 where y is, though x be 0 too
        dx = multiply(dz, multiply(y, power(x, exponent)))
        logarithm = log(where(greater(x, fill_like(x, 0.0)), x, one))
        return sum_to(dx, x.type.shape), sum_to(multiply(dz, multiply(z, logarithm)), y.type.shape)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        yield sample(cls(), np.array([0.0, 0.0, -1.5]), np.array([0.0, 2.0, 3.0]), differentiable=(0,))
        yield sample(cls(), np.array([2, -3, 0]), np.array([3, 2, 0]))


@dataclass(frozen=True)
class Atan2(Binary):
    """z = the angle of the point (y, x), in radians"""

    ufunc = "arctan2"
    kinds = FLOATS
    low = 0.2

    def grad(self, x: Tensor, y: Tensor, z: Tensor, dz: Tensor) -> Grads:
        share = divide(dz, add(square(x), square(y)))
        return sum_to(multiply(share, y), x.type.shape), negate(sum_to(multiply(share, x), y.type.shape))


@dataclass(frozen=True)
class Exp(Unary):
    """y = e^x"""

    ufunc = "exp"

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (multiply(dy, y),)


@dataclass(frozen=True)
class Expm1(Unary):
    """y = e^x - 1, exact near 0"""

    ufunc = "expm1"

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (multiply(dy, exp(x)),)


@dataclass(frozen=True)
class Log(Unary):
    """y = ln x"""

    ufunc = "log"
    low = 0.2

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (divide(dy, x),)


@dataclass(frozen=True)
class Log1p(Unary):
    """y = ln(1 + x), exact near 0"""

    ufunc = "log1p"
    low = -0.8

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (divide(dy, shift(x, 1.0)),)


@dataclass(frozen=True)
class Sqrt(Unary):
    """y = x^(1/2)"""

    precision = "follows"
    ufunc = "sqrt"
    low = 0.2

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (divide(scale(dy, 0.5), y),)


@dataclass(frozen=True)
class Rsqrt(Unary):
    """y = x^(-1/2)"""

    low = 0.2

    def formula(self, f: Any, *elements: Any) -> Any:
        return f.rsqrt(*elements)

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (multiply(scale(dy, -0.5), divide(y, x)),)


@dataclass(frozen=True)
class Reciprocal(Unary):
    """y = 1 / x"""

    ufunc = "reciprocal"
    low = 0.3

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (negate(multiply(dy, square(y))),)


@dataclass(frozen=True)
class ReciprocalNoNan(Unary):
    """y = 1 / x, and 0 where x is 0"""

    low = 0.3

    def formula(self, f: Any, x: Any) -> Any:
        zero = f.equal(x, 0.0)
        return f.where(zero, x, f.reciprocal(f.where(zero, 1.0, x)))

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (negate(multiply(dy, square(y))),)


@dataclass(frozen=True)
class Sin(Unary):
    """y = sin x"""

    ufunc = "sin"

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (multiply(dy, cos(x)),)


@dataclass(frozen=True)
class Cos(Unary):
    """y = cos x"""

    ufunc = "cos"

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (negate(multiply(dy, sin(x))),)


@dataclass(frozen=True)
class Tan(Unary):
    """y = tan x"""

    ufunc = "tan"
    low = -1.2
    high = 1.2

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (multiply(dy, shift(square(y), 1.0)),)


@dataclass(frozen=True)
class Asin(Unary):
    """y = arcsin x"""

    ufunc = "arcsin"
    low = -0.9
    high = 0.9

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (multiply(dy, rsqrt(_one_minus_square(x))),)


@dataclass(frozen=True)
class Acos(Unary):
    """y = arccos x"""

    ufunc = "arccos"
    low = -0.9
    high = 0.9

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (negate(multiply(dy, rsqrt(_one_minus_square(x)))),)


@dataclass(frozen=True)
class Atan(Unary):
    """y = arctan x"""

    ufunc = "arctan"

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (divide(dy, shift(square(x), 1.0)),)


@dataclass(frozen=True)
class Sinh(Unary):
    """y = sinh x"""

    ufunc = "sinh"

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (multiply(dy, cosh(x)),)


@dataclass(frozen=True)
class Cosh(Unary):
    """y = cosh x"""

    ufunc = "cosh"

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (multiply(dy, sinh(x)),)


@dataclass(frozen=True)
class Asinh(Unary):
    """y = arsinh x"""

    ufunc = "arcsinh"

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (multiply(dy, rsqrt(shift(square(x), 1.0))),)


@dataclass(frozen=True)
class Acosh(Unary):
    """y = arcosh x"""

    ufunc = "arccosh"
    low = 1.3
    high = 3.0

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (multiply(dy, rsqrt(shift(square(x), -1.0))),)


@dataclass(frozen=True)
class Atanh(Unary):
    """y = artanh x"""

    ufunc = "arctanh"
    low = -0.9
    high = 0.9

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (divide(dy, _one_minus_square(x)),)


@dataclass(frozen=True)
class Erf(Unary):
    """y = 2/sqrt(pi) times the integral of exp(-t^2) from 0 to x"""

    low = -5.0
    high = 5.0

    def formula(self, f: Any, *elements: Any) -> Any:
        return f.erf(*elements)

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (multiply(dy, _bell(x)),)


@dataclass(frozen=True)
class Erfc(Unary):
    """y = 1 - erf(x), exact where it is small"""

    low = -5.0
    high = 5.0

    def formula(self, f: Any, *elements: Any) -> Any:
        return f.erfc(*elements)

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (negate(multiply(dy, _bell(x))),)


def _bell(x: Tensor) -> Tensor:
    """The derivative of erf."""
    return scale(exp(negate(square(x))), 2.0 / math.sqrt(math.pi))


def _one_minus_square(x: Tensor) -> Tensor:
    return shift(negate(square(x)), 1.0)


def square(x: Tensor, *, name: str | None = None) -> Tensor:
    return call(Square(), x, name=name)


def absolute(x: Tensor, *, name: str | None = None) -> Tensor:
    return call(Absolute(), x, name=name)


def scalar_power(x: Tensor, exponent: float, *, name: str | None = None) -> Tensor:
    """x ** exponent"""
    return call(ScalarPower(fitting("scalar_power", x, exponent)), x, name=name)


def power(x: Tensor, y: Tensor, *, name: str | None = None) -> Tensor:
    return call(Power(), x, check(whole_exponent("pow"), y) if y.type.dtype.is_integer else y, name=name)


def atan2(x: Tensor, y: Tensor, *, name: str | None = None) -> Tensor:
    return call(Atan2(), x, y, name=name)


def exp(x: Tensor, *, name: str | None = None) -> Tensor:
    return call(Exp(), x, name=name)


def expm1(x: Tensor, *, name: str | None = None) -> Tensor:
    return call(Expm1(), x, name=name)


def log(x: Tensor, *, name: str | None = None) -> Tensor:
    return call(Log(), x, name=name)


def log1p(x: Tensor, *, name: str | None = None) -> Tensor:
    return call(Log1p(), x, name=name)


def sqrt(x: Tensor, *, name: str | None = None) -> Tensor:
    return call(Sqrt(), x, name=name)


def rsqrt(x: Tensor, *, name: str | None = None) -> Tensor:
    return call(Rsqrt(), x, name=name)


def reciprocal(x: Tensor, *, name: str | None = None) -> Tensor:
    return call(Reciprocal(), x, name=name)


def reciprocal_no_nan(x: Tensor, *, name: str | None = None) -> Tensor:
    return call(ReciprocalNoNan(), x, name=name)


def sin(x: Tensor, *, name: str | None = None) -> Tensor:
    return call(Sin(), x, name=name)


def cos(x: Tensor, *, name: str | None = None) -> Tensor:
    return call(Cos(), x, name=name)


def tan(x: Tensor, *, name: str | None = None) -> Tensor:
    return call(Tan(), x, name=name)


def asin(x: Tensor, *, name: str | None = None) -> Tensor:
    return call(Asin(), x, name=name)


def acos(x: Tensor, *, name: str | None = None) -> Tensor:
    return call(Acos(), x, name=name)


def atan(x: Tensor, *, name: str | None = None) -> Tensor:
    return call(Atan(), x, name=name)


def sinh(x: Tensor, *, name: str | None = None) -> Tensor:
    return call(Sinh(), x, name=name)


def cosh(x: Tensor, *, name: str | None = None) -> Tensor:
    return call(Cosh(), x, name=name)


def asinh(x: Tensor, *, name: str | None = None) -> Tensor:
    return call(Asinh(), x, name=name)


def acosh(x: Tensor, *, name: str | None = None) -> Tensor:
    return call(Acosh(), x, name=name)


def atanh(x: Tensor, *, name: str | None = None) -> Tensor:
    return call(Atanh(), x, name=name)


def erf(x: Tensor, *, name: str | None = None) -> Tensor:
    return call(Erf(), x, name=name)


def erfc(x: Tensor, *, name: str | None = None) -> Tensor:
    return call(Erfc(), x, name=name)
