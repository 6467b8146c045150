"""Ranges of rows in the layout of the whole tensor, for microbatches."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from jobflow.core.layout import Rule
from jobflow.core.types import Array, TensorType
from jobflow.ops.op import LETTERS, Sample, ViewOp, sample


class Rows(ViewOp):
    """The rows x[start:stop], in the layout of x. Ranks exchange rows, because a row of x may belong to another rank's shard of the result."""

    start: int
    stop: int

    def infer(self, x: TensorType) -> TensorType:
        return x.with_shape((self.stop - self.start, *x.shape[1:]))

    def rule(self, x: TensorType) -> Rule:
        letters = LETTERS[0].upper() + LETTERS[1 : x.ndim]
        return Rule(f"{letters}->{letters}", linear=((0,),))

    def view(self, x: Array) -> Array:
        return x[self.start : self.stop]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(1, 3), np.arange(12.0).reshape(4, 3), differentiable=())
        yield sample(cls(0, 4), np.arange(4), differentiable=())
