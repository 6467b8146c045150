"""`report.html`: one file about a run - result, curves, time, memory, communication, configuration, machine - that opens anywhere, offline."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from jobflow.errors import counted
from jobflow.plan.footprint import CATEGORIES
from jobflow.session import current_session
from jobflow.trainer.amounts import count_text, duration_text, metric_text, percent, rate_text, size_text
from jobflow.trainer.charts import curves_chart, histogram
from jobflow.trainer.figures import Figures, environment, figures_in
from jobflow.trainer.history import RATE, SPEED, TRAIN, History, Line, Reading
from jobflow.trainer.leaving import leave
from jobflow.trainer.page import Cell, Html, cards, figures, folded, page, pairs, paragraph, stacked, table, together
from jobflow.trainer.preview import alike, strategy_text
from jobflow.trainer.trace import PARTS, Traced
from jobflow.trainer.watching import RunInfo

#: what each way to end is called, and whether it is good news
ENDS = {
    "end": ("done", "good"),
    "early": ("stopped early", "good"),
    "interrupt": ("interrupted", "plain"),
    "terminated": ("terminated", "plain"),
    "nan": ("not finite", "bad"),
}
#: ranks whose memory and communication are worked out; those behind are hardly different
MOST_RANKS = 16
#: seconds after which the page of a run that goes on is written anew, when a checkpoint is
REFRESH = 30.0
UNFINISHED = "The run has not come to its end: it goes on, or was ended without a word. `jobflow train` with the same file goes on with it."


class Report(Reading):
    """Writes the page when a run ends, however it ends; into the run's output unless a path is given.

    While the run goes on there is one too, which says that it is unfinished: of a process that is killed nothing else tells.
    `traced` gives what `--profile` recorded; `announce` is told where the page is.
    """

    def __init__(
        self,
        path: Path | None = None,
        traced: Callable[[], Traced | None] | None = None,
        history: History | None = None,
        announce: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(history)
        self._path = path
        self._announce = announce
        self._traced = traced or (lambda: None)
        self._written = False
        self._latest = float("-inf")
        self._when = datetime.now().astimezone()

    def started(self, run: RunInfo) -> None:
        super().started(run)
        self._unfinished(run)

    def saved(self, run: RunInfo, path: Path) -> None:
        super().saved(run, path)
        if time.monotonic() > self._latest + REFRESH and self.history.outcome is None:
            self._unfinished(run)

    def _unfinished(self, run: RunInfo) -> None:
        self._latest = time.monotonic()
        leave(self._path or run.output / "report.html", report_page(run, self.history, self._when, unfinished=True).encode())

    def closed(self, run: RunInfo) -> None:
        if self._written:
            return
        self._written = True
        path = self._path or run.output / "report.html"
        text = report_page(run, self.history, self._when, self._traced(), sys.exception())
        if leave(path, text.encode()) and self._announce is not None:
            self._announce(f"report: {path}")


def report_page(
    run: RunInfo,
    history: History,
    when: datetime | None = None,
    traced: Traced | None = None,
    error: BaseException | None = None,
    *,
    unfinished: bool = False,
) -> str:
    """The page of a run as far as it has come.  An `unfinished` one lacks what takes long to work out."""
    compiled = None if unfinished else run.compiled()
    laid_out = None
    if compiled is not None:
        laid_out = figures_in(current_session(), compiled.programs, MOST_RANKS)
    unended = ("unfinished", "plain") if unfinished else ("failed", "bad")
    badge = unended if history.outcome is None else ENDS.get(history.outcome.stopped, (history.outcome.stopped, "plain"))
    date = "" if when is None else f"{when:%Y-%m-%d %H:%M}, "
    strategy = run.loaded.plain.get("strategy")
    how = strategy_text(Plain(strategy), run.ranks) if isinstance(strategy, Mapping) else f"{run.ranks} ranks"
    sections = {
        "Result": result(run, history, laid_out, UNFINISHED if unfinished else _message(history, error)),
        "Curves": curves(run, history),
        "Time": timing(run, history, traced),
        "Memory": Html("") if laid_out is None else memory(laid_out, run.ranks),
        "Communication": Html("") if laid_out is None else communication(laid_out, run.ranks),
        "Checkpoints": checkpoints(run, history),
        "Configuration": configuration(run.loaded),
        "Environment": pairs(dict(environment(run.ranks))),
    }
    return page(run.name, badge, f"{date}{how}", {name: html for name, html in sections.items() if html.text})


class Plain:
    """A section of a configuration as an object; what is not there is None."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __getattr__(self, name: str) -> Any:
        return self._values.get(name)


