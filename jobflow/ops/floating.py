"""Elementwise tests of floating point values, and powers and logarithms to bases 2 and 10."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from jobflow.core.types import bool_
from jobflow.ops.op import Sample, sample
from jobflow.ops.pointwise import Elementwise, Unary, unary_function


class _Question(Elementwise):
    """Base class of elementwise tests, with a bool result and no gradient."""

    precision = "any"
    abstract = True
    gives = bool_

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), np.array([[0.0, np.inf, -np.inf], [1.0, 2.0, -3.0]]), differentiable=())
        yield sample(cls(), np.array(np.inf), differentiable=())


class IsNan(_Question):
    """Test for NaN: z is true where x is NaN."""

    ufunc = "isnan"


class IsInf(_Question):
    """Test for infinity: z is true where x is inf or -inf."""

    ufunc = "isinf"


class IsFinite(_Question):
    """Test for finite numbers: z is true where x is neither NaN nor infinite."""

    ufunc = "isfinite"


class Log2(Unary):
    """Binary logarithm: y = log2 x."""

    ufunc = "log2"
    low = 0.2


class Log10(Unary):
    """Decimal logarithm: y = log10 x."""

    ufunc = "log10"
    low = 0.2


class Exp2(Unary):
    """Power of two: y = 2^x."""

    ufunc = "exp2"


isnan = unary_function(IsNan)
isinf = unary_function(IsInf)
isfinite = unary_function(IsFinite)
log2 = unary_function(Log2)
log10 = unary_function(Log10)
exp2 = unary_function(Exp2)
