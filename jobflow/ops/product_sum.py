"""A matrix product added to another value in one step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from jobflow.core.errors import DtypeError, ShapeError
from jobflow.core.layout import Rule
from jobflow.core.types import Array, TensorType, Xp, dtype_of, float32, float64
from jobflow.ops import blas
from jobflow.ops.op import Binder, Call, Op, Sample, sample
from jobflow.ops.pointwise import numbers
from jobflow.ops.products import product_calls, product_shape, turned
from jobflow.ops.slices import same_memory

#: fewest rows and elements of a product that is made so; fewer rows are made column by column, fewer elements stay in the cache anyway
ROWS, ELEMENTS = 256, 1 << 16

T = TypeVar("T")


@dataclass(frozen=True)
class ProductSum(Op):
    """y[m,n] = sum_k a[m,k] b[k,n] + addends, matrices [m,n] or vectors [n].

    The factors are inputs `at` and `at` + 1, transposed as in MatMul, the addends all others.  BLAS adds to what it finds in y
    without a pass for zeroing it, so that adding costs no more than writing what is added, and nothing where that is in y already.
    """

    transpose_a: bool = False
    transpose_b: bool = False
    at: int = 0

    strided_outputs = True
    any_order = True

    @property
    def in_place(self) -> Mapping[int, tuple[int, ...]]:  # type: ignore[override]
        return {0: (0 if self.at else 2,)}

    def _sorted(self, inputs: Sequence[T]) -> tuple[T, T, list[T]]:
        """a, b and the addends."""
        return inputs[self.at], inputs[self.at + 1], [*inputs[: self.at], *inputs[self.at + 2 :]]

    def infer(self, *types: TensorType) -> TensorType:
        a, b, addends = self._sorted(types)
        y = a.with_shape(product_shape(a, b, self.transpose_a, self.transpose_b))
        for addend in addends:
            if addend.dtype is not y.dtype:
                raise DtypeError(f"{self.word()}: the product {y} and {addend} differ in element type; cast one of them")
            if addend.shape not in (y.shape, y.shape[1:]):
                raise ShapeError(f"{self.word()}: {addend} is neither of the shape of the product {y} nor of that of its rows")
        return y

    def rule(self, *types: TensorType) -> Rule:
        factors = (self.at, self.at + 1)
        words = ["mn"[2 - t.ndim :] for t in types]
        words[self.at : self.at + 2] = "Km" if self.transpose_a else "mK", "nK" if self.transpose_b else "Kn"
        addends = [i for i in range(len(types)) if i not in factors]
        return Rule(f"{','.join(words)}->mn", linear=tuple((factor, *addends) for factor in factors))

    def kernel(self, xp: Xp, *arrays: Array) -> None:
        *inputs, y = arrays
        a, b, addends = self._sorted(inputs)
        y[...] = sum(addends, turned(a, self.transpose_a) @ turned(b, self.transpose_b))

    def bind(self, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        if device.xp is not np:
            return super().bind(device, inputs, outputs)
        a, b, addends = self._sorted(inputs)
        a, b, (y,) = turned(a, self.transpose_a), turned(b, self.transpose_b), outputs
        add = blas.adding_product(a, b, y)
        first, *others = addends
        there = same_memory(first, y)
        if add is None:
            product = device.scratch(y.shape, dtype_of(y.dtype)) if there else y
            sums: list[Call] = [(np.add, (product, first, y)), *((np.add, (y, addend, y)) for addend in others)]
            return [*product_calls(device, a, b, product), *sums]
        laid: list[Call] = [] if there else [(np.add, (first, others.pop(0), y)) if others else (np.copyto, (y, first))]
        return [*laid, *((np.add, (y, addend, y)) for addend in others), (add, (1.0,))]

    def plus(self, before: int) -> Op:
        return replace(self, at=self.at + before)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        a, b, bias, rest = numbers(1, 5, 4), numbers(2, 4, 3), numbers(3, 3), numbers(4, 5, 3)
        yield sample(cls(), a, b, bias, differentiable=())
        yield sample(cls(True, at=1), rest, a.T, b, differentiable=())
        yield sample(cls(False, True, 1), rest, a, b.T, bias, differentiable=())
        yield sample(cls(True, True), a.T, b.T, bias, rest, rest, differentiable=())


def sum_with_maker(index: int, maker: Op, *types: TensorType) -> Op | None:
    """`Op.absorb` of a sum of its inputs: `maker` adds to the others, if these are such as ProductSum adds, and large."""
    y = types[index]
    large = y.ndim == 2 and y.shape[0] >= ROWS and y.size >= ELEMENTS and y.dtype in (float32, float64)
    return maker.plus(index) if large and all(t.shape in (y.shape, y.shape[1:]) for t in types) else None
