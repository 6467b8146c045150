"""Learning rate schedules with cycles, two of which also change the momentum."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from jobflow.core.errors import ConfigError, JobError, user_line
from jobflow.ops.learning_rates import annealing
from jobflow.optim.optimizer import Optimizer
from jobflow.optim.schedule_base import LRScheduler, check_counts, check_numbers, is_number, per_group


class CosineAnnealingWarmRestarts(LRScheduler):
    """Cosine annealing with restarts (Loshchilov and Hutter 2017): the rate falls from the initial rate to `eta_min` in each cycle.

    The first cycle has `T_0` steps, and every later cycle is `T_mult` times as long as the cycle before.  `step(epoch)` accepts fractions, such as
    epoch + batch / batches.
    """

    def __init__(self, optimizer: Optimizer, T_0: int, T_mult: int = 1, eta_min: float = 0.0, last_epoch: int = -1, verbose: Any = None) -> None:
        for name, count in (("T_0", T_0), ("T_mult", T_mult)):
            if not isinstance(count, int) or count < 1:
                raise ConfigError(
                    f"lr_scheduler.CosineAnnealingWarmRestarts at {user_line()}: {name} must be an integer of at least 1, not {count!r}"
                )
        check_numbers("CosineAnnealingWarmRestarts", eta_min=eta_min)
        self.T_0, self.T_mult, self.eta_min = T_0, T_mult, eta_min
        self.T_i, self.T_cur = T_0, last_epoch
        super().__init__(optimizer, last_epoch, verbose)

    def _move(self, epoch: float) -> None:
        self.last_epoch = self.last_step = math.floor(epoch)
        self.T_cur, self.T_i = self._cycle(epoch)  # type: ignore[assignment]

    def _cycle(self, t: float) -> tuple[float, int]:
        """Return the number of steps since the restart before step t, and the length of the cycle."""
        if self.T_mult == 1:
            return t % self.T_0, self.T_0
        length = self.T_0
        while t >= length:
            t, length = t - length, length * self.T_mult
        return t, length

    def rates(self) -> list[float]:
        return [annealing(base, self.T_cur, self.T_i, self.eta_min) for base in self.base_lrs]

    def rates_after(self, t: int) -> list[float]:
        return [annealing(base, *self._cycle(t), self.eta_min) for base in self.base_lrs]  # type: ignore[arg-type]


class _MomentumCycle(LRScheduler):
    """Base class of schedules that may also change the momentum: the option `momentum`, or the first of `betas`."""

    cycle_momentum: bool

    def _begin(self, optimizer: Optimizer, base_momentum: Any, max_momentum: Any) -> None:
        """Check the bounds of the momentum, and store them in the groups."""
        name = type(self).__name__
        if not self.cycle_momentum:
            return
        if not {"momentum", "betas"} & optimizer.defaults.keys():
            raise ConfigError(
                f"lr_scheduler.{name} at {user_line()}: optim.{type(optimizer).__name__} has no momentum and no betas; pass cycle_momentum=False"
            )
        lows, highs = (per_group(name, optimizer, *each) for each in (("base_momentum", base_momentum), ("max_momentum", max_momentum)))
        for group, low, high in zip(optimizer.param_groups, lows, highs, strict=True):
            group["base_momentum"], group["max_momentum"] = low, high

    def momenta(self) -> list[float]:
        """Return the momentum of each group after `last_epoch` steps."""
        raise NotImplementedError

    def _set(self, rates: Sequence[float]) -> None:
        super()._set(rates)
        if not self.cycle_momentum:
            return
        for group, momentum in zip(self.optimizer.param_groups, self.momenta(), strict=True):
            if "betas" in group:
                group["betas"] = (momentum, *group["betas"][1:])
            else:
                group["momentum"] = momentum


class OneCycleLR(_MomentumCycle):
    """One cycle (Smith and Topin 2019): the rate rises from max_lr / div_factor to `max_lr`, and falls to the first rate / final_div_factor.

    The first phase takes the share `pct_start` of the steps.  With `three_phase`, the second phase is symmetric to the first one, and a third
    phase follows.  The momentum moves in the opposite direction, between `max_momentum` and `base_momentum`.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float | list[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: float | list[float] = 0.85,
        max_momentum: float | list[float] = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
        verbose: Any = None,
    ) -> None:
        what = f"lr_scheduler.OneCycleLR at {user_line()}"
        highest = per_group("OneCycleLR", optimizer, "max_lr", max_lr)
        counts = {"total_steps": total_steps} if total_steps is not None else {"epochs": epochs, "steps_per_epoch": steps_per_epoch}
        if None in counts.values():
            raise ConfigError(f"{what}: the number of steps is missing; pass total_steps, or epochs and steps_per_epoch")
        for name, count in counts.items():
            if not isinstance(count, int) or isinstance(count, bool) or count < 1:
                raise ConfigError(f"{what}: {name} must be an integer of at least 1, not {count!r}")
        if not is_number(pct_start) or not 0 <= pct_start <= 1:
            raise ConfigError(f"{what}: pct_start must be a number from 0 to 1, not {pct_start!r}")
        if anneal_strategy not in ("cos", "linear"):
            raise ConfigError(f'{what}: anneal_strategy must be "cos" or "linear", not {anneal_strategy!r}')
        for name, factor in (("div_factor", div_factor), ("final_div_factor", final_div_factor)):
            if not is_number(factor) or not factor > 0:
                raise ConfigError(f"{what}: {name} must be a number above 0, not {factor!r}")
        self.total_steps = math.prod(counts.values())  # type: ignore[arg-type]
        self.anneal_strategy, self.cycle_momentum = anneal_strategy, bool(cycle_momentum)
        up = pct_start * self.total_steps - 1
        last = self.total_steps - 1
        #: (last step, rate at the start, rate at the end, momentum at the start, momentum at the end) of each phase, by name in the groups
        self.phases = [(up, "initial_lr", "max_lr", "max_momentum", "base_momentum")]
        if three_phase:
            self.phases += [(2 * up, "max_lr", "initial_lr", "base_momentum", "max_momentum")]
            self.phases += [(last, "initial_lr", "min_lr", "max_momentum", "max_momentum")]
        else:
            self.phases += [(last, "max_lr", "min_lr", "base_momentum", "max_momentum")]
        if last_epoch == -1:
            for group, top in zip(optimizer.param_groups, highest, strict=True):
                group["initial_lr"], group["max_lr"] = top / div_factor, top
                group["min_lr"] = top / div_factor / final_div_factor
            self._begin(optimizer, base_momentum, max_momentum)
        elif any("max_lr" not in group for group in optimizer.param_groups):
            raise ConfigError(f"{what}: last_epoch={last_epoch!r} needs the groups of an earlier OneCycleLR; load the state of the optimizer first")
        super().__init__(optimizer, last_epoch, verbose)

    def _position(self, t: int) -> tuple[float, tuple[Any, ...]]:
        """Return the complete share of the current phase after t steps, and the phase.  Raises: JobError after the last step."""
        if t > self.total_steps:
            raise JobError(
                f"lr_scheduler.OneCycleLR.step at {user_line()}: step {t} is beyond total_steps={self.total_steps}; pass a larger total_steps"
            )
        start = 0.0
        for phase in self.phases[:-1]:
            if t <= phase[0]:
                return self._share(t, start, phase[0]), phase
            start = phase[0]
        return self._share(t, start, self.phases[-1][0]), self.phases[-1]

    def _share(self, t: int, start: float, end: float) -> float:
        share = (t - start) / (end - start) if end != start else 1.0
        return (1 - math.cos(math.pi * share)) / 2 if self.anneal_strategy == "cos" else share

    def rates_after(self, t: int) -> list[float]:
        share, (_, first, last, *_) = self._position(t)
        return [group[first] + (group[last] - group[first]) * share for group in self.optimizer.param_groups]

    def momenta(self) -> list[float]:
        share, (*_, first, last) = self._position(self.last_epoch)
        return [group[first] + (group[last] - group[first]) * share for group in self.optimizer.param_groups]


