"""Elementwise comparisons and logic: bool results, no gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from jobflow.core.types import DType, bool_, plain
from jobflow.ops.op import Sample, sample
from jobflow.ops.pointwise import ANY, Binary, Elementwise, binary_function, unary_function


class Comparison(Binary):
    """z is true where the relation holds; no gradient"""

    precision = "any"
    abstract = True
    kinds = ANY
    gives = bool_

    def exchanged(self) -> Comparison:
        """Return the equivalent comparison of y with x."""
        return _EXCHANGED.get(type(self), type(self))()

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        random = np.random.default_rng(3)
        for a, b in (((5, 3), (5, 3)), ((2, 3, 4), (3, 1))):
            yield sample(cls(), random.integers(0, 3, a), random.integers(0, 3, b))


class Equal(Comparison):
    """z = x == y"""

    ufunc = "equal"


class NotEqual(Comparison):
    """z = x != y"""

    ufunc = "not_equal"


class Less(Comparison):
    """z = x < y"""

    ufunc = "less"


class LessEqual(Comparison):
    """z = x <= y"""

    ufunc = "less_equal"


class Greater(Comparison):
    """z = x > y"""

    ufunc = "greater"


class GreaterEqual(Comparison):
    """z = x >= y"""

    ufunc = "greater_equal"


_EXCHANGED: dict[type[Comparison], type[Comparison]] = {Less: Greater, LessEqual: GreaterEqual, Greater: Less, GreaterEqual: LessEqual}


def with_number(op: Comparison, dtype: DType, number: float) -> tuple[Comparison, float] | bool:
    """Return the comparison with any number as one with a number of type `dtype`, or the common result of all elements.

    So uint8 is compared with 300, and int64 with 0.5, without a conversion: x < 0.5 is x <= 0.
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
    """A relation of truth values; nonzero integers are true"""

    abstract = True
    kinds = "iub"


class LogicalAnd(Logical):
    """z = x and y"""

    ufunc = "logical_and"


class LogicalOr(Logical):
    """z = x or y"""

    ufunc = "logical_or"


class LogicalXor(Logical):
    """z = x or y, not both"""

    ufunc = "logical_xor"


class LogicalNot(Elementwise):
    """z = not x"""

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
