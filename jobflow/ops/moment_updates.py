"""The formulas of the optimizers RAdam, NAdam, Adamax, Lion, Rprop and averaged gradient descent.

The symbols are those of `optimizer_updates`: d = g + weight_decay w is the descent direction, t = step + 1 the number of the step.
With `decoupled`, d = g, and w is multiplied by 1 - lr weight_decay before the step.  With `maximize`, -g replaces g.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

from jobflow.ops.optimizer_updates import Element, Elements, OptimizerUpdate, corrections, downwards


class _Moments(OptimizerUpdate):
    """Base class of formulas with the averages m' = beta1 m + (1 - beta1) d and v' = beta2 v + (1 - beta2) d^2."""

    abstract: ClassVar[bool] = True
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False
    maximize: bool = False
    reads_step = True
    slot_names = ("exp_avg", "exp_avg_sq")
    cases: ClassVar[tuple[dict[str, Any], ...]] = ({}, {"weight_decay": 0.1}, {"weight_decay": 0.1, "decoupled": True, "maximize": True})

    def decay_factor(self, rate: Any) -> Any:
        """Return the factor of w, which is below 1 with decoupled weight decay."""
        return 1.0 - rate * self.weight_decay if self.decoupled else 1.0

    def averages(self, w: Element, m: Element, v: Element, g: Element) -> tuple[Element, Element, Element]:
        """Return the descent direction d, and the new averages m' and v' of the class's formulas."""
        d = downwards(w, g, 0.0 if self.decoupled else self.weight_decay, self.maximize)
        return d, self.beta1 * m + (1 - self.beta1) * d, self.beta2 * v + (1 - self.beta2) * (d * d)


class RAdamUpdate(_Moments):
    """RAdam (Liu et al. 2020): w' = w - lr m' / (1 - beta1^t) u, where u = r sqrt(1 - beta2^t) / (sqrt(v') + epsilon) if rho > 5, else 1.

    rho = rho0 - 2 t beta2^t / (1 - beta2^t) with rho0 = 2 / (1 - beta2) - 1, and r^2 = (rho - 4)(rho - 2) rho0 / ((rho0 - 4)(rho0 - 2) rho).
    """

    def scalars(self, f: Any, rate: Any, step: Any, *rows: Element) -> tuple[Any, ...]:
        """Return the factor of w, lr / (1 - beta1^t), and r sqrt(1 - beta2^t), or 0 if rho is at most 5."""
        first, second = corrections(self.beta1, self.beta2, step)
        longest = 2 / (1 - self.beta2) - 1
        length = longest - 2 * (step + 1) * (1 - second) / second
        bounded = f.maximum(length, 5.0)
        share = (bounded - 4) * (bounded - 2) * longest / bounded / max((longest - 4) * (longest - 2), 1e-300)
        return self.decay_factor(rate), rate / first, f.where(length > 5.0, f.sqrt(share * second), 0.0)

    def formula(self, f: Any, w: Element, m: Element, v: Element, g: Element, keep: Element, back: Element, share: Element) -> Elements:
        _, m, v = self.averages(w, m, v, g)
        return keep * w - back * m * f.where(share > 0, share / (f.sqrt(v) + self.epsilon), 1.0), m, v


#: terms of the series of `log_momenta`; the last term is below the precision of float64
_TERMS = 52


class NAdamUpdate(_Moments):
    """NAdam (Dozat 2016): w' = w - lr ((1 - mu_t) d / (1 - M_t) + mu_(t+1) m' / (1 - M_(t+1))) / (sqrt(v' / (1 - beta2^t)) + epsilon).

    mu_t = beta1 (1 - 0.96^(t momentum_decay) / 2), and M_t is the product of mu_1 ... mu_t.
    """

    momentum_decay: float = 4e-3
    cases = (*_Moments.cases, {"momentum_decay": 0.0}, {"momentum_decay": 0.5})

    def scalars(self, f: Any, rate: Any, step: Any, *rows: Element) -> tuple[Any, ...]:
        """Return the factor of w, the factors of d and m', and 1 / (1 - beta2^t)."""
        decay, t = 0.96**self.momentum_decay, step + 1
        mu, following = (self.beta1 * (1 - 0.5 * decay**i) for i in (t, t + 1))
        product = self.beta1**t * f.exp(log_momenta(f, decay, t))
        return self.decay_factor(rate), rate * (1 - mu) / (1 - product), rate * following / (1 - product * following), 1 / (1 - self.beta2**t)

    def formula(
        self, f: Any, w: Element, m: Element, v: Element, g: Element, keep: Element, direct: Element, mean: Element, wider: Element
    ) -> Elements:
        d, m, v = self.averages(w, m, v, g)
        return keep * w - (direct * d + mean * m) / (f.sqrt(v * wider) + self.epsilon), m, v


