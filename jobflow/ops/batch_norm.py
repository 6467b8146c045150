"""Batch normalisation with the statistics of the whole batch, however it is cut.

Training is a chain of ops whose sums come out partial where the samples are split, so that changing the layout of a vector per
channel is all the communication there is:

    mean = channel sum of x / count,   variance = channel sum of (x - mean)^2 / count  (biased; two passes),   then BatchNormalize.

BatchNormalize takes mean and variance as statistics of its own x: its gradient goes through them, and they get none.
Normalize takes them as numbers of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jobflow.core.errors import ShapeError
from jobflow.core.layout import Rule
from jobflow.core.types import Array, Tensor, TensorType, dtype_of
from jobflow.ops.arithmetic import add, multiply, subtract
from jobflow.ops.axes import reshape
from jobflow.ops.blocks import BLOCK, blocks, memory_order
from jobflow.ops.broadcast import lead_sum_calls, sum_calls
from jobflow.ops.derivative import through
from jobflow.ops.indexed import Indexed
from jobflow.ops.matmul import along, axis_sum
from jobflow.ops.op import LETTERS, Binder, Call, Grads, Sample, apply, normal_axis, sample
from jobflow.ops.pointwise import FLOATS, call, check_dtypes, numbers
from jobflow.ops.scalar import scale, shift
from jobflow.ops.transcendental import rsqrt


@dataclass(frozen=True)
class ChannelOp(Indexed):
    """What the ops of batch normalisation share: tensors of one shape, and vectors along `axis` of them, the channels."""

    abstract = True
    axis: int

    def _rule(self, inputs: str, outputs: str, ndim: int, linear: tuple[tuple[int, ...], ...] = ()) -> Rule:
        """A rule from one mark per operand: "t" is a tensor, "c" a vector per channel."""
        full = LETTERS[:ndim]
        words = {"t": full, "c": full[self.axis]}
        left, right = (",".join(words[mark] for mark in marks) for marks in (inputs, outputs))
        return Rule(f"{left}->{right}", linear=linear)

    def _check(self, what: str, x: TensorType, **vectors: TensorType) -> None:
        check_dtypes(what, FLOATS, x, *vectors.values())
        for name, vector in vectors.items():
            if vector.shape != (x.shape[self.axis],):
                raise ShapeError(f"{what}: {name} {vector} is not of the size {x.shape[self.axis]} that x {x} has on axis {self.axis}")

    def _others(self, x: Array) -> tuple[int, ...]:
        return tuple(i for i in range(x.ndim) if i != self.axis)

    def _wide(self, x: Array, *vectors: Array) -> list[Array]:
        """Vectors per channel, as views that broadcast along x."""
        return [along(vector, self.axis, x.ndim) for vector in vectors]


def _wide(vector: Tensor, axis: int, like: Tensor) -> Tensor:
    """A vector per channel, shaped to broadcast along the other axes."""
    return reshape(vector, [vector.type.size if i == axis else 1 for i in range(like.type.ndim)])


def _cuts(x: Array, elements: int = BLOCK) -> list[tuple[slice, ...]]:
    """Where to cut x into blocks of about `elements` elements, along the outermost axes in memory."""
    found: list[tuple[slice, ...]] = [tuple(slice(0, n) for n in x.shape)]
    size = x.size
    for axis in memory_order(x):
        if size <= elements:
            break
        n = x.shape[axis]
        step = max(1, n * elements // size)
        found = [(*at[:axis], slice(i, min(i + step, n)), *at[axis + 1 :]) for at in found for i in range(0, n, step)]
        size = size // n * step
    return found


def _like(device: Binder, x: Array) -> Array:
    """Scratch of the shape of x, dense, with its axes in the same order in memory."""
    order = memory_order(x)
    memory = device.scratch(tuple(x.shape[i] for i in order), dtype_of(x.dtype))
    return memory.transpose([order.index(i) for i in range(x.ndim)])


def _block_sums(device: Binder, axis: int, x: Array, count: int) -> tuple[list[tuple[tuple[slice, ...], Array, list[Array]]], list[Array]]:
    """For sums over blocks: per block where it is, scratch for it, and where its `count` sums go; and all these sums, [blocks, channels]."""
    cuts = _cuts(x)
    sums = [np.zeros((len(cuts), x.shape[axis]), x.dtype) for _ in range(count)]  # a block leaves the channels it has not at zero
    scratch: dict[tuple[int, ...], Array] = {}
    found = []
    for k, at in enumerate(cuts):
        part = x[at]
        work = scratch.setdefault(part.shape, part) if part.shape in scratch else scratch.setdefault(part.shape, _like(device, part))
        found.append((at, work, [each[k, at[axis]] for each in sums]))
    return found, sums


@dataclass(frozen=True)
class CenteredSquares(ChannelOp):
    """s[c] = sum of (x - mean[c])^2 over all axes but `axis`."""

    def infer(self, x: TensorType, mean: TensorType) -> TensorType:
        self._check("batch_norm", x, mean=mean)
        return mean

    def rule(self, x: TensorType, mean: TensorType) -> Rule:
        return self._rule("tc", "c", x.ndim)

    def last(self, letters: str) -> str:
        return letters[self.axis]

    def formula(self, f: Any, x: Any, mean: Any) -> Any:
        centred = x - mean
        return f.column_sum(centred * centred)

    def bind(self, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        (x, mean), (s,) = inputs, outputs
        if device.xp is not np or not x.size or x.dtype.itemsize < 4:
            return super().bind(device, inputs, outputs)
        parts, (sums,) = _block_sums(device, self.axis, x, 1)
        calls: list[Call] = []
        for at, work, (total,) in parts:
            (m,) = self._wide(x, mean[at[self.axis]])
            calls += [(np.subtract, (x[at], m, work)), (np.multiply, (work, work, work))]
            calls += sum_calls(device, work, self._others(x), total)
        return [*calls, *lead_sum_calls(device, sums, s)]

    def grad(self, x: Tensor, mean: Tensor, s: Tensor, ds: Tensor) -> Grads:
        dx = call(CenteredSquaresGrad(self.axis), x, mean, ds)
        return dx, scale(axis_sum(dx, self.axis), -1.0)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(1), numbers(1, 3, 4, 2), numbers(2, 4))
        yield sample(cls(1), numbers(1, 5, 3), numbers(2, 3))


@dataclass(frozen=True)
class CenteredSquaresGrad(ChannelOp):
    """dx = 2 (x - mean) ds."""

    def infer(self, x: TensorType, mean: TensorType, ds: TensorType) -> TensorType:
        return x

    def rule(self, x: TensorType, mean: TensorType, ds: TensorType) -> Rule:
        return self._rule("tcc", "t", x.ndim, linear=((2,),))

    def formula(self, f: Any, x: Any, mean: Any, ds: Any) -> Any:
        return (x - mean) * 2.0 * ds

    def grad(self, x: Tensor, mean: Tensor, ds: Tensor, dx: Tensor, ddx: Tensor) -> Grads:
        def parts(x: Tensor, mean: Tensor, ds: Tensor) -> tuple[Tensor]:
            return (multiply(subtract(x, _wide(mean, self.axis, x)), scale(_wide(ds, self.axis, x), 2.0)),)

        return through(parts, (x, mean, ds), (ddx,))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(1), numbers(1, 3, 4, 2), numbers(2, 4), numbers(3, 4))


@dataclass(frozen=True)
class Normalize(ChannelOp):
    """y = (x - mean) gamma / sqrt(variance + epsilon) + beta, with vectors along `axis`."""

    epsilon: float = 1e-5

    def infer(self, x: TensorType, mean: TensorType, variance: TensorType, gamma: TensorType, beta: TensorType) -> TensorType:
        self._check("batch_norm", x, mean=mean, variance=variance, gamma=gamma, beta=beta)
        return x

    def rule(self, x: TensorType, *vectors: TensorType) -> Rule:
        return self._rule("tcccc", "t", x.ndim)

    def formula(self, f: Any, x: Any, mean: Any, variance: Any, gamma: Any, beta: Any) -> Any:
        return (x - mean) * (gamma / f.sqrt(variance + self.epsilon)) + beta

    def bind(self, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        (x, mean, variance, gamma, beta), (y,) = inputs, outputs
        if device.xp is not np or not x.size or x.dtype.itemsize < 4:
            return super().bind(device, inputs, outputs)
        factor = device.scratch(gamma.shape, dtype_of(gamma.dtype))
        calls: list[Call] = [(_factor, (variance, self.epsilon, gamma, factor))]
        vectors = [np.broadcast_to(v, x.shape) for v in self._wide(x, mean, factor, beta)]
        for u, v, m, a, b in blocks([x, y, *vectors]):
            calls += [(np.subtract, (u, m, v)), (np.multiply, (v, a, v)), (np.add, (v, b, v))]
        return calls

    def grad(self, x: Tensor, mean: Tensor, variance: Tensor, gamma: Tensor, beta: Tensor, y: Tensor, dy: Tensor) -> Grads:
        dgamma, dbeta = apply(NormalizeSums(self.axis, self.epsilon), dy, x, mean, variance)
        inv_std = rsqrt(shift(variance, self.epsilon))
        dx = call(NormalizeGrad(self.axis, self.epsilon), dy, variance, gamma)
        dmean = scale(multiply(multiply(dbeta, gamma), inv_std), -1.0)
        dvariance = scale(multiply(multiply(dgamma, gamma), multiply(inv_std, inv_std)), -0.5)
        return dx, dmean, dvariance, dgamma, dbeta

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        vectors = numbers(2, 4), numbers(3, 4, low=0.5), numbers(4, 4), numbers(5, 4)
        different = () if cls is BatchNormalize else None
        yield sample(cls(1, 1e-3), numbers(1, 3, 4, 2), *vectors, differentiable=different)
        yield sample(cls(1, 1e-3), numbers(1, 5, 4), *vectors, differentiable=different)


def _factor(variance: Array, epsilon: float, gamma: Array, factor: Array) -> None:
    """factor = gamma / sqrt(variance + epsilon)"""
    np.add(variance, variance.dtype.type(epsilon), factor)
    np.sqrt(factor, factor)
    np.divide(gamma, factor, factor)


@dataclass(frozen=True)
class NormalizeGrad(ChannelOp):
    """dx = dy gamma / sqrt(variance + epsilon)."""

    epsilon: float

    def infer(self, dy: TensorType, variance: TensorType, gamma: TensorType) -> TensorType:
        return dy

    def rule(self, dy: TensorType, variance: TensorType, gamma: TensorType) -> Rule:
        return self._rule("tcc", "t", dy.ndim, linear=((0,), (2,)))

    def formula(self, f: Any, dy: Any, variance: Any, gamma: Any) -> Any:
        return dy * (gamma / f.sqrt(variance + self.epsilon))

    def grad(self, dy: Tensor, variance: Tensor, gamma: Tensor, dx: Tensor, ddx: Tensor) -> Grads:
        def parts(dy: Tensor, variance: Tensor, gamma: Tensor) -> tuple[Tensor]:
            return (multiply(dy, _wide(multiply(gamma, rsqrt(shift(variance, self.epsilon))), self.axis, dy)),)

        return through(parts, (dy, variance, gamma), (ddx,))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(1, 1e-3), numbers(1, 3, 4, 2), numbers(2, 4, low=0.5), numbers(3, 4))


@dataclass(frozen=True)
class NormalizeSums(ChannelOp):
    """dgamma[c] = sum dy (x - mean) / sqrt(variance + epsilon), dbeta[c] = sum dy, over all axes but `axis`."""

    epsilon: float
    results = 2

    def infer(self, dy: TensorType, x: TensorType, mean: TensorType, variance: TensorType) -> tuple[TensorType, TensorType]:
        return mean, mean

    def rule(self, dy: TensorType, x: TensorType, mean: TensorType, variance: TensorType) -> Rule:
        return self._rule("ttcc", "cc", x.ndim, linear=((0,),))

    def last(self, letters: str) -> str:
        return letters[self.axis]

    def formula(self, f: Any, dy: Any, x: Any, mean: Any, variance: Any) -> Any:
        return f.column_sum(dy * ((x - mean) * f.rsqrt(variance + self.epsilon))), f.column_sum(dy)

    def bind(self, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        (dy, x, mean, variance), (dgamma, dbeta) = inputs, outputs
        if device.xp is not np or not x.size or x.dtype.itemsize < 4:
            return super().bind(device, inputs, outputs)
        parts, (weighted, plain) = _block_sums(device, self.axis, x, 2)
        calls: list[Call] = []
        for at, work, totals in parts:
            (m,) = self._wide(x, mean[at[self.axis]])
            calls += [(np.subtract, (x[at], m, work)), (np.multiply, (work, dy[at], work))]
            for what, total in zip((work, dy[at]), totals, strict=True):
                calls += sum_calls(device, what, self._others(x), total)
        calls += [*lead_sum_calls(device, weighted, dgamma), *lead_sum_calls(device, plain, dbeta)]
        return [*calls, (_factor_in_place, (variance, self.epsilon, dgamma))]

    def grad(self, dy: Tensor, x: Tensor, mean: Tensor, variance: Tensor, *rest: Tensor | None) -> Grads:
        def parts(dy: Tensor, x: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
            weighed = multiply(dy, subtract(x, _wide(mean, self.axis, x)))
            return multiply(axis_sum(weighed, self.axis), rsqrt(shift(variance, self.epsilon))), axis_sum(dy, self.axis)

        return through(parts, (dy, x, mean, variance), rest[2:])

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(1, 1e-3), numbers(1, 3, 4, 2), numbers(2, 3, 4, 2), numbers(3, 4), numbers(4, 4, low=0.5))


def _factor_in_place(variance: Array, epsilon: float, gamma: Array) -> None:
    np.divide(gamma, np.sqrt(variance + variance.dtype.type(epsilon)), gamma)


@dataclass(frozen=True)
class BatchNormalize(Normalize):
    """The same, where mean and variance (biased) are those of x: the gradient of x goes through them."""

    def grad(self, x: Tensor, mean: Tensor, variance: Tensor, gamma: Tensor, beta: Tensor, y: Tensor, dy: Tensor) -> Grads:
        dgamma, dbeta = apply(NormalizeSums(self.axis, self.epsilon), dy, x, mean, variance)
        count = x.type.size // max(1, x.type.shape[self.axis])
        dx = call(BatchNormalizeGrad(self.axis, self.epsilon, count), dy, x, mean, variance, gamma, dgamma, dbeta)
        return dx, None, None, dgamma, dbeta


@dataclass(frozen=True)
class BatchNormalizeGrad(ChannelOp):
    """dx = gamma inv_std (dy - dbeta / count - n dgamma / count);  inv_std = 1 / sqrt(variance + epsilon), n = (x - mean) inv_std."""

    epsilon: float
    count: int

    def infer(self, dy: TensorType, x: TensorType, *vectors: TensorType) -> TensorType:
        return x

    def rule(self, dy: TensorType, x: TensorType, *vectors: TensorType) -> Rule:
        return self._rule("ttccccc", "t", x.ndim)

    def formula(self, f: Any, dy: Any, x: Any, mean: Any, variance: Any, gamma: Any, dgamma: Any, dbeta: Any) -> Any:
        inv_std, share = f.rsqrt(variance + self.epsilon), 1 / max(self.count, 1)
        return gamma * inv_std * (dy - (dbeta * share + (x - mean) * (dgamma * inv_std * share)))

    def bind(self, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        (dy, x, mean, variance, gamma, dgamma, dbeta), (dx,) = inputs, outputs
        if device.xp is not np or not x.size or x.dtype.itemsize < 4:
            return super().bind(device, inputs, outputs)
        a, p, q = device.scratch((3, len(gamma)), dtype_of(gamma.dtype))
        calls: list[Call] = [(self._vectors, (variance, gamma, dgamma, dbeta, a, p, q))]
        vectors = [np.broadcast_to(v, x.shape) for v in self._wide(x, mean, a, p, q)]
        for g, u, v, m, s, r, t in blocks([dy, x, dx, *vectors]):
            calls += [(np.subtract, (u, m, v)), (np.multiply, (v, t, v)), (np.add, (v, r, v)), (np.subtract, (g, v, v)), (np.multiply, (v, s, v))]
        return calls

    def _vectors(self, variance: Array, gamma: Array, dgamma: Array, dbeta: Array, a: Array, p: Array, q: Array) -> None:
        """a = gamma inv_std, p = dbeta / count, q = dgamma inv_std / count"""
        inv_std = 1 / np.sqrt(variance + variance.dtype.type(self.epsilon))
        np.multiply(gamma, inv_std, a)
        np.divide(dbeta, self.count, p)
        np.multiply(dgamma, inv_std / self.count, q)

    def grad(self, *tensors: Tensor) -> Grads:
        return through(self._parts, tensors[:7], tensors[8:])

    def _parts(self, dy: Tensor, x: Tensor, mean: Tensor, variance: Tensor, gamma: Tensor, dgamma: Tensor, dbeta: Tensor) -> tuple[Tensor]:
        inv_std, share = rsqrt(shift(variance, self.epsilon)), 1 / max(self.count, 1)
        vectors = mean, multiply(gamma, inv_std), scale(dbeta, share), scale(multiply(dgamma, inv_std), share)
        m, a, p, q = (_wide(v, self.axis, x) for v in vectors)
        return (multiply(a, subtract(dy, add(p, multiply(subtract(x, m), q)))),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        vectors = numbers(3, 4), numbers(4, 4, low=0.5), numbers(5, 4), numbers(6, 4), numbers(7, 4)
        yield sample(cls(1, 1e-3, 6), numbers(1, 3, 4, 2), numbers(2, 3, 4, 2), *vectors)


def batch_norm_train(
    x: Tensor, gamma: Tensor, beta: Tensor, axis: int = 1, epsilon: float = 1e-5, *, name: str | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """(y, mean, variance): x normalised per channel by the mean and the biased variance of the whole batch."""
    axis = normal_axis("batch_norm", axis, x.type.ndim)
    share = 1.0 / max(1, x.type.size // max(1, x.type.shape[axis]))
    mean = scale(axis_sum(x, axis), share)
    variance = scale(call(CenteredSquares(axis), x, mean), share)
    return call(BatchNormalize(axis, epsilon), x, mean, variance, gamma, beta, name=name), mean, variance


def batch_norm_infer(
    x: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, variance: Tensor, axis: int = 1, epsilon: float = 1e-5, *, name: str | None = None
) -> Tensor:
    """y = (x - mean) gamma / sqrt(variance + epsilon) + beta, with given statistics."""
    axis = normal_axis("batch_norm", axis, x.type.ndim)
    return call(Normalize(axis, epsilon), x, mean, variance, gamma, beta, name=name)
