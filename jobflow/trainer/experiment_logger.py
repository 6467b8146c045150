"""The base of loggers that send a run's values to a program for experiments, such as MLflow."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from jobflow.trainer.callback_arguments import check_count
from jobflow.trainer.callbacks import Callback
from jobflow.trainer.metrics import step_record
from jobflow.trainer.training_run import AGAIN, DONE, INTERRUPTED, EvaluationReport, Outcome, StepReport, TrainingRun


class ExperimentLogger(Callback, ABC):
    """Base class of loggers for experiment programs.

    They log the first and last step, every `every` steps, evaluations, epochs, and values that callbacks log.
    """

    observes: ClassVar[bool] = True

    def __init__(self, every: int = 10) -> None:
        check_count(type(self).__name__, "every", every)
        self.every = every
        #: the id of the run in the other program, which a resumed run continues
        self.run_id: str | None = None

    @abstractmethod
    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Send the values of a step."""

    @abstractmethod
    def close(self, ended: str, failed: bool) -> None:
        """End the run in the other program; `ended` describes the end.  Do nothing without a run."""

    def on_step(self, run: TrainingRun, report: StepReport) -> None:
        record = step_record(report) if report.step % self.every == 0 or report.step in (1, run.steps) else {}
        self._log(report.step, record | run.logged)

    def on_evaluation(self, run: TrainingRun, report: EvaluationReport) -> None:
        self._log(report.step, {"epoch": report.epoch, **report.metrics, **run.logged})

    def on_epoch(self, run: TrainingRun, report: EvaluationReport) -> None:
        self.on_evaluation(run, report)

    def _log(self, step: int, record: Mapping[str, Any]) -> None:
        values = {name: float(value) for name, value in record.items() if name != "step"}
        if values:
            self.log(step, values)

    def on_end(self, run: TrainingRun, outcome: Outcome) -> None:
        self.close(outcome.stopped, failed=outcome.exit_code not in (DONE, AGAIN, INTERRUPTED))

    def on_exception(self, run: TrainingRun, error: BaseException) -> None:
        self.close("interrupt" if isinstance(error, KeyboardInterrupt) else "error", failed=True)

    def state_dict(self) -> dict[str, Any]:
        return {} if self.run_id is None else {"run_id": self.run_id}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.run_id = str(state["run_id"])


def parameters_of(run: TrainingRun) -> dict[str, str]:
    """Return the configuration of a run as texts by key, such as "optimizer.lr"."""
    return dict(_leaves(run.loaded.plain, ""))


def _leaves(value: Any, path: str) -> list[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        return [leaf for key, inner in value.items() for leaf in _leaves(inner, f"{path}.{key}" if path else str(key))]
    return [(path, value if isinstance(value, str) else json.dumps(value, default=str))]
