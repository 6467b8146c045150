"""Learning rates as functions of the train step, with warm-ups.

`rate(step)` is the float64 rate of the update that follows `step` updates. During a warm-up the warm-up computes the rate. Afterwards the
schedule computes it from the absolute step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from numbers import Real
from typing import Any, ClassVar

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ConfigError, JobError, user_line
from jobflow.core.types import DType, Tensor, float32, float64
from jobflow.legacy.optimizer import named_tensors
from jobflow.legacy.optimizer.option_ranges import check_fields, is_number
from jobflow.legacy.optimizer.warmup import Warmup
from jobflow.ops import learning_rates

__all__ = [
    "CosineScheduler", "CustomScheduler", "ExponentialScheduler", "InverseTimeScheduler", "LinearCosineScheduler", "NaturalExpScheduler",
    "PiecewiseConstantScheduler", "PiecewiseScalingScheduler", "PolynomialSchduler", "PolynomialScheduler", "Schedule",
]  # fmt: skip


class Schedule(ABC):
    """A learning rate per step. Custom schedules are frozen dataclasses with `base` and `decayed`, or any object with `rate`."""

    warmup: Warmup | None

    @property
    @abstractmethod
    def base(self) -> float:
        """The rate at the end of a warm-up."""

    @abstractmethod
    def decayed(self, step: int) -> float:
        """Return the rate after `step` updates, without warm-up."""

    def rate(self, step: int) -> float:
        warmup = self.warmup
        if warmup is None:
            return self.decayed(step)
        return learning_rates.chosen(step < warmup.steps, lambda: warmup.rate(self.base, step), lambda: self.decayed(step))

    @property
    def by_formula(self) -> bool:
        """True if `rate` supports expressions as well as numbers."""
        parts = [type(self).rate, type(self).decayed, *([] if self.warmup is None else [type(self.warmup).rate])]
        return all(part.__module__.startswith(__package__) for part in parts) and getattr(self, "steps", 1) > 0


class _Checked(Schedule):
    """A schedule with validated fields; a field name has the same meaning in all schedules."""

    base_lr: float

    def __post_init__(self) -> None:
        check_fields(self, f"{type(self).__name__} at {user_line()}")
        warmup = self.warmup
        if warmup is not None and not (hasattr(warmup, "rate") and hasattr(warmup, "steps")):
            raise _wrong(self, f"warmup must be warmup.constant(steps, multiplier) or warmup.linear(steps, start_multiplier), not {warmup!r}")
        if (steps := vars(self).get("steps", 1)) <= 0 and not (warmup and warmup.steps > 0):
            raise _wrong(self, f"steps must be a positive number, not {steps!r}")

    @property
    def base(self) -> float:
        return self.base_lr


@dataclass(frozen=True)
class PiecewiseConstantScheduler(_Checked):
    """A rate of values[i] for the first i with step <= boundaries[i], else of the last value; ``([], [lr])`` is a constant rate."""

    boundaries: Sequence[float]
    values: Sequence[float]
    warmup: Warmup | None = None

    def __post_init__(self) -> None:
        _store(self, boundaries=_rising(self, self.boundaries), values=_numbers(self, "values", self.values))
        if len(self.values) != len(self.boundaries) + 1:
            length = len(self.boundaries)
            raise _wrong(self, f"boundaries has length {length}, so values must have length {length + 1}, not {len(self.values)}")
        super().__post_init__()

    @property
    def base(self) -> float:
        return self.values[0]

    def decayed(self, step: int) -> float:
        return learning_rates.piece(self.boundaries, self.values, step)


@dataclass(frozen=True)
class PiecewiseScalingScheduler(_Checked):
    """A rate of base_lr up to the first boundary, and of base_lr scale[i] after boundary i; a single scale applies to all boundaries."""

    base_lr: float
    boundaries: Sequence[float]
    scale: float | Sequence[float]
    warmup: Warmup | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        boundaries = _rising(self, self.boundaries)
        scales = (self.scale,) * len(boundaries) if isinstance(self.scale, Real) else self.scale
        _store(self, boundaries=boundaries, scale=_numbers(self, "scale", scales))
        if len(self.boundaries) != len(self._scales) - 1:
            raise _wrong(self, f"boundaries has length {len(self.boundaries)}, so scale must have the same length, not {len(self._scales) - 1}")

    @property
    def _scales(self) -> tuple[float, ...]:
        assert isinstance(self.scale, tuple), "converted by __post_init__"
        return (1.0, *self.scale)

    def decayed(self, step: int) -> float:
        return self.base_lr * learning_rates.piece(self.boundaries, self._scales, step)


class _Decay(_Checked):
    """A schedule that decays from `base_lr` within, or per, `steps` steps, by a formula of the step and the fields except `warmup`.

    Programs subtract the warm-up steps from the steps of all epochs. If no steps remain, as in a trial of one epoch, the warm-up determines the rate.
    """

    steps: float
    _formula: ClassVar[Callable[..., float]]

    def decayed(self, step: int) -> float:
        if self.steps <= 0:
            raise ConfigError(f"{type(self).__name__}: steps {self.steps!r} define no rate at step {step}, after the warm-up; pass a positive number")
        return type(self)._formula(step=step, **{name: value for name, value in vars(self).items() if name != "warmup"})


@dataclass(frozen=True)
class CosineScheduler(_Decay):
    """Cosine decay: base_lr ((1 - alpha) (1 + cos(pi s / steps)) / 2 + alpha), s = min(step, steps)."""

    _formula = staticmethod(learning_rates.cosine)
    base_lr: float
    steps: float
    alpha: float = 0.0
    warmup: Warmup | None = None


@dataclass(frozen=True)
class PolynomialScheduler(_Decay):
    """Polynomial decay: (base_lr - end) (1 - s / d)^power + end, end = end_learning_rate.

    s = min(step, steps) and d = steps; with `cycle`, s = step and d = steps max(1, ceil(step / steps)).
    """

    _formula = staticmethod(learning_rates.polynomial)
    base_lr: float
    steps: float
    end_learning_rate: float = 0.0001
    power: float = 1.0
    cycle: bool = False
    warmup: Warmup | None = None


#: Misspelled alias of OneFlow releases.
PolynomialSchduler = PolynomialScheduler


@dataclass(frozen=True)
class _Periodic(_Decay):
    """A schedule that depends only on p = step / steps, which `staircase` rounds down."""

    base_lr: float
    steps: float
    decay_rate: float
    staircase: bool = False
    warmup: Warmup | None = None


class ExponentialScheduler(_Periodic):
    """Exponential decay: base_lr decay_rate^p, p = step / steps, rounded down with `staircase`."""

    _formula = staticmethod(learning_rates.exponential)


class InverseTimeScheduler(_Periodic):
    """Inverse time decay: base_lr / (1 + decay_rate p), p = step / steps, rounded down with `staircase`."""

    _formula = staticmethod(learning_rates.inverse_time)


class NaturalExpScheduler(_Periodic):
    """Natural exponential decay: base_lr exp(-decay_rate p), p = step / steps, rounded down with `staircase`."""

    _formula = staticmethod(learning_rates.natural_exponential)


@dataclass(frozen=True)
class LinearCosineScheduler(_Decay):
    """Linear cosine decay: base_lr ((alpha + (steps - s) / steps) (1 + cos(2 pi num_periods s / steps)) / 2 + beta), s = min(step, steps)."""

    _formula = staticmethod(learning_rates.linear_cosine)
    base_lr: float
    steps: float
    num_periods: float = 0.5
    alpha: float = 0.0
    beta: float = 0.001
    warmup: Warmup | None = None


@dataclass(frozen=True)
class CustomScheduler:
    """A rate read from a tensor of the job with one element; `lbn` is its `logical_blob_name`."""

    lbn: str

    def __post_init__(self) -> None:
        if not isinstance(self.lbn, str):
            raise _wrong(self, f"lbn must be the logical_blob_name of a tensor, not {self.lbn!r}")

    def check(self, what: str, nodes: Iterable[Any]) -> None:
        """Raise JobError unless `nodes` compute the tensor `lbn`, with one float32 or float64 element."""
        named_tensors.check(f"{what}: CustomScheduler({self.lbn!r})", self.lbn, (float32, float64), nodes)

    def tensor(self, dtype: DType) -> Tensor:
        """Return the rate as a tensor of shape (1,) and type `dtype` in the job being traced."""
        return named_tensors.read(f"CustomScheduler({self.lbn!r})", self.lbn, dtype)

    def rate(self, step: int) -> float:
        """Raise JobError, because only a run of the job computes the rate."""
        raise JobError(
            f"CustomScheduler at {user_line()}: only a run of the job computes the rate, tensor {self.lbn!r}; call rate of another schedule"
        )


def _store(schedule: Any, **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(schedule, name, value)


def _numbers(schedule: Any, what: str, values: Any) -> tuple[float, ...]:
    if not isinstance(values, Sequence) or isinstance(values, str) or not all(is_number(value) for value in values):
        raise _wrong(schedule, f"{what} must be a list of numbers, not {values!r}")
    return tuple(float(value) for value in values)


def _rising(schedule: Any, boundaries: Any) -> tuple[float, ...]:
    numbers = _numbers(schedule, "boundaries", boundaries)
    if any(a >= b for a, b in zip(numbers[:-1], numbers[1:], strict=True)):
        raise _wrong(schedule, f"boundaries must be strictly increasing, not {list(boundaries)}")
    return numbers


def _wrong(schedule: Any, what: str) -> ConfigError:
    return ConfigError(f"{type(schedule).__name__} at {user_line()}: {what}")
