"""Integers, and truth values, bit by bit; no gradients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from jobflow.ops.base import Grads, Sample, sample
from jobflow.ops.pointwise import Elementwise, call
from jobflow.types import Tensor


@dataclass(frozen=True)
class _Bits(Elementwise):
    abstract = True
    precision = "any"
    kinds = "iub"

    def grad(self, x: Tensor, y: Tensor, z: Tensor, dz: Tensor) -> Grads:
        return None, None

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        random = np.random.default_rng(3)
        for a, b in (((5, 3), (5, 3)), ((2, 3, 4), (3, 1)), ((), ())):
            yield sample(cls(), random.integers(-9, 9, a), random.integers(-9, 9, b))
        yield sample(cls(), np.array([True, True, False, False]), np.array([True, False, True, False]))


@dataclass(frozen=True)
class BitwiseAnd(_Bits):
    """z = the bits that x and y both have"""

    ufunc = "bitwise_and"


@dataclass(frozen=True)
class BitwiseOr(_Bits):
    """z = the bits that x or y has"""

    ufunc = "bitwise_or"


@dataclass(frozen=True)
class BitwiseXor(_Bits):
    """z = the bits that one of x and y has"""

    ufunc = "bitwise_xor"


@dataclass(frozen=True)
class BitwiseNot(Elementwise):
    """z = the bits that x has not"""

    precision = "any"
    ufunc = "invert"
    kinds = "iub"

    def grad(self, x: Tensor, z: Tensor, dz: Tensor) -> Grads:
        return (None,)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), np.arange(15).reshape(5, 3) - 7)
        yield sample(cls(), np.array([True, False]))


def bitwise_and(x: Tensor, y: Tensor, *, name: str | None = None) -> Tensor:
    return call(BitwiseAnd(), x, y, name=name)


def bitwise_or(x: Tensor, y: Tensor, *, name: str | None = None) -> Tensor:
    return call(BitwiseOr(), x, y, name=name)


def bitwise_xor(x: Tensor, y: Tensor, *, name: str | None = None) -> Tensor:
    return call(BitwiseXor(), x, y, name=name)


def bitwise_not(x: Tensor, *, name: str | None = None) -> Tensor:
    return call(BitwiseNot(), x, name=name)
