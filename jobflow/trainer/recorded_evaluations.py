"""`evaluations.jsonl` in the folder of a run: the results of `jobflow eval`, which the report and comparisons show.

A record is {"step": 800, "epoch": 8, "checkpoint": ..., "samples": 297, "seconds": 0.2, "test/loss": 0.1, ...}.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jobflow.core.notices import notice
from jobflow.core.tables import TextTable
from jobflow.storage.remote import AnyPath
from jobflow.tools.pages import fragment
from jobflow.trainer.metrics import Lines, recorded
from jobflow.trainer.training_run import EvaluationReport, leave
from jobflow.trainer.units import metric_text

NAME = "evaluations.jsonl"
#: the page that contains the table, and the marks around the table
PAGE, BEGIN, END = "report.html", "<!--evaluations-->", "<!--/evaluations-->"
#: the record of the run, without which a folder is not the folder of a run
RUN = "run.json"


def record_evaluation(folder: Path, report: EvaluationReport, checkpoint: AnyPath) -> None:
    """Add the result of an evaluation to the folder of a run and to its report; do nothing in other folders."""
    if not (folder / RUN).is_file():
        return
    record = {
        "step": report.step,
        "epoch": report.epoch,
        "samples": report.samples,
        "seconds": round(report.seconds, 6),
        "checkpoint": str(checkpoint),
    }
    record |= {name: value if math.isfinite(value) else None for name, value in report.metrics.items()}
    lines = Lines(folder / NAME)
    try:
        lines.add(json.dumps(record))
    except OSError as error:
        notice(f"{folder / NAME} could not be written: {error.strerror or error}")
        return
    finally:
        lines.close()
    _update_page(folder / PAGE, evaluations_table(folder))


def forget_evaluations(folder: Path, after: int) -> None:
    """Remove the records of steps after step `after`, from which a run continues."""
    path = folder / NAME
    if path.is_file():
        lines = Lines(path)
        numbered = zip(recorded(path), lines.read(), strict=True)
        lines.replace([line for record, line in numbered if 0 < record.get("step", math.inf) <= after])


def evaluations_of(folder: Path) -> list[Mapping[str, Any]]:
    """Return the latest record of each step and kind of samples, in the order of the steps."""
    latest: dict[tuple[int, str], Mapping[str, Any]] = {}
    path = folder / NAME
    for record in recorded(path) if path.is_file() else ():
        if "step" in record:
            latest[record["step"], _samples(record)] = record
    return [latest[key] for key in sorted(latest)]


def evaluations_table(folder: Path) -> TextTable | None:
    """Return the table of the evaluations for the report, or None without evaluations."""
    records = [(_samples(record), record) for record in evaluations_of(folder)]
    names = dict.fromkeys(name.partition("/")[2] for _, record in records for name in record if "/" in name)
    rows = []
    for of, record in records:
        values = [record.get(f"{of}/{name}") for name in names]
        metrics = ["-" if value is None else metric_text(name, value) for name, value in zip(names, values, strict=True)]
        rows.append([of, f"{record['step']:,}", f"{record.get('samples', 0):,}", *metrics])
    return TextTable(["evaluated", "step", "samples", *names], rows, right=range(1, 3 + len(names))) if rows else None


def _samples(record: Mapping[str, Any]) -> str:
    """Return the kind of samples of a record, such as "test"."""
    return next((name.partition("/")[0] for name in record if "/" in name), "")


def _update_page(path: Path, table: TextTable | None) -> None:
    """Replace the table in the report at `path`; do nothing if the report does not exist or has no marks."""
    try:
        page = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if begin and end:
        leave(path, f"{before}{begin}{fragment('evaluations.html', evaluations=table, records=NAME)}{end}{after}".encode())
