"""Elementwise comparisons and logic, with bool results and without gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from jobflow.core.types import DType, bool_, plain
from jobflow.ops.op import Sample, sample
from jobflow.ops.pointwise import ANY, Binary, Elementwise, binary_function, unary_function


class Comparison(Binary):
    """Base class of comparisons: z is true where the relation of x and y is true. Comparisons have no gradient."""

    precision = "any"
    abstract = True
    kinds = ANY
    gives = bool_

    def exchanged(self) -> Comparison:
        """Return the comparison with exchanged operands: x < y is y > x."""
        return _EXCHANGED.get(type(self), type(self))()

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        random = np.random.default_rng(3)
        for a, b in (((5, 3), (5, 3)), ((2, 3, 4), (3, 1))):
            yield sample(cls(), random.integers(0, 3, a), random.integers(0, 3, b))


class Equal(Comparison):
    """Equality: z = (x == y)."""

    ufunc = "equal"


class NotEqual(Comparison):
    """Inequality: z = (x != y)."""

    ufunc = "not_equal"


class Less(Comparison):
    """Order relation: z = (x < y)."""

    ufunc = "less"


class LessEqual(Comparison):
    """Order relation: z = (x <= y)."""

    ufunc = "less_equal"


class Greater(Comparison):
    """Order relation: z = (x > y)."""

    ufunc = "greater"


class GreaterEqual(Comparison):
    """Order relation: z = (x >= y)."""

    ufunc = "greater_equal"


_EXCHANGED: dict[type[Comparison], type[Comparison]] = {Less: Greater, LessEqual: GreaterEqual, Greater: Less, GreaterEqual: LessEqual}


def with_number(op: Comparison, dtype: DType, number: float) -> tuple[Comparison, float] | bool:
    """Return the comparison with a number of the type `dtype` that equals the comparison `op` with `number`, which may be any Python number.

    Returns (comparison, number), or a bool if the comparison has this result for all tensors of the type. Examples: for integers, x < 0.5
    becomes x <= 0. For uint8, x < 300 is True.
    """
    number, (low, high) = plain(number), dtype.span
    alike, is_less = isinstance(op, Equal | NotEqual), isinstance(op, Less | LessEqual)
    if low <= number <= high:
        below = number if dtype.is_float else math.floor(number)
        if below == number:
            return op, below
        return isinstance(op, NotEqual) if alike else (LessEqual() if is_less else Greater(), below)
    if dtype.is_float and abs(number) == math.inf:
        return op, number
    if alike or number != number:
        return isinstance(op, NotEqual)
    if not dtype.is_float:
        return is_less == (number > high)
    if number > high:  # only infinite elements are larger than the largest finite number
        return LessEqual() if is_less else Greater(), high
    return Less() if is_less else GreaterEqual(), low


class Logical(Comparison):
    """Base class of logic on bools and integers; nonzero integers are true."""

    abstract = True
    kinds = "iub"


class LogicalAnd(Logical):
    """Logical conjunction: z = x and y."""

    ufunc = "logical_and"


class LogicalOr(Logical):
    """Logical disjunction: z = x or y."""

    ufunc = "logical_or"


class LogicalXor(Logical):
    """Logical exclusive disjunction: z = (x or y) and not (x and y)."""

    ufunc = "logical_xor"


class LogicalNot(Elementwise):
    """Logical negation: z = not x."""

    ufunc = "logical_not"
    kinds = "iub"
    gives = bool_

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), np.arange(15).reshape(5, 3) % 2 == 0)


equal = binary_function(Equal)
not_equal = binary_function(NotEqual)
less = binary_function(Less)
less_equal = binary_function(LessEqual)
greater = binary_function(Greater)
greater_equal = binary_function(GreaterEqual)
logical_and = binary_function(LogicalAnd)
logical_or = binary_function(LogicalOr)
logical_xor = binary_function(LogicalXor)
logical_not = unary_function(LogicalNot)
