"""Operations that merge a product with adjacent operations, so that BLAS computes them in one call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, TypeVar

import numpy as np

from jobflow.core.errors import DtypeError, ShapeError
from jobflow.core.layout import Rule
from jobflow.core.types import Array, TensorType, Xp
from jobflow.ops.matmul import BatchMatMul, MatMul, product_shape, turned
from jobflow.ops.op import Op, Sample, sample
from jobflow.ops.pointwise import sample_data

T = TypeVar("T")


class ProductSum(Op):
    """A matrix product plus addends: y[m,n] = sum_k a[m,k] b[k,n] + addends, which are matrices [m,n] or vectors [n].

    The factors are inputs `at` and `at` + 1, transposed as in MatMul; all other inputs are addends.  BLAS adds to the values in y without zeroing it.
    Addition therefore costs no more than writing the addend to y, and nothing if it is already there.
    """

    transpose_a: bool = False
    transpose_b: bool = False
    at: int = 0

    @property
    def in_place(self) -> Mapping[int, tuple[int, ...]]:  # type: ignore[override]
        return {0: (0 if self.at else 2,)}

    def addends(self, inputs: Sequence[T]) -> list[T]:
        return [*inputs[: self.at], *inputs[self.at + 2 :]]

    def infer(self, *types: TensorType) -> TensorType:
        a, b = types[self.at : self.at + 2]
        y = a.with_shape(product_shape(a, b, self.transpose_a, self.transpose_b))
        for addend in self.addends(types):
            if addend.dtype is not y.dtype:
                raise DtypeError(f"{self.word()}: the product {y} and the addend {addend} differ in element type; cast the addend to {y.dtype}")
            if addend.shape not in (y.shape, y.shape[1:]):
                raise ShapeError(
                    f"{self.word()}: the addend {addend} has neither the shape of the product {y} nor the shape of its rows; "
                    f"reshape the addend to one of these shapes"
                )
        return y

    def rule(self, *types: TensorType) -> Rule:
        factors = (self.at, self.at + 1)
        words = ["mn"[2 - t.ndim :] for t in types]
        words[self.at : self.at + 2] = "Km" if self.transpose_a else "mK", "nK" if self.transpose_b else "Kn"
        addends = [i for i in range(len(types)) if i not in factors]
        return Rule(f"{','.join(words)}->mn", linear=tuple((factor, *addends) for factor in factors))

    def kernel(self, xp: Xp, *arrays: Array) -> None:
        *inputs, y = arrays
        y[...] = sum(self.addends(inputs), turned(inputs[self.at], self.transpose_a) @ turned(inputs[self.at + 1], self.transpose_b))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        a, b, bias, rest = sample_data(1, 5, 4), sample_data(2, 4, 3), sample_data(3, 3), sample_data(4, 5, 3)
        yield sample(cls(), a, b, bias, differentiable=())
        yield sample(cls(True, at=1), rest, a.T, b, differentiable=())
        yield sample(cls(False, True, 1), rest, a, b.T, bias, differentiable=())
        yield sample(cls(True, True), a.T, b.T, bias, rest, rest, differentiable=())


class SgdProduct(Op):
    """Plain gradient descent with a gradient that is a product: w' = w - lr a b, transposed as in MatMul."""

    transpose_a: bool = False
    transpose_b: bool = False
    alias: ClassVar[Mapping[int, int]] = MappingProxyType({0: 0})
    pure: ClassVar[bool] = False
    #: index of the first factor
    at: ClassVar[int] = 1

    def infer(self, w: TensorType, a: TensorType, b: TensorType, lr: TensorType) -> TensorType:
        g = MatMul(self.transpose_a, self.transpose_b).infer(a, b)
        if g != w or lr.shape != (1,):
            raise ShapeError(
                f"{self.word()}: the product {g} of {a} and {b} must have the type {w} of the variable, and the learning rate {lr} the shape (1,)"
            )
        return w

    def rule(self, w: TensorType, a: TensorType, b: TensorType, lr: TensorType) -> Rule:
        return Rule(f"mn,{'Km' if self.transpose_a else 'mK'},{'nK' if self.transpose_b else 'Kn'},1->mn")

    def kernel(self, xp: Xp, w: Array, a: Array, b: Array, lr: Array, new_w: Array) -> None:
        new_w[...] = w - lr.reshape(()) * (turned(a, self.transpose_a) @ turned(b, self.transpose_b))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), sample_data(0, 5, 3), sample_data(1, 5, 4), sample_data(2, 4, 3), [0.1], differentiable=())
        yield sample(cls(True, False), sample_data(0, 5, 3), sample_data(1, 4, 5), sample_data(2, 4, 3), [0.1], differentiable=())
        yield sample(cls(False, True), sample_data(0, 5, 3), sample_data(1, 5, 4), sample_data(2, 3, 4), [0.1], differentiable=())


class LowerMatMul(BatchMatMul):
    """A batch matrix product: y[...,m,n] = sum_k a[...,m,k] b[...,k,n].

    The factor a, before transposition, is zero above the diagonal, like causal attention weights.
    """

    def rule(self, a: TensorType, b: TensorType) -> Rule:
        return Rule(super().rule(a, b).spec.replace("x", "X").replace("y", "Y").replace("z", "Z"))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for rows, depth in ((5, 5), (70, 70), (90, 40), (40, 90)):
            a, b = np.tril(sample_data(1, 2, rows, depth)), sample_data(2, 2, depth, 3)
            yield sample(cls(), a, b, differentiable=())
            yield sample(cls(False, True), a, b.swapaxes(1, 2), differentiable=())
            yield sample(cls(True), a, sample_data(3, 2, rows, 3), differentiable=())