#: factor of the amplitude of CyclicLR by mode, from the number of the cycle or of the step, and the name of this number
_SCALES: dict[str, tuple[Callable[[float, float], float], str]] = {
    "triangular": (lambda x, gamma: 1.0, "cycle"),
    "triangular2": (lambda x, gamma: 1 / 2.0 ** (x - 1), "cycle"),
    "exp_range": (lambda x, gamma: gamma**x, "iterations"),
}


class CyclicLR(_MomentumCycle):
    """Cycles (Smith 2017): the rate rises from `base_lr` to `max_lr` in `step_size_up` steps, and falls in `step_size_down` steps.

    The amplitude is multiplied by 1 ("triangular"), 1 / 2^(cycle - 1) ("triangular2"), gamma^step ("exp_range"), or by scale_fn(cycle), or
    scale_fn(step) with `scale_mode="iterations"`.  The momentum moves in the opposite direction, between `max_momentum` and `base_momentum`.
    """

    UNSAVED = ("optimizer", "scale_fn")

    def __init__(
        self,
        optimizer: Optimizer,
        base_lr: float | list[float],
        max_lr: float | list[float],
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None,
        scale_mode: str = "cycle",
        cycle_momentum: bool = True,
        base_momentum: float = 0.8,
        max_momentum: float = 0.9,
        last_epoch: int = -1,
        verbose: Any = None,
    ) -> None:
        what = f"lr_scheduler.CyclicLR at {user_line()}"
        lows, self.max_lrs = (per_group("CyclicLR", optimizer, *each) for each in (("base_lr", base_lr), ("max_lr", max_lr)))
        step_size_down = step_size_up if step_size_down is None else step_size_down
        check_counts("CyclicLR", step_size_up=step_size_up, step_size_down=step_size_down)
        check_numbers("CyclicLR", gamma=gamma)
        if scale_fn is not None and not callable(scale_fn):
            raise ConfigError(f"{what}: scale_fn must be a function of a number, not {scale_fn!r}")
        if scale_fn is None and (not isinstance(mode, str) or mode not in _SCALES):
            raise ConfigError(f'{what}: mode must be "triangular", "triangular2" or "exp_range", not {mode!r}')
        if scale_mode not in ("cycle", "iterations"):
            raise ConfigError(f'{what}: scale_mode must be "cycle" or "iterations", not {scale_mode!r}')
        self.total_size, self.step_ratio = step_size_up + step_size_down, step_size_up / (step_size_up + step_size_down)
        self.mode, self.gamma, self.scale_fn = mode, gamma, scale_fn
        self.scale_mode = scale_mode if scale_fn is not None else _SCALES[mode][1]
        self.cycle_momentum = bool(cycle_momentum)
        self.lows = lows
        if last_epoch == -1:
            for group, low in zip(optimizer.param_groups, lows, strict=True):
                group["lr"] = low
            self._begin(optimizer, base_momentum, max_momentum)
        super().__init__(optimizer, last_epoch, verbose)
        self.base_lrs = lows

    def _height(self, t: int) -> float:
        """Return the position between the bounds after t steps, from 0 to 1, times the factor of the amplitude."""
        cycle = math.floor(1 + t / self.total_size)
        x = 1 + t / self.total_size - cycle
        number = cycle if self.scale_mode == "cycle" else t
        factor = self.scale_fn(number) if self.scale_fn is not None else _SCALES[self.mode][0](number, self.gamma)
        return (x / self.step_ratio if x <= self.step_ratio else (x - 1) / (self.step_ratio - 1)) * factor

    def rates_after(self, t: int) -> list[float]:
        height = self._height(t)
        return [low + (high - low) * height for low, high in zip(self.lows, self.max_lrs, strict=True)]

    def momenta(self) -> list[float]:
        height = self._height(self.last_epoch)
        return [group["max_momentum"] - (group["max_momentum"] - group["base_momentum"]) * height for group in self.optimizer.param_groups]
