"""Steps of the optimizers of `jobflow.optim`, in PyTorch's formulas; the job face's own are in `update.py`.

w is the parameter, g its gradient, r the learning rate (float32[1]), t = step + 1 the number of the step (int64[1] counts the steps
before).  The other first inputs are the optimizer's own tensors, all zero at the start unless said.  All of them are written over.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from jobflow.core.types import Array, Xp, dtype_of
from jobflow.ops import blas
from jobflow.ops.base import Binder, Call, Op, Sample, sample
from jobflow.ops.update import BLOCK, LONG_BLOCK, SgdUpdate, Updated, _blocks, _norm


@dataclass(frozen=True)
class Step(Updated):
    """An update of a parameter whose inputs end with gradient, learning rate and step."""

    abstract: ClassVar[bool] = True
    maximize: bool = False

    def bind(self, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        *tensors, rate, step = inputs
        if device.xp is not np or not self.flat:
            return super().bind(device, inputs, outputs)

        def block(n: int, *parts: Array) -> list[Call]:
            return [(self.kernel, (np, *parts[: len(tensors)], rate, step, *parts[len(tensors) :]))]

        calls = _blocks(block, tensors[0].size, BLOCK, [*tensors, *outputs])
        return super().bind(device, inputs, outputs) if calls is None else calls

    def stepless(self) -> Op | None:
        """The same as an op that does not read the step, if there is one: a product that makes the gradient can be part of it."""
        return None

    def direction(self, w: Array, g: Array, weight_decay: float) -> Array:
        """The gradient to go down, with decay that is part of it."""
        g = -g if self.maximize else g
        return g + weight_decay * w if weight_decay else g

    @classmethod
    def _case(cls, op: Step, *slots: Array) -> Sample:
        draw = np.random.default_rng(7).standard_normal
        return sample(op, draw((5, 3)), *slots, draw((5, 3)), np.array([0.1], np.float32), np.array([2]), differentiable=())


def _slot(seed: int) -> Array:
    return abs(np.random.default_rng(seed).standard_normal((5, 3)))


@dataclass(frozen=True)
class SgdStep(Step):
    """d = g + weight_decay w;  w' = w - r d."""

    weight_decay: float = 0.0
    alias: ClassVar[Mapping[int, int]] = {0: 0}

    def stepless(self) -> Op | None:
        return None if self.maximize else SgdUpdate(self.weight_decay)

    def bind(self, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        op = self.stepless()
        return super().bind(device, inputs, outputs) if op is None else op.bind(device, inputs[:-1], outputs)

    def kernel(self, xp: Xp, w: Array, g: Array, rate: Array, step: Array, new_w: Array) -> None:
        xp.subtract(w, rate[0].astype(w.dtype) * self.direction(w, g, self.weight_decay), new_w)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for op in (cls(), cls(weight_decay=0.2), cls(maximize=True)):
            yield cls._case(op)


@dataclass(frozen=True)
class MomentumStep(Step):
    """d = g + weight_decay w;  v' = d at t = 1, else momentum v + (1 - dampening) d;  w' = w - r v', or w - r (d + momentum v') if nesterov."""

    momentum: float = 0.9
    dampening: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    alias: ClassVar[Mapping[int, int]] = {0: 0, 1: 1}

    @property
    def count(self) -> int:
        return 2

    def kernel(self, xp: Xp, w: Array, v: Array, g: Array, rate: Array, step: Array, new_w: Array, new_v: Array) -> None:
        d = self.direction(w, g, self.weight_decay)
        first = int(step[0]) == 0
        new_v[...] = d if first else self.momentum * v + (1 - self.dampening) * d
        xp.subtract(w, rate[0].astype(w.dtype) * (d + self.momentum * new_v if self.nesterov else new_v), new_w)

    def bind(self, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        w, v, g, rate, _ = inputs
        if device.xp is not np or w.dtype.itemsize < 4 or self.maximize or self.dampening or self.nesterov:
            return super().bind(device, inputs, outputs)
        r, momentum, decay = rate.reshape(()), np.asarray(self.momentum, w.dtype), np.asarray(self.weight_decay, w.dtype)
        scratch = device.scratch((min(LONG_BLOCK, w.size),), dtype_of(w.dtype))

        def block(n: int, w: Array, v: Array, g: Array, new_w: Array, new_v: Array) -> list[Call]:
            t = scratch[:n]
            calls: list[Call] = [(np.multiply, (w, decay, t)), (np.add, (t, g, t))] if self.weight_decay else []
            calls += [(np.multiply, (v, momentum, new_v)), (np.add, (new_v, t if calls else g, new_v))]
            return [*calls, (np.multiply, (new_v, r, t)), (np.subtract, (w, t, new_w))]

        calls = _blocks(block, w.size, LONG_BLOCK, [w, v, g, *outputs])
        return super().bind(device, inputs, outputs) if calls is None else calls

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for op in (cls(), cls(weight_decay=0.2), cls(weight_decay=0.2, dampening=0.1), cls(nesterov=True)):
            yield cls._case(op, _slot(1))


@dataclass(frozen=True)
class AdamStep(Step):
    """m' = b1 m + (1 - b1) d;  v' = b2 v + (1 - b2) d^2;  w' = w - r / c1 m' / (sqrt(v' / c2) + epsilon).

    d = g + weight_decay w, or g with `decoupled` decay (AdamW), which first takes w (1 - r weight_decay) for w.  c1 = 1 - b1^t,
    c2 = 1 - b2^t, or 1 without bias correction.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False
    bias_correction: bool = True
    alias: ClassVar[Mapping[int, int]] = {0: 0, 1: 1, 2: 2}

    @property
    def count(self) -> int:
        return 3

    def corrections(self, step: Array) -> tuple[float, float]:
        """c1 and c2."""
        t = int(step[0]) + 1
        return (1 - self.beta1**t, 1 - self.beta2**t) if self.bias_correction else (1.0, 1.0)

    def moments(self, xp: Xp, d: Array, m: Array, v: Array, new_m: Array, new_v: Array) -> None:
        """m' and v'."""
        xp.multiply(m, self.beta1, new_m)
        new_m += (1 - self.beta1) * d
        square = d * d
        square *= 1 - self.beta2
        xp.multiply(v, self.beta2, new_v)
        new_v += square

    def move(self, xp: Xp, w: Array, new_m: Array, largest: Array, rate: Array, step: Array, new_w: Array) -> None:
        """w' from the new moments; `largest` is v', or the largest there was."""
        c1, c2 = self.corrections(step)
        r = float(rate[0])
        below = xp.sqrt(largest)
        below *= 1 / math.sqrt(c2)
        below += self.epsilon
        xp.divide(new_m, below, below)
        below *= r / c1
        if self.decoupled and self.weight_decay:
            xp.multiply(w, 1 - r * self.weight_decay, new_w)
            new_w -= below
        else:
            xp.subtract(w, below, new_w)

    def kernel(self, xp: Xp, w: Array, m: Array, v: Array, g: Array, rate: Array, step: Array, new_w: Array, new_m: Array, new_v: Array) -> None:
        self.moments(xp, self.direction(w, g, 0.0 if self.decoupled else self.weight_decay), m, v, new_m, new_v)
        self.move(xp, w, new_m, new_v, rate, step, new_w)

    def bind(self, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        w, m, v, g, rate, step = inputs[:6]
        if device.xp is not np or w.dtype.itemsize < 4 or self.maximize or type(self) is not AdamStep:
            return super().bind(device, inputs, outputs)
        beta1, rest1, beta2, rest2 = (np.asarray(x, w.dtype) for x in (self.beta1, 1 - self.beta1, self.beta2, 1 - self.beta2))
        epsilon, decay = np.asarray(self.epsilon, w.dtype), np.asarray(self.weight_decay, w.dtype)
        numbers = [device.scratch((), dtype_of(w.dtype)) for _ in range(3)]
        back, below, keep = numbers
        scratch = device.scratch((2, min(BLOCK, w.size)), dtype_of(w.dtype))

        def block(n: int, w: Array, m: Array, v: Array, g: Array, new_w: Array, new_m: Array, new_v: Array) -> list[Call]:
            t, u = scratch[0, :n], scratch[1, :n]
            calls: list[Call] = []
            if self.weight_decay and not self.decoupled:
                calls, g = [(np.multiply, (w, decay, u)), (np.add, (u, g, u))], u
            calls += [*blas.mixed(rest1, g, beta1, m, new_m, t), (np.multiply, (g, g, t)), *blas.mixed(rest2, t, beta2, v, new_v, t)]
            calls += [(np.sqrt, (new_v, t)), (np.multiply, (t, below, t)), (np.add, (t, epsilon, t)), (np.divide, (new_m, t, t))]
            return [*calls, *blas.mixed(back, t, keep, w, new_w, t)]

        calls = _blocks(block, w.size, BLOCK, [w, m, v, g, *outputs])
        return super().bind(device, inputs, outputs) if calls is None else [(self.scalars, (rate, step, *numbers)), *calls]

    def scalars(self, rate: Array, step: Array, back: Array, below: Array, keep: Array) -> None:
        """back = -r / c1, below = 1 / sqrt(c2), keep = what decoupled decay leaves of w."""
        r, (c1, c2) = float(rate[0]), self.corrections(step)
        back[()], below[()] = -r / c1, 1 / math.sqrt(c2)
        keep[()] = 1 - r * self.weight_decay if self.decoupled else 1.0

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        if cls is AdamStep:
            for op in (cls(), cls(weight_decay=0.1), cls(weight_decay=0.1, decoupled=True), cls(bias_correction=False)):
                yield cls._case(op, _slot(1), _slot(2))


@dataclass(frozen=True)
class AmsgradStep(AdamStep):
    """AdamStep with x' = max(x, v') in place of v' in the move (Reddi et al. 2018)."""

    alias: ClassVar[Mapping[int, int]] = {0: 0, 1: 1, 2: 2, 3: 3}

    @property
    def count(self) -> int:
        return 4

    def kernel(self, xp: Xp, *arrays: Array) -> None:
        w, m, v, x, g, rate, step, new_w, new_m, new_v, new_x = arrays
        self.moments(xp, self.direction(w, g, 0.0 if self.decoupled else self.weight_decay), m, v, new_m, new_v)
        new_x[...] = xp.maximum(x, new_v)
        self.move(xp, w, new_m, new_x, rate, step, new_w)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield cls._case(cls(weight_decay=0.1), _slot(1), _slot(2), _slot(3))


@dataclass(frozen=True)
class RmspropStep(Step):
    """s' = alpha s + (1 - alpha) d^2;  u = d / (sqrt(s' - a'^2) + epsilon);  v' = momentum v + u;  w' = w - r v'.

    d = g + weight_decay w.  a' = alpha a + (1 - alpha) d if centered, else 0; without momentum v' = u.  Slots: s, then a, then v, as
    far as there are.
    """

    alpha: float = 0.99
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.0
    centered: bool = False

    @property
    def alias(self) -> Mapping[int, int]:  # type: ignore[override]
        return {i: i for i in range(self.count)}

    @property
    def count(self) -> int:
        return 2 + self.centered + (self.momentum > 0)

    def kernel(self, xp: Xp, *arrays: Array) -> None:
        n = self.count
        (w, s, *more), (g, rate, _), (new_w, new_s, *new_more) = arrays[:n], arrays[n : n + 3], arrays[n + 3 :]
        d = self.direction(w, g, self.weight_decay)
        new_s[...] = self.alpha * s + (1 - self.alpha) * d * d
        spread = new_s
        if self.centered:
            new_more[0][...] = self.alpha * more[0] + (1 - self.alpha) * d
            spread = new_s - new_more[0] * new_more[0]
        u = d / (xp.sqrt(spread) + self.epsilon)
        if self.momentum > 0:
            new_more[-1][...] = self.momentum * more[-1] + u
            u = new_more[-1]
        xp.subtract(w, rate[0].astype(w.dtype) * u, new_w)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield cls._case(cls(weight_decay=0.1), _slot(1))
        yield cls._case(cls(momentum=0.5), _slot(1), _slot(2))
        square = _slot(1) ** 2
        yield cls._case(cls(centered=True, momentum=0.5), square + 1, 0.5 * np.sqrt(square), _slot(2))


@dataclass(frozen=True)
class AdagradStep(Step):
    """s' = s + d^2;  w' = w - r / (1 + (t - 1) lr_decay) d / (sqrt(s') + epsilon);  d = g + weight_decay w."""

    lr_decay: float = 0.0
    weight_decay: float = 0.0
    epsilon: float = 1e-10
    alias: ClassVar[Mapping[int, int]] = {0: 0, 1: 1}

    @property
    def count(self) -> int:
        return 2

    def kernel(self, xp: Xp, w: Array, s: Array, g: Array, rate: Array, step: Array, new_w: Array, new_s: Array) -> None:
        d = self.direction(w, g, self.weight_decay)
        new_s[...] = s + d * d
        r = float(rate[0]) / (1 + int(step[0]) * self.lr_decay)
        new_w[...] = w - r * (d / (xp.sqrt(new_s) + self.epsilon))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield cls._case(cls(), _slot(1))
        yield cls._case(cls(lr_decay=0.1, weight_decay=0.1), _slot(1))


@dataclass(frozen=True)
class AdadeltaStep(Step):
    """s' = rho s + (1 - rho) d^2;  u = d sqrt(x + epsilon) / sqrt(s' + epsilon);  x' = rho x + (1 - rho) u^2;  w' = w - r u.

    d = g + weight_decay w.
    """

    rho: float = 0.9
    epsilon: float = 1e-6
    weight_decay: float = 0.0
    alias: ClassVar[Mapping[int, int]] = {0: 0, 1: 1, 2: 2}

    @property
    def count(self) -> int:
        return 3

    def kernel(self, xp: Xp, w: Array, s: Array, x: Array, g: Array, rate: Array, step: Array, new_w: Array, new_s: Array, new_x: Array) -> None:
        d = self.direction(w, g, self.weight_decay)
        new_s[...] = self.rho * s + (1 - self.rho) * d * d
        u = d * xp.sqrt(x + self.epsilon) / xp.sqrt(new_s + self.epsilon)
        new_x[...] = self.rho * x + (1 - self.rho) * u * u
        xp.subtract(w, rate[0].astype(w.dtype) * u, new_w)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield cls._case(cls(weight_decay=0.1), _slot(1), _slot(2))


@dataclass(frozen=True)
class LambStep(AdamStep):
    """m', v' as in AdamStep with d = g;  u = m' / c1 / (sqrt(v' / c2) + epsilon) + weight_decay w;  w' = w - r |w| / |u| u.

    |w| / |u| is 1 where a norm is zero.  The norms are those of the whole parameter, so it stays whole (You et al. 2020).
    """

    epsilon: float = 1e-8
    flat: ClassVar[bool] = False

    def kernel(self, xp: Xp, w: Array, m: Array, v: Array, g: Array, rate: Array, step: Array, new_w: Array, new_m: Array, new_v: Array) -> None:
        self.moments(xp, self.direction(w, g, 0.0), m, v, new_m, new_v)
        c1, c2 = self.corrections(step)
        u = new_m / c1 / (xp.sqrt(new_v / c2) + self.epsilon) + self.weight_decay * w
        size, length = _norm(w), _norm(u)
        ratio = size / length if size > 0 and length > 0 else 1.0
        new_w[...] = w - float(rate[0]) * ratio * u

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield cls._case(cls(weight_decay=0.1), _slot(1), _slot(2))
