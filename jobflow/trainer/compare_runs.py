"""Comparison of runs: a table of the changed keys and the metrics, and one HTML page with the curves of all runs.

The page needs no other file and no network.  Every text in it is escaped.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import FileError, counted
from jobflow.core.tables import TextTable
from jobflow.tools.pages import page
from jobflow.tools.plots import SCRIPTS, Chart, Charts
from jobflow.trainer.charts import chart_svg, draw_curves, interactive, points_per_curve, run_colour
from jobflow.trainer.history import TRAIN_EPOCH, Curve, History, Line, is_noisy, shown_name
from jobflow.trainer.recorded_evaluations import evaluations_of
from jobflow.trainer.report import leaves
from jobflow.trainer.run_file import NAME, RunRecord, ending_text, read_run
from jobflow.trainer.sweep.trials import labels, value_text
from jobflow.trainer.units import duration_text, larger_is_better, metric_text

#: maximum number of points of all curves together
ALL_POINTS = 200_000
#: maximum number of runs, of runs in static charts, of static charts, and of points of their curves
RUNS, STATIC_RUNS, STATIC_CHARTS, STATIC_POINTS = 500, 40, 4, 100
#: sections and keys whose differences have no effect on the results
_WITHOUT_EFFECT = ("name", "output", "logging", "sweep", "checkpoint")
_FILES = ("metrics.jsonl", "metrics.csv")


@dataclass(frozen=True)
class FinishedRun:
    """A run with its record, None for a run without a `run.json`, and with its curves by metric."""

    label: str
    folder: Path
    record: RunRecord | None
    lines: Mapping[str, Line]

    @property
    def keys(self) -> dict[str, Any]:
        """The values of all keys of the configuration, {} without a record."""
        config = {} if self.record is None else self.record.config
        return {key: value for name, inner in config.items() if name not in _WITHOUT_EFFECT for key, value in leaves({name: inner})}


def read_runs(folders: Sequence[str | Path]) -> list[FinishedRun]:
    """Return the runs in the folders; the folder of a sweep stands for all of its trials.

    Raises: FileError for a folder without a run, for a damaged record, and for more than RUNS runs.
    """
    paths = list(dict.fromkeys(path.resolve() for folder in folders for path in _expanded(Path(folder))))
    if len(paths) > RUNS:
        raise FileError(f"compare: there are {len(paths):,} runs, more than {RUNS}; pass fewer")
    return [_run(path, name) for path, name in zip(paths, _short(paths), strict=True)]


def _expanded(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise FileError(f"compare: {folder} is not a folder; pass the output folder of a run, such as runs/lenet")
    if any((folder / name).is_file() for name in (NAME, *_FILES)):
        return [folder]
    inner = sorted(path.parent for path in folder.glob(f"*/{NAME}"))
    if not inner:
        raise FileError(f"compare: {folder} contains no run: neither {NAME} nor {_FILES[0]}; pass the output folder of a run or of a sweep")
    return inner


def _short(paths: Sequence[Path]) -> list[str]:
    """Return the paths relative to their common folder."""
    if len(paths) == 1:
        return [paths[0].name]
    return [os.path.relpath(path, os.path.commonpath(paths)) for path in paths]


def _run(folder: Path, label: str) -> FinishedRun:
    try:
        record = read_run(folder)
    except FileNotFoundError:
        record = None
    history = History()
    if not any(history.read(folder / name, 2**62) for name in _FILES) and record is not None:
        for one in record.evaluations:
            for name, value in one.items():
                if name != "step":
                    history.lines.setdefault(name, Line()).add(int(one["step"]), value)
    for evaluation in evaluations_of(folder):
        for name, value in evaluation.items():
            if name.startswith("test/"):
                history.lines.setdefault(name, Line()).add(evaluation["step"], value)
    return FinishedRun(label, folder, record, {name: line for name, line in history.lines.items() if len(line)})


# -------------------------------------------------------------------- table


def changed(runs: Sequence[FinishedRun]) -> list[str]:
    """Return the keys whose values differ between the runs."""
    every = [run.keys for run in runs if run.record is not None]
    keys = dict.fromkeys(key for values in every for key in values)
    return [key for key in keys if len({json.dumps(values.get(key), sort_keys=True) for values in every}) > 1]


def measured(runs: Sequence[FinishedRun]) -> list[str]:
    """Return the names of the metrics of evaluations; without evaluations, those of epoch means, or the training loss."""
    names = dict.fromkeys(name for run in runs for name in run.lines if "/" in name)
    return [name for name in names if not name.startswith(f"{TRAIN_EPOCH}/")] or list(names) or ["loss"]


def comparison_table(runs: Sequence[FinishedRun]) -> TextTable:
    """Return the table of the runs: changed keys, best and last value of each metric, steps, time and end."""
    keys, metrics = changed(runs), measured(runs)
    short = labels(keys)
    rows = []
    for run in runs:
        values = [value_text(run.keys[key]) if key in run.keys else "-" for key in keys]
        cells = [text for name in metrics for text in _best_and_last(name, run.lines.get(name))]
        last = max((line.steps[-1] for line in run.lines.values()), default=0)
        step = last if run.record is None else run.record.step
        time = "-" if run.record is None else duration_text(run.record.seconds)
        rows.append([run.label, *values, *cells, f"{step:,}", time, "-" if run.record is None else ending_text(run.record.stopped)])
    columns = [column for name in metrics for column in (f"best {name}", "last")]
    head = ["run", *(short[key] for key in keys), *columns, "step", "time", "end"]
    return TextTable(head, rows, right=range(1 + len(keys), len(head) - 1))


def _best_and_last(name: str, line: Line | None) -> tuple[str, str]:
    if line is None:
        return "-", "-"
    best = max(line.values) if larger_is_better(name) else min(line.values)
    return metric_text(name, best), metric_text(name, line.last)


# -------------------------------------------------------------------- page


def comparison_page(runs: Sequence[FinishedRun]) -> str:
    """Return the HTML page with the curves and the table of the runs."""
    sections = {"curves": comparison_charts(runs), "runs": comparison_table(runs)}
    return page("compare.html", title=f"Comparison of {counted(len(runs), 'run')}", scripts=SCRIPTS, sections=sections)


def comparison_charts(runs: Sequence[FinishedRun]) -> Charts:
    """Return a chart per metric with the curves of all runs; the first charts have static copies, unless there are many runs."""
    names = list(dict.fromkeys([*measured(runs), *(name for run in runs for name in run.lines)]))
    groups = {name: [*_curves(runs, name)] for name in names}
    most = points_per_curve(sum(map(len, groups.values())), ALL_POINTS)
    charts: list[Chart] = []
    for name, curves in groups.items():
        if not curves:
            continue
        picture = ""
        if len(charts) < STATIC_CHARTS and len(curves) <= STATIC_RUNS:
            picture = chart_svg(f"{name} by step", partial(draw_curves, name=name, curves=curves, legend=False, most=STATIC_POINTS))
        charts.append(interactive(name, curves, picture, most, title=shown_name(name)))
    return Charts(charts, shared=True)


def _curves(runs: Sequence[FinishedRun], name: str) -> Iterator[Curve]:
    for i, run in enumerate(runs):
        if name in run.lines:
            yield Curve(run.label, run.lines[name], is_noisy(name), run_colour(i))


def write_page(path: Path, runs: Sequence[FinishedRun]) -> None:
    """Write the page of a comparison; raise FileError if the file cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(comparison_page(runs), encoding="utf-8")
    except OSError as error:
        raise FileError(f"compare: {path} cannot be written: {error.strerror or error}; pass another path with --html") from None


def json_text(runs: Sequence[FinishedRun]) -> str:
    """Return the runs as JSON: label, folder, changed keys, metrics, steps, seconds and end."""
    keys = changed(runs)
    trees = []
    for run in runs:
        metrics = {name: {"best": _best(name, line), "last": line.last} for name, line in run.lines.items() if math.isfinite(line.last)}
        record = {} if run.record is None else {"step": run.record.step, "seconds": run.record.seconds, "end": run.record.stopped}
        trees.append({"run": run.label, "folder": str(run.folder), "changed": {key: run.keys.get(key) for key in keys}, "metrics": metrics, **record})
    return json.dumps(trees, indent=1)


def _best(name: str, line: Line) -> float:
    return max(line.values) if larger_is_better(name) else min(line.values)
