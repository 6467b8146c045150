"""Learning rate schedules, which set the rates of an optimizer's groups at every `step()`.

Most schedules are closed formulas of the number of steps t, in float64: `rate(base, t)`.  `base` is the initial rate of the group.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from jobflow.core.errors import ConfigError, JobError, user_line
from jobflow.ops.learning_rates import annealing, cosine, exponential, polynomial, rising
from jobflow.optim.optimizer import Optimizer
from jobflow.tensors.state import building_now


def _unit(what: str, **factors: float) -> None:
    """Raise ConfigError if one of the `factors` is outside of [0, 1]; the message begins with `what`."""
    for name, factor in factors.items():
        if not 0 <= factor <= 1:
            raise ConfigError(f"{what}: {name} must be in [0, 1], not {factor}")


def _steps(what: str, **counts: int) -> None:
    """Raise ConfigError if one of the numbers of steps `counts` is below 1; the message names the schedule `what`."""
    for name, count in counts.items():
        if not count >= 1:
            raise ConfigError(f"lr_scheduler.{what} at {user_line()}: {name} must be at least 1, not {count}")


class LRScheduler:
    """Base class of schedules, which set the learning rates of the groups of `optimizer`.

    The constructor increments `last_epoch` and sets the rates.  From then on, `last_epoch` is the number of steps.
    """

    #: attributes that are not saved
    UNSAVED: ClassVar[tuple[str, ...]] = ("optimizer",)

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1, verbose: bool = False) -> None:
        if not isinstance(optimizer, Optimizer):
            raise ConfigError(f"lr_scheduler.{type(self).__name__} at {user_line()}: optimizer must be an optimizer, not {type(optimizer).__name__}")
        self.optimizer = optimizer
        self.verbose = verbose
        self.last_epoch = self.last_step = last_epoch
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])
        self.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
        self.step()

    def rate(self, base: float, t: int) -> float:
        """Return the rate after t steps for the initial rate `base`; subclasses must define this method."""
        raise JobError(f"{type(self).__name__} at {user_line()}: the schedule has no method `rate`; define rate(base, t) in the subclass")

    def rates(self) -> list[float]:
        """Return the rate of each group after `last_epoch` steps."""
        return self.rates_after(self.last_epoch)

    def rates_after(self, t: int) -> list[float]:
        """Return the rate of each group after t steps, by the formula of the schedule."""
        return [self.rate(base, t) for base in self.base_lrs]

    def step(self) -> None:
        """Increment `last_epoch`, and set the rate of each group of the optimizer to the result of `rates`."""
        recorder = building_now()
        if recorder is not None and recorder.differentiates:
            recorder.repeat(self, type(self).step is LRScheduler.step)
        self.last_epoch += 1
        self.last_step = self.last_epoch
        self._set(self.rates())

    def _set(self, rates: Sequence[float]) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate

    def get_lr(self) -> list[float]:
        """Return the rate of each group after `last_epoch` steps, computed again by the formula of the schedule."""
        return self.rates()

    def get_last_lr(self) -> list[float]:
        """Return the current rate of each group of the optimizer, as the last `step` set it."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Return the attributes of the schedule as a dict for `load_state_dict`, without the optimizer and without functions."""
        return {name: value for name, value in vars(self).items() if name not in self.UNSAVED and not callable(value)}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Restore the attributes from `saved`, a result of `state_dict`, and set the rates of the optimizer."""
        vars(self).update(saved)
        self._set(self.rates())


class LambdaLR(LRScheduler):
    """The initial rate times f(t) after t steps; `lr_lambda` is f, or a list with one function f for each group."""

    UNSAVED = ("optimizer", "lambdas")

    def __init__(self, optimizer: Optimizer, lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]], last_epoch: int = -1) -> None:
        count = len(optimizer.param_groups)
        if not callable(lr_lambda) and not (isinstance(lr_lambda, Sequence) and all(map(callable, lr_lambda))):
            raise ConfigError(
                f"lr_scheduler.LambdaLR at {user_line()}: lr_lambda must be a function of the number of steps, or a list of one function per group, "
                f"not {lr_lambda!r}"
            )
        self.lambdas = [lr_lambda] * count if callable(lr_lambda) else list(lr_lambda)
        if len(self.lambdas) != count:
            raise ConfigError(
                f"lr_scheduler.LambdaLR at {user_line()}: lr_lambda must have one function for each of {count} groups, not {len(self.lambdas)}"
            )
        super().__init__(optimizer, last_epoch)

    def rates_after(self, t: int) -> list[float]:
        return [base * f(t) for base, f in zip(self.base_lrs, self.lambdas, strict=True)]


class StepLR(LRScheduler):
    """Step decay: the initial rate times gamma^(t // step_size) after t steps."""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1) -> None:
        _steps("StepLR", step_size=step_size)
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, t: int) -> float:
        return exponential(base, t, self.step_size, self.gamma, staircase=True)


