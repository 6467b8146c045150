"""Elementwise functions of two tensors: distances, sums of exponentials, the zeta function, signs, neighbours, divisors and shifts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from jobflow.core.types import Array, Tensor, Xp, dtype_of, float64
from jobflow.ops.arithmetic import multiply
from jobflow.ops.broadcast import sum_to
from jobflow.ops.compare import not_equal
from jobflow.ops.op import Grads, Sample, sample
from jobflow.ops.pointwise import FLOATS, Binary, call, sample_data
from jobflow.ops.scalar import cast, negate, shift
from jobflow.ops.unary_special_functions import EULER_MACLAURIN, TERMS

INTEGERS = "iu"
#: exponents beyond this bound underflow, and would overflow in the series of `Zeta`
_LARGEST = 1e4


class Hypot(Binary):
    """Length of the hypotenuse: z = sqrt(x^2 + y^2), without overflow of the squares."""

    kinds = FLOATS

    def formula(self, f: Any, *elements: Any) -> Any:
        a, b = map(f.absolute, elements)
        large, small = f.maximum(a, b), f.minimum(a, b)
        empty = f.logical_or(f.equal(large, 0.0), f.equal(large, math.inf))
        ratio = f.where(empty, 0.0, small / f.where(empty, 1.0, large))
        z = large * f.sqrt(1.0 + f.square(ratio))
        return f.where(f.logical_or(f.isinf(a), f.isinf(b)), math.inf, z)

    def gradient(self, f: Any, x: Any, y: Any, z: Any, dz: Any) -> Any:
        return dz * (x / z), dz * (y / z)


class LogAddExp(Binary):
    """Logarithm of a sum of exponentials: z = ln(e^x + e^y), without overflow."""

    kinds = FLOATS

    def formula(self, f: Any, *elements: Any) -> Any:
        x, y = elements
        same = f.equal(x, y)  # infinities have no difference
        distance = f.absolute(f.where(same, 0.0, x) - f.where(same, 0.0, y))
        return f.maximum(x, y) + f.log1p(f.exp(-distance))

    def gradient(self, f: Any, x: Any, y: Any, z: Any, dz: Any) -> Any:
        return dz * f.sigmoid(x - y), dz * f.sigmoid(y - x)


class CopySign(Binary):
    """Magnitude of x with the sign of y; y has no gradient."""

    kinds = FLOATS

    def formula(self, f: Any, *elements: Any) -> Any:
        x, y = elements
        return f.copysign(x, y)

    def gradient(self, f: Any, x: Any, y: Any, z: Any, dz: Any) -> Any:
        zero = f.equal(x, 0.0)
        return dz * f.where(zero, 0.0, z / f.where(zero, 1.0, x)), dz * 0.0


class NextAfter(Binary):
    """Next number of the element type after x in the direction of y."""

    loops_on = ("cuda",)
    kinds = FLOATS
    ufunc = "nextafter"

    def grad(self, x: Tensor, y: Tensor, z: Tensor, dz: Tensor) -> Grads:
        """Return dz for x, where x differs from y: the next number moves with x."""
        differs = cast(not_equal(x, y), x.tensor_type.dtype)
        return sum_to(multiply(dz, differs), x.tensor_type.shape), None

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), sample_data(1, 5, 3), sample_data(2, 3), differentiable=(0,))


class Zeta(Binary):
    """Hurwitz zeta function: z = sum of (y + k)^-x over k = 0, 1, ..., for x > 1 and y > -15; infinite at y = 0, -1, ...

    There is no gradient with respect to x.
    """

    kinds = FLOATS

    def formula(self, f: Any, *elements: Any) -> Any:
        x, y = elements
        s, q = f.cast(x, float64), f.cast(y, float64)
        total = _power(f, q, s)
        for k in range(1, TERMS):
            total = total + _power(f, q + float(k), s)
        w = q + float(TERMS)
        one = 1.0 / w
        order = f.minimum(s, _LARGEST)
        tail = w / f.where(f.equal(s, 1.0), 2.0, s - 1.0) + 0.5
        factor, power = order, one
        for k, each in enumerate(EULER_MACLAURIN):
            tail = tail + power * (factor * each)
            factor = factor * ((order + float(2 * k + 1)) * (order + float(2 * k + 2)))
            power = power * one * one
        z = total + tail * _power(f, w, s)
        outside = f.logical_or(f.less(w, 5.0), f.logical_and(f.less(q, 0.0), f.not_equal(s, f.floor(s))))
        z = f.where(outside, math.nan, z)
        z = f.where(f.logical_and(f.less_equal(q, 0.0), f.equal(q, f.floor(q))), math.inf, z)
        z = f.where(f.equal(s, 1.0), math.inf, f.where(f.less(s, 1.0), math.nan, z))
        return f.cast(z, x.dtype)

    def grad(self, *tensors: Any) -> Grads:
        x, y, _, dz = tensors
        slope: Tensor = multiply(negate(x), call(Zeta(), shift(x, 1.0), y))
        return None, sum_to(multiply(dz, slope), y.tensor_type.shape)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), sample_data(1, 5, 3, low=1.5, high=6.0), sample_data(2, 3, low=0.5, high=4.0), differentiable=(1,), tolerance=1e-5)
        yield sample(cls(), np.array([1.0, 2.0, 3.0]), np.array([2.0, -1.0, -0.5]), differentiable=(), note=" special")


def _power(f: Any, base: Any, s: Any) -> Any:
    """Return base^-s, with the sign of a negative base for odd s, and 1 for a base of 0."""
    half = s * 0.5
    odd = f.logical_and(f.less(base, 0.0), f.not_equal(half, f.floor(half)))
    size = f.power(f.where(f.equal(base, 0.0), 1.0, f.absolute(base)), -s)
    return f.where(odd, -size, size)


class OfIntegers(Binary):
    """Base class of functions of two integers."""

    abstract = True
    precision = "any"
    loops_on = ("cuda",)
    kinds = INTEGERS

    def grad(self, x: Tensor, y: Tensor, z: Tensor, dz: Tensor) -> Grads:
        return None, None

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), np.arange(15).reshape(5, 3) - 4, np.arange(15)[::-1].reshape(5, 3) % 7)
        yield sample(cls(), np.arange(6, dtype=np.uint8).reshape(2, 3) * 12, np.array([4, 6, 9], np.uint8))


class Gcd(OfIntegers):
    """Greatest common divisor, which is not negative; gcd(0, 0) = 0."""

    ufunc = "gcd"


class Lcm(OfIntegers):
    """Least common multiple, which is not negative; 0 if one operand is 0.  An overflow of 32 or 64 bits is not negative, either."""

    def kernel(self, xp: Xp, *arrays: Array) -> None:
        x, y, z = arrays
        xp.lcm(x, y, out=z)
        if z.dtype.kind == "i" and z.dtype.itemsize > 2:
            xp.absolute(z, out=z)

    def formula(self, f: Any, *elements: Any) -> Any:
        x, y = (value if dtype_of(value.dtype).numpy.kind == "u" else f.absolute(value) for value in elements)
        divisor = f.gcd(x, y)
        product = f.quotient(x, f.where(f.equal(divisor, 0), 1, divisor)) * y
        dtype = dtype_of(x.dtype)
        return f.absolute(product) if dtype.numpy.kind == "i" and dtype.itemsize > 2 else product


class BitShift(OfIntegers):
    """Base class of shifts of the bits of x by y; a negative count, or more than all bits, shifts all bits out."""

    abstract = True


class LeftShift(BitShift):
    """Shift to the left, which fills with 0: z = x 2^y."""

    def kernel(self, xp: Xp, *arrays: Array) -> None:
        x, y, z = arrays
        bits = 8 * x.dtype.itemsize
        inside = (y >= 0) & (y < bits)
        z[...] = xp.where(inside, xp.left_shift(x, xp.where(inside, y, y.dtype.type(0))), x.dtype.type(0))

    def formula(self, f: Any, *elements: Any) -> Any:
        x, y = elements
        inside = f.logical_and(f.less_equal(0, y), f.less(y, 8 * x.dtype.itemsize))
        return f.where(inside, f.left_shift(x, f.where(inside, y, 0)), 0)


class RightShift(BitShift):
    """Shift to the right, which fills with the sign: z = floor(x / 2^y)."""

    def kernel(self, xp: Xp, *arrays: Array) -> None:
        x, y, z = arrays
        bits = 8 * x.dtype.itemsize
        half = y.dtype.type(bits // 2)
        inside = (y >= 0) & (y < bits)
        # two shifts: a shift by all bits is undefined
        z[...] = xp.where(inside, xp.right_shift(x, xp.where(inside, y, y.dtype.type(0))), xp.right_shift(xp.right_shift(x, half), half))

    def formula(self, f: Any, *elements: Any) -> Any:
        x, y = elements
        inside = f.logical_and(f.less_equal(0, y), f.less(y, 8 * x.dtype.itemsize))
        half = f.constant(4 * x.dtype.itemsize, y.dtype)
        return f.where(inside, f.right_shift(x, f.where(inside, y, 0)), f.right_shift(f.right_shift(x, half), half))
