"""Triangular parts of matrices: elements on one side of a diagonal of the last two axes, and a fill value on the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from numbers import Integral
from typing import ClassVar

from jobflow.core.errors import ArgumentError, ShapeError, user_line
from jobflow.core.layout import Box, Rule
from jobflow.core.types import Array, Tensor, TensorType, Xp
from jobflow.expressions import language as f
from jobflow.expressions.language import Expression
from jobflow.ops.op import LETTERS, Grads, Op, Sample, adds, sample
from jobflow.ops.pointwise import call, sample_data


class Triangle(Op):
    """Base class of Tril and Triu: elements of x on one side of the diagonal j - i = `diagonal`, and `fill` on the other.

    In a rank's shard, the diagonal has a different index.
    """

    abstract = True
    precision = "any"
    diagonal: int
    fill: float = 0.0

    def infer(self, x: TensorType) -> TensorType:
        if x.ndim < 2:
            raise ShapeError(f"{self.word()}: {x} must have at least two axes")
        return x

    def rule(self, x: TensorType) -> Rule:
        return Rule(f"{LETTERS[: x.ndim]}->{LETTERS[: x.ndim]}", linear=((0,),) if self.fill == 0 and adds(x) else ())

    #: mask(xp, x) -> the elements of the last two axes that y copies from x
    mask: ClassVar[Callable[..., Array]]
    #: inside(row, column) -> True for an index of the last two axes at which y copies x
    inside: ClassVar[Callable[..., Expression]]

    def expression(self, x: TensorType) -> tuple[Expression, ...]:  # type: ignore[override]
        return (f.where(self.inside(f.index(-2), f.index(-1)), f.element(0, x.dtype), self.fill),)

    def kernel(self, xp: Xp, x: Array, y: Array) -> None:
        y[...] = xp.where(self.mask(xp, x), x, x.dtype.type(self.fill))

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        box = inputs[0]
        return replace(self, diagonal=self.diagonal + box.start[-2] - box.start[-1])

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (call(replace(self, fill=0.0), dy),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(0), sample_data(1, 2, 5, 4))
        yield sample(cls(-1, 9.0), sample_data(2, 4, 6))
        yield sample(cls(2), sample_data(3, 4, 3) > 0)


class Tril(Triangle):
    """Lower triangle: y[..., i, j] = x[..., i, j] where j - i <= diagonal, else fill."""

    def mask(self, xp: Xp, x: Array) -> Array:
        return xp.tri(*x.shape[-2:], self.diagonal, dtype=bool)

    def inside(self, row: Expression, column: Expression) -> Expression:
        return f.less_equal(column, row + self.diagonal)


class Triu(Triangle):
    """Upper triangle: y[..., i, j] = x[..., i, j] where j - i >= diagonal, else fill."""

    def mask(self, xp: Xp, x: Array) -> Array:
        return ~xp.tri(*x.shape[-2:], self.diagonal - 1, dtype=bool)

    def inside(self, row: Expression, column: Expression) -> Expression:
        return f.greater_equal(column, row + self.diagonal)


def _whole(what: str, diagonal: int) -> int:
    if not isinstance(diagonal, Integral):
        raise ArgumentError(f"{what} at {user_line()}: diagonal must be an int; got {diagonal!r}")
    return int(diagonal)


def tril(x: Tensor, diagonal: int = 0, fill: float = 0.0, *, name: str | None = None) -> Tensor:
    """Return the elements of x on and below a diagonal of the last two axes, and `fill` above it; diagonal 1 is above the main one."""
    return call(Tril(_whole("tril", diagonal), float(fill)), x, name=name)


def triu(x: Tensor, diagonal: int = 0, fill: float = 0.0, *, name: str | None = None) -> Tensor:
    """Return the elements of x on and above a diagonal of the last two axes, and `fill` below it; diagonal 1 is above the main one."""
    return call(Triu(_whole("triu", diagonal), float(fill)), x, name=name)
