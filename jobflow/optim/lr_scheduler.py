"""Learning rate schedules, which set the rates of an optimizer's groups at every `step()`.

Most schedules are closed formulas of the number of steps t, in float64: `rate(base, t)`.  `base` is the initial rate of the group.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from jobflow.core.errors import ConfigError, user_line
from jobflow.ops.learning_rates import annealing, cosine, exponential, polynomial, rising
from jobflow.optim.composed_schedules import ChainedScheduler as ChainedScheduler
from jobflow.optim.composed_schedules import SequentialLR as SequentialLR
from jobflow.optim.cyclic_schedules import CosineAnnealingWarmRestarts as CosineAnnealingWarmRestarts
from jobflow.optim.cyclic_schedules import CyclicLR as CyclicLR
from jobflow.optim.cyclic_schedules import OneCycleLR as OneCycleLR
from jobflow.optim.optimizer import Optimizer
from jobflow.optim.schedule_base import LRScheduler as LRScheduler
from jobflow.optim.schedule_base import check_counts, check_numbers, check_optimizer, check_unit, is_number, per_group, restorable


def _factors(what: str, optimizer: Any, lr_lambda: Any) -> list[Callable[[int], float]]:
    """Return one function per group of the optimizer.  Raises: ConfigError unless `lr_lambda` is a function or a list of one function per group."""
    check_optimizer(what, optimizer)
    count = len(optimizer.param_groups)
    if not callable(lr_lambda) and not (isinstance(lr_lambda, Sequence) and all(map(callable, lr_lambda))):
        raise ConfigError(
            f"lr_scheduler.{what} at {user_line()}: lr_lambda must be a function of the number of steps, or a list of one function per group, "
            f"not {lr_lambda!r}"
        )
    functions = [lr_lambda] * count if callable(lr_lambda) else list(lr_lambda)
    if len(functions) != count:
        raise ConfigError(f"lr_scheduler.{what} at {user_line()}: lr_lambda must have one function for each of {count} groups, not {len(functions)}")
    return functions


class LambdaLR(LRScheduler):
    """The initial rate times f(t) after t steps; `lr_lambda` is f, or a list with one function f for each group."""

    UNSAVED = ("optimizer", "lr_lambdas")

    def __init__(
        self, optimizer: Optimizer, lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]], last_epoch: int = -1, verbose: Any = None
    ) -> None:
        self.lr_lambdas = _factors("LambdaLR", optimizer, lr_lambda)
        super().__init__(optimizer, last_epoch, verbose)

    def rates_after(self, t: int) -> list[float]:
        return [base * f(t) for base, f in zip(self.base_lrs, self.lr_lambdas, strict=True)]


class MultiplicativeLR(LRScheduler):
    """The rate times f(t) in step t; `lr_lambda` is f, or a list with one function f for each group."""

    UNSAVED = ("optimizer", "lr_lambdas")

    def __init__(
        self, optimizer: Optimizer, lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]], last_epoch: int = -1, verbose: Any = None
    ) -> None:
        self.lr_lambdas = _factors("MultiplicativeLR", optimizer, lr_lambda)
        super().__init__(optimizer, last_epoch, verbose)

    def get_lr(self) -> list[float]:
        """Return the next rate of each group."""
        rates = self.get_last_lr()
        return [rate * f(self.last_epoch) for rate, f in zip(rates, self.lr_lambdas, strict=True)] if self.last_epoch > 0 else rates


class StepLR(LRScheduler):
    """Step decay: the initial rate times gamma^(t // step_size) after t steps.

    Examples:
        >>> optimizer = flow.optim.SGD([nn.Parameter(flow.ones(1))], lr=0.1)
        >>> schedule = flow.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
        >>> optimizer.step()
        >>> schedule.step()
        >>> schedule.get_last_lr()
        [0.05]
    """

    relative = True

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1, verbose: Any = None) -> None:
        check_counts("StepLR", step_size=step_size)
        check_numbers("StepLR", gamma=gamma)
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch, verbose)

    def rate(self, base: float, t: int) -> float:
        return exponential(base, t, self.step_size, self.gamma, staircase=True)


class MultiStepLR(LRScheduler):
    """Step decay at milestones: the initial rate times gamma^k after t steps, where k is the number of milestones up to t."""

    relative = True

    def __init__(self, optimizer: Optimizer, milestones: Sequence[int], gamma: float = 0.1, last_epoch: int = -1, verbose: Any = None) -> None:
        check_numbers("MultiStepLR", gamma=gamma)
        if not isinstance(milestones, Iterable) or not all(map(is_number, milestones := list(milestones))):
            raise ConfigError(f"lr_scheduler.MultiStepLR at {user_line()}: milestones must be a list of numbers of steps, not {milestones!r}")
        self.milestones, self.gamma = sorted(milestones), gamma
        super().__init__(optimizer, last_epoch, verbose)

    def rate(self, base: float, t: int) -> float:
        return exponential(base, bisect_right(self.milestones, t), 1, self.gamma)


class ExponentialLR(LRScheduler):
    """Exponential decay: the initial rate times gamma^t after t steps."""

    relative = True

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1, verbose: Any = None) -> None:
        check_numbers("ExponentialLR", gamma=gamma)
        self.gamma = gamma
        super().__init__(optimizer, last_epoch, verbose)

    def rate(self, base: float, t: int) -> float:
        return exponential(base, t, 1, self.gamma)


class ConstantLR(LRScheduler):
    """The initial rate times `factor` for the first `total_iters` steps, then the initial rate."""

    relative = True

    def __init__(self, optimizer: Optimizer, factor: float = 1.0 / 3, total_iters: int = 5, last_epoch: int = -1, verbose: Any = None) -> None:
        check_unit(f"lr_scheduler.ConstantLR at {user_line()}", factor=factor)
        check_counts("ConstantLR", 0, total_iters=total_iters)
        self.factor, self.total_iters = factor, total_iters
        super().__init__(optimizer, last_epoch, verbose)

    def rate(self, base: float, t: int) -> float:
        return base * self.factor if t < self.total_iters else base


class LinearLR(LRScheduler):
    """The initial rate times a factor that changes linearly from `start_factor` to `end_factor` in `total_iters` steps.

    After these steps, the factor remains `end_factor`.
    """

    relative = True

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1.0 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
        verbose: Any = None,
    ) -> None:
        check_counts("LinearLR", total_iters=total_iters)
        what = f"lr_scheduler.LinearLR at {user_line()}"
        check_unit(what, start_factor=start_factor, end_factor=end_factor)
        if start_factor == 0:
            raise ConfigError(f"{what}: start_factor must be above 0, not 0")
        self.start_factor, self.end_factor, self.total_iters = start_factor, end_factor, total_iters
        super().__init__(optimizer, last_epoch, verbose)

    def rate(self, base: float, t: int) -> float:
        return rising(base, min(t, self.total_iters), self.total_iters, self.start_factor, self.end_factor)


class PolynomialLR(LRScheduler):
    """Polynomial decay: (base - end) * (1 - t / n)^power + end after t steps, with the initial rate `base`.

    n is `total_iters`, and end is 0.  With `steps`, n is `steps`, or with `cycle` the next multiple of `steps`, and end is `end_learning_rate`.
    """

    relative = True

    def __init__(
        self,
        optimizer: Optimizer,
        total_iters: int = 5,
        power: float = 1.0,
        last_epoch: int = -1,
        verbose: Any = None,
        *,
        steps: int | None = None,
        end_learning_rate: float | None = None,
        cycle: bool = False,
    ) -> None:
        what = f"lr_scheduler.PolynomialLR at {user_line()}"
        if steps is None and (cycle or end_learning_rate is not None):
            raise ConfigError(f"{what}: end_learning_rate and cycle need steps, the number of steps; pass steps={total_iters!r}")
        self.steps = self.total_iters = total_iters if steps is None else steps
        check_counts("PolynomialLR", **{"total_iters" if steps is None else "steps": self.steps})
        end = (0.0 if steps is None else 0.0001) if end_learning_rate is None else end_learning_rate
        check_numbers("PolynomialLR", power=power, end_learning_rate=end)
        self.end_learning_rate, self.power, self.cycle, self.floor = end, power, bool(cycle), end
        super().__init__(optimizer, last_epoch, verbose)

    def rate(self, base: float, t: int) -> float:
        return polynomial(base, t, self.steps, self.end_learning_rate, self.power, self.cycle)


class CosineDecayLR(LRScheduler):
    """Cosine decay from the initial rate `base` to base * alpha, which remains after `decay_steps` steps.

    The rate after t steps is base * ((1 - alpha) * (1 + cos(pi * t / decay_steps)) / 2 + alpha).
    """

    def __init__(self, optimizer: Optimizer, decay_steps: int, alpha: float = 0.0, last_epoch: int = -1, verbose: Any = None) -> None:
        check_counts("CosineDecayLR", decay_steps=decay_steps)
        self.decay_steps, self.alpha = decay_steps, alpha
        super().__init__(optimizer, last_epoch, verbose)

    def rate(self, base: float, t: int) -> float:
        return cosine(base, t, self.decay_steps, self.alpha)


class CosineAnnealingLR(LRScheduler):
    """Cosine annealing without restarts (Loshchilov and Hutter 2017) from the initial rate `base` to `eta_min` after `T_max` steps.

    The rate is eta_min + (base - eta_min) * (1 + cos(pi * t / T_max)) / 2 after t steps.  After more than `T_max` steps, the rate rises again.

    Examples:
        >>> optimizer = flow.optim.SGD([nn.Parameter(flow.ones(1))], lr=0.1)
        >>> schedule = flow.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=2)
        >>> optimizer.step()
        >>> schedule.step()
        >>> [round(rate, 3) for rate in schedule.get_last_lr()]
        [0.05]
    """

    relative = True

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1, verbose: Any = None) -> None:
        check_counts("CosineAnnealingLR", T_max=T_max)
        check_numbers("CosineAnnealingLR", eta_min=eta_min)
        self.T_max, self.eta_min, self.floor = T_max, eta_min, eta_min
        super().__init__(optimizer, last_epoch, verbose)

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
        verbose: Any = None,
    ) -> None:
        if warmup_method not in ("linear", "constant"):
            raise ConfigError(f'lr_scheduler.WarmUpLR at {user_line()}: warmup_method must be "linear" or "constant", not {warmup_method!r}')
        self.inner = lrsch_or_optimizer if isinstance(lrsch_or_optimizer, LRScheduler) else None
        self.warmup_factor, self.warmup_iters, self.warmup_method = warmup_factor, warmup_iters, warmup_method
        optimizer = self.inner.optimizer if self.inner is not None else lrsch_or_optimizer
        assert isinstance(optimizer, Optimizer)
        super().__init__(optimizer, last_epoch, verbose)

    def rates_after(self, t: int) -> list[float]:
        bases = self.base_lrs
        if t < self.warmup_iters and self.warmup_method == "constant":
            return [base * self.warmup_factor for base in bases]
        ends = bases if self.inner is None else self.inner.rates_after(max(t, self.warmup_iters))
        if t >= self.warmup_iters:
            return ends
        starts = [base * self.warmup_factor for base in bases]
        return [start + (end - start) * t / self.warmup_iters for start, end in zip(starts, ends, strict=True)]


class ReduceLROnPlateau(LRScheduler):
    """A schedule that multiplies the rate by `factor` if the metric passed to `step` has not improved for more than `patience` steps.

    An improvement is a decrease for mode "min", or an increase for "max", by more than `threshold`.  With `threshold_mode="rel"`, `threshold` is
    a fraction of the best metric.  After a reduction, `cooldown` steps are not counted.  Rates are not reduced below `min_lr`, a number or a list
    of one number per group, nor by `eps` or less.
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
        min_lr: float | list[float] = 0.0,
        eps: float = 1e-8,
        verbose: Any = None,
    ) -> None:
        values = {"factor": factor, "patience": patience, "threshold": threshold, "cooldown": cooldown, "eps": eps}
        check_numbers("ReduceLROnPlateau", **values)
        if factor >= 1.0 or mode not in ("min", "max") or threshold_mode not in ("rel", "abs"):
            raise ConfigError(
                f'lr_scheduler.ReduceLROnPlateau at {user_line()}: factor must be below 1, mode "min" or "max", threshold_mode "rel" or "abs", '
                f"not factor={factor}, mode={mode!r}, threshold_mode={threshold_mode!r}"
            )
        self.min_lrs = per_group("ReduceLROnPlateau", optimizer, "min_lr", min_lr)
        self.optimizer = optimizer
        self.mode, self.factor, self.patience, self.threshold, self.threshold_mode = mode, factor, patience, threshold, threshold_mode
        self.cooldown, self.eps, self.last_epoch = cooldown, eps, 0
        self.best = math.inf if mode == "min" else -math.inf
        self.num_bad_epochs = self.cooldown_counter = 0
        self._last_lr = self.get_last_lr()

    def step(self, metrics: Any, epoch: int | None = None) -> None:  # type: ignore[override]
        """Compare the metric of a step with the best metric, and reduce the rates after more than `patience` steps without improvement."""
        value = float(metrics)
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        if self.is_better(value, self.best):
            self.best, self.num_bad_epochs = value, 0
        else:
            self.num_bad_epochs += 1
        if self.in_cooldown:
            self.cooldown_counter, self.num_bad_epochs = self.cooldown_counter - 1, 0
        if self.num_bad_epochs > self.patience:
            for group, least in zip(self.optimizer.param_groups, self.min_lrs, strict=True):
                smaller = max(group["lr"] * self.factor, least)
                group["lr"] = smaller if group["lr"] - smaller > self.eps else group["lr"]
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
        self._last_lr = self.get_last_lr()

    @property
    def in_cooldown(self) -> bool:
        """True if steps are not counted, because the rates were reduced less than `cooldown` steps before."""
        return self.cooldown_counter > 0

    def is_better(self, a: float, best: float) -> bool:
        """Return True if the metric `a` is an improvement over `best`."""
        sign = 1 if self.mode == "min" else -1
        margin = self.threshold * (
            abs(best) if self.threshold_mode == "rel" and math.isfinite(best) else 1.0 if self.threshold_mode == "abs" else 0.0
        )
        return sign * a < sign * best - margin

    def get_lr(self) -> list[float]:
        """Return the current rate of each group."""
        return self.get_last_lr()

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Restore the attributes from `saved`, a result of `state_dict`; the rates of the optimizer do not change."""
        older = {"bad_steps": "num_bad_epochs", "cooling": "cooldown_counter"}
        entries = restorable(self, saved)
        vars(self).update({older.get(name, name): value for name, value in entries.items() if name != "min_lr"})


#: PyTorch's older name
_LRScheduler = LRScheduler
