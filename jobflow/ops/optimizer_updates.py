"""The formulas of the optimizers, shared by jobs, graphs and tensors.

w is the variable, g its gradient, d the descent direction, lr the learning rate and t = step + 1 the number of the step.
A prime marks a new value.  With `maximize`, -g replaces g.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.types import Array, Xp, float64
from jobflow.expressions import language
from jobflow.expressions.language import Expression
from jobflow.expressions.on_arrays import functions
from jobflow.ops.indexed import Indexed
from jobflow.ops.op import Sample, sample
from jobflow.ops.pointwise import Pointwise
from jobflow.ops.pointwise import sample_data as some
from jobflow.ops.update import Updated

#: an expression, or an array
Element = Any
Elements = tuple[Element, ...]


@dataclass(frozen=True)
class OptimizerSlot:
    """An optimizer state of a variable: a tensor of the variable's shape, or a scalar."""

    name: str
    initial: float = 0.0
    scalar: bool = False


class OptimizerUpdate(Updated, Pointwise):
    """Base class of optimizer formulas, which compute the new values of a variable and of its slots.

    Inputs: w, the slots, g, the learning rate (one element), and for some optimizers the number of completed steps (int64[1]).  `formula` is
    arithmetic on the elements of w, slots and g, and on a few scalars.  `scalars` computes these scalars from rate and step once per run.
    """

    abstract: ClassVar[bool] = True
    #: names of the slots
    slot_names: ClassVar[tuple[str, ...]] = ()
    #: True if the number of completed steps is an input
    reads_step: ClassVar[bool] = False
    #: False if the formula contains norms; norms in `scalars` only do not count
    elementwise: ClassVar[bool] = True
    #: attributes of the samples
    cases: ClassVar[tuple[dict[str, Any], ...]] = ({},)

    @property
    def slots(self) -> tuple[OptimizerSlot, ...]:
        return tuple(map(self.slot, self.slot_names))

    def slot(self, name: str) -> OptimizerSlot:
        """Return the slot `name`.  By default it has the variable's shape and the initial value 0."""
        return OptimizerSlot(name)

    @property
    def count(self) -> int:
        return 1 + len(self.slot_names)

    @property
    def single(self) -> frozenset[int]:  # type: ignore[override]
        return frozenset(i for i, slot in enumerate(self.slots, 1) if slot.scalar)

    @property
    def alias(self) -> Mapping[int, int]:  # type: ignore[override]
        return _each_over_itself(1 + len(self.slot_names))

    def scalars(self, f: Any, rate: Any, step: Any, *rows: Element) -> tuple[Any, ...]:
        """Return the last arguments of `formula`, in float64.  `rows` are w, the slots and g, for optimizers that use their norms."""
        return (rate,)

    @property
    def derives(self) -> bool:
        """True if `scalars` computes values other than the unchanged learning rate."""
        return type(self).scalars is not OptimizerUpdate.scalars

    #: formula(f, w, *slots, g, *scalars) -> the new values of w and of the slots
    formula: ClassVar[Callable[..., Elements]]

    def output_expressions(self, *read: Expression) -> tuple[Expression, ...]:
        n = self.count + 1
        scalars, dtype = read[n : n + 1], read[0].dtype
        if self.derives:
            rate, step = (*(language.cast(x, float64) for x in read[n:]), 0)[:2]
            scalars = self.scalars(language, rate, step, *read[:n])
        return self.formula(language, *read[:n], *(language.cast(x, dtype) if isinstance(x, Expression) else x for x in scalars))

    def kernel(self, xp: Xp, *arrays: Array) -> None:
        n = self.count + 1
        scalars = [a.reshape(()) for a in arrays[n : 1 - n]]
        if self.derives:
            rate, step = (*(a.astype("float64") for a in scalars), 0)[:2]
            scalars = [x if type(x) is float else x.astype(arrays[0].dtype) for x in self.scalars(functions(xp), rate, step)]
        for new, value in zip(arrays[1 - n :], self.formula(functions(xp), *arrays[:n], *scalars[: None if self.derives else 1]), strict=True):
            new[...] = value

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for op in (cls(**options) for options in cls.cases):
            # a mean square is at least the square of the mean
            slots = [[slot.initial] if slot.scalar else abs(some(i, 5, 3)) + 4 * (i == 1) for i, slot in enumerate(op.slots, 1)]
            for w in (some(0, 5, 3),) if op.flat else (some(0, 5, 3), np.zeros((5, 3))):
                yield sample(op, w, *slots, some(9, 5, 3), [0.1], *([np.array([2])] if op.reads_step else []), differentiable=())


