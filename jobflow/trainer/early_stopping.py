"""Early stopping, as a callback and as the key evaluation.early_stopping."""

from __future__ import annotations

from typing import Any, ClassVar

from jobflow.core.errors import ConfigError, counted, user_line
from jobflow.trainer.callback_arguments import check_count, check_number
from jobflow.trainer.callbacks import Callback
from jobflow.trainer.stopping import Early
from jobflow.trainer.training_run import EvaluationReport, Stopped, TrainingRun
from jobflow.trainer.units import metric_text

#: the callback of the key
EARLY_STOPPING = "evaluation.early_stopping"


class EarlyStopping(Callback):
    """A callback that stops the run after `patience` consecutive evaluations without an improvement of `metric` by more than `min_delta`."""

    changes_rate: ClassVar[bool] = False
    ending: ClassVar[Stopped] = "early"

    def __init__(self, metric: str = "validation/loss", mode: str = "min", patience: int = 1, min_delta: float = 0.0) -> None:
        check_mode("EarlyStopping", mode)
        check_count("EarlyStopping", "patience", patience)
        check_number("EarlyStopping", "min_delta", min_delta, "a finite change of 0 or more", 0)
        self.early = Early(metric, mode, patience, min_delta)

    def on_start(self, run: TrainingRun) -> None:
        run.check_metric(self.early.metric)
        if self.early.is_over:
            self._stop(run)

    def on_evaluation(self, run: TrainingRun, report: EvaluationReport) -> None:
        if self.early.heed(report.metrics[self.early.metric]):
            self._stop(run)

    def _stop(self, run: TrainingRun) -> None:
        metric, best = self.early.metric, self.early.best
        what = "was NaN" if best is None else f"did not improve on {metric_text(metric, best)}"
        run.stop(f"{metric} {what} in {counted(self.early.patience, 'evaluation')}")

    def state_dict(self) -> dict[str, Any]:
        return self.early.state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.early.restore(state)


def check_mode(name: str, mode: str) -> None:
    """Raise ConfigError unless `mode` is "min" or "max"."""
    if mode not in ("min", "max"):
        raise ConfigError(f'{name} at {user_line()}: mode is {mode!r}; pass "min" if smaller values are better, or "max"')