def log_momenta(f: Any, decay: float, t: Any) -> Any:
    """Return ln of the product of 1 - decay^i / 2 for i = 1 ... t, by the series of the logarithm, so that no state is needed.

    The series is -(1 - decay^t) sum c_k (1 + Q + ... + Q^(k-1)) with Q = decay^t and c_k = (decay / 2)^k / (k (1 - decay^k)).
    """
    if decay == 1.0:
        return t * math.log(0.5)
    if decay == 0.0:
        return t * 0.0
    gap = f.expm1(t * math.log(decay))  # Q - 1
    powers, total = 0.0, 0.0
    for k in range(1, _TERMS + 1):
        powers = powers * (gap + 1.0) + 1.0
        total = total + powers * ((decay / 2) ** k / (-k * math.expm1(k * math.log(decay))))
    return gap * total


class AdamaxUpdate(OptimizerUpdate):
    """Adamax (Kingma and Ba 2015): w' = w - lr / (1 - beta1^t) m' / u', where u' = max(beta2 u, |d| + epsilon)."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    maximize: bool = False
    reads_step = True
    slot_names = ("exp_avg", "exp_inf")
    cases = ({}, {"weight_decay": 0.1, "maximize": True})

    def scalars(self, f: Any, rate: Any, step: Any, *rows: Element) -> tuple[Any, ...]:
        return (rate / corrections(self.beta1, self.beta2, step)[0],)

    def formula(self, f: Any, w: Element, m: Element, u: Element, g: Element, rate: Element) -> Elements:
        d = downwards(w, g, self.weight_decay, self.maximize)
        m = self.beta1 * m + (1 - self.beta1) * d
        u = f.maximum(self.beta2 * u, f.absolute(d) + self.epsilon)
        return w - rate * (m / u), m, u


class LionUpdate(OptimizerUpdate):
    """Lion (Chen et al. 2023): w' = w (1 - lr weight_decay) - lr sign(beta1 m + (1 - beta1) g), m' = beta2 m + (1 - beta2) g."""

    beta1: float = 0.9
    beta2: float = 0.99
    weight_decay: float = 0.0
    maximize: bool = False
    slot_names = ("exp_avg",)
    cases = ({}, {"weight_decay": 0.1, "maximize": True})

    def scalars(self, f: Any, rate: Any, step: Any, *rows: Element) -> tuple[Any, ...]:
        return rate, 1.0 - rate * self.weight_decay

    def formula(self, f: Any, w: Element, m: Element, g: Element, rate: Element, keep: Element) -> Elements:
        g = -g if self.maximize else g
        return keep * w - rate * f.sign(self.beta1 * m + (1 - self.beta1) * g), self.beta2 * m + (1 - self.beta2) * g


class RpropUpdate(OptimizerUpdate):
    """Rprop (Riedmiller and Braun 1993): w' = w - s' sign(g'), where s' is the step size of the element.

    s' = s `growth` if g has the sign of the previous gradient p, s `shrinkage` if the sign changed, else s.  The bounds of s' are `smallest` and
    `largest`.  g' = 0 if the sign changed, else g, and p' = g'.  The first step begins with s = lr.
    """

    shrinkage: float = 0.5
    growth: float = 1.2
    smallest: float = 1e-6
    largest: float = 50.0
    maximize: bool = False
    reads_step = True
    slot_names = ("prev", "step_size")
    cases = ({}, {"maximize": True, "growth": 1.5, "largest": 0.12})

    def scalars(self, f: Any, rate: Any, step: Any, *rows: Element) -> tuple[Any, ...]:
        """Return lr in the first step, else 0, which is added to s; the initial value of s is 0."""
        return (f.where(step > 0, 0.0, rate),)

    def formula(self, f: Any, w: Element, previous: Element, size: Element, g: Element, first: Element) -> Elements:
        g = -g if self.maximize else g
        turned = g * previous
        factor = f.where(turned > 0, self.growth, f.where(turned < 0, self.shrinkage, f.constant(1.0, w.dtype)))
        size = f.minimum(f.maximum((size + first) * factor, self.smallest), self.largest)
        g = f.where(turned < 0, 0.0, g)
        return w - size * f.sign(g), g, size


class AveragedSgdUpdate(OptimizerUpdate):
    """Averaged gradient descent (Polyak and Juditsky 1992): w' = w (1 - lambd r) - r d, where r = lr / (1 + lambd lr step)^alpha.

    The average is a' = a + (w' - a) / max(1, step - t0), which is w' until `t0` steps are complete.
    """

    lambd: float = 1e-4
    alpha: float = 0.75
    t0: float = 1e6
    weight_decay: float = 0.0
    maximize: bool = False
    reads_step = True
    slot_names = ("ax",)
    cases = ({}, {"weight_decay": 0.1, "maximize": True}, {"t0": 0.0, "lambd": 0.1})

    def scalars(self, f: Any, rate: Any, step: Any, *rows: Element) -> tuple[Any, ...]:
        """Return r, 1 - lambd r, and the share of w' in the average."""
        rate = rate / (1 + self.lambd * rate * step) ** self.alpha
        return rate, 1 - self.lambd * rate, 1 / f.maximum(step - self.t0, 1.0)

    def formula(self, f: Any, w: Element, a: Element, g: Element, rate: Element, keep: Element, share: Element) -> Elements:
        w = keep * w - rate * downwards(w, g, self.weight_decay, self.maximize)
        return w, f.where(share < 1, a + (w - a) * share, w)
