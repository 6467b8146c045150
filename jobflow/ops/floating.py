"""Elementwise tests of floating point values, and powers and logarithms to other bases."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from jobflow.core.types import bool_
from jobflow.ops.op import Sample, sample
from jobflow.ops.pointwise import Elementwise, Unary, unary_function


class _Question(Elementwise):
    """A test of each element, with a bool result and no gradient."""

    precision = "any"
    abstract = True
    gives = bool_

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), np.array([[0.0, np.inf, -np.inf], [1.0, 2.0, -3.0]]), differentiable=())
        yield sample(cls(), np.array(np.inf), differentiable=())


class IsNan(_Question):
    """z = x is NaN"""

    ufunc = "isnan"


class IsInf(_Question):
    """z = x is infinite, of either sign"""

    ufunc = "isinf"


class IsFinite(_Question):
    """z = x is neither NaN nor infinite"""

    ufunc = "isfinite"


class Log2(Unary):
    """y = the logarithm of x to base 2"""

    ufunc = "log2"
    low = 0.2


class Log10(Unary):
    """y = the logarithm of x to base 10"""

    ufunc = "log10"
    low = 0.2


class Exp2(Unary):
    """y = 2^x"""

    ufunc = "exp2"


isnan = unary_function(IsNan)
isinf = unary_function(IsInf)
isfinite = unary_function(IsFinite)
log2 = unary_function(Log2)
log10 = unary_function(Log10)
exp2 = unary_function(Exp2)
