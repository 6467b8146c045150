"""Softmax along an axis, its logarithm, and the softmax of causal attention."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from jobflow.core.layout import Box, Rule
from jobflow.core.types import Tensor, TensorType
from jobflow.ops.decomposition import decomposed
from jobflow.ops.derivative import through
from jobflow.ops.indexed import Indexed
from jobflow.ops.op import LETTERS, OVER_FIRST, Grads, Op, Sample, normal_axis, sample
from jobflow.ops.pointwise import FLOATS, call, check_dtypes, sample_data
from jobflow.ops.scalar import scale
from jobflow.ops.triangle import tril


def whole_axis(ndim: int, axis: int) -> str:
    """Return the rule letters of `ndim` axes, where `axis` is not split."""
    return "".join(c.upper() if i == axis else c for i, c in enumerate(LETTERS[:ndim]))


class AxisOp(Indexed):
    """Base class of ops along one axis, which is not split; all operands have the same shape."""

    abstract = True
    axis: int

    def infer(self, x: TensorType, *others: TensorType) -> TensorType:
        check_dtypes(self.word(), FLOATS, x, *others)
        return x

    def rule(self, x: TensorType, *others: TensorType) -> Rule:
        letters = whole_axis(x.ndim, self.axis)
        return Rule(f"{','.join([letters] * (1 + len(others)))}->{letters}", linear=((1,),) if others else ())

    def decompose(self, *inputs: Any) -> tuple[Tensor, ...]:
        return decomposed(self, inputs)


class Softmax(AxisOp):
    """Softmax along `axis`: y = exp(x - max x) / sum exp(x - max x).

    If all elements of a row are -inf, y is NaN, or 0 with `masked`, where -inf marks masked elements.  With `masked`, the maximum of the row is
    raised to a finite number, and the sum to 1.
    """

    precision = "follows"
    in_place = OVER_FIRST
    masked: bool = False

    def formula(self, f: Any, x: Any) -> Any:
        top = f.row_max(x)
        e = f.exp(x - (f.maximum(top, -x.dtype.largest) if self.masked else top))
        total = f.row_sum(e)
        return e * f.reciprocal(f.maximum(total, 1.0) if self.masked else total)

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (call(SoftmaxGrad(self.axis), y, dy),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(1), sample_data(1, 4, 5))
        yield sample(cls(2), sample_data(2, 2, 3, 5))
        yield sample(cls(0), sample_data(3, 3, 4))
        yield sample(cls(1), 400 * sample_data(4, 3, 4), differentiable=(), note=" large")
        some = np.where(sample_data(5, 3, 4) > 0.5, -math.inf, sample_data(6, 3, 4))
        some[1] = -math.inf
        yield sample(cls(1, True), some, differentiable=(), note=" a row sees nothing")
        yield sample(cls(0, True), sample_data(7, 5, 4))


class SoftmaxGrad(AxisOp):
    """Gradient of y = softmax(scale x) along `axis`: dx = scale y (dy - sum y dy)."""

    scale: float = 1.0

    in_place = MappingProxyType({0: (1,)})

    def formula(self, f: Any, y: Any, dy: Any) -> Any:
        dx = y * (dy - f.row_sum(y * dy))
        return dx if self.scale == 1.0 else dx * self.scale

    def grad(self, y: Tensor, dy: Tensor, dx: Tensor, ddx: Tensor) -> Grads:
        return through(self.decompose, (y, dy), (ddx,))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for axis, factor in ((1, 1.0), (0, 0.5)):
            yield sample(cls(axis, factor), sample_data(1, 4, 3), sample_data(2, 4, 3))


class LogSoftmax(AxisOp):
    """Logarithm of the softmax along `axis`: y = x - max x - log sum exp(x - max x)."""

    def formula(self, f: Any, x: Any) -> Any:
        z = x - f.row_max(x)
        return z - f.log(f.row_sum(f.exp(z)))

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (call(LogSoftmaxGrad(self.axis), y, dy),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(1), sample_data(1, 4, 5))
        yield sample(cls(0), sample_data(2, 3, 4))


class LogSoftmaxGrad(AxisOp):
    """Gradient of LogSoftmax along `axis`: dx = dy - exp(y) sum dy."""

    def formula(self, f: Any, y: Any, dy: Any) -> Any:
        return dy - f.exp(y) * f.row_sum(dy)

    def grad(self, y: Tensor, dy: Tensor, dx: Tensor, ddx: Tensor) -> Grads:
        return through(self.decompose, (y, dy), (ddx,))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(1), sample_data(1, 4, 3), sample_data(2, 4, 3))


class CausalSoftmax(Indexed):
    """Softmax of scale x along the last axis, over the columns with column - row <= diagonal; zero in other columns."""

    precision = "follows"
    scale: float = 1.0
    diagonal: int = 0

    in_place = OVER_FIRST

    def infer(self, x: TensorType) -> TensorType:
        check_dtypes(self.word(), FLOATS, x)
        return x

    def rule(self, x: TensorType) -> Rule:
        letters = whole_axis(x.ndim, x.ndim - 1)
        return Rule(f"{letters}->{letters}")

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        return replace(self, diagonal=self.diagonal + outputs[0].start[-2])

    def formula(self, f: Any, x: Any) -> Any:
        z = f.where(f.index(-1) - f.index(-2) <= self.diagonal, x * self.scale, -math.inf)
        top = f.row_max(z)
        e = f.exp(z - f.maximum(top, -x.dtype.largest))
        return e * f.reciprocal(f.maximum(f.row_sum(e), 1.0))

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (call(SoftmaxGrad(x.tensor_type.ndim - 1, self.scale), y, dy),)

    def decompose(self, x: Tensor) -> tuple[Tensor, ...]:
        masked = tril(scale(x, self.scale), self.diagonal, fill=-math.inf)  # formulas of positions have no operation
        return Softmax(x.tensor_type.ndim - 1, masked=True).decompose(masked)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(0.5), sample_data(1, 2, 5, 5))
        yield sample(cls(2.0, 1), sample_data(2, 3, 7, 5))
        yield sample(cls(1.0), sample_data(4, 2, 40, 40), differentiable=(), note=" in blocks of rows")
        yield sample(cls(1.0, -1), sample_data(3, 4, 4), note=" a row sees nothing")


def softmax(x: Tensor, axis: int = -1, masked: bool = False, *, name: str | None = None) -> Tensor:
    """Return the softmax of x along `axis`; if all elements along the axis are -inf, they become NaN, or 0 with `masked`."""
    return call(Softmax(normal_axis("softmax", axis, x.tensor_type.ndim), masked), x, name=name)


def log_softmax(x: Tensor, axis: int = -1, *, name: str | None = None) -> Tensor:
    """Return the logarithm of the softmax of x along `axis`."""
    return call(LogSoftmax(normal_axis("log_softmax", axis, x.tensor_type.ndim)), x, name=name)


def causal_softmax(x: Tensor, scale: float = 1.0, diagonal: int = 0, *, name: str | None = None) -> Tensor:
    """Return the softmax of scale x along the last axis, over columns 0 to i + diagonal of row i; other columns are 0.

    Rows and columns are the last two axes of x.
    """
    normal_axis("causal_softmax", -2, x.tensor_type.ndim)
    return call(CausalSoftmax(scale, diagonal), x, name=name)