# -------------------------------------------------------------------- result


def _message(history: History, error: BaseException | None) -> str:
    """How a run ended, for people; "" if there is nothing to say."""
    if history.outcome is not None:
        return str(getattr(history.outcome, "message", ""))
    return "" if error is None else f"{type(error).__name__}: {error}"


def result(run: RunInfo, history: History, laid_out: Figures | None, message: str) -> Html:
    """Cards, and every metric with its last and its best value."""
    parts = [cards(list(_cards(run, history, laid_out)))]
    if message:
        parts.insert(0, paragraph(message))
    rows = []
    for name, line in history.lines.items():
        if name not in (RATE, SPEED) and len(line):
            last, *best = _last_and_best(name, line)
            rows.append([name.replace("/", " "), last, *(best if "/" in name else ["–", "–"])])  # the best of single steps is chance
    if rows:
        parts.append(table(["metric", "last", "best", "at step"], rows, numbers=(1, 2, 3)))
    if run.first_step and history.missing:
        parts.append(paragraph(f"What steps 1 to {run.first_step:,} measured was kept nowhere: logging.jsonl and logging.csv keep it."))
    return together(*parts)


def _cards(run: RunInfo, history: History, laid_out: Figures | None) -> Iterator[tuple[str, str, str]]:
    for name, line in history.lines.items():
        if "/" in name and len(line):
            last, best, at = _last_and_best(name, line)
            yield name.replace("/", " "), last, f"best {best} at step {at}"
    loss = history.lines.get("loss")
    if loss is not None and len(loss):
        yield "training loss", metric_text("loss", loss.last), f"of step {loss.steps[-1]:,}"
    epochs = f"; {history.step_number / run.steps_per_epoch:.3g} epochs" if run.steps_per_epoch else ""
    yield "steps", f"{history.step_number:,}", f"of {run.steps:,}{epochs}"
    yield "time", duration_text(history.elapsed), _before(run) or "all in all"
    speed = history.lines.get(SPEED)
    if speed is not None and len(speed):
        yield "speed", f"{rate_text(float(np.median(speed.values)))} samples/s", f"median; batches of {run.batch_size:,}"
    if laid_out is not None:
        yield "parameters", count_text(laid_out.parameters), f"{size_text(laid_out.variable_bytes)} with the optimizer's state"
        yield "memory", size_text(laid_out.largest), "of the rank with most"


def _before(run: RunInfo) -> str:
    """What earlier parts of the run did; "" if this is the first."""
    if not run.first_step:
        return ""
    took = f" in {duration_text(run.seconds_before)}" if run.seconds_before else ""
    return f"after {counted(run.first_step, 'step')}{took} of earlier parts of the run"


def _last_and_best(name: str, line: Line) -> tuple[str, str, str]:
    values = np.array(line.values)
    up = any(word in name for word in ("accuracy", "precision", "recall", "top", "score"))
    best = int(values.argmax() if up else values.argmin())
    return metric_text(name, line.last), metric_text(name, float(values[best])), f"{line.steps[best]:,}"


def curves(run: RunInfo, history: History) -> Html:
    """Loss, metrics, learning rate and speed."""
    parts = []
    last = history.step_number if history.outcome is not None else max(run.steps, history.step_number)
    for name, lines in history.pictures():
        known = [curve.of for curve in lines if curve.of in (TRAIN, "validation", "test")]
        marks = "".join(f'<span><i class="{of}"></i>{of}</span>' for of in known)
        parts.append((name, Html(curves_chart(name, lines, last)), f'<div class="legend">{marks}</div>' if len(lines) > 1 else ""))
    return figures(parts) if parts else Html("")


# -------------------------------------------------------------------- time


