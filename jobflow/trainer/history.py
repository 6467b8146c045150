"""The history of a run's measurements, from which charts are drawn: steps and values per quantity."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.types import Array
from jobflow.storage.remote import AnyPath
from jobflow.trainer.callbacks import Callback
from jobflow.trainer.metrics import recorded
from jobflow.trainer.training_run import EvaluationReport, Outcome, StepReport, TrainingRun
from jobflow.trainer.units import is_share

Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
#: name of the training curve, next to "validation" and "test"
TRAIN = "train"
#: the curve of means over an epoch of training, and its name in charts
TRAIN_EPOCH, EPOCH_MEAN = "train_epoch", "epoch mean"
#: quantities of steps other than metrics
RATE, SPEED = "learning rate", "samples per second"
#: column of a metrics file -> quantity and the reverse, and columns without a curve
_WRITTEN = {"rate": RATE, "samples_per_second": SPEED}
_COLUMNS = {quantity: column for column, quantity in _WRITTEN.items()}
_OTHER = frozenset({"step", "epoch", "seconds"})


@dataclass
class Line:
    """The values of one quantity by step, without infinite and NaN values."""

    steps: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))

    def add(self, step: int, value: float) -> None:
        """Add a value, unless it is infinite or NaN."""
        if math.isfinite(value):
            self.steps.append(step)
            self.values.append(value)

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def last(self) -> float:
        return self.values[-1]

    def arrays(self) -> tuple[Numbers, Numbers]:
        """Return the steps and the values."""
        return np.array(self.steps, np.float64), np.array(self.values, np.float64)


@dataclass(frozen=True)
class Curve:
    """A line of a chart with the name of its samples, such as "train" or "validation", and its colour; "" for the default colour.

    Charts show the moving mean of a `noisy` line, which has values of single steps.
    """

    of: str
    line: Line
    noisy: bool = False
    colour: str = ""


@dataclass
class History(Callback):
    """A callback that records a run; the keys of `lines` are metric names as in metrics files, such as "validation/loss"."""

    observes = True
    lines: dict[str, Line] = field(default_factory=dict)
    seconds: array[float] = field(default_factory=lambda: array("d"))
    waited: float = 0.0
    evaluating: float = 0.0
    evaluations: int = 0
    checkpoints: list[tuple[int, AnyPath]] = field(default_factory=list)
    #: times of the start, the end of the first step, and the last event
    began: float | None = None
    first: float | None = None
    latest: float | None = None
    step_number: int = 0
    samples: int = 0
    #: the name in metrics files by key of `lines`
    written: dict[str, str] = field(default_factory=dict)
    outcome: Outcome | None = None
    #: the latest confusion matrices by name, and the names of their classes
    tables: dict[str, Array] = field(default_factory=dict)
    classes: Sequence[str] = ()
    #: True if earlier parts of the run have no records
    missing: bool = False

    def on_start(self, run: TrainingRun) -> None:
        self.began = self.latest = perf_counter()
        self.step_number = run.first_step
        self.restore(run)

    def restore(self, run: TrainingRun) -> None:
        """Read the records of earlier parts of the run from its metrics files."""
        if run.first_step:
            self.missing = not any(self.read(run.output / name, run.first_step) for name in ("metrics.jsonl", "metrics.csv"))

    def on_step(self, run: TrainingRun, report: StepReport) -> None:
        self.latest = perf_counter()
        if self.first is None:
            self.first = self.latest
        self.step_number = report.step
        self.seconds.append(report.seconds)
        self.waited += report.waited
        self.samples += report.samples
        self._add(report.step, {"loss": report.loss, **report.metrics}, prefix=f"{TRAIN}/")
        self._add(report.step, {RATE: report.rate} | run.logged)
        if report.seconds > 0 and len(self.seconds) > 1:  # the first step may compile
            self._add(report.step, {SPEED: report.samples / report.seconds})

    def on_evaluation(self, run: TrainingRun, report: EvaluationReport) -> None:
        self.latest = perf_counter()
        self.evaluating += report.seconds
        self.evaluations += 1
        self._add(report.step, {**report.metrics, **run.logged})
        self._keep_tables(report)

    def on_epoch(self, run: TrainingRun, report: EvaluationReport) -> None:
        self._add(report.step, report.metrics)
        self._keep_tables(report)

    def _keep_tables(self, report: EvaluationReport) -> None:
        self.tables |= report.tables
        self.classes = report.classes

    def on_checkpoint(self, run: TrainingRun, path: AnyPath) -> None:
        self.latest = perf_counter()
        number = re.search(r"(\d+)$", path.name)  # an asynchronous checkpoint may belong to an earlier step
        self.checkpoints.append((int(number[1]) if number else self.step_number, path))

    def on_end(self, run: TrainingRun, outcome: Outcome) -> None:
        self.latest = perf_counter()
        self.outcome = outcome

    def _add(self, step: int, values: Mapping[str, float], prefix: str = "") -> None:
        for name, value in values.items():
            line = self.lines.get(name)
            if line is None:
                line = self.lines[name] = Line()
                self.written[name] = f"{prefix}{_COLUMNS.get(name, name)}"
            line.add(step, float(value))

    def columns(self) -> dict[str, Numbers]:
        """Return the column "step" and one column of the same length per name in metrics files; NaN where a step has no finite value."""
        steps = np.array(sorted({step for line in self.lines.values() for step in line.steps}), np.float64)
        columns = {"step": steps}
        for key, line in self.lines.items():
            column = columns[self.written[key]] = np.full(len(steps), np.nan)
            column[np.searchsorted(steps, np.array(line.steps, np.float64))] = line.values
        return columns

    def read(self, path: Path, before: int) -> bool:
        """Add the records of a metrics file up to step `before`; return True if there are such records.

        Lines that a crash truncated are skipped.
        """
        records = [record for record in recorded(path) if 0 < record.get("step", 0) <= before]
        for record in records:
            for key in (each for each in record if each not in _OTHER):
                name = key.removeprefix(f"{TRAIN}/")
                self._add(record["step"], {_WRITTEN.get(key, name): record[key]}, prefix=key.removesuffix(name))
        return bool(records)

    def pictures(self) -> Iterator[tuple[str, list[Curve]]]:
        """Yield the title and the curves of each chart, one chart per metric: the loss first, learning rate and speed last.

        The chart of a value that callbacks log for several parts of a model, such as "conv1/gradient_norm", has a curve per part.
        """
        groups: dict[str, list[Curve]] = {"loss": []}
        for name, line in self.lines.items():
            of, _, base = name.rpartition("/")
            if len(line):
                groups.setdefault(base, []).append(Curve(EPOCH_MEAN if of == TRAIN_EPOCH else of or TRAIN, line, noisy=is_noisy(name)))
        last = [name for name in (RATE, SPEED) if name in groups]
        for name in [*(name for name in groups if name not in last), *last]:
            if groups[name]:
                yield name, groups[name]

    @property
    def elapsed(self) -> float:
        """Seconds from the start to the last event."""
        return 0.0 if self.began is None or self.latest is None else self.latest - self.began


def shown_name(name: str) -> str:
    """Return the name of a metric for readers: "validation/loss" as "validation loss", "train_epoch/loss" as "epoch mean loss"."""
    of, _, base = name.rpartition("/")
    return f"{EPOCH_MEAN if of == TRAIN_EPOCH else of} {base}".strip()


def is_noisy(name: str) -> bool:
    """Return True for a quantity that is measured in single steps, such as "loss" rather than "validation/loss"."""
    return "/" not in name and name != RATE


def wants_logarithm(values: Sequence[Numbers], name: str) -> bool:
    """Return True for losses and perplexities that are positive and whose middle 96 % span more than a factor of ten."""
    whole = np.concatenate(values) if values else np.zeros(0)
    if whole.size < 2 or not (whole > 0).all() or not any(word in name for word in ("loss", "perplexity")):
        return False
    low, high = np.quantile(whole, [0.02, 0.98])
    return bool(high / low > 10.0)


def is_fraction(name: str, values: Sequence[Numbers]) -> bool:
    """Return True if a metric is a fraction of one, and all values are between 0 and 1, so that its axis is in percent."""
    return is_share(name) and all(((v >= 0) & (v <= 1)).all() for v in values)