class MultiStepLR(LRScheduler):
    """Step decay at milestones: the initial rate times gamma^k after t steps, where k is the number of milestones up to t."""

    def __init__(self, optimizer: Optimizer, milestones: Sequence[int], gamma: float = 0.1, last_epoch: int = -1) -> None:
        self.milestones, self.gamma = sorted(milestones), gamma
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, t: int) -> float:
        return exponential(base, bisect_right(self.milestones, t), 1, self.gamma)


class ExponentialLR(LRScheduler):
    """Exponential decay: the initial rate times gamma^t after t steps."""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, t: int) -> float:
        return exponential(base, t, 1, self.gamma)


class ConstantLR(LRScheduler):
    """The initial rate times `factor` for the first `total_iters` steps, then the initial rate."""

    def __init__(self, optimizer: Optimizer, factor: float = 1.0 / 3, total_iters: int = 5, last_epoch: int = -1) -> None:
        _unit(f"lr_scheduler.ConstantLR at {user_line()}", factor=factor)
        self.factor, self.total_iters = factor, total_iters
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, t: int) -> float:
        return base * self.factor if t < self.total_iters else base


class LinearLR(LRScheduler):
    """The initial rate times a factor that changes linearly from `start_factor` to `end_factor` in `total_iters` steps.

    After these steps, the factor remains `end_factor`.
    """

    def __init__(
        self, optimizer: Optimizer, start_factor: float = 1.0 / 3, end_factor: float = 1.0, total_iters: int = 5, last_epoch: int = -1
    ) -> None:
        _steps("LinearLR", total_iters=total_iters)
        what = f"lr_scheduler.LinearLR at {user_line()}"
        _unit(what, start_factor=start_factor, end_factor=end_factor)
        if start_factor == 0:
            raise ConfigError(f"{what}: start_factor must be above 0, not 0")
        self.start_factor, self.end_factor, self.total_iters = start_factor, end_factor, total_iters
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, t: int) -> float:
        return rising(base, min(t, self.total_iters), self.total_iters, self.start_factor, self.end_factor)


class PolynomialLR(LRScheduler):
    """Polynomial decay: (base - end) * (1 - t / n)^power + end after t steps, with the initial rate `base` and end = `end_learning_rate`.

    n is `steps`, or with `cycle` the next multiple of `steps`.
    """

    def __init__(
        self, optimizer: Optimizer, steps: int, end_learning_rate: float = 0.0001, power: float = 1.0, cycle: bool = False, last_epoch: int = -1
    ) -> None:
        _steps("PolynomialLR", steps=steps)
        self.steps, self.end_learning_rate, self.power, self.cycle = steps, end_learning_rate, power, cycle
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, t: int) -> float:
        return polynomial(base, t, self.steps, self.end_learning_rate, self.power, self.cycle)


class CosineDecayLR(LRScheduler):
    """Cosine decay from the initial rate `base` to base * alpha, which remains after `decay_steps` steps.

    The rate after t steps is base * ((1 - alpha) * (1 + cos(pi * t / decay_steps)) / 2 + alpha).
    """

    def __init__(self, optimizer: Optimizer, decay_steps: int, alpha: float = 0.0, last_epoch: int = -1) -> None:
        _steps("CosineDecayLR", decay_steps=decay_steps)
        self.decay_steps, self.alpha = decay_steps, alpha
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, t: int) -> float:
        return cosine(base, t, self.decay_steps, self.alpha)


class CosineAnnealingLR(LRScheduler):
    """Cosine annealing without restarts (Loshchilov and Hutter 2017) from the initial rate `base` to `eta_min` after `T_max` steps.

    The rate is eta_min + (base - eta_min) * (1 + cos(pi * t / T_max)) / 2 after t steps.  After more than `T_max` steps, the rate rises again.
    """

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        _steps("CosineAnnealingLR", T_max=T_max)
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, t: int) -> float:
        return annealing(base, t, self.T_max, self.eta_min)


