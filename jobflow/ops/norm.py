"""Layer, RMS and L2 normalization: statistics over the last axes, or one axis, of each sample.  Batch normalization is in batch_norm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jobflow.core.errors import ShapeError
from jobflow.core.layout import Rule
from jobflow.core.types import Tensor, TensorType
from jobflow.ops.arithmetic import add, divide, multiply, subtract
from jobflow.ops.batch_norm import batch_norm_infer as batch_norm_infer
from jobflow.ops.batch_norm import batch_norm_train as batch_norm_train
from jobflow.ops.compare import greater
from jobflow.ops.decomposition import decomposed
from jobflow.ops.derivative import through
from jobflow.ops.indexed import Indexed
from jobflow.ops.op import LETTERS, OVER_FIRST, Grads, Sample, apply, normal_axis, sample
from jobflow.ops.pointwise import FLOATS, call, check_dtypes, sample_data
from jobflow.ops.reduce import reduce_sum
from jobflow.ops.scalar import cast, clip, fill_like
from jobflow.ops.softmax import AxisOp
from jobflow.ops.source import constant
from jobflow.ops.transcendental import sqrt, square


def _count(f: Any, x: Any) -> Any:
    return f.cast(f.maximum(f.columns(), 1.0), x.dtype)


def _mean(f: Any, x: Any) -> Any:
    """Return the mean of every row; 0 for empty rows."""
    return f.row_sum(x) / _count(f, x)


def _statistics(f: Any, x: Any, epsilon: float) -> tuple[Any, Any, Any]:
    """Return the mean of each row of x, the elements minus this mean, and 1 / sqrt(variance + epsilon).

    Rounding errors of a long sum make the first mean inexact.  The mean residual corrects both statistics.
    """
    first = _mean(f, x)
    away = x - first
    rest = _mean(f, away)
    mean = first + rest
    variance = f.maximum(_mean(f, away * away) - rest * rest, 0.0)
    return mean, x - mean, f.rsqrt(variance + epsilon)


def _through_statistics(begin: int, x: Tensor, mean: Tensor, inv_std: Tensor, dmean: Tensor | None, dinv: Tensor | None) -> Tensor:
    """Return the gradient of x from the gradients of its row statistics mean and inv_std."""
    return call(RowStatisticsGrad(begin), x, mean, inv_std, *(fill_like(mean, 0.0) if part is None else part for part in (dmean, dinv)))


class RowNorm(Indexed):
    """Base class of row-wise normalization ops; the axes from `begin` on form a row."""

    abstract = True
    begin: int

    def _words(self, x: TensorType) -> tuple[str, str, str]:
        """Return three strings: the rule letters of tensors with the shape of x, of row statistics, and of parameters with the shape of a row."""
        rows, whole = LETTERS[: self.begin], LETTERS[self.begin : x.ndim].upper()
        return rows + whole, rows, whole

    def decompose(self, *inputs: Any) -> tuple[Tensor, ...]:
        return decomposed(self, inputs)


class LayerNorm(RowNorm):
    """Layer normalization: y = (x - mean) inv_std gamma + beta, with mean and inv_std = 1 / sqrt(variance + epsilon) of every row.

    Outputs: y, mean, inv_std.  A row consists of the axes from `begin` on; gamma and beta have its shape.
    """

    epsilon: float = 1e-5
    results = 3

    def infer(self, x: TensorType, gamma: TensorType, beta: TensorType) -> tuple[TensorType, TensorType, TensorType]:
        check_dtypes("layer_norm", FLOATS, x, gamma, beta)
        for what, parameter in (("gamma", gamma), ("beta", beta)):
            if parameter.shape != x.shape[self.begin :]:
                raise ShapeError(f"layer_norm: {what} {parameter} must have the shape {list(x.shape[self.begin :])} of a row of x {x}")
        row = x.with_shape(x.shape[: self.begin])
        return x, row, row

    def rule(self, x: TensorType, gamma: TensorType, beta: TensorType) -> Rule:
        full, rows, whole = self._words(x)
        return Rule(f"{full},{whole},{whole}->{full},{rows},{rows}")

    def formula(self, f: Any, x: Any, gamma: Any, beta: Any) -> Any:
        mean, centred, inv_std = _statistics(f, x, self.epsilon)
        return centred * inv_std * gamma + beta, mean, inv_std

    def grad(self, x: Tensor, gamma: Tensor, beta: Tensor, y: Tensor, mean: Tensor, inv_std: Tensor, *grads: Tensor | None) -> Grads:
        dy, dmean, dinv = grads
        dx = dgamma = dbeta = None
        if dy is not None:
            dx, dgamma, dbeta = apply(LayerNormGrad(self.begin), dy, x, gamma, mean, inv_std)
        if dmean is not None or dinv is not None:
            through = _through_statistics(self.begin, x, mean, inv_std, dmean, dinv)
            dx = through if dx is None else add(dx, through)
        return dx, dgamma, dbeta

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(1), sample_data(1, 5, 4), sample_data(2, 4), sample_data(3, 4))
        yield sample(cls(2, 1e-3), sample_data(1, 2, 3, 4), sample_data(2, 4), sample_data(3, 4))
        yield sample(cls(1), sample_data(1, 3, 2, 3), sample_data(2, 2, 3), sample_data(3, 2, 3))


class LayerNormGrad(RowNorm):
    """Gradients of LayerNorm, with n = (x - mean) inv_std.

    dx = inv_std (gamma dy - mean_row(gamma dy) - n mean_row(gamma dy n)), dgamma = sum dy n, dbeta = sum dy.
    """

    in_place = OVER_FIRST
    results = 3

    def infer(self, dy: TensorType, x: TensorType, gamma: TensorType, mean: TensorType, inv_std: TensorType) -> tuple[TensorType, ...]:
        return x, gamma, gamma

    def rule(self, dy: TensorType, x: TensorType, gamma: TensorType, mean: TensorType, inv_std: TensorType) -> Rule:
        full, rows, whole = self._words(x)
        return Rule(f"{full},{full},{whole},{rows},{rows}->{full},{whole},{whole}", linear=((0,),))

    def formula(self, f: Any, dy: Any, x: Any, gamma: Any, mean: Any, inv_std: Any) -> Any:
        centred = x - mean  # first, because sums of products with x cancel if the mean is far from 0
        weighed = dy * centred
        average = _mean(f, dy * gamma)
        # inv_std^3 would magnify the rounding error of the mean in rows of nearly equal elements, so the product is corrected by it
        share, slope = average * inv_std, (_mean(f, weighed * gamma) - average * _mean(f, centred)) * (inv_std * inv_std * inv_std)
        return dy * inv_std * gamma - centred * slope - share, f.column_sum(weighed * inv_std), f.column_sum(dy)

    def grad(self, dy: Tensor, x: Tensor, gamma: Tensor, mean: Tensor, inv_std: Tensor, *rest: Tensor | None) -> Grads:
        return through(self.decompose, (dy, x, gamma, mean, inv_std), rest[3:])

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(1), sample_data(1, 5, 4), sample_data(2, 5, 4), sample_data(3, 4), sample_data(4, 5), sample_data(5, 5, low=0.5))
        yield sample(cls(2), sample_data(1, 2, 3, 4), sample_data(2, 2, 3, 4), sample_data(3, 4), sample_data(4, 2, 3), sample_data(5, 2, 3, low=0.5))


class RowStatistics(RowNorm):
    """Mean and inv_std = 1 / sqrt(variance + epsilon) of every row, which consists of the axes from `begin` on."""

    epsilon: float = 1e-5
    results = 2

    def infer(self, x: TensorType) -> tuple[TensorType, TensorType]:
        check_dtypes("normalisation", FLOATS, x)
        row = x.with_shape(x.shape[: self.begin])
        return row, row

    def rule(self, x: TensorType) -> Rule:
        full, rows, _ = self._words(x)
        return Rule(f"{full}->{rows},{rows}")

    def formula(self, f: Any, x: Any) -> Any:
        mean, _, inv_std = _statistics(f, x, self.epsilon)
        return mean, inv_std

    def grad(self, x: Tensor, mean: Tensor, inv_std: Tensor, *grads: Tensor | None) -> Grads:
        return (_through_statistics(self.begin, x, mean, inv_std, *grads),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(1), sample_data(1, 5, 4))
        yield sample(cls(2, 1e-3), sample_data(1, 2, 3, 4, 5))


class RowStatisticsGrad(RowNorm):
    """Gradient of RowStatistics: dx = (dmean - dinv_std inv_std^3 (x - mean)) / size of a row."""

    def infer(self, x: TensorType, *rows: TensorType) -> TensorType:
        return x

    def rule(self, x: TensorType, *rows: TensorType) -> Rule:
        full, row, _ = self._words(x)
        return Rule(f"{full},{row},{row},{row},{row}->{full}", linear=((3, 4),))

    def formula(self, f: Any, x: Any, mean: Any, inv_std: Any, dmean: Any, dinv: Any) -> Any:
        return (dmean - dinv * (inv_std * inv_std * inv_std) * (x - mean)) / _count(f, x)

    def grad(self, *tensors: Tensor) -> Grads:
        return through(self.decompose, tensors[:5], tensors[6:])

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(1), sample_data(1, 5, 4), *(sample_data(i, 5) for i in (2, 3, 4, 5)))


def layer_norm(
    x: Tensor, gamma: Tensor | None = None, beta: Tensor | None = None, begin_axis: int = 1, epsilon: float = 1e-5, *, name: str | None = None
) -> Tensor:
    """Normalize x over its axes from `begin_axis` on to mean 0 and variance 1, multiply by gamma and add beta.

    gamma and beta broadcast to the shape of these axes; None omits the product or the sum.
    """
    begin = normal_axis("layer_norm", begin_axis, x.tensor_type.ndim)
    row = x.tensor_type.shape[begin:]
    inside = [p if p is not None and p.tensor_type.shape == row else None for p in (gamma, beta)]
    if gamma is not None and inside[0] is None:  # gamma is applied after the op, so beta must be as well
        inside[1] = None
    scale = constant(1.0, row, x.tensor_type.dtype) if inside[0] is None else inside[0]
    offset = constant(0.0, row, x.tensor_type.dtype) if inside[1] is None else inside[1]
    y: Tensor = apply(LayerNorm(begin, epsilon), x, scale, offset, name=name)[0]
    if gamma is not None and inside[0] is None:
        y = multiply(y, gamma)
    if beta is not None and inside[1] is None:
        y = add(y, beta)
    return y


class RmsNorm(RowNorm):
    """RMS normalization: y = x inv_rms gamma, with inv_rms = 1 / sqrt(mean of x^2 + epsilon) of every row.  Outputs: y, inv_rms."""

    epsilon: float = 1e-5
    results = 2

    def infer(self, x: TensorType, gamma: TensorType) -> tuple[TensorType, TensorType]:
        check_dtypes("rms_norm", FLOATS, x, gamma)
        if gamma.shape != x.shape[self.begin :]:
            raise ShapeError(f"rms_norm: gamma {gamma} must have the shape {list(x.shape[self.begin :])} of a row of x {x}")
        return x, x.with_shape(x.shape[: self.begin])

    def rule(self, x: TensorType, gamma: TensorType) -> Rule:
        full, rows, whole = self._words(x)
        return Rule(f"{full},{whole}->{full},{rows}")

    def formula(self, f: Any, x: Any, gamma: Any) -> Any:
        inv_rms = f.rsqrt(_mean(f, x * x) + self.epsilon)
        return x * inv_rms * gamma, inv_rms

    def grad(self, x: Tensor, gamma: Tensor, y: Tensor, inv_rms: Tensor, *grads: Tensor | None) -> Grads:
        dy, dinv = grads
        dx = dgamma = None
        if dy is not None:
            dx, dgamma = apply(RmsNormGrad(self.begin), dy, x, gamma, inv_rms)
        if dinv is not None:  # the case of a row with mean 0
            zeros = fill_like(inv_rms, 0.0)
            through = _through_statistics(self.begin, x, zeros, inv_rms, None, dinv)
            dx = through if dx is None else add(dx, through)
        return dx, dgamma

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(1), sample_data(1, 5, 4), sample_data(2, 4))
        yield sample(cls(2, 1e-3), sample_data(1, 2, 3, 4), sample_data(2, 4))
        yield sample(cls(1), sample_data(1, 3, 2, 3), sample_data(2, 2, 3))


class RmsNormGrad(RowNorm):
    """Gradients of RmsNorm: dx = inv_rms (gamma dy - x inv_rms^2 mean_row(gamma dy x)), dgamma = sum dy x inv_rms."""

    in_place = OVER_FIRST
    results = 2

    def infer(self, dy: TensorType, x: TensorType, gamma: TensorType, inv_rms: TensorType) -> tuple[TensorType, ...]:
        return x, gamma

    def rule(self, dy: TensorType, x: TensorType, gamma: TensorType, inv_rms: TensorType) -> Rule:
        full, rows, whole = self._words(x)
        return Rule(f"{full},{full},{whole},{rows}->{full},{whole}", linear=((0,),))

    def formula(self, f: Any, dy: Any, x: Any, gamma: Any, inv_rms: Any) -> Any:
        weighed = dy * x
        slope = _mean(f, weighed * gamma) * (inv_rms * inv_rms * inv_rms)
        return dy * inv_rms * gamma - x * slope, f.column_sum(weighed * inv_rms)

    def grad(self, dy: Tensor, x: Tensor, gamma: Tensor, inv_rms: Tensor, *rest: Tensor | None) -> Grads:
        return through(self.decompose, (dy, x, gamma, inv_rms), rest[2:])

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(1), sample_data(1, 5, 4), sample_data(2, 5, 4), sample_data(3, 4), sample_data(5, 5, low=0.5))
        yield sample(cls(2), sample_data(1, 2, 3, 4), sample_data(2, 2, 3, 4), sample_data(3, 4), sample_data(5, 2, 3, low=0.5))


def rms_norm(x: Tensor, gamma: Tensor | None = None, begin_axis: int = 1, epsilon: float = 1e-5, *, name: str | None = None) -> Tensor:
    """Divide x by sqrt(mean of x^2 + epsilon) over the axes from `begin_axis` on, and multiply by gamma unless it is None."""
    begin = normal_axis("rms_norm", begin_axis, x.tensor_type.ndim)
    factor = constant(1.0, x.tensor_type.shape[begin:], x.tensor_type.dtype) if gamma is None else gamma
    y: Tensor = apply(RmsNorm(begin, epsilon), x, factor, name=name)[0]
    return y


class L2Normalize(AxisOp):
    """Division by the Euclidean norm along `axis`: y = x / sqrt(max(sum x^2, epsilon))."""

    epsilon: float = 1e-12

    def formula(self, f: Any, x: Any) -> Any:
        return x / f.sqrt(f.maximum(f.row_sum(x * x), self.epsilon))

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (call(L2NormalizeGrad(self.axis, self.epsilon), x, dy),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(1), sample_data(1, 4, 5))
        yield sample(cls(0, 5.0), sample_data(2, 3, 4), note=" some below epsilon")


class L2NormalizeGrad(AxisOp):
    """Gradient of L2Normalize: dx = (dy - [s > epsilon] y sum y dy) / sqrt(max(s, epsilon)), where s = sum x^2 and y = x / sqrt(s)."""

    epsilon: float = 1e-12

    def formula(self, f: Any, x: Any, dy: Any) -> Any:
        square = f.row_sum(x * x)
        limited = f.maximum(square, self.epsilon)
        along = f.where(square > self.epsilon, f.row_sum(x * dy) / limited, 0.0)
        return (dy - x * along) / f.sqrt(limited)

    def decompose(self, x: Tensor, dy: Tensor) -> tuple[Tensor]:
        squares = reduce_sum(square(x), self.axis, keepdims=True)
        limited = clip(squares, self.epsilon)
        above = cast(greater(squares, clip(squares, None, self.epsilon)), x.tensor_type.dtype)  # comparisons with numbers have no operation
        along = divide(multiply(reduce_sum(multiply(x, dy), self.axis, keepdims=True), above), limited)
        return (divide(subtract(dy, multiply(x, along)), sqrt(limited)),)

    def grad(self, x: Tensor, dy: Tensor, dx: Tensor, ddx: Tensor) -> Grads:
        return through(self.decompose, (x, dy), (ddx,))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(1), sample_data(1, 4, 5), sample_data(2, 4, 5))
        yield sample(cls(0, 5.0), sample_data(3, 3, 4), sample_data(4, 3, 4), note=" some below epsilon")


def l2_normalize(x: Tensor, axis: int, epsilon: float = 1e-12, *, name: str | None = None) -> Tensor:
    """Divide x by its Euclidean norm along `axis`, or by sqrt(epsilon) where the norm is smaller."""
    return call(L2Normalize(normal_axis("l2_normalize", axis, x.tensor_type.ndim), epsilon), x, name=name)
