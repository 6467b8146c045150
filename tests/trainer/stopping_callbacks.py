"""Callbacks of a configuration, for tests: their requests to the run depend on the step and on rank 0 alone."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from jobflow.trainer import Callback, TrainingRun
from jobflow.trainer.training_run import EvaluationReport, Outcome, StepReport


class Changer(Callback):
    """Halve the rate after step 3, shift a bias at the first evaluation, count the steps, and stop after the step `last`."""

    def __init__(self, last: int = 0, shift: float = 0.5) -> None:
        self.last, self.shift, self.count = last, shift, 0

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]

    def on_step(self, run: TrainingRun, report: StepReport) -> None:
        self.count += 1
        run.log("own/count", self.count)
        if report.step == 3:
            run.lr *= 0.5
        if report.step == self.last:
            run.stop(f"loss {report.loss:.4f} in process {os.getpid()}")

    def on_evaluation(self, run: TrainingRun, report: EvaluationReport) -> None:
        if report.step == 4:
            name = next(name for name in run.parameters if "bias" in name)
            run.write(name, run.read(name) + self.shift)
            run.log("own/bias", float(np.abs(run.read(name)).sum()))


class Raiser(Callback):
    """Raise an exception at an event."""

    def __init__(self, event: str, note: str = "") -> None:
        self.event, self.note = event, note
        self._at("the constructor")

    def _at(self, event: str) -> None:
        if event == self.event:
            raise LookupError("nothing here")  # the line of Raiser

    def on_start(self, run: TrainingRun) -> None:
        self._at("on_start")

    def on_step(self, run: TrainingRun, report: StepReport) -> None:
        self._at("on_step")

    def on_evaluation(self, run: TrainingRun, report: EvaluationReport) -> None:
        self._at("on_evaluation")

    def on_epoch(self, run: TrainingRun, report: EvaluationReport) -> None:
        self._at("on_epoch")

    def on_checkpoint(self, run: TrainingRun, path: Any) -> None:
        self._at("on_checkpoint")

    def on_end(self, run: TrainingRun, outcome: Outcome) -> None:
        self._at("on_end")

    def state_dict(self) -> dict[str, Any]:
        self._at("state_dict")
        return {"not a tree": {1, 2}} if self.event == "state" else {"event": self.event}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._at("load_state_dict")

    def on_exception(self, run: TrainingRun, error: BaseException) -> None:
        if self.note:
            with open(self.note, "a") as file:
                file.write(f"{type(error).__name__}\n")
        self._at("on_exception")


class Observing(Raiser):
    """Raise an exception at an event without requests to the run, so that only rank 0 has the error."""

    observes = True
