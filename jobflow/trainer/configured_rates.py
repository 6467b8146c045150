"""Learning rate schedules that only configurations have: one-cycle, functions by import path, and the factor of a plateau."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Mapping
from dataclasses import field
from functools import lru_cache
from typing import Any

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ConfigError
from jobflow.core.imports import function_named
from jobflow.legacy.optimizer.schedules import Schedule
from jobflow.legacy.optimizer.warmup import Warmup
from jobflow.ops import learning_rates
from jobflow.trainer.config.optimizer_schema import Plateau
from jobflow.trainer.stopping import Early

#: name of the variable that a plateau multiplies the rates by
FACTOR = "learning-rate-factor"


@dataclass(frozen=True)
class OneCycle(Schedule):
    """Half a cosine from `start` lr up to lr, and half a cosine down to `end` lr at the last step."""

    lr: float
    steps: int
    rise: float
    start: float
    end: float
    warmup: Warmup | None = None

    @property
    def base(self) -> float:
        return self.lr

    @property
    def by_formula(self) -> bool:
        """True, because the formula supports expressions."""
        return True

    def decayed(self, step: int) -> float:
        top, last = max(self.rise * self.steps - 1, 1e-9), max(self.steps - 1, 1)

        def rising() -> float:
            return learning_rates.cosine(self.lr * self.start, step, top, 1 / self.start)

        def falling() -> float:
            return learning_rates.cosine(self.lr, step - top, max(last - top, 1e-9), self.end)

        result: float = learning_rates.chosen(step < top, rising, falling)
        return result


@dataclass(frozen=True)
class OfFunction(Schedule):
    """A rate that an imported function computes from the number of earlier updates; `arguments` is a JSON object."""

    target: str
    lr: float
    steps: int
    arguments: str
    where: str
    warmup: Warmup | None = None

    @property
    def base(self) -> float:
        return self.lr

    @property
    def by_formula(self) -> bool:
        """False, because the function takes numbers only."""
        return False

    def decayed(self, step: int) -> float:
        function, parameters = _function(self.target)
        own = {"lr": self.lr, "steps": self.steps}
        rate = function(step, **{name: value for name, value in own.items() if name in parameters}, **json.loads(self.arguments))
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not (math.isfinite(rate) and rate >= 0):
            raise ConfigError(f"{self.where}: {self.target} returned {rate!r:.80} for step {step}; return a finite number of at least 0")
        return float(rate)


@lru_cache(maxsize=16)
def _function(target: str) -> tuple[Any, frozenset[str]]:
    function = function_named(target)
    return function, frozenset(inspect.signature(function).parameters)


@dataclass
class PlateauState:
    """The factor of the rates, which falls after `patience` evaluations without an improvement."""

    options: Plateau
    lr: float
    factor: float = 1.0
    #: evaluations that are not counted after a fall
    cooling: int = 0
    early: Early = field(init=False)

    def __post_init__(self) -> None:
        self.early = Early(self.options.metric, self.options.mode, self.options.patience, self.options.min_delta)

    def heed(self, value: float) -> bool:
        """Record the metric of an evaluation; return True if the factor fell."""
        over = self.early.heed(value)
        if self.cooling:
            self.cooling -= 1
            self.early.waited = 0
            return False
        if not over:
            return False
        self.early.waited, self.cooling = 0, self.options.cooldown
        before, self.factor = self.factor, max(self.factor * self.options.factor, min(1.0, self.options.min_lr / self.lr))
        return self.factor < before

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {**self.early.state(), "factor": self.factor, "cooling": self.cooling}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state from a checkpoint."""
        self.early.restore(state)
        self.factor, self.cooling = float(state["factor"]), int(state["cooling"])


def plateau_of(options: Any) -> PlateauState | None:
    """Return the initial state of the schedule `plateau`, or None for another schedule."""
    return PlateauState(options.schedule, options.lr) if isinstance(options.schedule, Plateau) else None
