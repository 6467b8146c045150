"""The optimizers: options, and which formula of `jobflow.ops.optimizer_updates` steps a group that has them."""

from __future__ import annotations

from collections.abc import Iterable
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
from jobflow.optim.optimizer import POSITIVE, Group, Legal, Optimizer

_UNIT: Legal = (lambda x: 0 <= x < 1, "a number in [0, 1)")
_PAIR: Legal = (lambda x: len(x) == 2 and all(0 <= b < 1 for b in x), "a pair of numbers in [0, 1)")


class SGD(Optimizer):
    """Stochastic gradient descent, with momentum, decay and Nesterov's look ahead."""

    LEGAL: ClassVar[dict[str, Legal]] = {"momentum": POSITIVE}

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.001,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        maximize: bool = False,
    ) -> None:
        if nesterov and (momentum <= 0 or dampening):
            raise ConfigError(
                f"optim.SGD at {user_line()}: nesterov needs a momentum and no dampening; got momentum={momentum}, dampening={dampening}"
            )
        options = {"momentum": momentum, "dampening": dampening, "weight_decay": weight_decay, "nesterov": nesterov, "maximize": maximize}
        super().__init__(params, {"lr": lr, **options})

    def rule(self, group: Group) -> OptimizerUpdate:
        decay, maximize, momentum = group["weight_decay"], group["maximize"], group["momentum"]
        if not momentum:
            return SgdUpdate(decay, maximize)
        return MomentumUpdate(momentum, decay, False, maximize, group["dampening"], group["nesterov"])


class Adam(Optimizer):
    """Adam (Kingma and Ba 2015); decay is added to the gradient."""

    LEGAL: ClassVar[dict[str, Legal]] = {"betas": _PAIR, "eps": POSITIVE}
    decoupled: ClassVar[bool] = False

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        do_bias_correction: bool = True,
        maximize: bool = False,
    ) -> None:
        options = {"betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad, "maximize": maximize}
        super().__init__(params, {"lr": lr, "do_bias_correction": do_bias_correction, **options})

    def rule(self, group: Group) -> OptimizerUpdate:
        (beta1, beta2), decay, correct = group["betas"], group["weight_decay"], group["do_bias_correction"]
        return AdamUpdate(beta1, beta2, group["eps"], decay, correct, True, self.decoupled, group["maximize"], group["amsgrad"])


class AdamW(Adam):
    """Adam with decay of its own, not through the gradient (Loshchilov and Hutter 2019)."""

    decoupled: ClassVar[bool] = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
        do_bias_correction: bool = True,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, do_bias_correction, maximize)


class LAMB(Optimizer):
    """Adam whose step has, per parameter, the size of the parameter (You et al. 2020): of the whole of it, however it lies."""

    LEGAL: ClassVar[dict[str, Legal]] = {"betas": _PAIR, "eps": POSITIVE}

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        adam_w_mode: bool = True,
        do_bias_correction: bool = True,
    ) -> None:
        if not adam_w_mode:
            raise ConfigError(f"optim.LAMB at {user_line()}: decay is not part of the gradient here; leave adam_w_mode at True")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "do_bias_correction": do_bias_correction})

    def rule(self, group: Group) -> OptimizerUpdate:
        beta1, beta2 = group["betas"]
        return LambUpdate(beta1, beta2, group["eps"], group["weight_decay"], True, group["do_bias_correction"])


class RMSprop(Optimizer):
    """Steps over the root of a running mean of squares, optionally around the mean, optionally with momentum."""

    LEGAL: ClassVar[dict[str, Legal]] = {"alpha": _UNIT, "eps": POSITIVE, "momentum": POSITIVE}

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.001,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
    ) -> None:
        options = {"alpha": alpha, "eps": eps, "weight_decay": weight_decay, "momentum": momentum, "centered": centered}
        super().__init__(params, {"lr": lr, **options})

    def rule(self, group: Group) -> OptimizerUpdate:
        return RmsPropUpdate(group["alpha"], group["eps"], group["centered"], False, group["weight_decay"], group["momentum"])


class Adagrad(Optimizer):
    """Steps over the root of the sum of squares so far (Duchi et al. 2011)."""

    LEGAL: ClassVar[dict[str, Legal]] = {"lr_decay": POSITIVE, "initial_accumulator_value": POSITIVE, "eps": POSITIVE}

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.001,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
    ) -> None:
        options = {"lr_decay": lr_decay, "weight_decay": weight_decay, "initial_accumulator_value": initial_accumulator_value, "eps": eps}
        super().__init__(params, {"lr": lr, **options})

    def rule(self, group: Group) -> OptimizerUpdate:
        return AdagradUpdate(group["lr_decay"], group["weight_decay"], group["eps"], float(group["initial_accumulator_value"]))


class Adadelta(Optimizer):
    """Steps whose size is learned (Zeiler 2012)."""

    LEGAL: ClassVar[dict[str, Legal]] = {"rho": _UNIT, "eps": POSITIVE}

    def __init__(
        self, params: Iterable[Any], lr: float = 1.0, rho: float = 0.9, eps: float = 1e-6, weight_decay: float = 0.0, maximize: bool = False
    ) -> None:
        super().__init__(params, {"lr": lr, "rho": rho, "eps": eps, "weight_decay": weight_decay, "maximize": maximize})

    def rule(self, group: Group) -> OptimizerUpdate:
        return AdadeltaUpdate(group["rho"], group["eps"], group["weight_decay"], group["maximize"])
