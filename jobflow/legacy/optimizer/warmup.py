"""Warm-ups: what the first steps of a schedule do instead."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, Protocol

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ConfigError, user_line
from jobflow.ops.learning_rates import rising

__all__ = ["constant", "linear"]


class Warmup(Protocol):
    """Decides the first `steps` steps of a schedule whose base rate is `base`."""

    @property
    def steps(self) -> float: ...

    def rate(self, base: float, step: int) -> float: ...


@dataclass(frozen=True)
class ConstantWarmup:
    """base multiplier while step < steps"""

    steps: float
    multiplier: float

    def __post_init__(self) -> None:
        _check("warmup.constant", self.steps, "multiplier", self.multiplier)

    def rate(self, base: float, step: int) -> float:
        return base * self.multiplier


@dataclass(frozen=True)
class LinearWarmup:
    """base (m + (1 - m) step / steps) while step < steps, m = start_multiplier"""

    steps: float
    start_multiplier: float

    def __post_init__(self) -> None:
        _check("warmup.linear", self.steps, "start_multiplier", self.start_multiplier)

    def rate(self, base: float, step: int) -> float:
        return rising(base, step, self.steps, self.start_multiplier)


constant = ConstantWarmup
linear = LinearWarmup


def is_number(value: Any) -> bool:
    """True for a finite real number that is not a bool."""
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _check(what: str, steps: Any, name: str, multiplier: Any) -> None:
    if not is_number(steps) or steps < 0:
        raise ConfigError(f"{what} at {user_line()}: steps must be a number that is not negative; got {steps!r}")
    if not is_number(multiplier):
        raise ConfigError(f"{what} at {user_line()}: {name} must be a number; got {multiplier!r}")
