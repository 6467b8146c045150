"""Loss scaling: the loss gradient starts at a factor that is divided out of the variables' gradients again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from jobflow.errors import ConfigError, user_line
from jobflow.optimizer.warmup import is_number

__all__ = ["dynamic_loss_scale", "static_loss_scale"]


@dataclass(frozen=True)
class StaticLossScale:
    """The same factor at every step."""

    loss_scale_factor: float

    def __post_init__(self) -> None:
        if not is_number(self.loss_scale_factor) or self.loss_scale_factor <= 0:
            raise ConfigError(f"loss scale at {user_line()}: the factor must be a positive number; got {self.loss_scale_factor!r}")


@dataclass(frozen=True)
class DynamicLossScale:
    """The factor grows by `multiplier` after `increment_period` steps with finite gradients, and shrinks by it when there is an infinity."""

    initial_loss_scale: float = 2**30
    increment_period: int = 2000
    multiplier: float = 2.0


LossScale: TypeAlias = StaticLossScale | DynamicLossScale

static_loss_scale = StaticLossScale
dynamic_loss_scale = DynamicLossScale
