"""The best checkpoints by a metric, as a callback and as the keys checkpoint.keep_best and checkpoint.best_metric."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from jobflow.trainer.callback_arguments import check_count
from jobflow.trainer.callbacks import Callback
from jobflow.trainer.early_stopping import check_mode
from jobflow.trainer.training_run import EvaluationReport, TrainingRun


class BestCheckpoint(Callback):
    """A callback that saves a checkpoint after each evaluation among the `keep` best ones by `metric`, and keeps these checkpoints.

    Without `saves`, the run saves no more checkpoints than it is configured to, and keeps the best of them.
    """

    changes_rate: ClassVar[bool] = False

    def __init__(self, metric: str = "validation/loss", mode: str = "min", keep: int = 1, saves: bool = True) -> None:
        check_mode("BestCheckpoint", mode)
        check_count("BestCheckpoint", "keep", keep)
        self.metric, self.mode, self.keep, self.saves = metric, mode, keep, saves
        #: values of the best evaluations, best first
        self.best: list[float] = []

    def on_start(self, run: TrainingRun) -> None:
        run.check_metric(self.metric)
        run.keep_best(self.metric, self.mode, self.keep)

    def on_evaluation(self, run: TrainingRun, report: EvaluationReport) -> None:
        value = report.metrics[self.metric]
        if not self.saves or math.isnan(value):
            return
        best = sorted([*self.best, value], reverse=self.mode == "max")[: self.keep]
        if best != self.best:
            self.best = best
            run.save()

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best} if self.best else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best = [float(value) for value in state["best"]]
