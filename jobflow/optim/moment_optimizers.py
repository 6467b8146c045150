"""The optimizers RAdam, NAdam, Adamax, Lion, Rprop and ASGD, which apply formulas of `jobflow.ops.moment_updates`."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY
from typing import ClassVar

from jobflow.ops.moment_updates import AdamaxUpdate, AveragedSgdUpdate, LionUpdate, NAdamUpdate, RAdamUpdate, RpropUpdate, log_momenta
from jobflow.ops.optimizer_updates import OptimizerUpdate
from jobflow.optim.optimizer import Group
from jobflow.optim.optimizer_options import OptionsOptimizer, options

__all__ = ["ASGD", "Adamax", "Lion", "NAdam", "RAdam", "Rprop"]


@options
class RAdam(OptionsOptimizer):
    """RAdam (Liu et al. 2020): Adam with a rectified variance in the first steps."""

    lr: float = 0.001
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled_weight_decay: bool = False
    _: KW_ONLY
    maximize: bool = False

    def rule(self, group: Group) -> OptimizerUpdate:
        beta1, beta2 = group["betas"]
        return RAdamUpdate(beta1, beta2, group["eps"], group["weight_decay"], group["decoupled_weight_decay"], group["maximize"])


@options
class NAdam(OptionsOptimizer):
    """NAdam (Dozat 2016): Adam with Nesterov momentum."""

    lr: float = 0.002
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum_decay: float = 4e-3
    decoupled_weight_decay: bool = False
    _: KW_ONLY
    maximize: bool = False
    DERIVED: ClassVar[tuple[str, ...]] = ("mu_product",)

    def derived(self, group: Group, step: int) -> dict[str, float]:
        product = math.exp(log_momenta(math, 0.96 ** group["momentum_decay"], step))
        return {"mu_product": group["betas"][0] ** step * product}

    def rule(self, group: Group) -> OptimizerUpdate:
        (beta1, beta2), decoupled, maximize = group["betas"], group["decoupled_weight_decay"], group["maximize"]
        return NAdamUpdate(beta1, beta2, group["eps"], group["weight_decay"], decoupled, maximize, float(group["momentum_decay"]))


@options
class Adamax(OptionsOptimizer):
    """Adamax (Kingma and Ba 2015): Adam with the infinity norm of the gradients."""

    lr: float = 0.002
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    _: KW_ONLY
    maximize: bool = False

    def rule(self, group: Group) -> OptimizerUpdate:
        beta1, beta2 = group["betas"]
        return AdamaxUpdate(beta1, beta2, group["eps"], group["weight_decay"], group["maximize"])


@options
class Lion(OptionsOptimizer):
    """Lion (Chen et al. 2023): steps by the sign of a mean gradient; weight decay is decoupled."""

    lr: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.0
    _: KW_ONLY
    maximize: bool = False

    def rule(self, group: Group) -> OptimizerUpdate:
        beta1, beta2 = group["betas"]
        return LionUpdate(beta1, beta2, group["weight_decay"], group["maximize"])


@options
class Rprop(OptionsOptimizer):
    """Rprop (Riedmiller and Braun 1993): steps by the sign of the gradient, with one step size per element.

    A step size is multiplied by the second of `etas` while the sign remains, or else by the first; `step_sizes` are the bounds.
    """

    lr: float = 0.01
    etas: tuple[float, float] = (0.5, 1.2)
    step_sizes: tuple[float, float] = (1e-6, 50.0)
    _: KW_ONLY
    maximize: bool = False

    def rule(self, group: Group) -> OptimizerUpdate:
        (shrinkage, growth), (smallest, largest) = group["etas"], group["step_sizes"]
        return RpropUpdate(shrinkage, growth, float(smallest), float(largest), group["maximize"])


@options
class ASGD(OptionsOptimizer):
    """Averaged gradient descent (Polyak and Juditsky 1992); `state[p]["ax"]` is the average of parameter p over the steps after `t0`."""

    lr: float = 0.01
    lambd: float = 1e-4
    alpha: float = 0.75
    t0: float = 1e6
    weight_decay: float = 0.0
    _: KW_ONLY
    maximize: bool = False

    DERIVED: ClassVar[tuple[str, ...]] = ("eta", "mu")

    def derived(self, group: Group, step: int) -> dict[str, float]:
        eta = group["lr"] / (1 + group["lambd"] * group["lr"] * step) ** group["alpha"]
        return {"eta": eta, "mu": 1 / max(1, step - group["t0"])}

    def rule(self, group: Group) -> OptimizerUpdate:
        lambd, alpha, t0, decay = (float(group[name]) for name in ("lambd", "alpha", "t0", "weight_decay"))
        return AveragedSgdUpdate(lambd, alpha, t0, decay, group["maximize"])
