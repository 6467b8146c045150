"""Metrics files: JSON lines, a table of comma-separated values, and TensorBoard events if tensorboardX is installed.

A crash may truncate the last record; the next start removes it. The start also removes records after the resumed checkpoint, so that a resumed
run has the same records as an uninterrupted run.
"""

from __future__ import annotations

import csv
import importlib
import io
import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from jobflow.core.errors import ConfigError
from jobflow.core.notices import notice
from jobflow.storage.remote import AnyPath
from jobflow.storage.untrusted import open_regular
from jobflow.trainer.callbacks import Callback
from jobflow.trainer.config import TrainConfig
from jobflow.trainer.training_run import EvaluationReport, Outcome, StepReport, TrainingRun

Record = dict[str, Any]
#: the first columns of every table
FIRST = ("step", "epoch", "train/loss", "rate")


def step_record(report: StepReport) -> Record:
    """Return the record of a training step as written to metrics files."""
    speed = report.samples / report.seconds if report.seconds > 0 else 0.0
    metrics = {f"train/{name}": value for name, value in report.metrics.items()}
    times = {"seconds": round(report.seconds, 6), "samples_per_second": round(speed, 2)}
    return {"step": report.step, "epoch": report.epoch, "train/loss": report.loss, **metrics, "rate": report.rate, **times}


