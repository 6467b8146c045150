"""Elementwise arithmetic: sums, products, extremes and selection of two tensors.

The gradient of a broadcast operand is summed to the operand's shape.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from jobflow.core.errors import DtypeError
from jobflow.core.layout import Rule
from jobflow.core.types import Tensor, TensorType, bool_
from jobflow.ops import remainders
from jobflow.ops.broadcast import sum_to
from jobflow.ops.op import OVER_EITHER, Grads, Sample, broadcast_rule, broadcast_shapes, sample
from jobflow.ops.pointwise import ANY, FLOATS, Binary, Pointwise, binary_function, call, check_dtypes, sample_data
from jobflow.ops.runtime_assertions import check, divisor_assertion
from jobflow.ops.scalar import fill_like, negate, round_half_even


class Add(Binary):
    """Elementwise sum: z = x + y."""

    precision = "follows"
    ufunc = "add"
    linear = ((0, 1),)
    in_place = OVER_EITHER


class Subtract(Binary):
    """Elementwise difference: z = x - y."""

    precision = "follows"
    ufunc = "subtract"
    linear = ((0, 1),)
    in_place = OVER_EITHER


class Multiply(Binary):
    """Elementwise product: z = x y."""

    precision = "follows"
    ufunc = "multiply"
    linear = ((0,), (1,))
    in_place = OVER_EITHER

    def grad(self, x: Tensor, y: Tensor, z: Tensor, dz: Tensor) -> Grads:
        return sum_to(multiply(dz, y), x.tensor_type.shape), sum_to(multiply(dz, x), y.tensor_type.shape)


class Divide(Binary):
    """Elementwise quotient of floats: z = x / y."""

    precision = "follows"
    ufunc = "divide"
    linear = ((0,),)
    kinds = FLOATS
    low = 0.5
    in_place = OVER_EITHER

    def grad(self, x: Tensor, y: Tensor, z: Tensor, dz: Tensor) -> Grads:
        dx = divide(dz, y)
        return sum_to(dx, x.tensor_type.shape), sum_to(negate(multiply(dx, z)), y.tensor_type.shape)


def divisors(what: str, y: Tensor) -> Tensor:
    """Return y, with a runtime assertion that no integer divisor is 0; floats divided by 0 are infinite or NaN."""
    return check(divisor_assertion(what), y) if y.tensor_type.dtype.is_integer else y


class _Whole(Binary):
    """Base class of integer divisions and their remainders. The public functions check the divisor by `divisors`."""

    abstract = True
    low = 0.6

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        yield sample(cls(), 3 * sample_data(1, 5, 3), sample_data(2, 5, 3, low=0.6))
        yield sample(cls(), np.arange(-7, 8).reshape(5, 3), np.array([3, -2, 4]))


class _Quotient(_Whole):
    """Base class of rounded quotients, which have gradient 0 because they are piecewise constant."""

    abstract = True

    def grad(self, x: Tensor, y: Tensor, z: Tensor, dz: Tensor) -> Grads:
        return fill_like(x, 0.0), fill_like(y, 0.0)


class FloorDivide(_Quotient):
    """Quotient rounded down: z = floor(x / y), with gradient 0."""

    ufunc = "floor_divide"

    def formula(self, f: Any, *elements: Any) -> Any:
        return remainders.floor_divide(f, *elements)


class TruncateDivide(_Quotient):
    """Quotient rounded toward zero: z = trunc(x / y), with gradient 0."""

    def formula(self, f: Any, *elements: Any) -> Any:
        return remainders.truncate_divide(f, *elements)


class FloorMod(_Whole):
    """Remainder with the sign of y: z = x - y floor(x / y)."""

    ufunc = "remainder"

    def formula(self, f: Any, *elements: Any) -> Any:
        return remainders.remainder(f, *elements)

    def grad(self, x: Tensor, y: Tensor, z: Tensor, dz: Tensor) -> Grads:
        return sum_to(dz, x.tensor_type.shape), negate(sum_to(multiply(dz, floor_divide(x, y)), y.tensor_type.shape))


class Remainder(_Whole):
    """Remainder with the sign of x: z = x - y trunc(x / y)."""

    ufunc = "fmod"

    def formula(self, f: Any, *elements: Any) -> Any:
        return remainders.fmod(f, *elements)

    def grad(self, x: Tensor, y: Tensor, z: Tensor, dz: Tensor) -> Grads:
        whole = round_half_even(divide(subtract(x, z), y))  # x / y itself may be rounded to the next integer
        return sum_to(dz, x.tensor_type.shape), negate(sum_to(multiply(dz, whole), y.tensor_type.shape))


class SquaredDifference(Binary):
    """Squared difference: z = (x - y)^2."""

    precision = "follows"

    def formula(self, f: Any, x: Any, y: Any) -> Any:
        return f.square(x - y)


class _Extreme(Binary):
    """Base class of Maximum and Minimum. The gradient belongs to x where the result is x and differs from y, and to y elsewhere."""

    precision = "any"
    abstract = True

    def formula(self, f: Any, x: Any, y: Any) -> Any:
        return getattr(f, self.ufunc)(y, x)  # swapped: for equal operands the derivative goes to the first one


class Maximum(_Extreme):
    """Elementwise maximum: z = max(x, y)."""

    ufunc = "maximum"


class Minimum(_Extreme):
    """Elementwise minimum: z = min(x, y)."""

    ufunc = "minimum"


class Where(Pointwise):
    """Selection by a bool condition: z = x where the condition is true, else y. All three inputs broadcast.

    The op is jointly linear in x and y.
    """

    precision = "any"

    def infer(self, condition: TensorType, x: TensorType, y: TensorType) -> TensorType:
        check_dtypes("where", ANY, x, y)
        if condition.dtype is not bool_:
            raise DtypeError(f"where: the condition {condition} is not bool; cast it with cast(condition, bool)")
        return x.with_shape(broadcast_shapes("where", condition, x, y))

    def rule(self, condition: TensorType, x: TensorType, y: TensorType) -> Rule:
        return broadcast_rule((condition, x, y), linear=((1, 2),))

    def formula(self, f: Any, *elements: Any) -> Any:
        return f.where(*elements)

    def grad(self, condition: Tensor, x: Tensor, y: Tensor, z: Tensor, dz: Tensor) -> Grads:
        zero = fill_like(dz, 0.0)
        return None, sum_to(where(condition, dz, zero), x.tensor_type.shape), sum_to(where(condition, zero, dz), y.tensor_type.shape)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), sample_data(0, 5, 3) > 0, sample_data(1, 5, 3), sample_data(2, 5, 3))
        yield sample(cls(), sample_data(0, 3, 1) > 0, sample_data(1, 2, 3, 5), sample_data(2))


add = binary_function(Add)
subtract = binary_function(Subtract)
multiply = binary_function(Multiply)
divide = binary_function(Divide)


def floor_divide(x: Tensor, y: Tensor, *, name: str | None = None) -> Tensor:
    return call(FloorDivide(), x, divisors("floor_divide", y), name=name)


def floor_mod(x: Tensor, y: Tensor, *, name: str | None = None) -> Tensor:
    return call(FloorMod(), x, divisors("floor_mod", y), name=name)


squared_difference = binary_function(SquaredDifference)
maximum = binary_function(Maximum)
minimum = binary_function(Minimum)


def where(condition: Tensor, x: Tensor, y: Tensor, *, name: str | None = None) -> Tensor:
    """Return x where the bool tensor `condition` is true, else y; all three tensors broadcast.

    Raises DtypeError if `condition` is not bool, or if x and y differ in element type.
    """
    return call(Where(), condition, x, y, name=name)
