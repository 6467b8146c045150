"""`report.html`: a self-contained page with the result, curves, time, memory, communication, configuration and machine of a run."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from jobflow.core.errors import counted
from jobflow.core.extras import optional
from jobflow.core.tables import TextTable
from jobflow.engine.session import current_session
from jobflow.plan.footprint import CATEGORIES
from jobflow.storage.remote import AnyPath, RemotePath
from jobflow.tools.pages import page
from jobflow.tools.plots import SCRIPTS, Chart, Charts
from jobflow.trainer.charts import STEP_TIME, chart_svg, curves_png, draw_curves, draw_times, interactive, points_per_curve
from jobflow.trainer.chrome_trace import Traced, parts_table, slowest_table
from jobflow.trainer.figures import Figures, environment, figures_in
from jobflow.trainer.gradient_statistics import is_of_parameter
from jobflow.trainer.history import RATE, SPEED, TRAIN, TRAIN_EPOCH, Curve, History, Line, shown_name
from jobflow.trainer.linked_files import files_table, relative_link
from jobflow.trainer.preview import alike, common_memory, memory_table, strategy_text, traffic_table
from jobflow.trainer.recorded_evaluations import NAME as EVALUATIONS
from jobflow.trainer.recorded_evaluations import PAGE, evaluations_table
from jobflow.trainer.set_metrics.metric_names import class_texts
from jobflow.trainer.shown_samples import samples_section
from jobflow.trainer.training_run import ENDS, Outcome, TrainingRun, leave
from jobflow.trainer.units import count_text, duration_text, larger_is_better, metric_text, percent, rate_text, size_text

#: maximum number of ranks whose memory and communication are shown
MOST_RANKS = 16
#: maximum number of classes of a confusion matrix on the page
MOST_SHOWN = 40
#: maximum number of charts with static copies
STATIC_CHARTS = 12
#: maximum number of points of all curves together
ALL_POINTS = 40_000
#: minimum seconds between updates of the page at checkpoints, and their maximum share of the run's time
REFRESH, MOST_TIME = 30.0, 0.01
UNFINISHED = "The run has not finished: it is running, or its process was killed. `jobflow train` with the same file resumes it."


class Report(History):
    """A callback that writes the page and `curves.png` at the end of a run, also after an error.  The default path is in the run's output directory.

    During the run, it writes a page marked as unfinished, which remains if the process is killed.
    `traced` returns the trace of `--profile`; `announce` is called with a line that names the page.
    """

    def __init__(
        self, path: Path | None = None, traced: Callable[[], Traced | None] = lambda: None, announce: Callable[[str], None] = lambda _: None
    ) -> None:
        super().__init__()
        self._path = path
        self._announce = announce
        self._traced = traced
        self._written = False
        self._due = 0.0
        self._when = datetime.now().astimezone()

    def on_start(self, run: TrainingRun) -> None:
        optional("matplotlib", "a report (logging.report)")  # a missing library is reported before the run
        super().on_start(run)
        self._unfinished(run)

    def restore(self, run: TrainingRun) -> None:
        super().restore(run)
        path = self._path or run.output / PAGE
        run.report = path if path.exists() else None

    def on_checkpoint(self, run: TrainingRun, path: AnyPath) -> None:
        super().on_checkpoint(run, path)
        if time.monotonic() > self._due and self.outcome is None:
            self._unfinished(run)

    def _unfinished(self, run: TrainingRun) -> None:
        begun = time.monotonic()
        self._write(run, report_page(run, self, self._when, path=self._path, unfinished=True))
        now = time.monotonic()
        self._due = now + max(REFRESH, (now - begun) / MOST_TIME)

    def on_end(self, run: TrainingRun, outcome: Outcome) -> None:
        super().on_end(run, outcome)
        self._write_finished(run)

    def on_exception(self, run: TrainingRun, error: BaseException) -> None:
        self._write_finished(run, error)

    def _write_finished(self, run: TrainingRun, error: BaseException | None = None) -> None:
        if self._written:
            return
        self._written = True
        if self.step_number > run.first_step:
            curves_png(self, run.output / "curves.png", run.name, run.steps_per_epoch)
        if self._write(run, report_page(run, self, self._when, self._traced(), error, path=self._path)):
            self._announce(f"report: {run.report}")

    def _write(self, run: TrainingRun, page: str) -> bool:
        path = self._path or run.output / PAGE
        if written := leave(path, page.encode()):
            run.report = path
        return written


def report_page(
    run: TrainingRun,
    history: History,
    when: datetime | None = None,
    traced: Traced | None = None,
    error: BaseException | None = None,
    *,
    path: Path | None = None,
    unfinished: bool = False,
) -> str:
    """Return the HTML page of a run; with `unfinished`, omit sections that are slow to compute.

    The links of the page are relative to its `path`, which defaults to report.html in the run's output directory.
    """
    path = path or run.output / PAGE
    compiled = None if unfinished else run.compiled()
    laid_out = None if compiled is None else figures_in(current_session(), compiled.programs, MOST_RANKS)
    unended = ("unfinished", "plain") if unfinished else ("failed", "bad")
    badge = unended if history.outcome is None else ENDS[history.outcome.stopped][1:]
    date = "" if when is None else f"{when:%Y-%m-%d %H:%M}, "
    strategy = run.loaded.plain.get("strategy")
    how = strategy_text(SimpleNamespace(**strategy), run.ranks) if isinstance(strategy, Mapping) else f"{run.ranks} ranks"
    sections = {
        "result": result(run, history, laid_out, UNFINISHED if unfinished else _message(history, error), path.parent),
        "curves": curves(run, history),
        "samples": samples_section(run.output),
        "start": run.before,
        "time": timing(run, history, traced),
        "memory": memory(laid_out, run.ranks),
        "communication": communication(laid_out, run.ranks),
        "checkpoints": checkpoints(run, history, path.parent),
        "files": files_table(run, path),
        "configuration": configuration(run.loaded),
        "environment": environment(run.ranks),
    }
    sections = {name: content for name, content in sections.items() if content}
    return page("report.html", title=run.name, scripts=SCRIPTS, badge=badge, subtitle=f"{date}{how}", sections=sections)


def _message(history: History, error: BaseException | None) -> str:
    """Return the message of the run's outcome; without an outcome, describe `error`, or return "" if it is None."""
    if history.outcome is not None:
        return history.outcome.message
    return "" if error is None else f"{type(error).__name__}: {error}"