def timing(run: RunInfo, history: History, traced: Traced | None) -> Html:
    """Where the time of the run went, how long steps took, and what was recorded of single ops."""
    if not history.seconds:
        return Html("")
    before = _before(run)
    seconds = np.array(history.seconds)
    steady = seconds[1:] if seconds.size > 1 else seconds
    spent = [(name, size) for name, size in where_time_went(history) if size > 0]
    whole = sum(size for _, size in spent) or 1.0
    parts = [
        stacked([("run", [(name, size, f"{duration_text(size)}, {percent(size / whole)}") for name, size in spent])]),
        table(["", "time", "share"], [[name, duration_text(size), percent(size / whole)] for name, size in spent], numbers=(1, 2)),
        Html("<h3>Steps</h3>"),
        figures(
            [
                ("number of steps by their time", Html(histogram(steady)), ""),
                ("all but the first step", pairs({name: duration_text(value) for name, value in spread(steady).items()}), ""),
            ]
        ),
    ]
    said = [paragraph(f"Of this part of the run, {before}.")] if before else []
    return together(*said, *parts, *([profile(traced)] if traced is not None else []))


def where_time_went(history: History) -> Iterator[tuple[str, float]]:
    """Parts of the run's time, which add up to all of it."""
    assert history.first is not None and history.began is not None
    begin = history.first - history.began
    steps = sum(history.seconds[1:])
    waited = min(history.waited, steps)
    yield "steps", steps - waited
    yield "waiting for data", waited
    yield "evaluation", history.evaluating
    yield "start and first step", begin
    yield "saving and all else", max(0.0, history.elapsed - begin - steps - history.evaluating)


def spread(seconds: np.ndarray[Any, np.dtype[np.float64]]) -> dict[str, float]:
    """How far step times are apart."""
    found = {"median": 0.5, "9 of 10 within": 0.9, "99 of 100 within": 0.99}
    return {name: float(np.quantile(seconds, q)) for name, q in found.items()} | {"slowest": float(seconds.max()), "mean": float(seconds.mean())}


def profile(traced: Traced) -> Html:
    """What `--profile` recorded."""
    steps = max(traced.steps, 1)
    rows = [(f"rank {r}", [(p, s / steps, duration_text(s / steps)) for p, s in own.items()]) for r, own in traced.parts().items()]
    slow: list[list[Cell]] = [
        [
            row.name,
            code(str(row.where)),
            row.kernel,
            f"{row.seconds * 1e3:,.2f}",
            f"{row.waiting * 1e3:,.2f}" if row.waiting else "–",
            percent(row.share),
            str(row.calls),
        ]
        for row in traced.slowest()
    ]
    return together(
        Html(f"<h3>Inside a step, mean of {traced.steps} recorded ones</h3>"),
        stacked(rows),
        table(["rank", *PARTS], [[label, *(text for _, _, text in parts)] for label, parts in rows], numbers=range(1, len(PARTS) + 1)),
        Html("<h3>Slowest ops, all ranks and recorded steps together</h3>"),
        table(["op", "where", "kernel", "total ms", "waiting ms", "share", "calls"], slow, numbers=(3, 4, 5, 6)),
        paragraph(f"Every call with its times is in {traced.path.name}: open it in https://ui.perfetto.dev or chrome://tracing."),
    )


# -------------------------------------------------------------------- memory, communication


def memory(laid_out: Figures, ranks: int) -> Html:
    """What every rank's memory is used for when it is fullest."""
    used = [category for category in CATEGORIES if any(f.memory.at_peak[category] for f in laid_out.ranks)]
    bars, rows = [], []
    for label, figure in alike(laid_out, lambda f: (f.memory, f.common)):
        at_peak, total = figure.memory.at_peak, size_text(figure.memory.total)
        bars.append((f"rank{'s' if '-' in label else ''} {label}", [(c, at_peak[c], size_text(at_peak[c])) for c in used]))
        rows.append([label, *(size_text(at_peak[c]) if at_peak[c] else "–" for c in used), total, figure.memory.peak])
    common = max((f.common for f in laid_out.ranks), default=0)
    said = [paragraph(f"{size_text(common)} of the variables lie once in memory that all ranks of a machine share.")] if common else []
    what = table(["rank", *used, "allocated", "fullest at"], rows, numbers=range(1, len(used) + 2))
    return together(stacked(bars), what, *said, *_rest(laid_out, ranks))


