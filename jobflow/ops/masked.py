"""Replacement of elements by a mask."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from jobflow.core.errors import DtypeError
from jobflow.core.layout import Rule
from jobflow.core.types import Tensor, TensorType, bool_
from jobflow.ops.broadcast import sum_to
from jobflow.ops.op import OVER_FIRST, Grads, Sample, adds, broadcast_rule, broadcast_shapes, sample
from jobflow.ops.pointwise import Pointwise, call, sample_data


class MaskedFill(Pointwise):
    """Masked replacement: y = value where the mask is true, else x; both inputs broadcast. With value 0, the op is linear in x."""

    precision = "any"
    in_place = OVER_FIRST
    value: float = 0.0

    def infer(self, x: TensorType, mask: TensorType) -> TensorType:
        if mask.dtype is not bool_:
            raise DtypeError(f"masked_fill: the mask {mask} is not bool; cast it with cast(mask, bool)")
        return x.with_shape(broadcast_shapes("masked_fill", x, mask))

    def rule(self, x: TensorType, mask: TensorType) -> Rule:
        return broadcast_rule((x, mask), linear=((0,),) if self.value == 0 and adds(x) else ())

    def formula(self, f: Any, x: Any, mask: Any) -> Any:
        return f.where(mask, f.constant(self.value, x.dtype), x)

    def grad(self, x: Tensor, mask: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return sum_to(call(replace(self, value=0.0), dy, mask), x.tensor_type.shape), None

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(-3.0), sample_data(1, 5, 3), sample_data(2, 5, 3) > 0)
        yield sample(cls(), sample_data(3, 2, 3, 5), sample_data(4, 3, 1) > 0)
        yield sample(cls(float("-inf")), sample_data(5, 3, 1), sample_data(6, 2, 1, 4) > 1, differentiable=(), note=" infinite")
        yield sample(cls(1), sample_data(7, 5, 3) > 0, sample_data(8, 5, 3) > 0)
        yield sample(cls(7), np.arange(6).reshape(2, 3), np.array(True))


def masked_fill(x: Tensor, mask: Tensor, value: float, *, name: str | None = None) -> Tensor:
    """Return a copy of x with `value` where the bool tensor `mask` is true; x and `mask` broadcast. Raises DtypeError if `mask` is not bool."""
    return call(MaskedFill(value), x, mask, name=name)