@lru_cache
def _each_over_itself(count: int) -> Mapping[int, int]:
    return MappingProxyType({i: i for i in range(count)})


@lru_cache(1024)
def unified(op: OptimizerUpdate) -> OptimizerUpdate:
    """Return the first object that equals `op`, from a cache of the last 1024 ops. Caches then compare ops by identity."""
    return op


def downwards(w: Element, g: Element, weight_decay: float, maximize: bool = False) -> Element:
    """Return the descent direction g + weight_decay w; with `maximize`, -g replaces g."""
    g = -g if maximize else g
    return g + weight_decay * w if weight_decay else g


def _mean_square(decay: float, s: Element, d: Element, square_first: bool) -> Element:
    """Return decay s + (1 - decay) d^2.

    With `square_first`, d is squared before the product.  Optimizers differ in this rounding order.
    """
    return decay * s + ((1 - decay) * (d * d) if square_first else (1 - decay) * d * d)


def _separate_sum(alpha: Element, x: Element, beta: Element, y: Element) -> Element:
    """Return alpha x + beta y with both products rounded; `weighted_sum` may fuse one of them."""
    return beta * y + alpha * x


def _norm(f: Any, x: Element) -> Element:
    """Return the Euclidean norm of each row of x (all elements in updates), summed in float64."""
    return f.sqrt(f.row_sum(f.square(f.cast(x, float64))))


class NormUpdate(OptimizerUpdate, Indexed):
    """Base class of updates with norms of the whole variable, which forms one row and is never split."""

    abstract: ClassVar[bool] = True
    flat = False
    kernel = Indexed.kernel

    @property
    def results(self) -> int:  # type: ignore[override]
        return self.count


class SgdUpdate(OptimizerUpdate):
    """Gradient descent: w' = w - lr d, where d = g + weight_decay w."""

    weight_decay: float = 0.0
    maximize: bool = False
    cases = ({}, {"weight_decay": 0.2}, {"weight_decay": 0.2, "maximize": True})

    def formula(self, f: Any, w: Element, g: Element, rate: Element) -> Elements:
        return (w - rate * downwards(w, g, self.weight_decay, self.maximize),)


