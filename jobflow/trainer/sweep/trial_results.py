"""Results of a sweep: the end of each trial, the table in order of the metric, and the files `sweep.json` and `sweep.csv`."""

from __future__ import annotations

import csv
import io
import json
import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import FileError, counted
from jobflow.core.tables import TextTable
from jobflow.runtime.interrupts import INTERRUPTED
from jobflow.storage.untrusted import HEADER, content, json_tree
from jobflow.trainer.resume import series_of
from jobflow.trainer.run_file import COMPLETE, RunRecord, ending_text, read_run
from jobflow.trainer.sweep.trials import Trial, Values, labels, value_text
from jobflow.trainer.training_run import AGAIN, DONE
from jobflow.trainer.units import duration_text, metric_text

STATE = "sweep.json"
TABLE = "sweep.csv"


@dataclass(frozen=True)
class Result:
    """The end of a trial; `value` is the best value of the sweep's metric."""

    trial: Trial
    #: the kind of end, or "failed"
    stopped: str
    cause: str = ""
    value: float | None = None
    at_step: int = 0
    steps: int = 0
    seconds: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """True if the trial reached its end, or was stopped early or by a callback, and measured the metric."""
        return self.stopped in COMPLETE and self.value is not None

    @property
    def is_interrupted(self) -> bool:
        """True if a signal or a time limit ended the trial; the same command continues it."""
        return self.stopped in ("interrupt", "terminated")


def result_of(trial: Trial, record: RunRecord, metric: str, mode: str) -> Result:
    """Return the result of a trial from the record of its run."""
    best = record.best(metric, mode)
    value, at = (None, 0) if best is None else best
    cause = "" if record.stopped in ("interrupt", "terminated") else record.message
    if record.is_complete:
        cause = "" if best is not None else f"the run has no finite {metric}; it has {', '.join(record.metrics) or 'no metrics'}"
    return Result(trial, record.stopped, cause, value, at, record.step, record.seconds, record.metrics)


def record_of(trial: Trial) -> RunRecord | None:
    """Return the record of the trial's run; None before its first step."""
    try:
        return read_run(trial.folder)
    except FileNotFoundError:
        return None


def is_complete(trial: Trial, record: RunRecord | None) -> bool:
    """Return True if the run ended with the configuration of the trial; `logging` may differ."""
    return record is not None and record.is_complete and _compared(record.config) == _compared(trial.loaded.plain)


def _compared(config: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(config))
    return {key: value for key, value in plain.items() if key != "logging"}


