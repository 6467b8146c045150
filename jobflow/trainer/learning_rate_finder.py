"""A search for a learning rate: the rate rises from step to step, and the run stops when the loss diverges."""

from __future__ import annotations

import math
from typing import Any

from jobflow.trainer.callback_arguments import check_count, check_number
from jobflow.trainer.callbacks import Callback
from jobflow.trainer.training_run import StepReport, TrainingRun

#: weight of the previous values in the smoothed loss, and its factor of the best one at which the loss diverges
SMOOTHING, DIVERGED = 0.9, 4.0


class LearningRateFinder(Callback):
    """A callback that raises the rate from `lowest` to `highest` within `steps` steps, logs the smoothed loss, and stops with a suggestion.

    The suggestion is the rate at which the smoothed loss falls fastest over the logarithm of the rate.
    """

    def __init__(self, lowest: float = 1e-6, highest: float = 1.0, steps: int = 100) -> None:
        check_count("LearningRateFinder", "steps", steps, 3)
        check_number("LearningRateFinder", "lowest", lowest, "a number above 0", 0, is_open=True)
        check_number("LearningRateFinder", "highest", highest, f"a finite number above lowest, {lowest:g}", lowest, is_open=True)
        self.lowest, self.highest, self.steps = lowest, highest, steps
        self.rates: list[float] = []
        self.losses: list[float] = []
        self._mean = 0.0

    def rate(self, number: int) -> float:
        """Return the rate of a step of the search, from 0."""
        return float(self.lowest * (self.highest / self.lowest) ** (number / (self.steps - 1)))

    def suggestion(self) -> float:
        """Return the rate with the steepest descent of the smoothed loss; the lowest rate if the loss never falls."""
        falls = [after - before for before, after in zip(self.losses, self.losses[1:], strict=False)]
        steepest = min(range(len(falls)), key=falls.__getitem__, default=0)
        return self.rates[steepest] if falls and falls[steepest] < 0 else self.lowest

    def on_start(self, run: TrainingRun) -> None:
        run.lr = self.rate(len(self.rates))

    def on_step(self, run: TrainingRun, report: StepReport) -> None:
        self._mean = SMOOTHING * self._mean + (1 - SMOOTHING) * report.loss
        self.rates.append(report.rate)
        self.losses.append(self._mean / (1 - SMOOTHING ** len(self.rates)))
        run.log("finder/loss", self.losses[-1])
        if len(self.rates) >= self.steps or self.losses[-1] > DIVERGED * min(self.losses) or not math.isfinite(report.loss):
            run.stop(f"the suggested learning rate is {self.suggestion():.2g}")
        else:
            run.lr = self.rate(len(self.rates))

    def state_dict(self) -> dict[str, Any]:
        return {"rates": self.rates, "losses": self.losses, "mean": self._mean}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rates, self.losses, self._mean = list(state["rates"]), list(state["losses"]), state["mean"]
