"""Simulated quantization: rounding to a multiple of a scale, and clipping."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from jobflow.core.types import Tensor
from jobflow.ops.broadcast import sum_to
from jobflow.ops.op import Grads, Sample, sample
from jobflow.ops.pointwise import Elementwise, call, sample_data


class FakeQuantize(Elementwise):
    """Fake quantization: y = (clip(round(x / scale + zero), low, high) - zero) scale, or 0 where the scale is 0.

    Rounding is half to even.  The gradient of x equals the gradient of y; scale and zero get no gradient.
    """

    low: int
    high: int

    def formula(self, f: Any, x: Any, scale: Any, zero: Any) -> Any:
        step = f.where(f.equal(scale, 0.0), 1.0, scale)
        return (f.clip(f.rint(x / step + zero), float(self.low), float(self.high)) - zero) * scale

    def grad(self, *tensors: Any) -> Grads:
        x, _, _, _, dy = tensors
        return (None if dy is None else sum_to(dy, x.tensor_type.shape)), None, None

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(-128, 127), sample_data(1, 5, 3), np.array([0.01]), np.array([0.0]), differentiable=())
        yield sample(cls(-8, 7), sample_data(3, 2, 3), np.array([[0.0], [0.1]]), np.array([[0.0], [2.0]]), differentiable=())
        yield sample(cls(0, 255), sample_data(2, 5, 3), np.array([[0.02]] * 5), np.array([[9.0]] * 5), differentiable=())


def fake_quantize(x: Tensor, scale: Tensor, zero: Tensor, low: int, high: int, *, name: str | None = None) -> Tensor:
    """Round x to integers from `low` to `high`, and return the floats for these integers: (clip(round(x / scale + zero), low, high) - zero) scale.

    The result is 0 where the scale is 0. `scale` and `zero` broadcast with x and get no gradient. The gradient of x equals the gradient of the
    result.
    """
    return call(FakeQuantize(low, high), x, scale, zero, name=name)
