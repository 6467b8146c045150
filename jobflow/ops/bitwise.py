"""Bitwise logic of integers and bools, without gradients."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from jobflow.ops.op import Sample, sample
from jobflow.ops.pointwise import Binary, Elementwise

BITS = "iub"


class Bitwise(Binary):
    """Base class of bitwise operations on two integers or two bools."""

    precision = "any"
    abstract = True
    kinds = BITS

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), np.arange(15).reshape(5, 3), np.arange(15)[::-1].reshape(5, 3) % 7)
        yield sample(cls(), np.arange(6).reshape(2, 3) % 2 == 0, np.arange(3) < 2)


class BitwiseAnd(Bitwise):
    """Bitwise conjunction: z = x & y."""

    ufunc = "bitwise_and"


class BitwiseOr(Bitwise):
    """Bitwise disjunction: z = x | y."""

    ufunc = "bitwise_or"


class BitwiseXor(Bitwise):
    """Bitwise exclusive disjunction: z = x ^ y."""

    ufunc = "bitwise_xor"


class BitwiseNot(Elementwise):
    """Bitwise complement: z = ~x; the logical negation of a bool."""

    ufunc = "invert"
    kinds = BITS

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), np.arange(15).reshape(5, 3) - 4)
        yield sample(cls(), np.arange(6) % 2 == 0)
