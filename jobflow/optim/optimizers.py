"""The optimizers, which apply formulas of `jobflow.ops.optimizer_updates`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import KW_ONLY, InitVar
from typing import Any, ClassVar

from jobflow.core.errors import ConfigError, user_line
from jobflow.ops.optimizer_updates import (
    AdadeltaUpdate,
    AdagradUpdate,
    AdamUpdate,
    LambUpdate,
    MomentumUpdate,
    OptimizerUpdate,
    RmsPropUpdate,
    SgdUpdate,
)
from jobflow.optim.optimizer import Group
from jobflow.optim.optimizer_options import OptionsOptimizer, options

__all__ = ["LAMB", "SGD", "Adadelta", "Adagrad", "Adam", "AdamW", "RMSprop"]


@options
class SGD(OptionsOptimizer):
    """Stochastic gradient descent with optional momentum, Nesterov momentum and weight decay.

    Examples:
        >>> w = nn.Parameter(flow.ones(1))
        >>> optimizer = flow.optim.SGD([w], lr=0.1, momentum=0.9)
        >>> (w * w).sum().backward()
        >>> optimizer.step()
        >>> w.item()
        0.800000011920929
    """

    saves_steps: ClassVar[bool] = False
    lr: float = 0.001
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    _: KW_ONLY
    maximize: bool = False

    def __post_init__(self, params: Iterable[Any]) -> None:
        if self.nesterov and (self.momentum <= 0 or self.dampening):
            values = f"momentum={self.momentum}, dampening={self.dampening}"
            raise ConfigError(f"optim.SGD at {user_line()}: nesterov requires a momentum and no dampening, not {values}")
        super().__post_init__(params)

    def rule(self, group: Group) -> OptimizerUpdate:
        decay, maximize, momentum = group["weight_decay"], group["maximize"], group["momentum"]
        if not momentum:
            return SgdUpdate(decay, maximize)
        return MomentumUpdate(momentum, decay, False, maximize, group["dampening"], group["nesterov"])


@options
class Adam(OptionsOptimizer):
    """Adam (Kingma and Ba 2015); weight decay is added to the gradient.

    Examples:
        >>> model = nn.Linear(4, 1)
        >>> optimizer = flow.optim.Adam(model.parameters(), lr=0.01)
        >>> model(flow.ones(8, 4)).sum().backward()
        >>> optimizer.step()
        >>> optimizer.zero_grad()
    """

    lr: float = 0.001
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    amsgrad: bool = False
    _: KW_ONLY
    do_bias_correction: bool = True
    maximize: bool = False
    decoupled_weight_decay: bool = False

    def rule(self, group: Group) -> OptimizerUpdate:
        (beta1, beta2), decay, correct = group["betas"], group["weight_decay"], group["do_bias_correction"]
        return AdamUpdate(beta1, beta2, group["eps"], decay, correct, True, group["decoupled_weight_decay"], group["maximize"], group["amsgrad"])


@options
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019).

    Examples:
        >>> model = nn.Linear(4, 1)
        >>> groups = [{"params": [model.weight]}, {"params": [model.bias], "weight_decay": 0.0}]
        >>> optimizer = flow.optim.AdamW(groups, lr=0.01, weight_decay=0.05)
        >>> model(flow.ones(8, 4)).sum().backward()
        >>> optimizer.step()
    """

    weight_decay: float = 0.01
    _: KW_ONLY
    decoupled_weight_decay: bool = True


@options
class LAMB(OptionsOptimizer):
    """LAMB (You et al. 2020): an Adam step, scaled for each parameter by norm(parameter) / norm(step).

    The norms are computed over the logical tensors, so the result does not depend on layouts.
    """

    lr: float = 0.001
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    adam_w_mode: InitVar[bool] = True
    do_bias_correction: bool = True

    def __post_init__(self, params: Iterable[Any], adam_w_mode: bool = True) -> None:
        if not adam_w_mode:
            raise ConfigError(f"optim.LAMB at {user_line()}: adam_w_mode=False is not supported, because weight decay is decoupled; omit it")
        super().__post_init__(params)

    def rule(self, group: Group) -> OptimizerUpdate:
        beta1, beta2 = group["betas"]
        return LambUpdate(beta1, beta2, group["eps"], group["weight_decay"], True, group["do_bias_correction"])


@options
class RMSprop(OptionsOptimizer):
    """RMSprop: gradients divided by the root of a running mean of their squares.

    With `centered`, the square of the running mean gradient is subtracted under the root.  With `momentum`, the steps are accumulated.
    """

    lr: float = 0.001
    alpha: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.0
    centered: bool = False
    _: KW_ONLY
    maximize: bool = False

    def rule(self, group: Group) -> OptimizerUpdate:
        return RmsPropUpdate(group["alpha"], group["eps"], group["centered"], False, group["weight_decay"], group["momentum"], group["maximize"])


@options
class Adagrad(OptionsOptimizer):
    """Adagrad (Duchi et al. 2011): gradients divided by the root of the sum of their squares over all steps."""

    lr: float = 0.001
    lr_decay: float = 0.0
    weight_decay: float = 0.0
    initial_accumulator_value: float = 0.0
    eps: float = 1e-10
    _: KW_ONLY
    maximize: bool = False

    def rule(self, group: Group) -> OptimizerUpdate:
        initial = float(group["initial_accumulator_value"])
        return AdagradUpdate(group["lr_decay"], group["weight_decay"], group["eps"], initial, group["maximize"])


@options
class Adadelta(OptionsOptimizer):
    """Adadelta (Zeiler 2012): gradients times the root mean square of earlier updates, divided by the root mean square of gradients."""

    lr: float = 1.0
    rho: float = 0.9
    eps: float = 1e-6
    weight_decay: float = 0.0
    _: KW_ONLY
    maximize: bool = False

    def rule(self, group: Group) -> OptimizerUpdate:
        return AdadeltaUpdate(group["rho"], group["eps"], group["weight_decay"], group["maximize"])
