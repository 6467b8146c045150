"""Dropout of attention weights that are never stored: numbers of rows, and factors of weights computed from them.

`DropoutMask` numbers the elements of the logical weights [..., queries, keys].  `WeightRows` returns the number of the first element of each row,
so kernels find the same random words on all ranks and in all microbatches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from jobflow.core.errors import ArgumentError, ShapeError
from jobflow.core.layout import B, Box, Rule, S, Signature, whole_box
from jobflow.core.types import Array, DType, Tensor, TensorType, Xp, float32, float64, int64
from jobflow.expressions import language as f
from jobflow.expressions import philox
from jobflow.expressions.index_space import IndexSpace
from jobflow.expressions.language import Expression
from jobflow.ops.indexed import Indexed
from jobflow.ops.op import LETTERS, Grads, Op, Sample, apply, placed, sample
from jobflow.ops.pointwise import sample_data


class WeightRows(Indexed):
    """Number of the first element of each row of the logical weights [..., queries, columns]: y[..., i] = columns * (index of the query).

    The input is [..., queries, size], for its shape only.
    """

    precision = "any"
    columns: int
    box: Box | None = None
    by_position = True

    def infer(self, x: TensorType) -> TensorType:
        if x.ndim < 2:
            raise ShapeError(f"weight_rows: {x} must be [..., queries, size]")
        return TensorType(x.shape[:-1], int64)

    def rule(self, x: TensorType) -> Rule:
        letters = LETTERS[: x.ndim - 1]
        return Rule(f"{letters}Z->{letters}")

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        return replace(self, box=placed(self.box, outputs[0]))

    def index_space(self, *types: TensorType) -> IndexSpace:
        axes = tuple(range(types[0].ndim - 1))
        return IndexSpace(types[0].shape[:-1], ((*axes, None), axes))

    def expression(self, x: TensorType) -> tuple[Expression, ...]:  # type: ignore[override]
        shape = x.shape[:-1]
        box = whole_box(shape) if self.box is None else self.box
        strides = [self.columns * math.prod(box.whole[i + 1 :]) for i in range(len(shape))]
        number = f.constant(sum(map(math.prod, zip(box.start, strides, strict=True))), int64)
        for axis, stride in enumerate(strides):
            number = f.index(axis - len(shape)) * stride + number
        return (number,)

    def kernel(self, xp: Xp, x: Array, y: Array) -> None:
        box = whole_box(y.shape) if self.box is None else self.box
        number = xp.zeros((), xp.int64)
        for (start, stop), whole in zip(box.spans, box.whole, strict=True):
            number = number[..., None] * whole + xp.arange(start, stop)
        y[...] = number * self.columns

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (None,)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(5), sample_data(1, 2, 3, 4), differentiable=())
        yield sample(cls(7), sample_data(1, 2, 2, 3, 4), differentiable=())


class KeepWeights(Indexed):
    """Factors of attention weights: 1 / (1 - rate) with probability 1 - rate, else 0, equal to those of DropoutMask.

    Inputs: the row numbers of `WeightRows`, [..., queries], and the run counter.  Column j of the output is column `first_key` + j of the weights.
    """

    rate: float
    key: str
    seed: int
    columns: int
    first_key: int = 0
    dtype: DType = float32

    def infer(self, rows: TensorType, counter: TensorType) -> TensorType:
        if rows.dtype is not int64 or counter != TensorType((1,), int64):
            raise ShapeError(f"keep_weights: row numbers {rows} must be int64, and the run counter {counter} int64[1]")
        if not 0 <= self.rate < 1:
            raise ArgumentError(f"keep_weights: rate {self.rate} must be in [0, 1)")
        return TensorType((*rows.shape, self.columns), self.dtype)

    def rule(self, rows: TensorType, counter: TensorType) -> Rule:
        letters = LETTERS[: rows.ndim]
        return Rule(f"{letters},1->{letters}Z", also=(Signature((B, B), (S(rows.ndim),)),))

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        (start, stop) = outputs[0].spans[-1]
        return replace(self, columns=stop - start, first_key=self.first_key + start)

    def index_space(self, *types: TensorType) -> IndexSpace:
        axes = tuple(range(types[0].ndim))
        return IndexSpace((*types[0].shape, self.columns), (axes, (None,), (*axes, len(axes))))

    def expression(self, rows: TensorType, counter: TensorType) -> tuple[Expression, ...]:  # type: ignore[override]
        number = f.element(0, int64) + f.index(-1) + f.constant(self.first_key, int64)
        drawn = f.philox(number, f.number(1, int64), philox.key_of(self.seed, self.key))
        keep = f.greater_equal(drawn, self.threshold)
        return (f.cast(f.where(keep, f.constant(1.0 / (1.0 - self.rate), self.dtype.arithmetic), 0.0), self.dtype),)

    @property
    def threshold(self) -> int:
        """The least random word whose weight is kept."""
        return min(round(self.rate * 2.0**32), philox.MASK)

    def kernel(self, xp: Xp, rows: Array, counter: Array, y: Array) -> None:
        index = rows[..., None] + xp.arange(self.first_key, self.first_key + y.shape[-1])
        stream = philox.Stream(xp, philox.key_of(self.seed, self.key), int(counter[0]))
        drawn = stream.bits_at(index.reshape(-1).astype(xp.uint64)).reshape(y.shape)
        xp.multiply(drawn >= xp.uint32(self.threshold), y.dtype.type(1.0 / (1.0 - self.rate)), y)

    def grad(self, rows: Tensor, counter: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return None, None

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for first in (0, 3):
            rows = 9 * np.arange(2 * 5).reshape(2, 5)
            yield sample(cls(0.3, "drop", 7, 4, first, float64), rows, np.array([2]), differentiable=())


def weight_factors(op: KeepWeights, rows: Tensor, counter: Tensor) -> Tensor:
    """Return the factors of the weights in the rows with these numbers."""
    result: Tensor = apply(op, rows, counter)
    return result
