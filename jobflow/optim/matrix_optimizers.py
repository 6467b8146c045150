"""The optimizers Adafactor and Muon, whose steps depend on whole matrices."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

from jobflow.core.errors import ConfigError, user_line
from jobflow.core.types import float_info
from jobflow.functional.creation import zeros_like
from jobflow.functional.tensor_class import Tensor
from jobflow.optim.optimizer import POSITIVE, Group, Legal, Optimizer
from jobflow.tensors.state import gradients, refuse_tracing

__all__ = ["Adafactor", "Muon"]


class _WholeMatrices(Optimizer):
    """Base class of optimizers whose steps are composed of functions of tensors."""

    def rule(self, group: Group) -> NoReturn:
        """Raise ConfigError, because a graph applies one formula to each element."""
        raise ConfigError(
            f"{self._word} at {user_line()}: a step needs whole matrices, which nn.Graph does not update; call step() outside of graphs"
        )

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient, outside of graphs and compiled functions.

        A `closure` is called first to compute the loss, and its result is returned.
        """
        refuse_tracing(f"{self._word}.step", "the state cannot be updated", "call step() outside of compiled functions")
        loss = None
        if closure is not None:
            with gradients(True):
                loss = closure()
        with gradients(False):
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        self._update(group, p, p.grad, self.state[p])
        return loss

    def _update(self, group: Group, p: Tensor, gradient: Tensor, own: dict[str, Any]) -> None:
        raise NotImplementedError

    def _state_of(self, saved: Any, p: Tensor, what: str) -> Any:
        """Return a copy of an entry of a saved state; rows and columns have fewer elements than the parameter."""
        if isinstance(saved, Tensor) and saved.shape != p.shape:
            return saved.detach().clone()
        return super()._state_of(saved, p, what)


class Adafactor(_WholeMatrices):
    """Adafactor (Shazeer and Stern 2018): the second moment of a matrix is the product of one row and one column.

    `eps` has the least root of the second moment, by default that of the element type, and the least relative step.
    """

    LEGAL: ClassVar[dict[str, Legal]] = {
        "beta2_decay": (lambda x: x <= 0, "a number of at most 0"),
        "d": (lambda x: x >= 1, "a number of at least 1"),
        "eps": (lambda x: len(x) == 2 and (x[0] is None or x[0] >= 0) and x[1] >= 0, "two numbers of at least 0, the first of which may be None"),
    }

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3),
        d: float = 1.0,
        weight_decay: float = 0.0,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
    ) -> None:
        options = {"lr": lr, "beta2_decay": beta2_decay, "eps": eps, "d": d, "weight_decay": weight_decay, "foreach": foreach, "maximize": maximize}
        super().__init__(params, options)

    def _update(self, group: Group, p: Tensor, gradient: Tensor, own: dict[str, Any]) -> None:
        step = own["step"] = own.get("step", 0) + 1
        rate, (least, relative) = float(group["lr"]), group["eps"]
        least = float_info(p.dtype).eps if least is None else least
        gradient = -gradient if group["maximize"] else gradient
        weight = float(step) ** group["beta2_decay"]
        size = (p.norm() / math.sqrt(p.numel())).clamp(min=relative) * min(rate, 1 / math.sqrt(step))
        if group["weight_decay"]:
            p.mul_(1 - rate * group["weight_decay"])
        squares = gradient * gradient
        if p.ndim > 1:
            row = _averaged(own, "row_var", squares.mean(-1, keepdim=True), weight)
            column = _averaged(own, "col_var", squares.mean(-2, keepdim=True), weight)
            variance = row @ column / row.mean(-2, keepdim=True).clamp(min=least)
        else:
            variance = _averaged(own, "variance", squares, weight)
        update = variance.clamp(min=least * least).rsqrt() * gradient
        bound = (update.norm() / (math.sqrt(update.numel()) * group["d"])).clamp(min=1.0)
        p.sub_(update * (size / bound))


def _averaged(own: dict[str, Any], name: str, value: Tensor, weight: float) -> Tensor:
    """Move the running mean `own[name]` towards the value by `weight`, and return it."""
    if name not in own:
        own[name] = zeros_like(value)
    result: Tensor = own[name].lerp_(value, weight)
    return result


class Muon(_WholeMatrices):
    """Muon (Jordan 2024): the momentum of a matrix is made nearly orthogonal by `ns_steps` iterations of Newton and Schulz.

    Weight decay is decoupled.  `adjust_lr_fn` is None or "original" for a rate times sqrt(max(1, rows / columns)), or "match_rms_adamw" for
    0.2 sqrt(max(rows, columns)).
    """

    LEGAL: ClassVar[dict[str, Legal]] = {
        "momentum": POSITIVE,
        "eps": POSITIVE,
        "ns_coefficients": (lambda x: len(x) == 3 and all(isinstance(each, int | float) for each in x), "three numbers"),
        "ns_steps": (lambda x: isinstance(x, int) and 0 <= x < 100, "an integer from 0 to 99"),
        "adjust_lr_fn": (lambda x: x in (None, "original", "match_rms_adamw"), 'None, "original" or "match_rms_adamw"'),
    }
    saves_steps: ClassVar[bool] = False

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315),
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
    ) -> None:
        options = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "nesterov": nesterov, "ns_coefficients": ns_coefficients}
        super().__init__(params, {**options, "eps": eps, "ns_steps": ns_steps, "adjust_lr_fn": adjust_lr_fn})

    def _check(self, group: Group, what: str) -> None:
        super()._check(group, what)
        for p in group.get("params", ()):
            if isinstance(p, Tensor) and p.ndim != 2:
                raise ConfigError(f"{what}: params must be matrices; got a parameter {p.tensor_type}; pass other parameters to another optimizer")

    def _update(self, group: Group, p: Tensor, gradient: Tensor, own: dict[str, Any]) -> None:
        rate, momentum = float(group["lr"]), group["momentum"]
        mean = _averaged(own, "momentum_buffer", gradient, 1 - momentum)
        update = gradient.lerp(mean, momentum) if group["nesterov"] else mean
        rows, columns = p.shape
        scaled = rate * (0.2 * math.sqrt(max(rows, columns)) if group["adjust_lr_fn"] == "match_rms_adamw" else math.sqrt(max(1, rows / columns)))
        p.mul_(1 - rate * group["weight_decay"])
        p.sub_(_orthogonal(update, group) * scaled)


def _orthogonal(x: Tensor, group: Group) -> Tensor:
    """Return a matrix with nearly the singular vectors of x, and singular values near 1."""
    a, b, c = group["ns_coefficients"]
    tall = x.shape[0] > x.shape[1]
    y = x.t() if tall else x
    y = y / y.norm().clamp(min=group["eps"])
    for _ in range(group["ns_steps"]):
        squares = y @ y.t()
        y = y * a + (squares * b + squares @ squares * c) @ y
    return y.t() if tall else y
