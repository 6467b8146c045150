"""`run.json` in the folder of a run: its configuration, its evaluations and its end, for sweeps and comparisons.

The file is written at the start, after each evaluation and at the end.  A resumed run continues the list of evaluations.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, field
from pathlib import Path
from time import perf_counter
from typing import Any

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import FileError
from jobflow.core.notices import notice
from jobflow.storage.untrusted import HEADER, content, json_tree
from jobflow.trainer.callbacks import Callback
from jobflow.trainer.recorded_evaluations import forget_evaluations
from jobflow.trainer.training_run import ENDS, EvaluationReport, Outcome, StepReport, TrainingRun, leave

NAME = "run.json"
#: kinds of ends of runs without remaining work
COMPLETE = ("end", "early", "callback")


@dataclass(frozen=True)
class RunRecord:
    """The content of a `run.json`."""

    name: str
    config: dict[str, Any]
    #: number of the last recorded step, and at the regular end
    step: int = 0
    steps: int = 0
    #: the kind of end, "failed" after an error, "" for a run that is in progress or was killed
    stopped: str = ""
    message: str = ""
    #: seconds of training over all parts of the run
    seconds: float = 0.0
    #: the latest values by name
    metrics: dict[str, float] = field(default_factory=dict)
    #: {"step": ..., "validation/loss": ...} of each evaluation
    evaluations: list[dict[str, float]] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """True if the run reached its regular end or was stopped early or by a callback."""
        return self.stopped in COMPLETE

    def best(self, metric: str, mode: str) -> tuple[float, int] | None:
        """Return the best finite value of a metric over all evaluations with its step; None without a value.

        A metric that no evaluation measures, such as "train/loss", has its last value.
        """
        values = [(one[metric], int(one["step"])) for one in self.evaluations if metric in one]
        if not values and metric in self.metrics:
            values = [(self.metrics[metric], self.step)]
        finite = [one for one in values if math.isfinite(one[0])]
        return min(finite, key=lambda one: one[0] if mode == "min" else -one[0], default=None)

    def text(self) -> str:
        """Return the content of the file."""
        return json.dumps(_finite(asdict(self)), indent=1) + "\n"


def _finite(value: Any) -> Any:
    """Return a copy of a JSON tree in which numbers that are not finite are null."""
    if isinstance(value, Mapping):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_run(folder: Path) -> RunRecord:
    """Return the record of the run in a folder.

    Raises: FileNotFoundError without a `run.json`; FileError if the file is not a record of a run.
    """
    path = folder / NAME
    try:
        tree = json_tree(content(path, HEADER))
        evaluations = [_finite_values(one) for one in tree["evaluations"]]
        if not isinstance(tree["config"], dict) or any("step" not in one for one in evaluations):
            raise ValueError("it has no configuration")
        return RunRecord(
            str(tree["name"]), tree["config"], int(tree["step"]), int(tree["steps"]), str(tree["stopped"]), str(tree["message"]),
            float(tree["seconds"]), _finite_values(tree["metrics"]), evaluations,
        )  # fmt: skip
    except FileNotFoundError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise FileError(
            f"{path}: this is not the record of a run ({type(error).__name__}: {error}); remove the file, or pass another folder"
        ) from None


def _finite_values(tree: Any) -> dict[str, float]:
    """Return the numbers of a map by name, without other values."""
    return {str(name): value for name, value in tree.items() if isinstance(value, int | float) and not isinstance(value, bool)}


class RunFile(Callback):
    """A callback that writes `run.json` to the folder of the run."""

    observes = True
    #: True unless the run is in progress
    _ended = True

    def on_start(self, run: TrainingRun) -> None:
        self._began = perf_counter()
        self._step, self._ended = run.first_step, False
        self._metrics: dict[str, float] = {}
        self._evaluations: list[dict[str, float]] = []
        forget_evaluations(run.output, run.first_step)
        if run.first_step:
            self._continue(run)
        self._write(run)

    def _continue(self, run: TrainingRun) -> None:
        """Take over the evaluations before the first step from an earlier part of the run."""
        try:
            earlier = read_run(run.output)
        except FileNotFoundError:
            return  # an earlier version of jobflow wrote the run
        except FileError as error:
            notice(f"the evaluations before step {run.first_step} are lost: {error}")
            return
        self._metrics = dict(earlier.metrics)
        self._evaluations = [one for one in earlier.evaluations if one["step"] <= run.first_step]

    def on_step(self, run: TrainingRun, report: StepReport) -> None:
        self._step = report.step

    def on_evaluation(self, run: TrainingRun, report: EvaluationReport) -> None:
        self._metrics |= report.metrics
        self._evaluations = [one for one in self._evaluations if one["step"] != report.step]
        self._evaluations.append({"step": report.step, **report.metrics})
        self._write(run)

    def on_end(self, run: TrainingRun, outcome: Outcome) -> None:
        self._metrics, self._step, self._ended = dict(outcome.metrics), outcome.step, True
        self._write(run, outcome.stopped, outcome.message)

    def on_exception(self, run: TrainingRun, error: BaseException) -> None:
        if not self._ended:
            self._ended = True
            self._write(run, "failed", f"{type(error).__name__}: {error}")

    def _write(self, run: TrainingRun, stopped: str = "", message: str = "") -> None:
        seconds = run.seconds_before + perf_counter() - self._began
        record = RunRecord(run.name, run.loaded.plain, self._step, run.steps, stopped, message, round(seconds, 3), self._metrics, self._evaluations)
        path = run.output / NAME
        fresh = path.with_name(f".{NAME}.{os.getpid()}")
        if leave(fresh, record.text().encode()):
            os.replace(fresh, path)


def ending_text(stopped: str) -> str:
    """Return the label of the end of a run, such as "done"."""
    return ENDS[stopped][1] if stopped in ENDS else stopped or "unfinished"