class MomentumUpdate(OptimizerUpdate):
    """Gradient descent with momentum: v' = beta v - lr g, w' = w (1 - lr weight_decay) + v'.

    Without `rate_inside`, the velocity excludes the rate: v' = beta v + (1 - dampening) d, or d in the first step, where d = g + weight_decay w.
    Then w' = w - lr v', or w - lr (d + beta v') with `nesterov`.  `rate_inside` ignores `dampening`, `maximize` and `nesterov`.
    """

    beta: float
    weight_decay: float = 0.0
    rate_inside: bool = True
    maximize: bool = False
    dampening: float = 0.0
    nesterov: bool = False
    slot_names = ("momentum",)
    cases = (
        *({"beta": 0.9, "weight_decay": decay, "rate_inside": inside} for decay in (0.0, 0.2) for inside in (True, False)),
        {"beta": 0.9, "rate_inside": False, "dampening": 0.1},
        {"beta": 0.9, "rate_inside": False, "nesterov": True},
    )

    @property
    def reads_step(self) -> bool:  # type: ignore[override]
        return self.dampening != 0

    def scalars(self, f: Any, rate: Any, step: Any, *rows: Element) -> tuple[Any, ...]:
        """Return the rate and, if `derives` is True, the factor of w (with `rate_inside`) or of d."""
        if not self.derives:
            return (rate,)
        return rate, 1.0 - rate * self.weight_decay if self.rate_inside else f.where(step > 0, f.constant(1.0 - self.dampening, float64), 1.0)

    @property
    def derives(self) -> bool:
        return (self.weight_decay if self.rate_inside else self.dampening) != 0

    def formula(self, f: Any, w: Element, v: Element, g: Element, rate: Element, *share: Element) -> Elements:
        if self.rate_inside:
            v = self.beta * v - rate * g
            return (share[0] * w if share else w) + v, v
        d = downwards(w, g, self.weight_decay, self.maximize)
        v = self.beta * v + (share[0] * d if share else d)
        return w - rate * (d + self.beta * v if self.nesterov else v), v


def corrections(beta1: float, beta2: float, step: Any) -> tuple[Any, Any]:
    """Return the bias corrections 1 - beta1^t and 1 - beta2^t."""
    return 1 - beta1 ** (step + 1), 1 - beta2 ** (step + 1)


