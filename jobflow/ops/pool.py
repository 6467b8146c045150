"""Pooling over 1 to 3 spatial axes, channels first.  Windows ignore padding.

max   y[n,c,i] = max over the taps k inside the image of  x[n,c, i*stride + k - before]
avg   the mean instead of the maximum
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from jobflow.core.errors import DtypeError, ShapeError
from jobflow.core.layout import MAX, Rule
from jobflow.core.types import Array, Tensor, TensorType, Xp
from jobflow.ops.op import Grads, Op, Sample, apply, sample
from jobflow.ops.windows import Pads, Window, axis_values, explicit_padding

_AXES = "XYZ"


class _PoolOp(Op):
    """Base class of pooling ops; `padding` is (before, after) per spatial axis.

    `ceil_mode` includes a last window that begins inside the image, or in the padding before it, and ends outside.
    """

    ksize: tuple[int, ...]
    strides: tuple[int, ...]
    padding: Pads
    ceil_mode: bool = False

    @property
    def window(self) -> Window:
        return Window(self.ksize, self.strides, self.padding, (1,) * len(self.ksize), self.ceil_mode)

    def _pooled(self, name: str, x: TensorType) -> TensorType:
        what = f"{self.word()}: {name} {x}"
        if x.ndim != len(self.ksize) + 2:
            raise ShapeError(f"{what} must have {len(self.ksize) + 2} axes: batch, channels and one per entry of ksize {self.ksize}")
        if any(max(pair) >= k for pair, k in zip(self.padding, self.ksize, strict=True)):
            raise ShapeError(f"{what}: padding {self.padding} must be smaller than ksize {self.ksize}, so that no window is outside the image")
        return x.with_shape((*x.shape[:2], *self.window.out_sizes(what, x.shape[2:])))

    def _check_output(self, name: str, t: TensorType, expected: TensorType) -> None:
        if t.dtype is not expected.dtype:
            raise DtypeError(f"{self.word()}: {name} {t} must have the element type of the pooled tensor {expected}; cast it with cast(x, dtype)")
        if t.shape != expected.shape:
            raise ShapeError(f"{self.word()}: {name} {t} must have the type {expected} of the pooled tensor")

    def _rule(self, tensors: int, linear: tuple[tuple[int, ...], ...]) -> Rule:
        word = "nc" + _AXES[: len(self.ksize)]
        return Rule(f"{','.join([word] * tensors)}->{word}", linear=linear)


def _float_only(op: Op, name: str, t: TensorType) -> None:
    if not t.dtype.is_float:
        raise DtypeError(f"{op.word()}: {name} {t} must contain floating point numbers; cast it first")


class MaxPool(_PoolOp):
    """Max pooling: y[n,c,i] = max_k x[n,c,i*stride+k-before] over the elements inside the image."""

    precision = "any"

    def infer(self, x: TensorType) -> TensorType:
        if x.dtype.name == "bool":
            raise DtypeError(f"maxpool: x {x} must contain numbers, not bool; cast it first")
        return self._pooled("x", x)

    def rule(self, x: TensorType) -> Rule:
        word = "nc" + _AXES[: len(self.ksize)]
        return Rule(f"{word}->{word}")

    def kernel(self, xp: Xp, x: Array, y: Array) -> None:
        y[...] = MAX.identity(y.dtype)
        for tap in self.window.taps(x.shape[2:], y.shape[2:]):
            part = y[:, :, *tap.target]
            xp.maximum(part, x[:, :, *tap.source], out=part)

    def grad(self, x: Any, y: Any, dy: Any) -> Grads:
        return (apply(MaxPoolGrad(self.ksize, self.strides, self.padding, self.ceil_mode), x, y, dy),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for attributes, x, _ in _cases():
            yield sample(cls(*attributes), x)


class MaxPoolGrad(_PoolOp):
    """Gradient of MaxPool: dx[n,c,j] = sum of dy[n,c,i] over the windows i with their first maximum at j.

    The first maximum is the first one in row-major order of the window's taps.
    """

    def infer(self, x: TensorType, y: TensorType, dy: TensorType) -> TensorType:
        _float_only(self, "x", x)
        pooled = self._pooled("x", x)
        self._check_output("y", y, pooled)
        self._check_output("dy", dy, pooled)
        return x

    def rule(self, x: TensorType, y: TensorType, dy: TensorType) -> Rule:
        return self._rule(3, ((2,),))

    def kernel(self, xp: Xp, x: Array, y: Array, dy: Array, dx: Array) -> None:
        dx[...] = 0
        for tap, first in _first_maxima(xp, self.window, x, y):
            dx[:, :, *tap.source] += xp.where(first, dy[:, :, *tap.target], dy.dtype.type(0))

    def grad(self, x: Any, y: Any, dy: Any, dx: Any, ddx: Any) -> Grads:
        return None, None, apply(MaxPoolPick(self.ksize, self.strides, self.padding, self.ceil_mode), x, y, ddx)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for attributes, x, dy in _cases():
            yield sample(cls(*attributes), x, _max_pooled(attributes, x, dy.shape), dy, differentiable=(2,))


class MaxPoolPick(_PoolOp):
    """Gradient of MaxPoolGrad with respect to dy: z[n,c,i] = v[n,c,j], where j is the first maximum of window i of x."""

    def infer(self, x: TensorType, y: TensorType, v: TensorType) -> TensorType:
        _float_only(self, "x", x)
        self._check_output("y", y, self._pooled("x", x))
        self._check_output("v", v, x)
        return y

    def rule(self, x: TensorType, y: TensorType, v: TensorType) -> Rule:
        return self._rule(3, ((2,),))

    def kernel(self, xp: Xp, x: Array, y: Array, v: Array, z: Array) -> None:
        z[...] = 0
        for tap, first in _first_maxima(xp, self.window, x, y):
            z[:, :, *tap.target] += xp.where(first, v[:, :, *tap.source], v.dtype.type(0))

    def grad(self, x: Any, y: Any, v: Any, z: Any, dz: Any) -> Grads:
        return None, None, apply(MaxPoolGrad(self.ksize, self.strides, self.padding, self.ceil_mode), x, y, dz)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for attributes, x, dy in _cases():
            yield sample(cls(*attributes), x, _max_pooled(attributes, x, dy.shape), x[::-1, ::-1].copy(), differentiable=(2,))


def _first_maxima(xp: Xp, window: Window, x: Array, y: Array) -> Iterator[tuple[Any, Array]]:
    """Yield (tap, mask) for each tap: the mask is True for the windows that have their first maximum at this tap."""
    open_ = xp.ones(y.shape, dtype=bool)
    for tap in window.taps(x.shape[2:], y.shape[2:]):
        still = open_[:, :, *tap.target]
        first = still & (x[:, :, *tap.source] == y[:, :, *tap.target])
        still ^= first
        yield tap, first


class AvgPool(_PoolOp):
    """Average pooling: y[n,c,i] = mean_k x[n,c,i*stride+k-before] over the elements inside the image."""

    precision = "follows"

    def infer(self, x: TensorType) -> TensorType:
        _float_only(self, "x", x)
        return self._pooled("x", x)

    def rule(self, x: TensorType) -> Rule:
        return self._rule(1, ((0,),))

    def kernel(self, xp: Xp, x: Array, y: Array) -> None:
        total = xp.zeros(y.shape, _summing_dtype(xp, x))
        for tap in self.window.taps(x.shape[2:], y.shape[2:]):
            total[:, :, *tap.target] += x[:, :, *tap.source]
        y[...] = total / counts(xp, self.window, x.shape[2:], y.shape[2:], total.dtype)

    def grad(self, x: Any, y: Any, dy: Any) -> Grads:
        return (apply(AvgPoolGrad(self.ksize, self.strides, self.padding, self.ceil_mode, x.tensor_type.shape[2:]), dy),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for attributes, x, _ in _cases():
            yield sample(cls(*attributes), x)


class AvgPoolGrad(_PoolOp):
    """Gradient of AvgPool: dx[n,c,j] = sum of dy[n,c,i] / count[i] over the windows i that contain j.

    `spatial` are the spatial sizes of dx.
    """

    spatial: tuple[int, ...] = ()

    def infer(self, dy: TensorType) -> TensorType:
        _float_only(self, "dy", dy)
        x = dy.with_shape((*dy.shape[:2], *self.spatial))
        self._check_output("dy", dy, self._pooled("dx", x))
        return x

    def rule(self, dy: TensorType) -> Rule:
        return self._rule(1, ((0,),))

    def kernel(self, xp: Xp, dy: Array, dx: Array) -> None:
        total = xp.zeros(dx.shape, _summing_dtype(xp, dy))
        each = dy / counts(xp, self.window, dx.shape[2:], dy.shape[2:], total.dtype)
        for tap in self.window.taps(dx.shape[2:], dy.shape[2:]):
            total[:, :, *tap.source] += each[:, :, *tap.target]
        dx[...] = total

    def grad(self, dy: Any, dx: Any, ddx: Any) -> Grads:
        return (apply(AvgPool(self.ksize, self.strides, self.padding, self.ceil_mode), ddx),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for attributes, x, dy in _cases():
            yield sample(cls(*attributes, x.shape[2:]), dy)


def counts(xp: Xp, window: Window, spatial: Sequence[int], out: Sequence[int], dtype: Any) -> Array:
    """Return the number of elements inside the image for each window, as an array of shape `out` and element type `dtype`."""
    count = xp.ones((1,) * len(out), dtype)
    for a, k in enumerate(window.kernel):
        along = np.zeros(out[a])
        for reach in (window.reach(a, tap, spatial[a], out[a]) for tap in range(k)):
            if reach is not None:
                along[reach[1]] += 1
        count = count * xp.asarray(along, dtype).reshape(tuple(-1 if i == a else 1 for i in range(len(out))))
    return count


def _summing_dtype(xp: Xp, x: Array) -> Any:
    """Return the element type of sums of x: float32 for half precision, otherwise the type of x."""
    return xp.promote_types(x.dtype, xp.float32) if x.dtype.itemsize < 4 else x.dtype


_Attributes = tuple[tuple[int, ...], tuple[int, ...], Pads, bool]


def _max_pooled(attributes: _Attributes, x: Any, shape: tuple[int, ...]) -> Any:
    y = np.empty(shape)
    MaxPool(*attributes).kernel(np, x, y)
    return y


def _cases() -> Iterator[tuple[_Attributes, Any, Any]]:
    """Yield cases for the property tests: attributes of a pooling op, with float64 x and dy.

    Elements of x differ by at least 0.1, so the small step of a finite difference never changes a maximum.
    """
    shapes: tuple[tuple[_Attributes, tuple[int, ...]], ...] = (
        (((2,), (2,), ((0, 0),), False), (3, 2, 5)),
        (((2, 2), (2, 2), ((0, 0), (0, 0)), False), (3, 2, 4, 6)),
        (((3, 2), (2, 1), ((1, 1), (0, 1)), False), (2, 3, 5, 3)),
        (((3, 3), (2, 2), ((0, 0), (1, 1)), True), (2, 2, 6, 5)),
        (((2, 1, 2), (1, 2, 2), ((1, 0), (0, 0), (0, 0)), True), (2, 2, 3, 3, 3)),
    )
    rng = np.random.default_rng(0)
    for attributes, shape in shapes:
        x = rng.permutation(math.prod(shape)).reshape(shape) * 0.1 - 2.0
        out = Window(attributes[0], attributes[1], attributes[2], (1,) * len(attributes[0]), attributes[3]).out_sizes("pool", shape[2:])
        yield attributes, x, rng.standard_normal((*shape[:2], *out))


_Pool = TypeVar("_Pool", bound=_PoolOp)


def _pool_op(
    build: Callable[..., _Pool],
    what: str,
    x: TensorType,
    ksize: int | Sequence[int],
    strides: int | Sequence[int] | None,
    padding: str | Sequence[tuple[int, int]],
    ceil_mode: bool,
) -> _Pool:
    ndim = x.ndim - 2
    if not 1 <= ndim <= 3:
        raise ShapeError(f"{what}: x {x} must have 3 to 5 axes: batch, channels and 1 to 3 spatial axes")
    ksize = axis_values(what, "ksize", ksize, ndim)
    strides = ksize if strides is None else axis_values(what, "strides", strides, ndim)
    pads = explicit_padding(what, padding, x.shape[2:], ksize, strides, (1,) * ndim)
    return build(ksize, strides, pads, ceil_mode and not isinstance(padding, str))


def max_pool(
    x: Tensor,
    ksize: int | Sequence[int],
    strides: int | Sequence[int] | None = None,
    padding: str | Sequence[tuple[int, int]] = "valid",
    *,
    ceil_mode: bool = False,
    name: str | None = None,
) -> Any:
    """Return the maximum of each window of x [n,c,*spatial], with the shape [n,c,*out]; `ksize` is the window size and `strides` defaults to it.

    `padding` is "valid", "same", "same_lower", "same_upper" or a pair (before, after) per spatial axis. With pairs, `ceil_mode` adds a last window
    that begins before the end of the image and ends outside the padding. Raises ShapeError for invalid sizes.
    """
    return apply(_pool_op(MaxPool, "max_pool", x.tensor_type, ksize, strides, padding, ceil_mode), x, name=name)


def avg_pool(
    x: Tensor,
    ksize: int | Sequence[int],
    strides: int | Sequence[int] | None = None,
    padding: str | Sequence[tuple[int, int]] = "valid",
    *,
    ceil_mode: bool = False,
    name: str | None = None,
) -> Any:
    """Return the mean of each window of x [n,c,*spatial] over the elements inside the image. Takes the same arguments as `max_pool`."""
    return apply(_pool_op(AvgPool, "avg_pool", x.tensor_type, ksize, strides, padding, ceil_mode), x, name=name)
