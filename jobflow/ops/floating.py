"""What floating point numbers are, their parts, and logarithms to other bases; elementwise."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from jobflow.ops.arithmetic import divide, multiply, subtract
from jobflow.ops.base import Grads, Sample, sample
from jobflow.ops.broadcast import sum_to
from jobflow.ops.pointwise import NUMBERS, Binary, Elementwise, Unary, call, numbers
from jobflow.ops.scalar import negate, round_half_even, scale
from jobflow.types import Tensor, bool_


@dataclass(frozen=True)
class _Question(Elementwise):
    """A bool for each number; no gradient."""

    precision = "any"
    abstract = True
    gives = bool_

    def grad(self, x: Tensor, z: Tensor, dz: Tensor) -> Grads:
        return (None,)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), np.array([[0.0, np.inf, -np.inf], [1.0, 2.0, -3.0]]), differentiable=())
        yield sample(cls(), np.array(np.inf), differentiable=())


@dataclass(frozen=True)
class IsNan(_Question):
    """z = x is not a number"""

    ufunc = "isnan"


@dataclass(frozen=True)
class IsInf(_Question):
    """z = x is infinite, of either sign"""

    ufunc = "isinf"


@dataclass(frozen=True)
class IsFinite(_Question):
    """z = x is a number, and finite"""

    ufunc = "isfinite"


@dataclass(frozen=True)
class Trunc(Unary):
    """y = x without its fraction; the gradient is zero"""

    precision = "any"
    ufunc = "trunc"
    kinds = NUMBERS

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (None,)


@dataclass(frozen=True)
class Fmod(Binary):
    """z = x - y trunc(x / y), with the sign of x; FloorMod has that of y"""

    ufunc = "fmod"
    low = 0.6

    def grad(self, x: Tensor, y: Tensor, z: Tensor, dz: Tensor) -> Grads:
        whole = round_half_even(divide(subtract(x, z), y))
        return sum_to(dz, x.type.shape), negate(sum_to(multiply(dz, whole), y.type.shape))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        yield sample(cls(), 3 * numbers(1, 5, 3), numbers(2, 5, 3, low=0.6))
        yield sample(cls(), np.arange(-7, 8).reshape(5, 3), np.array([3, -2, 4]))


@dataclass(frozen=True)
class Log2(Unary):
    """y = the logarithm of x to base 2"""

    ufunc = "log2"
    low = 0.2

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (divide(scale(dy, 1 / math.log(2)), x),)


@dataclass(frozen=True)
class Log10(Unary):
    """y = the logarithm of x to base 10"""

    ufunc = "log10"
    low = 0.2

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (divide(scale(dy, 1 / math.log(10)), x),)


@dataclass(frozen=True)
class Exp2(Unary):
    """y = 2^x"""

    ufunc = "exp2"

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (multiply(dy, scale(y, math.log(2))),)


def isnan(x: Tensor, *, name: str | None = None) -> Tensor:
    return call(IsNan(), x, name=name)


def isinf(x: Tensor, *, name: str | None = None) -> Tensor:
    return call(IsInf(), x, name=name)


def isfinite(x: Tensor, *, name: str | None = None) -> Tensor:
    return call(IsFinite(), x, name=name)


def trunc(x: Tensor, *, name: str | None = None) -> Tensor:
    """x without its fraction."""
    return call(Trunc(), x, name=name)


def fmod(x: Tensor, y: Tensor, *, name: str | None = None) -> Tensor:
    """The remainder of x / y with the sign of x."""
    return call(Fmod(), x, y, name=name)


def log2(x: Tensor, *, name: str | None = None) -> Tensor:
    return call(Log2(), x, name=name)


def log10(x: Tensor, *, name: str | None = None) -> Tensor:
    return call(Log10(), x, name=name)


def exp2(x: Tensor, *, name: str | None = None) -> Tensor:
    return call(Exp2(), x, name=name)
