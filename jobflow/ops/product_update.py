"""An update that computes its gradient, a matrix product, while it subtracts it from the variable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from jobflow.core.errors import ShapeError
from jobflow.core.layout import Rule
from jobflow.core.types import Array, TensorType, Xp, dtype_of
from jobflow.ops import blas
from jobflow.ops.matmul import MatMul
from jobflow.ops.op import Binder, Call, Op, Sample, sample
from jobflow.ops.pointwise import numbers
from jobflow.ops.products import product_calls, turned


@dataclass(frozen=True)
class SgdProduct(Op):
    """w' = w - lr a b: plain gradient descent along a gradient that is a product; transposes as in MatMul."""

    transpose_a: bool = False
    transpose_b: bool = False
    alias: ClassVar[Mapping[int, int]] = MappingProxyType({0: 0})
    pure: ClassVar[bool] = False
    any_order: ClassVar[bool] = True

    def infer(self, w: TensorType, a: TensorType, b: TensorType, lr: TensorType) -> TensorType:
        g = MatMul(self.transpose_a, self.transpose_b).infer(a, b)
        if g != w or lr.shape != (1,):
            raise ShapeError(f"{self.word()}: the product {g} of {a} and {b} is not of the type of the variable {w}, or {lr} is not of shape (1,)")
        return w

    def rule(self, w: TensorType, a: TensorType, b: TensorType, lr: TensorType) -> Rule:
        return Rule(f"mn,{'Km' if self.transpose_a else 'mK'},{'nK' if self.transpose_b else 'Kn'},1->mn")

    def kernel(self, xp: Xp, w: Array, a: Array, b: Array, lr: Array, new_w: Array) -> None:
        new_w[...] = w - lr.reshape(()) * (turned(a, self.transpose_a) @ turned(b, self.transpose_b))

    def bind(self, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        (w, a, b, lr), (new_w,) = inputs, outputs
        if device.xp is not np:
            return super().bind(device, inputs, outputs)
        a, b = turned(a, self.transpose_a), turned(b, self.transpose_b)
        call = blas.subtracting_product(a, b, w, lr)
        if call is not None:
            return [call]
        g = device.scratch(w.shape, dtype_of(w.dtype))
        return [*product_calls(device, a, b, g), (np.multiply, (g, lr.reshape(()), g)), (np.subtract, (w, g, new_w))]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), numbers(0, 5, 3), numbers(1, 5, 4), numbers(2, 4, 3), [0.1], differentiable=())
        yield sample(cls(True, False), numbers(0, 5, 3), numbers(1, 4, 5), numbers(2, 4, 3), [0.1], differentiable=())
        yield sample(cls(False, True), numbers(0, 5, 3), numbers(1, 5, 4), numbers(2, 3, 4), [0.1], differentiable=())