def communication(laid_out: Figures, ranks: int) -> Html:
    """Bytes by kind and rank, and every change of layout."""
    kinds = laid_out.kinds()
    if not kinds:
        return paragraph("Nothing moves between ranks.") if ranks > 1 else Html("")
    rows = []
    for label, f in alike(laid_out, lambda f: f.traffic):
        cells = [f"{size_text(t.nbytes)} in {t.operations}" if (t := f.traffic.get(kind)) else "–" for kind in kinds]
        rows.append([label, *cells, size_text(f.sent)])
    head = ["rank", *(kind.replace("_", "-") for kind in kinds), "sends in a step"]
    changes: list[list[Cell]] = [
        [row.route, size_text(row.nbytes), row.tensors, row.source, row.target, row.readers, code(str(row.where))] for row in laid_out.changes
    ]
    boxing = table(["route", "busiest rank sends", "tensors", "from", "to", "for", "line"], changes, numbers=(1,))
    sent = table(head, rows, numbers=range(1, len(head)))
    return together(sent, folded(f"Changes of layout ({len(changes)})", boxing, open_=len(changes) <= 12), *_rest(laid_out, ranks))


def _rest(laid_out: Figures, ranks: int) -> list[Html]:
    shown = len(laid_out.ranks)
    return [paragraph(f"The first {shown} of {ranks} ranks are shown.")] if shown < ranks else []


# -------------------------------------------------------------------- checkpoints, configuration


def checkpoints(run: RunInfo, history: History) -> Html:
    """What was saved, and what of it is still there."""
    rows: list[list[Cell]] = []
    for step, path in history.checkpoints:
        kept = path.is_dir()
        rows.append([f"{step:,}", code(_relative(path, run.output)), size_text(folder_size(path)) if kept else "removed by retention"])
    if run.resumed_from is not None:
        rows.insert(0, [f"{run.first_step:,}", code(_relative(run.resumed_from, run.output)), "went on from here"])
    return table(["step", "path", "size"], rows, numbers=(0, 2)) if rows else Html("")


def folder_size(path: Path) -> int:
    """Bytes of all files below."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def _relative(path: Path, start: Path) -> str:
    return os.path.relpath(path, start) if path.is_absolute() == start.is_absolute() else str(path)


def configuration(loaded: Any) -> Html:
    """Every value with where it was written; a table per section, what is by default folded away."""
    sections: dict[str, list[tuple[str, Any]]] = {}
    for key, value in leaves(loaded.plain):
        sections.setdefault(key.partition(".")[0] if "." in key else "run", []).append((key, value))
    parts = []
    for name, entries in sections.items():
        said = [(k, v) for k, v in entries if loaded.origins.get(k) is not None]
        silent = [(k, v) for k, v in entries if loaded.origins.get(k) is None]
        parts.append(Html(f"<h3>{name}</h3>"))
        if said:
            parts.append(_values(said, loaded.origins))
        if silent:
            parts.append(folded(f"{len(silent)} by default", _values(silent, loaded.origins)))
    return together(*parts)


def _values(entries: Sequence[tuple[str, Any]], origins: Mapping[str, Any]) -> Html:
    rows: list[list[Cell]] = []
    for key, value in entries:
        origin = origins.get(key)
        where = "default" if origin is None else f"{os.path.basename(origin.file)}:{origin.line}" if origin.line else str(origin.file)
        shown = value if isinstance(value, str) else json.dumps(value)
        rows.append([code(key), Html(f'<code class="long">{escape(shown)}</code>'), where])
    return table(["key", "value", "from"], rows)


def code(text: str) -> Html:
    return Html(f"<code>{escape(text)}</code>")


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(path, value) of everything that holds nothing else, as "model.layers.0.dense.units"."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and any(isinstance(inner, Mapping) for inner in value):
        for i, inner in enumerate(value):
            yield from leaves(inner, f"{path}.{i}")
    else:
        yield path, value
