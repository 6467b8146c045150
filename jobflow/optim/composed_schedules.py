"""Learning rate schedules that are composed of other schedules of the same optimizer."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jobflow.core.errors import ConfigError, user_line
from jobflow.optim.optimizer import Optimizer
from jobflow.optim.schedule_base import LRScheduler, check_optimizer, is_number, restorable


def _step(schedule: LRScheduler) -> None:
    """Perform a step of an inner schedule, without registering the schedule with a compiled function: the outer schedule is registered."""
    (schedule.advance if type(schedule).step is LRScheduler.step else schedule.step)()


class _Composed(LRScheduler):
    """Base class of schedules that are composed of other schedules."""

    UNSAVED = ("optimizer", "_schedulers")
    _schedulers: list[LRScheduler]

    def _begin(self, optimizer: Any, schedulers: Any) -> None:
        what = f"lr_scheduler.{type(self).__name__} at {user_line()}"
        if not isinstance(schedulers, list | tuple) or not schedulers:
            raise ConfigError(f"{what}: schedulers must be a list of at least one schedule, not {schedulers!r}")
        for i, each in enumerate(schedulers):
            if not isinstance(each, LRScheduler) or hasattr(each, "patience"):
                raise ConfigError(f"{what}: schedulers[{i}] must be a schedule whose step needs no metric, not {type(each).__name__}")
        optimizer = schedulers[0].optimizer if optimizer is None else optimizer
        check_optimizer(type(self).__name__, optimizer)
        for i, each in enumerate(schedulers):
            if each.optimizer is not optimizer:
                raise ConfigError(f"{what}: schedulers[{i}] belongs to another optimizer; create all schedules with the same optimizer")
        self.optimizer, self._schedulers = optimizer, list(schedulers)

    @property
    def _has_formula(self) -> bool:
        return False

    @property
    def cycle_momentum(self) -> bool:
        """True if an inner schedule changes the momentum."""
        return any(getattr(each, "cycle_momentum", False) for each in self._schedulers)

    def get_lr(self) -> list[float]:
        """Return the current rate of each group."""
        return self.get_last_lr()

    def family(self) -> Iterator[LRScheduler]:
        yield self
        for each in self._schedulers:
            yield from each.family()

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"_schedulers": [each.state_dict() for each in self._schedulers]}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Restore the attributes of this schedule and of the inner schedules from `saved`, a result of `state_dict`."""
        states = saved.get("_schedulers") if isinstance(saved, Mapping) else None
        if not isinstance(states, Sequence) or len(states) != len(self._schedulers):
            raise ConfigError(
                f"lr_scheduler.{type(self).__name__}.load_state_dict at {user_line()}: the state must have {len(self._schedulers)} inner schedules; "
                f"create the schedule with the same inner schedules"
            )
        vars(self).update(restorable(self, saved))
        for each, state in zip(self._schedulers, states, strict=True):
            if isinstance(each, _Composed):
                each.load_state_dict(state)
            else:
                vars(each).update(restorable(each, state))
        if "_last_lr" in saved:
            self._set(saved["_last_lr"])


class SequentialLR(_Composed):
    """Schedules one after another: schedule i + 1 begins, at its own step 0, after `milestones[i]` steps."""

    def __init__(
        self, optimizer: Optimizer, schedulers: Sequence[LRScheduler], milestones: Sequence[int], last_epoch: int = -1, verbose: Any = None
    ) -> None:
        self._begin(optimizer, schedulers)
        what = f"lr_scheduler.SequentialLR at {user_line()}"
        if not isinstance(milestones, list | tuple) or not all(map(is_number, milestones)) or list(milestones) != sorted(milestones):
            raise ConfigError(f"{what}: milestones must be a list of ascending numbers of steps, not {milestones!r}")
        if len(milestones) != len(schedulers) - 1:
            raise ConfigError(f"{what}: {len(schedulers)} schedules need {len(schedulers) - 1} milestones, not {len(milestones)}")
        self._milestones = list(milestones)
        self.last_epoch = last_epoch + 1
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"]
        for each in self.family():  # their constructors performed a step
            if each is not self and not isinstance(each, _Composed):
                each.last_epoch -= 1
        self._schedulers[bisect_right(self._milestones, 0)]._initial_step()
        self._last_lr = self.get_last_lr()

    def advance(self, epoch: int | None = None) -> None:
        """Perform a step of the current schedule."""
        self.last_epoch += 1
        index = bisect_right(self._milestones, self.last_epoch)
        begins = index > 0 and self._milestones[index - 1] == self.last_epoch
        schedule = self._schedulers[index]
        if begins:
            schedule._step_count -= 1  # the first step of a schedule was that of its constructor
            schedule.advance(0)
        else:
            _step(schedule)
        self._last_lr = self.get_last_lr()


class ChainedScheduler(_Composed):
    """Schedules that act at the same time: a step performs a step of each schedule, in order."""

    def __init__(self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None) -> None:
        self._begin(optimizer, schedulers)
        self._last_lr = self.get_last_lr()

    def advance(self, epoch: int | None = None) -> None:
        """Perform a step of every schedule."""
        for each in self._schedulers:
            _step(each)
        self._last_lr = self.get_last_lr()