@dataclass(frozen=True)
class SweepResult:
    """The results of all trials; `stopped` is "end", or the kind of signal that ended the sweep."""

    metric: str
    mode: str
    folder: Path
    results: Sequence[Result]
    #: trials that did not run
    waiting: Sequence[Trial] = ()
    stopped: str = "end"

    def ordered(self) -> list[Result]:
        """Return the results, best first; trials without a value last."""
        sign = 1 if self.mode == "min" else -1
        return sorted(self.results, key=lambda one: (not one.is_complete, 0.0 if one.value is None else sign * one.value, one.trial.number))

    @property
    def best(self) -> Result | None:
        """The complete trial with the best value; None if no trial is complete."""
        return next((one for one in self.ordered() if one.is_complete), None)

    @property
    def failed(self) -> list[Result]:
        """The trials that ended with an error or a value that is not finite."""
        return [one for one in self.results if not one.is_complete and not one.is_interrupted]

    @property
    def exit_code(self) -> int:
        """The exit code of `jobflow train`: that of the signal if the sweep was stopped, 1 if a trial failed, else 0."""
        codes = {"interrupt": INTERRUPTED, "terminated": AGAIN}
        return codes.get(self.stopped, 1 if self.failed else DONE)

    # ---------------------------------------------------------------- text

    def table(self) -> TextTable:
        """Return the table of all trials, best first."""
        keys = list(dict.fromkeys(key for one in self.results for key in one.trial.values))
        names = labels(keys)
        rows = []
        for rank, one in enumerate(self.ordered(), 1):
            values = [value_text(one.trial.values[key]) if key in one.trial.values else "" for key in keys]
            value, at = ("-", "-") if one.value is None else (metric_text(self.metric, one.value), f"{one.at_step:,}")
            rows.append([str(rank) if one.is_complete else "-", *values, value, at, f"{one.steps:,}", duration_text(one.seconds), _end(one)])
        head = ["", *(names[key] for key in keys), self.metric, "at step", "steps", "time", "end"]
        right = range(len(keys) + 1, len(keys) + 5)
        return TextTable(head, rows, right=(0, *right))

    def lines(self, file: str) -> Iterator[str]:
        """Yield the lines below the table: failures, the best trial with its command, and the remaining trials."""
        for one in self.failed:
            yield f"failed: {one.trial.name}: {one.cause}"
        if self.best is not None:
            yield f"best: {self.best.trial.name}; {_suggestion(self.best, file)}"
        left = len(self.waiting) + sum(one.is_interrupted for one in self.results)
        if left:
            yield f"{counted(left, 'trial')} did not finish; run the same command again to continue"
        yield f"table: {self.folder / TABLE}"

    # ---------------------------------------------------------------- files

    def write(self) -> None:
        """Write `sweep.json` and `sweep.csv`, each atomically."""
        keys = list(dict.fromkeys(key for one in self.results for key in one.trial.values))
        fields = ("value", "at_step", "steps", "seconds", "metrics", "cause")
        trials = [{**_entry(one.trial, one.stopped), **{name: getattr(one, name) for name in fields}} for one in self.ordered()]
        waiting = [_entry(one, "") for one in self.waiting]
        tree = {"metric": self.metric, "mode": self.mode, "trials": [*trials, *waiting]}
        replace_file(self.folder / STATE, json.dumps(tree, indent=1) + "\n")
        out = io.StringIO()
        rows = csv.writer(out, lineterminator="\n")
        rows.writerow(["trial", *keys, self.metric, "at_step", "steps", "seconds", "end", "cause"])
        for one in self.ordered():
            cells = [value_text(one.trial.values.get(key, "")) for key in keys]
            rows.writerow([one.trial.name, *cells, one.value, one.at_step, one.steps, one.seconds, _end(one), one.cause])
        replace_file(self.folder / TABLE, out.getvalue())


def _entry(trial: Trial, end: str) -> dict[str, Any]:
    return {"number": trial.number, "name": trial.name, "values": trial.values, "end": end}


def _end(one: Result) -> str:
    return "no value" if one.stopped in COMPLETE and one.value is None else ending_text(one.stopped)


def _suggestion(best: Result, file: str) -> str:
    """Return the command that evaluates the checkpoint of the best value, or that of the newest checkpoint with the difference."""
    words = ["jobflow", "eval", file, *(word for setting in best_settings(best) for word in ("--set", setting))]
    series = series_of(best.trial.loaded.config)
    steps = series.steps()
    if not steps:
        return f"it has no checkpoint in {series.directory}; train it again to measure it"
    if best.at_step == steps[-1]:
        return f"measure it with: {shlex.join(words)}"
    if best.at_step in steps:
        path = f"{best.trial.loaded.config.checkpoint.directory}/{series.path_of(best.at_step).name}"
        return f"measure its checkpoint of step {best.at_step:,} with: {shlex.join([*words, '--checkpoint', path])}"
    return (
        f"its best value is of step {best.at_step:,}, and its newest checkpoint is of step {steps[-1]:,}; "
        f"set checkpoint.keep_best to keep the best one; measure the newest one with: {shlex.join(words)}"
    )


def best_settings(result: Result) -> list[str]:
    """Return the settings that select a trial in other commands."""
    *others, output = (one for one in result.trial.settings if not one.startswith(("sweep", "name=")))
    return [*(one for one in others if not one.startswith("output=")), output]


def replace_file(path: Path, text: str) -> None:
    """Replace the content of a file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(text, encoding="utf-8")
    os.replace(fresh, path)


def earlier_trials(folder: Path) -> list[tuple[Values, str]]:
    """Return the values and the end of each trial of an earlier sweep in the folder, by number; [] without one.

    Raises: FileError if `sweep.json` is damaged.
    """
    path = folder / STATE
    try:
        trials = sorted(json_tree(content(path, HEADER))["trials"], key=lambda one: int(one["number"]))
        return [(dict(one["values"]), str(one["end"])) for one in trials]
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FileError(f"{path}: this is not the state of a sweep ({type(error).__name__}: {error}); remove the file") from None
