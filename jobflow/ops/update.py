"""Updates: new values of variables, written over the old ones; and the scalars that steer them.

w is the variable, g its gradient, lr the learning rate (an array of one element, read when the op runs).  The other first
inputs are the optimizer's own variables.  Elementwise updates (`flat`) may run over many variables laid end to end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from jobflow.core.errors import DtypeError, ShapeError
from jobflow.core.layout import Rule, cut
from jobflow.core.types import Array, DType, Tensor, TensorType, Xp, dtype_of, float32, float64, int64
from jobflow.ops import blas
from jobflow.ops.arithmetic import add
from jobflow.ops.base import LETTERS, Binder, Call, Op, Sample, apply, sample
from jobflow.ops.linalg import MatMul
from jobflow.ops.product_update import SgdProduct
from jobflow.ops.scalar import scale, shift

#: elements per block: the arrays of one block of Adam (w, m, v, g and two scratch) stay in a second-level cache of 1 MB
BLOCK = 32 * 1024
#: the same for updates of few arrays, where fewer, longer calls pay more
LONG_BLOCK = 64 * 1024


class Schedule(Protocol):
    """A learning rate per step; a frozen dataclass, so that ops compare and pickle."""

    def rate(self, step: int) -> float: ...


@dataclass(frozen=True)
class ConstantRate:
    """The same rate at every step."""

    value: float

    def rate(self, step: int) -> float:
        return self.value


class Updated(Op):
    """An op whose first `count` inputs are variables and whose outputs are their new values, in the same order.

    Inputs after them are tensors of the same shape (`like` of them) and then scalars, arrays of one element.
    """

    pure: ClassVar[bool] = False
    #: True if the update is elementwise
    flat: ClassVar[bool] = True
    #: tensors among the inputs besides the variables
    like: ClassVar[int] = 1

    @property
    def count(self) -> int:
        return 1

    def infer(self, *types: TensorType) -> tuple[TensorType, ...]:
        tensors = types[: self.count + self.like]
        for other in tensors[1:]:
            if other.shape != tensors[0].shape:
                raise ShapeError(f"{self.word()}: variable {tensors[0]} and {other} differ in shape")
            if other.dtype is not tensors[0].dtype:
                raise DtypeError(f"{self.word()}: variable {tensors[0]} and {other} differ in element type; cast one of them")
        for scalar in types[self.count + self.like :]:
            if scalar.shape != (1,):
                raise ShapeError(f"{self.word()}: learning rate or step {scalar} is not of shape (1,)")
        return types[: self.count]

    def rule(self, *types: TensorType) -> Rule:
        tensors = self.count + self.like
        letters = (LETTERS[: types[0].ndim] if self.flat else LETTERS[: types[0].ndim].upper()) or "1"
        return Rule(f"{','.join([letters] * tensors + ['1'] * (len(types) - tensors))}->{','.join([letters] * self.count)}")


def _once(count: int) -> Mapping[int, int]:
    return {i: i for i in range(count)}


Blockwise = Callable[..., list[Call]]


def _blocks(block: Blockwise, size: int, length: int, arrays: Sequence[Array]) -> list[Call] | None:
    """Calls of `block(n, *parts)` for contiguous parts of `arrays`, of at most `length` elements; None if the arrays do not allow it.

    The last part comes first: the end of what the backward pass has written is still in the cache, and the first variables will
    be when the next forward pass begins with them.
    """
    if not all(a.flags.c_contiguous for a in arrays):
        return None
    flat = [a.reshape(-1) for a in arrays]
    calls: list[Call] = []
    for start, stop in reversed(cut(size, max(1, -(-size // length)))):
        if stop > start:
            calls += block(stop - start, *(a[start:stop] for a in flat))
    return calls


def _scalar(array: Array) -> Array:
    """The only element of an array as a view without axes: the cheapest operand to broadcast."""
    return array.reshape(())


def _fixed(value: float, like: Array) -> Array:
    return np.asarray(value, like.dtype)


@dataclass(frozen=True)
class SgdUpdate(Updated):
    """w' = w - lr (g + weight_decay w)."""

    weight_decay: float = 0.0
    alias: ClassVar[Mapping[int, int]] = _once(1)

    def kernel(self, xp: Xp, w: Array, g: Array, lr: Array, new_w: Array) -> None:
        new_w[...] = w - lr.reshape(()) * (g + self.weight_decay * w)

    def bind(self, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        w, g, lr = inputs
        if device.xp is not np or w.dtype.itemsize < 4:
            return super().bind(device, inputs, outputs)
        rate, wd = _scalar(lr), _fixed(self.weight_decay, w)
        scratch = device.scratch((min(LONG_BLOCK, w.size),), dtype_of(w.dtype))

        def block(n: int, w: Array, g: Array, new_w: Array) -> list[Call]:
            t = scratch[:n]
            if not self.weight_decay:
                return [(np.multiply, (g, rate, t)), (np.subtract, (w, t, new_w))]
            return [(np.multiply, (w, wd, t)), (np.add, (t, g, t)), (np.multiply, (t, rate, t)), (np.subtract, (w, t, new_w))]

        calls = _blocks(block, w.size, LONG_BLOCK, [w, g, outputs[0]])
        return super().bind(device, inputs, outputs) if calls is None else calls

    def absorb(self, index: int, maker: Op, *types: TensorType) -> Op | None:
        gains = index == 1 and not self.weight_decay and types[0].size >= LONG_BLOCK and types[0].dtype in (float32, float64)
        return SgdProduct(maker.transpose_a, maker.transpose_b) if gains and type(maker) is MatMul else None

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), _some(5, 3), _some(5, 3, seed=1), [0.1], differentiable=())
        yield sample(cls(0.2), _some(5, 3), _some(5, 3, seed=1), [0.1], differentiable=())