class WarmUpLR(LRScheduler):
    """A warm-up, followed by another schedule, or by the constant initial rate if an optimizer is passed.

    The warm-up has `warmup_iters` steps.  With `warmup_method="constant"`, the rate is the initial rate times `warmup_factor`.  With "linear",
    the rate begins there and changes linearly to the rate that follows the warm-up.
    """

    UNSAVED = ("optimizer", "inner")

    def __init__(
        self,
        lrsch_or_optimizer: LRScheduler | Optimizer,
        warmup_factor: float = 1.0 / 3,
        warmup_iters: int = 5,
        warmup_method: str = "linear",
        last_epoch: int = -1,
    ) -> None:
        if warmup_method not in ("linear", "constant"):
            raise ConfigError(f'lr_scheduler.WarmUpLR at {user_line()}: warmup_method must be "linear" or "constant", not {warmup_method!r}')
        self.inner = lrsch_or_optimizer if isinstance(lrsch_or_optimizer, LRScheduler) else None
        self.warmup_factor, self.warmup_iters, self.warmup_method = warmup_factor, warmup_iters, warmup_method
        optimizer = self.inner.optimizer if self.inner is not None else lrsch_or_optimizer
        assert isinstance(optimizer, Optimizer)
        super().__init__(optimizer, last_epoch)

    def rates_after(self, t: int) -> list[float]:
        bases = self.base_lrs
        if t < self.warmup_iters and self.warmup_method == "constant":
            return [base * self.warmup_factor for base in bases]
        ends = bases if self.inner is None else self.inner.rates_after(max(t, self.warmup_iters))
        if t >= self.warmup_iters:
            return ends
        starts = [base * self.warmup_factor for base in bases]
        return [start + (end - start) * t / self.warmup_iters for start, end in zip(starts, ends, strict=True)]


class ReduceLROnPlateau:
    """A schedule that multiplies the rate by `factor` if the metric passed to `step` has not improved for more than `patience` steps.

    An improvement is a decrease for mode "min", or an increase for "max", by more than `threshold`.  With `threshold_mode="rel"`, `threshold` is
    a fraction of the best metric.  After a reduction, `cooldown` steps are not counted.  Rates are not reduced below `min_lr`, nor by `eps` or less.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float = 0.0,
        eps: float = 1e-8,
    ) -> None:
        if factor >= 1.0 or mode not in ("min", "max") or threshold_mode not in ("rel", "abs"):
            raise ConfigError(
                f'lr_scheduler.ReduceLROnPlateau at {user_line()}: factor must be below 1, mode "min" or "max", threshold_mode "rel" or "abs", '
                f"not factor={factor}, mode={mode!r}, threshold_mode={threshold_mode!r}"
            )
        self.optimizer = optimizer
        self.mode, self.factor, self.patience, self.threshold, self.threshold_mode = mode, factor, patience, threshold, threshold_mode
        self.cooldown, self.min_lr, self.eps = cooldown, min_lr, eps
        self.best = math.inf if mode == "min" else -math.inf
        self.bad_steps = self.cooling = 0

    def step(self, metric: float) -> None:
        """Compare the metric of a step with the best metric, and reduce the rates after more than `patience` steps without improvement."""
        value = float(metric)
        if self._better(value):
            self.best, self.bad_steps = value, 0
        else:
            self.bad_steps += 1
        if self.cooling > 0:
            self.cooling, self.bad_steps = self.cooling - 1, 0
        if self.bad_steps > self.patience:
            for group in self.optimizer.param_groups:
                smaller = max(group["lr"] * self.factor, self.min_lr)
                group["lr"] = smaller if group["lr"] - smaller > self.eps else group["lr"]
            self.cooling, self.bad_steps = self.cooldown, 0

    def get_last_lr(self) -> list[float]:
        """Return the current rate of each group of the optimizer."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def _better(self, value: float) -> bool:
        sign = 1 if self.mode == "min" else -1
        margin = self.threshold * (
            abs(self.best) if self.threshold_mode == "rel" and math.isfinite(self.best) else 1.0 if self.threshold_mode == "abs" else 0.0
        )
        return sign * value < sign * self.best - margin

    def state_dict(self) -> dict[str, Any]:
        """Return the attributes of the schedule as a dict for `load_state_dict`, without the optimizer."""
        return {name: value for name, value in vars(self).items() if name != "optimizer"}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Restore the attributes from `saved`, a result of `state_dict`; the rates of the optimizer do not change."""
        vars(self).update(saved)


#: PyTorch's older name
_LRScheduler = LRScheduler
