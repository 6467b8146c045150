"""The base class of learning rate schedules, and the checks of their arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from jobflow.core.errors import CheckpointError, ConfigError, JobError, user_line
from jobflow.core.notices import notice
from jobflow.optim.optimizer import Optimizer
from jobflow.tensors.parameters import described
from jobflow.tensors.state import building_now


def check_unit(what: str, **factors: float) -> None:
    """Raise ConfigError if one of the `factors` is outside of [0, 1]; the message begins with `what`."""
    for name, factor in factors.items():
        if not is_number(factor) or not 0 <= factor <= 1:
            raise ConfigError(f"{what}: {name} must be in [0, 1], not {factor!r}")


def check_counts(what: str, least: int = 1, **counts: int) -> None:
    """Raise ConfigError if one of the numbers of steps `counts` is below `least`; the message names the schedule `what`."""
    for name, count in counts.items():
        if not is_number(count) or not count >= least:
            raise ConfigError(f"lr_scheduler.{what} at {user_line()}: {name} must be at least {least}, not {count!r}")


def check_numbers(what: str, **values: float) -> None:
    """Raise ConfigError if one of the arguments is not a number; the message names the schedule `what`."""
    for name, value in values.items():
        if not is_number(value):
            raise ConfigError(f"lr_scheduler.{what} at {user_line()}: {name} must be a number, not {value!r}")


def is_number(x: Any) -> bool:
    """Return True for a finite integer or float, but not for a bool."""
    return isinstance(x, int | float) and not isinstance(x, bool) and math.isfinite(x)


def per_group(what: str, optimizer: Any, name: str, value: Any) -> list[float]:
    """Return one number per group of the optimizer: `value` itself, or its elements.  Raises: ConfigError unless the numbers match the groups."""
    check_optimizer(what, optimizer)
    count = len(optimizer.param_groups)
    values = list(value) if isinstance(value, list | tuple) else [value] * count
    if len(values) != count or not all(map(is_number, values)):
        raise ConfigError(
            f"lr_scheduler.{what} at {user_line()}: {name} must be a number, or a list of one number per group ({count}), not {value!r}"
        )
    return [float(each) for each in values]


def check_optimizer(what: str, optimizer: Any) -> None:
    """Raise ConfigError unless `optimizer` is an optimizer; the message names the schedule `what`."""
    if not isinstance(optimizer, Optimizer):
        raise ConfigError(f"lr_scheduler.{what} at {user_line()}: optimizer must be an optimizer, not {type(optimizer).__name__}")


class LRScheduler:
    """Base class of schedules, which set the learning rates of the groups of `optimizer`.

    The constructor increments `last_epoch` and sets the rates.  From then on, `last_epoch` is the number of steps.  A subclass defines `get_lr`,
    which returns the next rates from `last_epoch`, `base_lrs` and `optimizer`, or the formula `rate`.  `verbose` has no effect.
    """

    #: attributes that are not saved
    UNSAVED: ClassVar[tuple[str, ...]] = ("optimizer",)
    #: True if a step multiplies a rate that other code has changed, instead of replacing it
    relative: ClassVar[bool] = False
    #: part of a rate that a relative step does not multiply
    floor: float = 0.0
    _get_lr_called_within_step: bool = False
    _step_count: int = 0

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1, verbose: Any = None) -> None:
        check_optimizer(type(self).__name__, optimizer)
        if not is_number(last_epoch) or last_epoch < -1:
            raise ConfigError(f"lr_scheduler.{type(self).__name__} at {user_line()}: last_epoch must be a number of steps, or -1, not {last_epoch!r}")
        if verbose not in (None, False, "deprecated"):
            notice(f"lr_scheduler.{type(self).__name__}: verbose is deprecated and has no effect; print get_last_lr()")
        self.optimizer = optimizer
        self.verbose = verbose
        self.last_epoch = self.last_step = last_epoch
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])
        self.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
        self._initial_step()

    def _initial_step(self) -> None:
        self._step_count = 0
        self.step()

    def rate(self, base: float, t: int) -> float:
        """Return the rate after t steps for the initial rate `base`; subclasses must define this method or `get_lr`."""
        raise JobError(
            f"{type(self).__name__} at {user_line()}: the schedule has no method `rate` and no method `get_lr`; define rate(base, t) in the subclass"
        )

    def rates(self) -> list[float]:
        """Return the rate of each group after `last_epoch` steps."""
        return self.rates_after(self.last_epoch)

    def rates_after(self, t: int) -> list[float]:
        """Return the rate of each group after t steps, by the formula of the schedule."""
        return [self.rate(base, t) for base in self.base_lrs]

    def step(self, epoch: int | None = None) -> None:
        """Increment `last_epoch`, or set it to `epoch`, and set the rate of each group of the optimizer to the result of `get_lr`."""
        recorder = building_now()
        if recorder is not None and recorder.differentiates:
            recorder.repeat(self, type(self).step is LRScheduler.step and not getattr(self, "cycle_momentum", False))
        self.advance(epoch)

    def advance(self, epoch: int | None = None) -> None:
        """Perform a step as `step` does, but without registering the schedule with a compiled function."""
        if epoch is not None and (not is_number(epoch) or epoch < 0):
            raise ConfigError(f"lr_scheduler.{type(self).__name__}.step at {user_line()}: epoch must be a number of at least 0, not {epoch!r}")
        self._step_count += 1
        self._move(self.last_epoch + 1 if epoch is None else epoch)
        self._get_lr_called_within_step = True
        try:
            rates = self.get_lr() if epoch is None or not self._has_formula else self.rates()
        finally:
            self._get_lr_called_within_step = False
        self._set(rates)

    def _move(self, epoch: int) -> None:
        self.last_epoch = self.last_step = epoch

    @property
    def _has_formula(self) -> bool:
        """True if the rates are a function of `last_epoch` and the initial rates."""
        return type(self).get_lr is LRScheduler.get_lr

    def _set(self, rates: Sequence[float]) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        self._last_lr = list(rates)

    def get_lr(self) -> list[float]:
        """Return the rate of each group after `last_epoch` steps, by the formula of the schedule.

        In a step of a relative schedule, a rate that other code has changed is multiplied by the ratio of two successive rates.
        """
        rates = self.rates()
        if not self.relative or not self._get_lr_called_within_step:
            return rates
        before = self.base_lrs if self.last_epoch == 0 else self.rates_after(self.last_epoch - 1)
        resumes = self._step_count == 1  # the constructor of a schedule that continues with a new optimizer
        return [
            new
            if now == old or old == self.floor or (resumes and now == base)
            else self.floor + (now - self.floor) * (new - self.floor) / (old - self.floor)
            for new, now, old, base in zip(rates, self.get_last_lr(), before, self.base_lrs, strict=True)
        ]

    def get_last_lr(self) -> list[float]:
        """Return the current rate of each group of the optimizer, as the last `step` set it."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def family(self) -> Iterator[LRScheduler]:
        """Yield the schedule itself, and the schedules that its step advances."""
        yield self

    def snapshot(self) -> Callable[[], None]:
        """Return a function that restores the present state of the schedule and of the options of the groups."""
        attributes = [(vars(each), dict(vars(each))) for each in self.family()]
        options = [(group, dict(group)) for group in self.optimizer.param_groups]

        def restore() -> None:
            for own, before in attributes:
                own.clear()
                own.update(before)
            for group, before in options:
                group.update(before)

        return restore

    def state_dict(self) -> dict[str, Any]:
        """Return the attributes of the schedule as a dict for `load_state_dict`, without the optimizer and without functions."""
        return {name: value for name, value in vars(self).items() if name not in self.UNSAVED and not callable(value)}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Restore the attributes from `saved`, a result of `state_dict`, and set the rates of the optimizer by the formula of the schedule.

        Without a formula, the rates of the optimizer do not change.  States of PyTorch are accepted; functions keep their values.
        Raises: CheckpointError for another object than a dict, or a value that is not a number where the schedule has one.
        """
        vars(self).update(restorable(self, saved))
        if self._has_formula:
            self._set(self.rates())


def restorable(schedule: Any, saved: Any) -> dict[str, Any]:
    """Return the entries of a state that are attributes of the schedule, without its functions, its optimizer, and methods of its class.

    Raises: CheckpointError for another object than a dict, or a value that is not a number where the schedule has one.
    """
    what = f"lr_scheduler.{type(schedule).__name__}.load_state_dict at {user_line()}"
    if not isinstance(saved, Mapping) or not all(isinstance(name, str) for name in saved):
        raise CheckpointError(f"{what}: the state must be a dict as returned by state_dict(); got {described(saved)}")
    unsaved = getattr(schedule, "UNSAVED", ("optimizer",))
    entries = {name: value for name, value in saved.items() if name not in unsaved and not callable(getattr(type(schedule), name, None))}
    for name, value in entries.items():
        current = vars(schedule).get(name)
        if isinstance(current, int | float) and not isinstance(value, int | float):
            raise CheckpointError(f"{what}: {name} must be a number; got {described(value)}; pass the state of a schedule of this class")
    rates = entries.get("base_lrs", schedule.optimizer.param_groups)
    if not isinstance(rates, list) or len(rates) != len(schedule.optimizer.param_groups):
        raise CheckpointError(
            f"{what}: base_lrs must have one rate for each of {len(schedule.optimizer.param_groups)} groups; got {described(rates)}"
        )
    return entries