def result(run: TrainingRun, history: History, laid_out: Figures | None, message: str, folder: Path) -> dict[str, Any]:
    """Return the content of the result section: the message, the cards, and each metric with its last and best value."""
    rows = []
    for name, line in history.lines.items():
        if name not in (RATE, SPEED) and len(line) and not is_of_parameter(name):
            last, *best = _last_and_best(name, line)
            rows.append([shown_name(name), last, *(best if "/" in name else ["-", "-"])])  # the best value of single steps is noise
    metrics = TextTable(["metric", "last", "best", "at step"], rows, right=(1, 2, 3))
    return {
        "message": message,
        "cards": [*_cards(run, history, laid_out)],
        "metrics": metrics,
        "evaluations": evaluations_table(run.output),
        "records": relative_link(run.output / EVALUATIONS, folder).href,
        "matrices": [*_matrices(history)],
        "missing": run.first_step if history.missing else 0,
    }


def _matrices(history: History) -> Iterator[dict[str, Any]]:
    """Yield each confusion matrix with the names of its classes, and each cell as a count and its share of the row."""
    for name, table in history.tables.items():
        classes = class_texts(history.classes, len(table))
        shares = table / np.maximum(table.sum(1, keepdims=True), 1)
        rows = [
            (label, [*zip(map("{:,}".format, counts), parts.tolist(), strict=True)])
            for label, counts, parts in zip(classes, table, shares, strict=True)
        ]
        yield {"name": shown_name(name), "classes": classes, "rows": rows if len(table) <= MOST_SHOWN else []}


def _cards(run: TrainingRun, history: History, laid_out: Figures | None) -> Iterator[tuple[str, str, str]]:
    measured = [name for name, line in history.lines.items() if "/" in name and len(line) and not is_of_parameter(name)]
    evaluated = [name for name in measured if not name.startswith(f"{TRAIN_EPOCH}/")]
    for name, line in history.lines.items():
        if name in (evaluated or measured):  # means over an epoch are in the table
            last, best, at = _last_and_best(name, line)
            yield shown_name(name), last, f"best {best} at step {at}"
    loss = history.lines.get("loss")
    if loss is not None and len(loss):
        yield "training loss", metric_text("loss", loss.last), f"of step {loss.steps[-1]:,}"
    epochs = f"; {history.step_number / run.steps_per_epoch:.3g} epochs" if run.steps_per_epoch else ""
    yield "steps", f"{history.step_number:,}", f"of {run.steps:,}{epochs}"
    yield "time", duration_text(history.elapsed), _before(run) or "in total"
    speed = history.lines.get(SPEED)
    if speed is not None and len(speed):
        yield "speed", f"{rate_text(float(np.median(speed.values)))} samples/s", f"median; batches of {run.batch_size:,}"
    if laid_out is not None:
        yield "parameters", count_text(laid_out.parameters), f"{size_text(laid_out.variable_bytes)} with the optimizer's state"
        yield "memory", size_text(laid_out.largest), "on the rank with the largest total"