@dataclass(frozen=True)
class MomentumUpdate(Updated):
    """v' = beta v - lr g;  w' = w + v' - lr weight_decay w."""

    beta: float
    weight_decay: float = 0.0
    alias: ClassVar[Mapping[int, int]] = _once(2)

    @property
    def count(self) -> int:
        return 2

    def kernel(self, xp: Xp, w: Array, v: Array, g: Array, lr: Array, new_w: Array, new_v: Array) -> None:
        rate = lr.reshape(())
        new_v[...] = self.beta * v - rate * g
        new_w[...] = w + new_v - rate * (self.weight_decay * w)  # the rate is float32: on its own it must not meet another number

    def bind(self, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        w, v, g, lr = inputs
        if device.xp is not np or w.dtype.itemsize < 4:
            return super().bind(device, inputs, outputs)
        rate, beta = _scalar(lr), _fixed(self.beta, w)
        keep = device.scratch((), dtype_of(w.dtype))
        scratch = device.scratch((min(LONG_BLOCK, w.size),), dtype_of(w.dtype))

        def block(n: int, w: Array, v: Array, g: Array, new_w: Array, new_v: Array) -> list[Call]:
            t = scratch[:n]
            calls: list[Call] = [(np.multiply, (g, rate, t)), (np.multiply, (v, beta, new_v)), (np.subtract, (new_v, t, new_v))]
            if self.weight_decay:
                return [*calls, (np.multiply, (w, keep, new_w)), (np.add, (new_w, new_v, new_w))]
            return [*calls, (np.add, (w, new_v, new_w))]

        calls = _blocks(block, w.size, LONG_BLOCK, [w, v, g, *outputs])
        if calls is None:
            return super().bind(device, inputs, outputs)
        return [(_keep, (rate, self.weight_decay, keep)), *calls] if self.weight_decay else calls

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for decay in (0.0, 0.2):
            yield sample(cls(0.9, decay), _some(5, 3), _some(5, 3, seed=1), _some(5, 3, seed=2), [0.1], differentiable=())


def _keep(rate: Array, weight_decay: float, keep: Array) -> None:
    """keep = 1 - rate weight_decay: what decay leaves of a weight."""
    keep[()] = 1.0 - float(rate) * weight_decay


def _adam_scalars(op: AdamUpdate, lr: Array, step: Array, rate: Array, keep: Array) -> None:
    """rate = -lr', the learning rate with the bias correction folded in; keep = 1 - lr' weight_decay."""
    corrected = op.rate(float(lr), int(step))
    rate[()] = -corrected
    keep[()] = 1.0 - corrected * op.weight_decay


@dataclass(frozen=True)
class AdamUpdate(Updated):
    """m' = beta1 m + (1 - beta1) g;  v' = beta2 v + (1 - beta2) g^2;  w' = w - lr' (m' / (sqrt(v') + epsilon) + weight_decay w).

    lr' is lr, or with bias correction lr sqrt(1 - beta2^t) / (1 - beta1^t), t = step + 1.  Inputs: w, m, v, g, lr, step (int64).
    """

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    bias_correction: bool = False
    alias: ClassVar[Mapping[int, int]] = _once(3)

    @property
    def count(self) -> int:
        return 3

    def rate(self, lr: float, step: int) -> float:
        """lr', in float64."""
        t = step + 1
        return lr * math.sqrt(1 - self.beta2**t) / (1 - self.beta1**t) if self.bias_correction else lr

    def kernel(self, xp: Xp, w: Array, m: Array, v: Array, g: Array, lr: Array, step: Array, new_w: Array, new_m: Array, new_v: Array) -> None:
        rate = self.rate(float(lr[0]), int(step[0]))
        new_m[...] = self.beta1 * m + (1 - self.beta1) * g
        new_v[...] = self.beta2 * v + (1 - self.beta2) * g * g
        new_w[...] = w - rate * (new_m / (xp.sqrt(new_v) + self.epsilon) + self.weight_decay * w)

    def bind(self, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        w, m, v, g, lr, step = inputs
        if device.xp is not np or w.dtype.itemsize < 4:
            return super().bind(device, inputs, outputs)
        dtype = dtype_of(w.dtype)
        beta1, rest1, beta2, rest2 = (_fixed(x, w) for x in (self.beta1, 1 - self.beta1, self.beta2, 1 - self.beta2))
        epsilon, rate, keep = _fixed(self.epsilon, w), device.scratch((), dtype), device.scratch((), dtype)
        scratch = device.scratch((min(BLOCK, w.size),), dtype)

        def block(n: int, w: Array, m: Array, v: Array, g: Array, new_w: Array, new_m: Array, new_v: Array) -> list[Call]:
            t = scratch[:n]
            calls: list[Call] = [*blas.mixed(rest1, g, beta1, m, new_m, t), (np.multiply, (g, g, t)), *blas.mixed(rest2, t, beta2, v, new_v, t)]
            calls += [(np.sqrt, (new_v, t)), (np.add, (t, epsilon, t)), (np.divide, (new_m, t, t))]
            return [*calls, *blas.mixed(rate, t, keep, w, new_w, t)]

        calls = _blocks(block, w.size, BLOCK, [w, m, v, g, *outputs])
        if calls is None:
            return super().bind(device, inputs, outputs)
        return [(_adam_scalars, (self, _scalar(lr), _scalar(step), rate, keep)), *calls]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for op in (cls(), cls(weight_decay=0.1), cls(weight_decay=0.1, bias_correction=True)):
            yield sample(op, *_adam_state(5, 3), _some(5, 3, seed=3), [0.1], np.array([2]), differentiable=())


@dataclass(frozen=True)
class RmsPropUpdate(Updated):
    """s' = decay s + (1 - decay) g^2;  centered: a' = decay a + (1 - decay) g, d = s' - a'^2, else d = s';  w' = w - lr g / sqrt(d + epsilon).

    Inputs: w, s, (a if centered), g, lr.
    """

    decay: float = 0.99
    epsilon: float = 1e-8
    centered: bool = False

    @property
    def alias(self) -> Mapping[int, int]:  # type: ignore[override]
        return _once(self.count)

    @property
    def count(self) -> int:
        return 3 if self.centered else 2

    def kernel(self, xp: Xp, *arrays: Array) -> None:
        w, s, *a, g, lr = arrays[: self.count + 2]
        new_w, new_s, *new_a = arrays[self.count + 2 :]
        new_s[...] = self.decay * s + (1 - self.decay) * g * g
        spread = new_s
        if self.centered:
            new_a[0][...] = self.decay * a[0] + (1 - self.decay) * g
            spread = new_s - new_a[0] * new_a[0]
        new_w[...] = w - lr.reshape(()) * g / xp.sqrt(spread + self.epsilon)

    def bind(self, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        w, lr = inputs[0], inputs[-1]
        if device.xp is not np or w.dtype.itemsize < 4:
            return super().bind(device, inputs, outputs)
        rate, decay, rest, epsilon = _scalar(lr), _fixed(self.decay, w), _fixed(1 - self.decay, w), _fixed(self.epsilon, w)
        scratch = device.scratch((2, min(BLOCK, w.size)), dtype_of(w.dtype))

        def block(n: int, *arrays: Array) -> list[Call]:
            w, s, *a, g = arrays[: self.count + 1]
            new_w, new_s, *new_a = arrays[self.count + 1 :]
            t, u = scratch[0, :n], scratch[1, :n]
            calls: list[Call] = [(np.multiply, (g, g, t)), (np.multiply, (t, rest, t)), (np.multiply, (s, decay, new_s)), (np.add, (new_s, t, new_s))]
            if self.centered:
                calls += [(np.multiply, (g, rest, t)), (np.multiply, (a[0], decay, new_a[0])), (np.add, (new_a[0], t, new_a[0]))]
                calls += [(np.multiply, (new_a[0], new_a[0], t)), (np.subtract, (new_s, t, t)), (np.add, (t, epsilon, t))]
            else:
                calls += [(np.add, (new_s, epsilon, t))]
            return [*calls, (np.sqrt, (t, t)), (np.multiply, (g, rate, u)), (np.divide, (u, t, t)), (np.subtract, (w, t, new_w))]

        calls = _blocks(block, w.size, BLOCK, [*inputs[:-1], *outputs])
        return super().bind(device, inputs, outputs) if calls is None else calls

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        w, a, s = _adam_state(5, 3)
        yield sample(cls(), w, s, _some(5, 3, seed=3), [0.1], differentiable=())
        yield sample(cls(centered=True), w, s + a * a, a, _some(5, 3, seed=3), [0.1], differentiable=())


def _norm(x: Array) -> float:
    """Euclidean norm, summed in float64."""
    return math.sqrt(float((x.astype("float64") ** 2).sum()))


@dataclass(frozen=True)
class LarsUpdate(Updated):
    """v' = beta v - r g;  w' = w + v' - r weight_decay w, with the local rate r = lr coefficient |w| / (epsilon + |g| + weight_decay |w|).

    r is lr where |w| or |g| is zero.  The norms are those of the whole variable, so it stays whole.
    """

    beta: float = 0.9
    epsilon: float = 1e-9
    coefficient: float = 1e-4
    weight_decay: float = 0.0
    alias: ClassVar[Mapping[int, int]] = _once(2)
    flat: ClassVar[bool] = False

    @property
    def count(self) -> int:
        return 2

    def kernel(self, xp: Xp, w: Array, v: Array, g: Array, lr: Array, new_w: Array, new_v: Array) -> None:
        rate, w_norm, g_norm = float(lr[0]), _norm(w), _norm(g)
        if w_norm > 0 and g_norm > 0:
            rate *= self.coefficient * w_norm / (self.epsilon + g_norm + self.weight_decay * w_norm)
        new_v[...] = self.beta * v - rate * g
        new_w[...] = w + new_v - rate * self.weight_decay * w

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for w in (_some(5, 3), np.zeros((5, 3))):
            yield sample(cls(coefficient=0.1, weight_decay=0.2), w, _some(5, 3, seed=1), _some(5, 3, seed=2), [0.1], differentiable=())


@dataclass(frozen=True)
class LambUpdate(Updated):
    """d = (m' / (1 - p1')) / (sqrt(v' / (1 - p2')) + epsilon);  w' = w - lr r (d + weight_decay w), r = |w| / |d|, or 1 where a norm is zero.

    m', v' as in Adam.  p1 and p2 are variables of one element that begin at beta1 and beta2 and are multiplied by them before
    use, so the first step corrects with the square: a peculiarity that is kept.  Inputs: w, m, v, p1, p2, g, lr.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-6
    weight_decay: float = 0.0
    alias: ClassVar[Mapping[int, int]] = _once(5)
    flat: ClassVar[bool] = False

    @property
    def count(self) -> int:
        return 5

    def infer(self, *types: TensorType) -> tuple[TensorType, ...]:
        w, m, v, p1, p2, g, lr = types
        AdamUpdate().infer(w, m, v, g, lr, p1, p2)
        return types[:5]

    def rule(self, *types: TensorType) -> Rule:
        whole = LETTERS[: types[0].ndim].upper()
        return Rule(f"{whole},{whole},{whole},1,1,{whole},1->{whole},{whole},{whole},1,1")

    def kernel(self, xp: Xp, *arrays: Array) -> None:
        w, m, v, p1, p2, g, lr, new_w, new_m, new_v, new_p1, new_p2 = arrays
        new_m[...] = self.beta1 * m + (1 - self.beta1) * g
        new_v[...] = self.beta2 * v + (1 - self.beta2) * g * g
        new_p1[...] = p1 * self.beta1
        new_p2[...] = p2 * self.beta2
        move = (new_m / (1 - float(new_p1[0]))) / (xp.sqrt(new_v / (1 - float(new_p2[0]))) + self.epsilon)
        w_norm, move_norm = _norm(w), _norm(move)
        ratio = w_norm / move_norm if w_norm > 0 and move_norm > 0 else 1.0
        new_w[...] = w - float(lr[0]) * ratio * (move + self.weight_decay * w)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(weight_decay=0.1), *_adam_state(5, 3), [0.9], [0.999], _some(5, 3, seed=3), [0.1], differentiable=())


@dataclass(frozen=True)
class MovingAverage(Updated):
    """a' = momentum a + (1 - momentum) x."""

    momentum: float
    alias: ClassVar[Mapping[int, int]] = _once(1)

    def kernel(self, xp: Xp, a: Array, x: Array, new_a: Array) -> None:
        new_a[...] = self.momentum * a + (1 - self.momentum) * x

    def unwritten(self, *inputs: Tensor) -> Tensor:
        a, x = inputs
        return add(scale(a, self.momentum), scale(x, 1 - self.momentum))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(0.9), _some(5), _some(5, seed=1), differentiable=())


@dataclass(frozen=True)
class Assign(Updated):
    """a' = x."""

    alias: ClassVar[Mapping[int, int]] = _once(1)

    def kernel(self, xp: Xp, a: Array, x: Array, new_a: Array) -> None:
        new_a[...] = x

    def bind(self, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        return [(device.xp.copyto, (outputs[0], inputs[1]))]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), _some(5, 3), _some(5, 3, seed=1), differentiable=())


@dataclass(frozen=True)
class Increment(Updated):
    """a' = a + by: a step counter."""

    by: int = 1
    alias: ClassVar[Mapping[int, int]] = _once(1)
    like: ClassVar[int] = 0

    def kernel(self, xp: Xp, a: Array, new_a: Array) -> None:
        new_a[...] = a + self.by

    def bind(self, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        return [(device.xp.add, (inputs[0], device.xp.asarray(self.by, inputs[0].dtype), outputs[0]))]

    def unwritten(self, *inputs: Tensor) -> Tensor:
        return shift(inputs[0], self.by)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), np.array([41]))
        yield sample(cls(), np.array(41))


