"""Loss scaling: the loss gradient is multiplied by a factor, and the variables' gradients are divided by it."""

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
    """A constant factor."""

    loss_scale_factor: float
    dynamic: ClassVar[None] = None

    def __post_init__(self) -> None:
        if not is_number(self.loss_scale_factor) or self.loss_scale_factor <= 0:
            raise ConfigError(f"loss scale at {user_line()}: the factor must be a positive number; got {self.loss_scale_factor!r}")

    @property
    def scale(self) -> float:
        return float(self.loss_scale_factor)


@dataclass(frozen=True)
class DynamicLossScale:
    """A factor that is multiplied by `multiplier` after `increment_period` finite steps, and divided by it after a non-finite gradient.

    It stays between 1 and the largest float32. A step with a non-finite gradient of any variable changes no variable and does not count.
    """

    initial_loss_scale: float = 2**30
    increment_period: int = 2000
    multiplier: float = 2.0
    scale: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        what = f"loss scale at {user_line()}"
        if not is_number(self.initial_loss_scale) or not 1 <= self.initial_loss_scale <= float32.largest:
            raise ConfigError(f"{what}: initial_loss_scale must be a number from 1 to {float32.largest:.3g}; got {self.initial_loss_scale!r}")
        if type(self.increment_period) is not int or self.increment_period < 1:
            raise ConfigError(f"{what}: increment_period must be a positive number of steps; got {self.increment_period!r}")
        if not is_number(self.multiplier) or not 1 < self.multiplier < math.inf:
            raise ConfigError(f"{what}: multiplier must be a number larger than 1; got {self.multiplier!r}")

    @property
    def dynamic(self) -> DynamicScale:
        return DynamicScale(float(self.initial_loss_scale), self.increment_period, float(self.multiplier))


@dataclass(frozen=True)
class HaltWhereNotFinite:
    """No scale; from the first non-finite gradient on no variable changes, so the state is that before this step."""

    scale: ClassVar[float] = 1.0
    dynamic: ClassVar[Halting] = Halting()


LossScale: TypeAlias = StaticLossScale | DynamicLossScale | HaltWhereNotFinite

static_loss_scale = StaticLossScale
dynamic_loss_scale = DynamicLossScale
halt_where_not_finite = HaltWhereNotFinite