class AdamUpdate(OptimizerUpdate):
    """Adam: m' = beta1 m + (1 - beta1) d, v' = beta2 v + (1 - beta2) d^2, w' = w - lr' (m' / (sqrt(v') + epsilon) + weight_decay w).

    d = g, and lr' is lr, or with bias correction lr sqrt(1 - beta2^t) / (1 - beta1^t).
    `corrects_moments` selects the bias correction of Kingma and Ba: the step uses m' / (1 - beta1^t) and v' / (1 - beta2^t), and lr' = lr.
    Without `decoupled`, the decay is part of the direction: d = g + weight_decay w.  `amsgrad` divides by the root of the largest v' of all steps
    (Reddi et al. 2018).
    """

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    bias_correction: bool = False
    corrects_moments: bool = False
    decoupled: bool = True
    maximize: bool = False
    amsgrad: bool = False
    reads_step = True
    cases = (
        *({"weight_decay": decay, "bias_correction": correct} for decay in (0.0, 0.1) for correct in (False, True)),
        *({"weight_decay": 0.1, "bias_correction": True, "corrects_moments": True, "decoupled": decoupled} for decoupled in (True, False)),
        {"maximize": True, "amsgrad": True},
    )

    @property
    def slot_names(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("m", "v", "max_v") if self.amsgrad else ("m", "v")

    def scalars(self, f: Any, rate: Any, step: Any, *rows: Element) -> tuple[Any, ...]:
        """Return the factors of m' / (root + epsilon), of the root of v', and of w."""
        first, root = 1.0, 1.0
        if self.bias_correction:
            first, second = corrections(self.beta1, self.beta2, step)
            root = f.sqrt(second)
        decay = self.weight_decay if self.decoupled else 0.0
        if self.corrects_moments:
            return -rate / first, 1 / root, 1.0 - rate * decay
        rate = rate * root / first
        return -rate, 1.0, 1.0 - rate * decay

    def formula(self, f: Any, w: Element, m: Element, v: Element, *others: Element) -> Elements:
        *largest, g, back, wider, keep = others
        d = downwards(w, g, 0.0 if self.decoupled else self.weight_decay, self.maximize)
        mixed = _separate_sum if self.amsgrad or self.maximize else f.weighted_sum  # amsgrad and maximize require that both products are rounded
        m = mixed(1 - self.beta1, d, self.beta1, m)
        v = mixed(1 - self.beta2, d * d, self.beta2, v)
        largest = [f.maximum(x, v) for x in largest]
        root = f.sqrt(largest[0] if largest else v)
        move = m / ((root * wider if self.corrects_moments else root) + self.epsilon)
        return mixed(back, move, keep, w), m, v, *largest


class RmsPropUpdate(OptimizerUpdate):
    """RMSProp: s' = decay s + (1 - decay) d^2, w' = w - lr d / sqrt(r + epsilon), where d = g + weight_decay w.

    r = s', or with `centered` r = s' - a'^2, where a' = decay a + (1 - decay) d.  Without `epsilon_inside`, u = d / (sqrt(r) + epsilon) and
    w' = w - lr v', where v' = momentum v + u, or u without momentum.
    """

    decay: float = 0.99
    epsilon: float = 1e-8
    centered: bool = False
    epsilon_inside: bool = True
    weight_decay: float = 0.0
    momentum: float = 0.0
    maximize: bool = False
    cases = (
        {},
        {"centered": True},
        *({"epsilon_inside": False, "weight_decay": 0.1, "momentum": 0.5, "centered": each, "maximize": each} for each in (False, True)),
    )

    @property
    def slot_names(self) -> tuple[str, ...]:  # type: ignore[override]
        return "mean_square", *(["mean_gradient"] if self.centered else []), *(["momentum"] if self.momentum > 0 else [])

    def formula(self, f: Any, w: Element, s: Element, *others: Element) -> Elements:
        *averages, g, rate = others
        d = downwards(w, g, self.weight_decay, self.maximize)
        s = _mean_square(self.decay, s, d, self.epsilon_inside)
        spread = s
        if self.centered:
            averages[0] = self.decay * averages[0] + (1 - self.decay) * d
            spread = s - averages[0] * averages[0]
        if self.epsilon_inside:
            return w - rate * d / f.sqrt(spread + self.epsilon), s, *averages
        move = d / (f.sqrt(spread) + self.epsilon)
        if self.momentum > 0:
            averages[-1] = move = self.momentum * averages[-1] + move
        return w - rate * move, s, *averages


class AdagradUpdate(OptimizerUpdate):
    """Adagrad: s' = s + d^2, w' = w - lr / (1 + step lr_decay) d / (sqrt(s') + epsilon), where d = g + weight_decay w.

    The initial value of s is `initial`.
    """

    lr_decay: float = 0.0
    weight_decay: float = 0.0
    epsilon: float = 1e-10
    initial: float = 0.0
    maximize: bool = False
    reads_step = True
    slot_names = ("sum",)
    cases = ({}, {"lr_decay": 0.1, "weight_decay": 0.1}, {"maximize": True})

    def slot(self, name: str) -> OptimizerSlot:
        return OptimizerSlot(name, self.initial)

    def scalars(self, f: Any, rate: Any, step: Any, *rows: Element) -> tuple[Any, ...]:
        return (rate / (1 + step * self.lr_decay),)

    def formula(self, f: Any, w: Element, s: Element, g: Element, rate: Element) -> Elements:
        d = downwards(w, g, self.weight_decay, self.maximize)
        s = s + d * d
        return w - rate * (d / (f.sqrt(s) + self.epsilon)), s


class AdadeltaUpdate(OptimizerUpdate):
    """Adadelta: s' = rho s + (1 - rho) d^2, u = d sqrt(x + epsilon) / sqrt(s' + epsilon), x' = rho x + (1 - rho) u^2, w' = w - lr u.

    d = g + weight_decay w.
    """

    rho: float = 0.9
    epsilon: float = 1e-6
    weight_decay: float = 0.0
    maximize: bool = False
    slot_names = ("square_avg", "acc_delta")
    cases = ({"weight_decay": 0.1},)

    def formula(self, f: Any, w: Element, s: Element, x: Element, g: Element, rate: Element) -> Elements:
        d = downwards(w, g, self.weight_decay, self.maximize)
        s = _mean_square(self.rho, s, d, False)
        u = d * f.sqrt(x + self.epsilon) / f.sqrt(s + self.epsilon)
        return w - rate * u, s, _mean_square(self.rho, x, u, False)


class LarsUpdate(NormUpdate):
    """LARS: v' = beta v - r g, w' = w + v' - r weight_decay w, with the local rate r = lr coefficient |w| / (epsilon + |g| + weight_decay |w|).

    r is lr where |w| or |g| is zero.
    """

    beta: float = 0.9
    epsilon: float = 1e-9
    coefficient: float = 1e-4
    weight_decay: float = 0.0
    slot_names = ("momentum",)
    cases = ({"coefficient": 0.1, "weight_decay": 0.2},)

    def scalars(self, f: Any, rate: Any, step: Any, *rows: Element) -> tuple[Any, ...]:
        """Return the local rate and its product with `weight_decay`."""
        w, g = _norm(f, rows[0]), _norm(f, rows[-1])
        some = f.logical_and(w > 0, g > 0)
        rate = rate * f.where(some, self.coefficient * w / f.where(some, self.epsilon + g + self.weight_decay * w, 1.0), 1.0)
        return rate, rate * self.weight_decay

    def formula(self, f: Any, w: Element, v: Element, g: Element, rate: Element, decay: Element) -> Elements:
        v = self.beta * v - rate * g
        return w + v - decay * w, v


class LambUpdate(NormUpdate):
    """LAMB: u = (m' / c1) / (sqrt(v' / c2) + epsilon), w' = w - lr r (u + weight_decay w), r = |w| / |u|, or 1 if a norm is zero.

    m', v' as in Adam; c1 = 1 - p1', c2 = 1 - p2'.  p1 and p2 are variables of one element with the initial values beta1 and beta2.  They are
    multiplied by beta1 and beta2 before use, so the first step corrects with the square, as OneFlow does.
    `published` selects the paper (You et al. 2020): r = |w| / |u + weight_decay w|, and c1 = 1 - beta1^t, c2 = 1 - beta2^t, or 1 without bias
    correction.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-6
    weight_decay: float = 0.0
    published: bool = False
    bias_correction: bool = True
    elementwise = False
    cases = ({"weight_decay": 0.1}, {"weight_decay": 0.1, "published": True})

    @property
    def slot_names(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("m", "v") if self.published else ("m", "v", "beta1_t", "beta2_t")

    def slot(self, name: str) -> OptimizerSlot:
        powers = {"beta1_t": self.beta1, "beta2_t": self.beta2}
        return OptimizerSlot(name, powers[name], scalar=True) if name in powers else OptimizerSlot(name)

    @property
    def reads_step(self) -> bool:  # type: ignore[override]
        return self.published

    def scalars(self, f: Any, rate: Any, step: Any, *rows: Element) -> tuple[Any, ...]:
        return rate, *(corrections(self.beta1, self.beta2, step) if self.published and self.bias_correction else (1.0, 1.0))

    def formula(self, f: Any, w: Element, m: Element, v: Element, *others: Element) -> Elements:
        *powers, g, rate, first, second = others
        m = self.beta1 * m + (1 - self.beta1) * g
        v = _mean_square(self.beta2, v, g, self.published)
        if powers:
            powers = [power * beta for power, beta in zip(powers, (self.beta1, self.beta2), strict=True)]
            first, second = (f.cast(1.0 - f.cast(power, float64), w.dtype) for power in powers)
        move = m / first / (f.sqrt(v / second) + self.epsilon)
        decayed = move + self.weight_decay * w
        w_norm, move_norm = _norm(f, w), _norm(f, decayed if self.published else move)
        some = f.logical_and(w_norm > 0, move_norm > 0)
        ratio = f.where(some, w_norm / f.where(some, move_norm, 1.0), 1.0)
        return w - f.cast(f.cast(rate, float64) * ratio, w.dtype) * decayed, m, v, *powers