@dataclass(frozen=True)
class LearningRate(Op):
    """rate = schedule.rate(step): the learning rate of an int64 step, computed in float64, of the type of who reads it."""

    schedule: Schedule
    dtype: DType = float32

    def infer(self, step: TensorType) -> TensorType:
        if step != TensorType((1,), int64):
            raise ShapeError(f"learningrate: the step {step} is not int64[1]")
        return TensorType((1,), self.dtype)

    def rule(self, step: TensorType) -> Rule:
        return Rule("1->1")

    def kernel(self, xp: Xp, step: Array, rate: Array) -> None:
        rate[0] = self.schedule.rate(int(step[0]))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(ConstantRate(0.1)), np.array([3]))
        yield sample(cls(ConstantRate(0.1), float64), np.array([3]))


def learning_rate(schedule: Schedule, step: Tensor, dtype: DType = float32, *, name: str | None = None) -> Tensor:
    """The learning rate at `step`, an int64 tensor of one element."""
    result: Tensor = apply(LearningRate(schedule, dtype), step, name=name)
    return result


def rate_dtype(parameter: DType) -> DType:
    """The type of the learning rate of a parameter of this type."""
    return float64 if parameter is float64 else float32


def _some(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape)


def _adam_state(*shape: int) -> tuple[np.ndarray[Any, Any], ...]:
    return _some(*shape), _some(*shape, seed=1), np.abs(_some(*shape, seed=2))
