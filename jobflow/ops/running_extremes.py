"""Running maxima, minima and logarithms of sums of exponentials along an axis."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from jobflow.core.layout import Rule
from jobflow.core.types import Array, Tensor, TensorType, Xp, int64
from jobflow.ops.arithmetic import multiply, subtract, where
from jobflow.ops.compare import equal
from jobflow.ops.index import DimScatterAdd
from jobflow.ops.op import LETTERS, Grads, Op, Sample, normal_axis, sample
from jobflow.ops.pointwise import ANY, FLOATS, call, check_dtypes, sample_data
from jobflow.ops.scalar import fill_like
from jobflow.ops.scan import CumProdTail
from jobflow.ops.slices import concat, slice_
from jobflow.ops.transcendental import exp


def _along(axis: int, ndim: int) -> str:
    """Return the rule letters of `ndim` axes, where `axis` is not split."""
    return "".join(LETTERS[i].upper() if i == axis else LETTERS[i] for i in range(ndim))


def accumulated(x: Array, function: Callable[[Array, Array], Array]) -> Array:
    """Return the running results of an associative function along axis 0, computed in log2(n) steps."""
    y, step = x.copy(), 1
    while step < len(y):
        y[step:] = function(y[:-step], y[step:])
        step *= 2
    return y


class CumExtreme(Op):
    """Running maximum along `axis`, or minimum, and the int64 index of its last occurrence; NaN propagates."""

    precision = "any"
    axis: int
    largest: bool = True

    def infer(self, x: TensorType) -> tuple[TensorType, TensorType]:
        check_dtypes(self.word(), ANY, x)
        normal_axis(self.word(), self.axis, x.ndim)
        return x, TensorType(x.shape, int64)

    def rule(self, x: TensorType) -> Rule:
        word = _along(self.axis, x.ndim)
        return Rule(f"{word}->{word},{word}")

    def kernel(self, xp: Xp, x: Array, values: Array, indices: Array) -> None:
        x, values, indices = (a.swapaxes(0, self.axis) for a in (x, values, indices))
        values[...] = running = accumulated(x, xp.maximum if self.largest else xp.minimum)
        places = xp.arange(len(x), dtype=xp.int64).reshape(-1, *[1] * (x.ndim - 1))
        indices[...] = accumulated(xp.where((x == running) | (x != x), places, xp.int64(0)), xp.maximum)

    def grad(self, x: Tensor, values: Tensor, indices: Tensor, d_values: Tensor, d_indices: Tensor) -> Grads:
        return (call(DimScatterAdd(self.axis, x.tensor_type.shape[self.axis]), d_values, indices),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(1), sample_data(1, 5, 4))
        yield sample(cls(0, False), sample_data(2, 3, 4, 2))
        yield sample(cls(1), np.array([[3, 1, 3, 4, 4], [0, -1, 0, 0, -5]]), note=" ties")


class LogCumSumExp(Op):
    """Running logarithm of the sum of exponentials: y[i] = ln of the sum of exp(x[k]) over k <= i along `axis`."""

    axis: int

    def infer(self, x: TensorType) -> TensorType:
        check_dtypes(self.word(), FLOATS, x)
        normal_axis(self.word(), self.axis, x.ndim)
        return x

    def rule(self, x: TensorType) -> Rule:
        word = _along(self.axis, x.ndim)
        return Rule(f"{word}->{word}")

    def kernel(self, xp: Xp, x: Array, y: Array) -> None:
        y.swapaxes(0, self.axis)[...] = accumulated(x.swapaxes(0, self.axis).astype(xp.float64), xp.logaddexp)

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        """Return dx[i] = exp(x[i] - y[i]) s[i] with s[i] = dy[i] + exp(y[i] - y[i+1]) s[i+1]."""
        axis, n = self.axis, x.tensor_type.shape[self.axis]
        if not n:
            return (dy,)
        lead = (None,) * axis
        before = concat([slice_(y, (*lead, 0), (*lead, 1)), slice_(y, (*lead, 0), (*lead, n - 1))], axis)
        s = call(CumProdTail(axis), exp(_difference(before, y)), dy)
        return (multiply(exp(_difference(x, y)), s),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(1), sample_data(1, 5, 4))
        yield sample(cls(0), sample_data(2, 3, 4, 2))
        yield sample(cls(0), np.array([-np.inf, -np.inf, 1000.0, 0.0, -1000.0]), differentiable=(), note=" large")


def _difference(x: Tensor, y: Tensor) -> Tensor:
    """Return x - y, and 0 for equal infinities."""
    same = equal(x, y)
    return subtract(where(same, fill_like(x, 0.0), x), where(same, fill_like(y, 0.0), y))
