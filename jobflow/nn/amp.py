"""The namespace `flow.amp`: loss scales for mixed precision in graphs."""

from __future__ import annotations

import math

from jobflow.core.errors import ConfigError, user_line
from jobflow.core.lazy_imports import add_aliases
from jobflow.graph.training import DynamicScale


class GradScaler:
    """A dynamic loss scale, for `Graph.set_grad_scaler`.

    The scale starts at `init_scale`. The scale is multiplied by `growth_factor` after `growth_interval` consecutive steps with finite gradients, and
    divided by `growth_factor` after a step with infinite or NaN gradients. With `enabled=False` the scale is 1.

    Raises: ConfigError if `backoff_factor` is not 1 / `growth_factor`.
    """

    def __init__(
        self, init_scale: float = 2.0**16, growth_factor: float = 2.0, backoff_factor: float = 0.5, growth_interval: int = 2000, enabled: bool = True
    ) -> None:
        if not math.isclose(backoff_factor * growth_factor, 1.0):
            raise ConfigError(f"GradScaler at {user_line()}: backoff_factor must be 1 / growth_factor = {1 / growth_factor}; got {backoff_factor}")
        self.dynamic = DynamicScale(float(init_scale), growth_interval, float(growth_factor)) if enabled else None
        self.scale = 1.0


class StaticGradScaler:
    """A constant loss scale, for `Graph.set_grad_scaler`.  Raises: ConfigError unless `scale_factor` is positive and finite."""

    dynamic: DynamicScale | None = None

    def __init__(self, scale_factor: float) -> None:
        if not 0 < scale_factor < math.inf:
            raise ConfigError(f"StaticGradScaler at {user_line()}: scale_factor must be positive and finite; got {scale_factor!r}")
        self.scale = float(scale_factor)


Scaler = GradScaler | StaticGradScaler

add_aliases(__name__, "jobflow.amp")
