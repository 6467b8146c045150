"""Loss scaling: a factor of the loss gradient, by which the gradients of variables are divided."""

from __future__ import annotations

import math
from typing import ClassVar, TypeAlias

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ConfigError, user_line
from jobflow.core.types import float32
from jobflow.graph.training import DynamicScale, Halting
from jobflow.legacy.optimizer.option_ranges import is_number

__all__ = ["dynamic_loss_scale", "halt_where_not_finite", "static_loss_scale"]


@dataclass(frozen=True)
class StaticLossScale:
    """A constant loss scale."""

    loss_scale_factor: float
    dynamic: ClassVar[None] = None

    def __post_init__(self) -> None:
        if not is_number(self.loss_scale_factor) or self.loss_scale_factor <= 0:
            raise ConfigError(f"loss scale at {user_line()}: the factor must be a positive number, not {self.loss_scale_factor!r}")

    @property
    def scale(self) -> float:
        return float(self.loss_scale_factor)


@dataclass(frozen=True)
class DynamicLossScale:
    """A loss scale that `multiplier` multiplies after `increment_period` consecutive finite steps, and divides after a non-finite gradient.

    Its range is 1 to the largest float32. A step in which a variable's gradient is not finite changes no variable and is not counted.
    """

    initial_loss_scale: float = 2**30
    increment_period: int = 2000
    multiplier: float = 2.0
    scale: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        what = f"loss scale at {user_line()}"
        if not is_number(self.initial_loss_scale) or not 1 <= self.initial_loss_scale <= float32.largest:
            raise ConfigError(f"{what}: initial_loss_scale must be a number from 1 to {float32.largest:.3g}, not {self.initial_loss_scale!r}")
        if type(self.increment_period) is not int or self.increment_period < 1:
            raise ConfigError(f"{what}: increment_period must be a positive number of steps, not {self.increment_period!r}")
        if not is_number(self.multiplier) or not 1 < self.multiplier < math.inf:
            raise ConfigError(f"{what}: multiplier must be a number above 1, not {self.multiplier!r}")

    @property
    def dynamic(self) -> DynamicScale:
        return DynamicScale(float(self.initial_loss_scale), self.increment_period, float(self.multiplier))


@dataclass(frozen=True)
class HaltWhereNotFinite:
    """A rule without a scale that skips all updates from the first non-finite gradient on."""

    scale: ClassVar[float] = 1.0
    dynamic: ClassVar[Halting] = Halting()


LossScale: TypeAlias = StaticLossScale | DynamicLossScale | HaltWhereNotFinite

static_loss_scale = StaticLossScale
dynamic_loss_scale = DynamicLossScale
halt_where_not_finite = HaltWhereNotFinite