def _before(run: TrainingRun) -> str:
    """Describe earlier parts of the run; "" if this is the first."""
    if not run.first_step:
        return ""
    took = f" in {duration_text(run.seconds_before)}" if run.seconds_before else ""
    return f"after {counted(run.first_step, 'step')}{took} of earlier parts of the run"


def _last_and_best(name: str, line: Line) -> tuple[str, str, str]:
    values = np.array(line.values)
    best = int(values.argmax() if larger_is_better(name) else values.argmin())
    return metric_text(name, line.last), metric_text(name, float(values[best])), f"{line.steps[best]:,}"


def curves(run: TrainingRun, history: History) -> Charts | None:
    """Return the charts of loss, metrics, learning rate, speed and step time, the first ones with static copies; None without curves."""
    last = history.step_number if history.outcome is not None else max(run.steps, history.step_number)
    pictures = [*history.pictures(), *_step_times(history)]
    most = points_per_curve(sum(len(lines) for _, lines in pictures), ALL_POINTS)
    charts: list[Chart] = []
    for name, lines in pictures:
        picture = "" if len(charts) >= STATIC_CHARTS else chart_svg(f"{name} by step", partial(draw_curves, name=name, curves=lines, last=last))
        charts.append(interactive(name, lines, picture, most))
    return Charts(charts) if charts else None


def _step_times(history: History) -> Iterator[tuple[str, list[Curve]]]:
    """Yield the chart of step times without the first step, which may compile."""
    line, first = Line(), history.step_number - len(history.seconds) + 1
    for i, seconds in enumerate(history.seconds[1:], 1):
        line.add(first + i, 1000 * seconds)
    if len(line):
        yield STEP_TIME, [Curve(TRAIN, line, noisy=True)]


def timing(run: TrainingRun, history: History, traced: Traced | None) -> dict[str, Any]:
    """Return the parts of the run's time, the distribution of step times, and the trace of `--profile`."""
    if not history.seconds:
        return {}
    seconds = np.array(history.seconds)
    steady = seconds[1:] if seconds.size > 1 else seconds
    spent = {name: size for name, size in where_time_went(history) if size > 0}
    texts = {name: (duration_text(size), percent(size / (sum(spent.values()) or 1.0))) for name, size in spent.items()}
    return {
        "before": _before(run),
        "spent": ("run", {name: (size, ", ".join(texts[name])) for name, size in spent.items()}),
        "shares": TextTable(["", "time", "share"], [(name, *text) for name, text in texts.items()], right=(1, 2)),
        "histogram": chart_svg("steps by their time", partial(draw_times, seconds=steady)),
        "spread": {name: duration_text(value) for name, value in spread(steady).items()},
        "profile": None if traced is None else profile(traced),
    }


def where_time_went(history: History) -> Iterator[tuple[str, float]]:
    """Yield (name, seconds) for each part of the elapsed time."""
    assert history.first is not None and history.began is not None
    begin = history.first - history.began
    steps = sum(history.seconds[1:])
    waited = min(history.waited, steps)
    yield "steps", steps - waited
    yield "waiting for data", waited
    yield "evaluation", history.evaluating
    yield "start and first step", begin
    yield "saving and other", max(0.0, history.elapsed - begin - steps - history.evaluating)


def spread(seconds: np.ndarray[Any, np.dtype[np.float64]]) -> dict[str, float]:
    """Return quantiles, maximum and mean of step times in seconds by name."""
    quantiles = {"median": 0.5, "9 of 10 within": 0.9, "99 of 100 within": 0.99}
    return {name: float(np.quantile(seconds, q)) for name, q in quantiles.items()} | {"slowest": float(seconds.max()), "mean": float(seconds.mean())}


