"""A run of training as HTML for notebooks: state, latest values, charts, and a link to the report.

The charts are small SVG elements without scripts.  Their colours are legible on light and dark pages, and all texts have the colour of the page.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from html import escape
from itertools import islice
from pathlib import Path
from urllib.parse import quote

import numpy as np

from jobflow.core.palette import AMBER, BLUE, GREEN, GREY, ORANGE, PURPLE, RED, SKY
from jobflow.tools.plots import FEW, NOISY, Chart, Numbers, Series, smoothed_by_default
from jobflow.trainer.charts import PALETTE, interactive
from jobflow.trainer.history import EPOCH_MEAN, RATE, SPEED, TRAIN_EPOCH
from jobflow.trainer.training_run import ENDS, TrainingRun
from jobflow.trainer.units import metric_text, number_text, percent

#: the colours of curves: those of the report, of medium lightness
COLOURS = dict(zip(PALETTE.values(), (BLUE, ORANGE, GREEN, PURPLE, AMBER, SKY), strict=True))
#: colours of the end of a run by kind, as in `ENDS`
KINDS = {"good": GREEN, "bad": RED, "plain": GREY}
#: maximum number of charts, and of points of a curve
MOST_CHARTS, POINTS = 3, 120
#: width and height of a chart in units of the picture, and its margins: left, top, right, bottom
WIDTH, HEIGHT = 300, 170
LEFT, TOP, RIGHT, BOTTOM = 42, 8, 8, 20


def run_html(run: TrainingRun, texts: Sequence[str] = (), error: BaseException | None = None) -> str:
    """Return a run as HTML; `texts` describe the progress of an unfinished run, and `error` is the cause of its end."""
    return (
        f'<div style="font-size:13px;line-height:1.5;max-width:960px">{_heading(run, texts, error)}'
        f'<div style="display:flex;flex-wrap:wrap;gap:4px 20px">{"".join(_charts(run))}</div>{_values(run)}{_report(run)}</div>'
    )


def _heading(run: TrainingRun, texts: Sequence[str], error: BaseException | None) -> str:
    """Return the name and the state of the run, with a progress bar."""
    state, kind = ("failed", "bad") if error is not None else ("running", "plain") if run.stopped is None else ENDS[run.stopped][1:]
    share = min(run.step / run.steps, 1.0) if run.steps else 1.0
    message = f"{type(error).__name__}: {error}".partition("\n")[0] if error is not None else run.message
    rest = "".join(f"<div>{escape(line)}</div>" for line in ("  ".join(texts), message) if line)
    return (
        f'<div><b>{escape(run.name)}</b> <span style="color:{KINDS[kind]};font-weight:600">{escape(state)}</span>, '
        f"step {run.step:,} of {run.steps:,}</div>"
        f'<div style="height:5px;border-radius:3px;background:rgba(128,128,128,.25);margin:3px 0;max-width:640px">'
        f'<div style="height:5px;border-radius:3px;background:{KINDS[kind] if run.stopped or error else COLOURS["--train"]};'
        f'width:{100 * share:.1f}%"></div></div>{rest}'
    )


def _values(run: TrainingRun) -> str:
    """Return the latest metrics as a table: one row per metric, one column per set of samples."""
    rows: dict[str, dict[str, float]] = {}
    for name, value in run.metrics.items():
        of, _, base = name.rpartition("/")
        rows.setdefault(base, {})[of.replace(TRAIN_EPOCH, EPOCH_MEAN)] = value
    columns = list(dict.fromkeys(of for values in rows.values() for of in values))
    if not columns:
        return ""
    table = [["", *columns], *([base, *(metric_text(base, values[of]) if of in values else "" for of in columns)] for base, values in rows.items())]
    lines = "".join(f"<tr{_PLAIN}>{''.join(f'<td{_CELL}>{escape(cell)}</td>' for cell in line)}</tr>" for line in table)
    return f'<table style="border-collapse:collapse;margin:4px 0;font-size:13px">{lines}</table>'


#: styles that replace those of a notebook
_PLAIN = ' style="background:none"'
_CELL = ' style="text-align:left;padding:1px 14px 1px 0;background:none;color:inherit;border:none"'


def _report(run: TrainingRun) -> str:
    """Return links to the report and the folder of the run; a notebook resolves relative links in its own folder."""
    if run.report is None or not run.report.exists():
        return ""
    return f'<div>report: <a href="{escape(address_of(run.report))}" target="_blank">{escape(str(run.report))}</a></div>'


def address_of(path: Path) -> str:
    """Return the address of a file: relative in the current folder, otherwise a file URL."""
    relative = os.path.relpath(path)
    return Path(path).absolute().as_uri() if relative.startswith("..") else quote(Path(relative).as_posix())


# -------------------------------------------------------------------- charts


def _charts(run: TrainingRun) -> Iterator[str]:
    if run.recorded is not None:
        pictures = ((name, curves) for name, curves in run.recorded.pictures() if name not in (RATE, SPEED))
        for name, curves in islice(pictures, MOST_CHARTS):
            yield chart_html(interactive(name, curves, most=POINTS))


def chart_html(chart: Chart) -> str:
    """Return a chart as a figure with a legend."""
    legend = "".join(f' <span style="color:{_colour(one)}">■ {escape(one.name)}</span>' for one in chart.series)
    return (
        f'<figure style="margin:4px 0"><figcaption><b>{escape(chart.title)}</b>{legend}</figcaption>'
        f'<svg width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(chart.title)} by step" '
        f'font-size="10" fill="currentColor">{"".join(_drawn(chart))}</svg></figure>'
    )


def _drawn(chart: Chart) -> Iterator[str]:
    """Yield the axes and the curves of a chart."""
    values = np.concatenate([one.y for one in chart.series])
    steps = np.concatenate([one.x for one in chart.series])
    first, last = float(steps.min()), float(steps.max())
    low, high = _range(values, chart)
    scale = np.log if chart.log else np.asarray

    def x_of(x: Numbers) -> Numbers:
        return LEFT + (x - first) / ((last - first) or 1.0) * (WIDTH - LEFT - RIGHT)

    def y_of(y: Numbers) -> Numbers:
        bottom, top = scale(low), scale(high)
        return HEIGHT - BOTTOM - (scale(y) - bottom) / (top - bottom) * (HEIGHT - TOP - BOTTOM)

    for tick in ticks(low, high, chart.log):
        at = float(y_of(np.array(tick)))
        text = percent(tick, 0 if high - low > 0.05 else 1) if chart.share else number_text(tick)
        yield f'<path d="M{LEFT} {at:.0f}H{WIDTH - RIGHT}" stroke="currentColor" stroke-opacity=".15"/>'
        yield f'<text x="{LEFT - 4}" y="{at + 3:.0f}" text-anchor="end">{escape(text)}</text>'
    yield f'<text x="{LEFT}" y="{HEIGHT - 6}">{first:,.0f}</text>'
    yield f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end">step {last:,.0f}</text>'
    for one in chart.series:
        yield from _curve(one, x_of(one.x), y_of(one.y), None if not one.smooth else y_of(_means(one)))


def _means(series: Series) -> Numbers:
    return smoothed_by_default(series.y if series.mean is None else series.mean)


def _curve(series: Series, x: Numbers, y: Numbers, means: Numbers | None) -> Iterator[str]:
    """Yield a curve: values of single steps as a thin line and their moving mean, other values as a line with markers."""
    style = f'fill="none" stroke="{_colour(series)}"'
    noisy = means is not None and len(x) >= NOISY
    if noisy:
        yield f'<polyline {style} stroke-opacity=".35" points="{_points(x, y)}"/>'
    yield f'<polyline {style} stroke-width="1.7" points="{_points(x, means if noisy and means is not None else y)}"/>'
    if not noisy and len(x) < FEW:
        yield "".join(f'<circle cx="{a:.0f}" cy="{b:.0f}" r="2" fill="{_colour(series)}"/>' for a, b in zip(x, y, strict=True))


def _points(x: Numbers, y: Numbers) -> str:
    return " ".join(f"{a:.0f},{b:.1f}" for a, b in zip(x, y, strict=True))


def _colour(series: Series) -> str:
    return COLOURS.get(series.colour, series.colour)


def _range(values: Numbers, chart: Chart) -> tuple[float, float]:
    """Return the ends of the y axis, with a margin."""
    low, high = float(values.min()), float(values.max())
    if chart.log:
        return low / 1.05, high * 1.05
    margin = (high - low) * 0.05 or max(abs(high), 1e-6) * 0.05
    return low - margin, high + margin


def ticks(low: float, high: float, log: bool) -> list[float]:
    """Return about four round numbers between `low` and `high`."""
    if log:
        exponents = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
        every = -(-len(exponents) // 5)
        digits = (1.0, 2.0, 5.0) if high / low < 100 else (1.0,)
        return [value for e in exponents[::every] for digit in digits if low <= (value := digit * 10.0**e) <= high]
    rough = (high - low) / 4
    unit = 10.0 ** np.floor(np.log10(rough))
    step = next(factor * unit for factor in (1, 2, 2.5, 5, 10) if factor * unit >= rough)
    return [float(i * step) for i in range(int(np.ceil(low / step)), int(np.floor(high / step)) + 1)]
