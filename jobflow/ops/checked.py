"""Tensors as they are, if their numbers are such as what follows can take; else ArgumentError with the first that is not."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from jobflow.errors import ArgumentError
from jobflow.layout import Rule
from jobflow.ops.base import LETTERS, Grads, Op, Sample, sample
from jobflow.ops.pointwise import ANY, FLOATS, Elementwise, call, check_dtypes, numbers
from jobflow.types import Array, Tensor, TensorType, Xp


def check_within(what: str, name: str, x: Array, low: float, high: float, nan: bool = False) -> None:
    """ArgumentError unless all elements are in [low, high]; `nan`: or no numbers."""
    outside = (x < low) | (x > high) if nan else ~((x >= low) & (x <= high))
    if outside.any():
        at = np.argwhere(outside)[0]
        raise ArgumentError(f"{what}: {name} {float(x[tuple(at)]):g} at {at.tolist()} is not in [{low:g}, {high:g}]")


@dataclass(frozen=True)
class Within(Elementwise):
    """y = x, whose elements are all in [low, high]; `nan`: or no numbers"""

    what: str
    name: str
    low: float
    high: float = math.inf
    nan: bool = False
    precision = "any"
    kinds = ANY

    def kernel(self, xp: Xp, *arrays: Array) -> None:
        x, y = arrays
        check_within(self.what, self.name, x, self.low, self.high, self.nan)
        xp.copyto(y, x)

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (dy,)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls("draw", "probability", 0.0, 1.0), numbers(1, 5, 3, low=0.01, high=0.99))
        yield sample(cls("draw", "deviation", 0.0), numbers(2, low=0.1))


@dataclass(frozen=True)
class Weights(Op):
    """y = x, each row of which, along the last axis, has `count` positive numbers or more, none negative and all finite"""

    what: str
    count: int

    def infer(self, x: TensorType) -> TensorType:
        check_dtypes(self.what, FLOATS, x)
        return x

    def rule(self, x: TensorType) -> Rule:
        word = LETTERS[: x.ndim - 1] + "Z"
        return Rule(f"{word}->{word}")

    def kernel(self, xp: Xp, x: Array, y: Array) -> None:
        check_within(self.what, "weight", x, 0.0, float(np.finfo(x.dtype).max))
        positive = (x > 0).sum(axis=-1)
        if (positive < self.count).any():
            row = np.argwhere(positive < self.count)[0]
            where = f" of row {row.tolist()}" if x.ndim > 1 else ""
            raise ArgumentError(f"{self.what}: {int(positive[tuple(row)])} of the weights{where} are positive; {self.count} are needed")
        xp.copyto(y, x)

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (dy,)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls("draw", 3), numbers(1, 5, 3, low=0.01, high=0.99))
        yield sample(cls("draw", 1), numbers(2, 4, low=0.1))


def within(x: Tensor, what: str, name: str, low: float, high: float = math.inf, *, nan: bool = False) -> Tensor:
    """x, whose elements are in [low, high]; `nan`: or no numbers."""
    return call(Within(what, name, low, high, nan), x)
