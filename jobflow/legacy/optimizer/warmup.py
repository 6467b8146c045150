"""Warm-ups, which compute the learning rates of the first steps of a schedule."""

from __future__ import annotations

from typing import Protocol

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ConfigError, user_line
from jobflow.legacy.optimizer.option_ranges import check_fields
from jobflow.ops.learning_rates import rising

__all__ = ["constant", "linear"]


class Warmup(Protocol):
    """The protocol of rules for the first `steps` steps of a schedule with base rate `base`."""

    @property
    def steps(self) -> float: ...

    def rate(self, base: float, step: int) -> float: ...


@dataclass(frozen=True)
class ConstantWarmup:
    """A constant warm-up: base * multiplier while step < steps."""

    steps: float
    multiplier: float

    def __post_init__(self) -> None:
        _check(self, "warmup.constant")

    def rate(self, base: float, step: int) -> float:
        return base * self.multiplier


@dataclass(frozen=True)
class LinearWarmup:
    """A linear warm-up: base (m + (1 - m) step / steps) while step < steps, with m = start_multiplier."""

    steps: float
    start_multiplier: float

    def __post_init__(self) -> None:
        _check(self, "warmup.linear")

    def rate(self, base: float, step: int) -> float:
        return rising(base, step, self.steps, self.start_multiplier)


constant = ConstantWarmup
linear = LinearWarmup


def _check(warmup: Warmup, what: str) -> None:
    check_fields(warmup, f"{what} at {user_line()}")
    if warmup.steps < 0:
        raise ConfigError(f"{what} at {user_line()}: steps must not be negative, but is {warmup.steps!r}")