class Lines:
    """A file of complete lines; a truncated last line is removed when the file is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None

    def read(self) -> list[str]:
        """Return the complete lines; [] if the file is missing."""
        try:
            with open_regular(self.path) as file:
                text = file.read().decode(errors="replace")
        except FileNotFoundError:
            return []
        return text[: text.rfind("\n") + 1].splitlines()

    def replace(self, lines: Iterable[str]) -> None:
        """Replace all lines atomically."""
        self.close()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        with open(fresh, "w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, self.path)

    @property
    def is_removed(self) -> bool:
        """True if the path does not exist or refers to another file, for example after its folder was removed."""
        try:
            now = os.stat(self.path)
        except FileNotFoundError:
            return True
        return self._file is not None and not os.path.samestat(now, os.fstat(self._file))

    def add(self, line: str) -> None:
        """Append a line, with a single write unless the system accepts only a part."""
        if self._file is None:
            self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        data = f"{line}\n".encode()
        while data:  # a full disk may accept a part; the next write reports the reason
            data = data[os.write(self._file, data) :]

    def flush(self) -> None:
        """Write appended lines to the disk."""
        if self._file is not None:
            os.fsync(self._file)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


class Records(Callback, ABC):
    """A callback that writes a record for the first and last step, every `every` steps, and for each evaluation.

    A step for which other callbacks logged values has a record too.  Checkpoints flush the file.
    """

    observes = True
    #: True for files that contain confusion matrices
    has_tables = False

    def __init__(self, file: Any, every: int = 1) -> None:
        self._file, self._every = file, every

    @abstractmethod
    def write(self, record: Record) -> None:
        """Add a record to the file."""

    def _record(self, record: Record) -> None:
        if self.is_removed:
            notice(f"{self.place} was removed during training; it is created again, without the records before step {record['step']}")
            self.create()
        self.write(record)

    @property
    @abstractmethod
    def place(self) -> Path:
        """The path of the file, or of the directory of files."""

    @property
    @abstractmethod
    def is_removed(self) -> bool:
        """True if the file being written was removed."""

    @abstractmethod
    def create(self) -> None:
        """Create a file without records in place of a removed file."""

    def on_step(self, run: TrainingRun, report: StepReport) -> None:
        if report.step % self._every == 0 or report.step in (1, run.steps):
            self._record(step_record(report) | run.logged)
        elif run.logged:
            self._record({"step": report.step, "epoch": report.epoch, **run.logged})

    def on_evaluation(self, run: TrainingRun, report: EvaluationReport) -> None:
        tables = {name: table.tolist() for name, table in report.tables.items()} if self.has_tables else {}
        self._record({"step": report.step, "epoch": report.epoch, **report.metrics, **tables, **run.logged})

    def on_epoch(self, run: TrainingRun, report: EvaluationReport) -> None:
        self.on_evaluation(run, report)

    def on_checkpoint(self, run: TrainingRun, path: AnyPath) -> None:
        self._file.flush()

    def on_end(self, run: TrainingRun, outcome: Outcome) -> None:
        self.close()

    def on_exception(self, run: TrainingRun, error: BaseException) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class LineRecords(Records):
    """Records in a file of lines."""

    _file: Lines

    @property
    def place(self) -> Path:
        return self._file.path

    @property
    def is_removed(self) -> bool:
        return self._file.is_removed

    def create(self) -> None:
        self._file.replace(())


class JsonLines(LineRecords):
    """A JSON object per line: {"step": 10, "epoch": 0, "train/loss": 1.7, ...}; numbers that are not finite are null."""

    has_tables = True

    def __init__(self, path: Path, every: int = 1) -> None:
        super().__init__(Lines(path), every)

    def on_start(self, run: TrainingRun) -> None:
        self._file.replace(line for line in self._file.read() if _record(line).get("step", math.inf) <= run.first_step)

    def write(self, record: Record) -> None:
        self._file.add(json.dumps({name: _finite(value) for name, value in record.items()}))


class Table(LineRecords):
    """Records as comma-separated values; a metric that appears late gets a column, empty in earlier rows."""

    def __init__(self, path: Path, every: int = 1) -> None:
        super().__init__(Lines(path), every)
        self._columns: list[str] = []

    def on_start(self, run: TrainingRun) -> None:
        rows = list(csv.reader(self._file.read()))
        lines = [row for row in rows[1:] if row and row[0].isdigit() and int(row[0]) <= run.first_step]
        self._columns = rows[0] if lines else list(FIRST)
        self._file.replace(map(_joined, [self._columns, *lines]))

    def create(self) -> None:
        self._columns = list(FIRST)
        self._file.replace([_joined(self._columns)])

    def write(self, record: Record) -> None:
        late = [name for name in record if name not in self._columns]
        if late:
            rows = list(csv.reader(self._file.read()))[1:]
            self._columns += late
            self._file.replace(map(_joined, [self._columns, *(row + [""] * (len(self._columns) - len(row)) for row in rows)]))
        self._file.add(_joined([record.get(name, "") for name in self._columns]))


class TensorBoard(Records):
    """A writer of scalars to TensorBoard event files in a directory, by the package tensorboardX."""

    def __init__(self, directory: Path, every: int = 1) -> None:
        super().__init__(None, every)
        self._directory = directory
        self._make = partial(_summary_writer(), logdir=str(directory))

    def on_start(self, run: TrainingRun) -> None:
        # TensorBoard itself drops events of an interrupted run after the step at which it resumes
        self._file = self._make(purge_step=run.first_step + 1 if run.first_step else None)

    @property
    def place(self) -> Path:
        return self._directory

    @property
    def is_removed(self) -> bool:
        return not self._directory.exists()

    def create(self) -> None:
        self._file.close()
        self._file = self._make()

    def write(self, record: Record) -> None:
        for name, value in record.items():
            if name not in ("step", "epoch"):
                self._file.add_scalar(name, value, record["step"])

    def close(self) -> None:
        if self._file is not None:
            super().close()
            self._file = None


def _summary_writer() -> Any:
    try:
        return importlib.import_module("tensorboardX").SummaryWriter
    except ImportError:
        raise ConfigError("logging.tensorboard needs tensorboardX: pip install tensorboardX, or set logging.tensorboard to false") from None


def metric_files(config: TrainConfig, output: Path) -> list[Callback]:
    """Return the callbacks that write the files of the configuration's `logging` to the output directory."""
    options = config.logging
    kinds = [(options.jsonl, JsonLines, "metrics.jsonl"), (options.csv, Table, "metrics.csv"), (options.tensorboard, TensorBoard, "tensorboard")]
    return [kind(output / name, options.every_steps) for formats, kind, name in kinds if formats]


def recorded(path: Path) -> Iterable[Record]:
    """Return the numbers of each line of a metrics file (JSON lines or CSV); {} for a damaged JSON line."""
    lines = Lines(path).read()
    return map(_record, lines) if path.suffix == ".jsonl" else map(_row, csv.DictReader(lines))


def _record(text: str) -> Record:
    """Return the numbers of a JSON line with an integer step, else {}."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    values = {key: value for key, value in record.items() if isinstance(value, int | float)} if isinstance(record, dict) else {}
    return values if isinstance(values.get("step"), int) else {}


def _row(texts: Mapping[str, str]) -> Record:
    """Return the numbers of a table row by column; omit cells that are not numbers."""
    row: Record = {}
    for name, text in texts.items():
        with suppress(ValueError, TypeError):
            row[name] = int(text) if name == "step" else float(text)
    return row


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _joined(row: Iterable[Any]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(row)
    return text.getvalue()
