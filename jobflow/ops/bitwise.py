"""Bitwise logic of integers and truth values, without gradients."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from jobflow.ops.op import Sample, sample
from jobflow.ops.pointwise import Binary, Elementwise

BITS = "iub"


class Bitwise(Binary):
    """z = a combination of the bits of x and y, or of their truth values"""

    precision = "any"
    abstract = True
    kinds = BITS

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), np.arange(15).reshape(5, 3), np.arange(15)[::-1].reshape(5, 3) % 7)
        yield sample(cls(), np.arange(6).reshape(2, 3) % 2 == 0, np.arange(3) < 2)


class BitwiseAnd(Bitwise):
    """z = the bits set in both x and y"""

    ufunc = "bitwise_and"


class BitwiseOr(Bitwise):
    """z = the bits set in x or y"""

    ufunc = "bitwise_or"


class BitwiseXor(Bitwise):
    """z = the bits set in exactly one of x and y"""

    ufunc = "bitwise_xor"


class BitwiseNot(Elementwise):
    """z = the bits not set in x"""

    ufunc = "invert"
    kinds = BITS

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), np.arange(15).reshape(5, 3) - 4)
        yield sample(cls(), np.arange(6) % 2 == 0)
