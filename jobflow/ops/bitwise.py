"""Logic on the bits of integers, and on truth values; no gradients."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from jobflow.ops.op import Sample, sample
from jobflow.ops.pointwise import Binary, Elementwise

BITS = "iub"


class Bitwise(Binary):
    """z = the bits of x and y put together; of truth values likewise"""

    precision = "any"
    abstract = True
    kinds = BITS

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), np.arange(15).reshape(5, 3), np.arange(15)[::-1].reshape(5, 3) % 7)
        yield sample(cls(), np.arange(6).reshape(2, 3) % 2 == 0, np.arange(3) < 2)


class BitwiseAnd(Bitwise):
    """z = the bits that both have"""

    ufunc = "bitwise_and"


class BitwiseOr(Bitwise):
    """z = the bits that one of them has"""

    ufunc = "bitwise_or"


class BitwiseXor(Bitwise):
    """z = the bits that just one of them has"""

    ufunc = "bitwise_xor"


class BitwiseNot(Elementwise):
    """z = the bits that x does not have"""

    ufunc = "invert"
    kinds = BITS

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), np.arange(15).reshape(5, 3) - 4)
        yield sample(cls(), np.arange(6) % 2 == 0)
