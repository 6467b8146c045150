"""Products with a matrix that is known to be zero above its diagonal, as the weights of causal attention are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from jobflow.core.layout import Rule
from jobflow.core.types import Array, TensorType, Xp
from jobflow.ops.op import LETTERS, Binder, Call, Op, Sample, sample
from jobflow.ops.pointwise import numbers
from jobflow.ops.products import product_calls, product_shape, turned

#: rows of the result are made in so many blocks, of no fewer than so many rows: each reads only what is not zero
LOWER_BLOCKS, LOWER_ROWS = 4, 32


@dataclass(frozen=True)
class LowerMatMul(Op):
    """y[...,m,n] = sum_k a[...,m,k] b[...,k,n] where a, before it is transposed, is zero above the diagonal; transposes as in BatchMatMul."""

    transpose_a: bool = False
    transpose_b: bool = False

    strided_outputs = True

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        return a.with_shape((*a.shape[:-2], *product_shape(a, b, self.transpose_a, self.transpose_b)))

    def rule(self, a: TensorType, b: TensorType) -> Rule:
        lead = LETTERS[: a.ndim - 2]
        return Rule(f"{lead}{'XY' if self.transpose_a else 'YX'},{lead}{'ZX' if self.transpose_b else 'XZ'}->{lead}YZ")

    def kernel(self, xp: Xp, a: Array, b: Array, y: Array) -> None:
        y[...] = turned(a, self.transpose_a) @ turned(b, self.transpose_b)

    def bind(self, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        (a, b), (y,) = inputs, outputs
        if device.xp is not np:
            return super().bind(device, inputs, outputs)
        a, b = turned(a, self.transpose_a), turned(b, self.transpose_b)
        rows, depth = a.shape[-2:]
        height = max(LOWER_ROWS, -(-rows // LOWER_BLOCKS))
        calls: list[Call] = []
        for first in range(0, rows, height):
            seen = slice(first, depth) if self.transpose_a else slice(0, min(first + height, depth))
            block = y[..., first : first + height, :]
            if seen.start >= seen.stop:
                calls.append((block.fill, (0,)))
            else:
                calls += product_calls(device, a[..., first : first + height, seen], b[..., seen, :], block)
        return calls

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for rows, depth in ((5, 5), (70, 70), (90, 40), (40, 90)):
            a, b = np.tril(numbers(1, 2, rows, depth)), numbers(2, 2, depth, 3)
            yield sample(cls(), a, b, differentiable=())
            yield sample(cls(False, True), a, b.swapaxes(1, 2), differentiable=())
            yield sample(cls(True), a, numbers(3, 2, rows, 3), differentiable=())