def profile(traced: Traced) -> dict[str, Any]:
    """Return the bars and tables of a trace of `--profile`."""
    bars = [(f"rank {rank}", _bar(parts, lambda size: duration_text(size / max(traced.steps, 1)))) for rank, parts in traced.parts().items()]
    return {"steps": traced.steps, "bars": bars, "parts": parts_table(traced), "slowest": slowest_table(traced), "file": traced.path.name}


def _bar(parts: Mapping[str, float], text: Callable[[float], str]) -> dict[str, tuple[float, str]]:
    return {name: (size, text(size)) for name, size in parts.items()}


def memory(laid_out: Figures | None, ranks: int) -> dict[str, Any]:
    """Return the memory of each rank at its peak, as bars and as a table; {} without figures."""
    if laid_out is None:
        return {}
    used = [category for category in CATEGORIES if any(f.memory.at_peak[category] for f in laid_out.ranks)]
    bars = [
        (f"rank{'s' if '-' in label else ''} {label}", _bar({category: f.memory.at_peak[category] for category in used}, size_text))
        for label, f in alike(laid_out, lambda f: (f.memory, f.common))
    ]
    return {"bars": bars, "table": memory_table(laid_out), "said": common_memory(laid_out) + _rest(laid_out, ranks)}


def communication(laid_out: Figures | None, ranks: int) -> dict[str, Any]:
    """Return the table of bytes by kind and rank, and the table of redistributions; {} without figures or communication."""
    if laid_out is None or (ranks == 1 and not laid_out.kinds()):
        return {}
    rows = [(row.route, size_text(row.nbytes), *row[2:]) for row in laid_out.changes]
    changes = TextTable(["route", "busiest rank sends", "tensors", "from", "to", "for", "line"], rows, right=(1,), code=(6,))
    return {"table": traffic_table(laid_out), "changes": changes, "said": _rest(laid_out, ranks)}


def _rest(laid_out: Figures, ranks: int) -> list[str]:
    shown = len(laid_out.ranks)
    return [f"The first {shown} of {ranks} ranks are shown"] if shown < ranks else []


def checkpoints(run: TrainingRun, history: History, folder: Path) -> TextTable | None:
    """Return a table of saved checkpoints with their paths relative to `folder` and their sizes, or None without checkpoints."""
    rows: list[Any] = [
        (f"{step:,}", relative_link(path, folder) if _exists(path) else _relative(path, folder), _size(path)) for step, path in history.checkpoints
    ]
    if run.resumed_from is not None:
        rows.insert(0, (f"{run.first_step:,}", relative_link(run.resumed_from, folder), "resumed from here"))
    return TextTable(["step", "path", "size"], rows, right=(0, 2), code=(1,)) if rows else None


def _exists(path: AnyPath) -> bool:
    return isinstance(path, Path) and path.exists()


def _size(path: AnyPath) -> str:
    """Describe the size of a local checkpoint; remote checkpoints are not measured, because training would wait for the store."""
    if isinstance(path, RemotePath):
        return "not measured"
    return size_text(sum(file.stat().st_size for file in path.rglob("*") if file.is_file())) if path.is_dir() else "removed by retention"


def _relative(path: AnyPath, start: Path) -> str:
    return os.path.relpath(path, start) if isinstance(path, Path) and path.is_absolute() == start.is_absolute() else str(path)


def configuration(loaded: Any) -> list[tuple[str, TextTable, TextTable]]:
    """Return (section, table of written values, table of defaults) for every section; rows contain key, value and source position."""
    sections: dict[str, tuple[list[Any], list[Any]]] = {}
    for key, value in leaves(loaded.plain):
        origin = loaded.origins.get(key)
        where = "default" if origin is None else f"{os.path.basename(origin.file)}:{origin.line}" if origin.line else str(origin.file)
        rows = sections.setdefault(key.partition(".")[0] if "." in key else "run", ([], []))[origin is None]
        rows.append((key, value if isinstance(value, str) else json.dumps(value), where))
    head = ["key", "value", "from"]
    return [(name, TextTable(head, written, code=(0, 1)), TextTable(head, defaults, code=(0, 1))) for name, (written, defaults) in sections.items()]


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, value) of every leaf of a tree, such as "model.layers.0.dense.units"."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and any(isinstance(inner, Mapping) for inner in value):
        for i, inner in enumerate(value):
            yield from leaves(inner, f"{path}.{i}")
    else:
        yield path, value
