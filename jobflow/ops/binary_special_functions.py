"""Elementwise functions of two tensors beyond arithmetic: distances, sums of exponentials, signs, neighbours, divisors and shifts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from jobflow.core.types import Array, Tensor, Xp
from jobflow.ops.arithmetic import multiply
from jobflow.ops.broadcast import sum_to
from jobflow.ops.compare import not_equal
from jobflow.ops.op import Grads, Sample, sample
from jobflow.ops.pointwise import FLOATS, Binary, sample_data
from jobflow.ops.scalar import cast

INTEGERS = "iu"


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

    kinds = FLOATS
    ufunc = "nextafter"

    def grad(self, x: Tensor, y: Tensor, z: Tensor, dz: Tensor) -> Grads:
        """Return dz for x, where x differs from y: the next number moves with x."""
        differs = cast(not_equal(x, y), x.tensor_type.dtype)
        return sum_to(multiply(dz, differs), x.tensor_type.shape), None

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), sample_data(1, 5, 3), sample_data(2, 3), differentiable=(0,))


class OfIntegers(Binary):
    """Base class of functions of two integers."""

    abstract = True
    precision = "any"
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
    """Least common multiple, which is not negative; 0 if one operand is 0."""

    ufunc = "lcm"


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


class RightShift(BitShift):
    """Shift to the right, which fills with the sign: z = floor(x / 2^y)."""

    def kernel(self, xp: Xp, *arrays: Array) -> None:
        x, y, z = arrays
        bits = 8 * x.dtype.itemsize
        half = y.dtype.type(bits // 2)
        inside = (y >= 0) & (y < bits)
        # two shifts: a shift by all bits is undefined
        z[...] = xp.where(inside, xp.right_shift(x, xp.where(inside, y, y.dtype.type(0))), xp.right_shift(xp.right_shift(x, half), half))
