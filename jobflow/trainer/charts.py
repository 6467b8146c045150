"""Charts of a training run: interactive ones of HTML pages, and those of matplotlib as `curves.png` and as SVG elements.

No global state of matplotlib changes: no window opens, and no backend is selected.
"""

from __future__ import annotations

import colorsys
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import numpy as np

from jobflow.core.extras import optional
from jobflow.tools.plots import FEW, NOISY, Chart, Series, smoothed_by_default, thinned
from jobflow.trainer.history import EPOCH_MEAN, RATE, SPEED, TRAIN, Curve, History, Numbers, is_fraction, wants_logarithm
from jobflow.trainer.training_run import leave
from jobflow.trainer.units import duration_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: the palette of Okabe and Ito, distinguishable with colour blindness
COLOURS = {TRAIN: "#0072b2", "validation": "#d55e00", "test": "#009e73", EPOCH_MEAN: "#cc79a7"}
OTHERS = ("#e69f00", "#56b4e9")
INK, GRID = "#333333", "#dddddd"
#: CSS variables of the colours, which a page defines for its light and its dark mode
PALETTE = dict(zip((*COLOURS.values(), *OTHERS), ("--train", "--validation", "--test", "--p4", "--p3", "--p1"), strict=True))
VARIABLES = {colour: f"var({name})" for colour, name in PALETTE.items()} | {INK: "var(--faint)", GRID: "var(--rule)"}
#: maximum number of points of a line of a static chart, and of an interactive one
STATIC_POINTS, POINTS = 300, 1000
#: the chart of step times, and charts whose axis starts at zero
STEP_TIME = "step time (ms)"
FROM_ZERO = (RATE, SPEED, STEP_TIME)
#: maximum number of curves in the legend of a static chart
MOST_NAMED = 10
#: minimum span of a percent axis
LEAST_SHARE = 0.1
#: width and height of a panel in inches, and dots per inch
WIDTH, HEIGHT, DOTS = 5.0, 3.1, 160


def curves_png(history: History, path: Path, title: str, steps_per_epoch: int = 0) -> Path | None:
    """Write the charts of a history to a PNG file and return its path, or None if there are no curves or writing fails.

    A positive `steps_per_epoch` is named in the labels of the x axes.
    """
    pictures = list(history.pictures())
    if not pictures:
        return None
    columns = min(2, len(pictures))
    rows = -(-len(pictures) // columns)
    content = io.BytesIO()
    with _figure(WIDTH * columns, HEIGHT * rows + 0.45) as figure:
        figure.suptitle(title, fontsize=13, fontweight="bold", color=INK)
        for i, (name, curves) in enumerate(pictures):
            axes = figure.add_subplot(rows, columns, i + 1)
            axes.set_title(name, fontsize=11, color=INK, loc="left")
            draw_curves(axes, name, curves, steps_per_epoch=steps_per_epoch)
        figure.savefig(content, format="png")
    return path if leave(path, content.getvalue()) else None


@contextmanager
def _figure(width: float, height: float) -> Iterator[Figure]:
    """Yield a matplotlib figure of `width` x `height` inches.

    Inside the block, texts of charts are literal: matplotlib interprets no `$...$` formulas and no TeX.
    """
    optional("matplotlib", "a chart")
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    with rc_context({"text.parse_math": False, "text.usetex": False, "svg.fonttype": "none"}):
        yield Figure(figsize=(width, height), dpi=DOTS, facecolor="white", layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1))


def colour_of(curve: Curve, number: int) -> str:
    """Return the colour of a curve; `number` selects it for other names than those of `COLOURS`."""
    return curve.colour or COLOURS.get(curve.of) or (OTHERS[number] if number < len(OTHERS) else hue(number))


def run_colour(number: int) -> str:
    """Return the colour of a run in a comparison: the palette first, then hues."""
    return [*PALETTE][number] if number < len(PALETTE) else hue(number)


def hue(number: int) -> str:
    """Return a colour of medium lightness, whose hue differs from those of the neighbouring numbers."""
    red, green, blue = colorsys.hls_to_rgb(number * 137.5 / 360 % 1, 0.52, 0.6)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"


def points_per_curve(count: int, limit: int) -> int:
    """Return the maximum number of points of each of `count` interactive curves, whose points are together about `limit` or fewer."""
    return max(50, min(POINTS, limit // max(1, count)))


def interactive(name: str, curves: Sequence[Curve], picture: str = "", most: int = POINTS, title: str = "") -> Chart:
    """Return the interactive chart of the metric `name`, with at most `most` points per curve; the title defaults to the name.

    The name of a single curve is part of the title, if it is not the name of samples.
    """
    series, name_shown = [], name
    for i, curve in enumerate(curves):
        x, y, means = thinned(*curve.line.arrays(), most)
        colour = colour_of(curve, i)
        series.append(Series(curve.of, x, y, PALETTE.get(colour, colour), means, smooth=curve.noisy, marks=name != RATE))
    values = [one.y for one in series]
    log = wants_logarithm(values, name)
    if len(curves) == 1 and curves[0].of not in COLOURS:
        name_shown = f"{curves[0].of} {name}"
    return Chart(title or name_shown, series, log, not log and is_fraction(name, values), name in FROM_ZERO, picture)


def draw_curves(
    axes: Axes, name: str, curves: Sequence[Curve], last: int = 0, steps_per_epoch: int = 0, *, legend: bool = True, most: int = STATIC_POINTS
) -> None:
    """Draw the curves of the metric `name`, with an x axis up to at least step `last`.

    A noisy curve of at least 30 points is a thin line with a bold moving mean. A curve of few points has a marker at each point.
    """
    points = [thinned(*curve.line.arrays(), most) for curve in curves]
    for i, (curve, (x, y, means)) in enumerate(zip(curves, points, strict=True)):
        colour = colour_of(curve, i)
        noisy = curve.noisy and len(x) >= NOISY
        marked = not noisy and (len(x) == 1 or (len(x) < FEW and name != RATE))
        if noisy:
            axes.plot(x, y, color=colour, linewidth=0.7, alpha=0.3)
        drawn = smoothed_by_default(y if means is None else means) if noisy else y
        (line,) = axes.plot(x, drawn, color=colour, linewidth=1.7, marker="o" if marked else "", markersize=4, label=curve.of)
        if marked:
            line.set_gid(tooltips(f"step {step:.0f}: {value:.5g}" for step, value in zip(x.tolist(), y.tolist(), strict=True)))
    low, high = min(float(x[0]) for x, _, _ in points), max(last, *(float(x[-1]) for x, _, _ in points))
    axes.set_xlim(low - 0.02 * (high - low), high + max(0.02 * (high - low), float(low == high)))
    axes.locator_params("x", integer=True)
    scale_values(axes, name, [y for _, y, _ in points])
    dress(axes, f"step   (an epoch has {steps_per_epoch})" if steps_per_epoch else "step")
    if legend and 1 < len(curves) <= MOST_NAMED:
        axes.legend(frameon=False, fontsize=9, labelcolor=INK)


def scale_values(axes: Axes, name: str, values: Sequence[Numbers]) -> None:
    """Select the scale of the y axis from the name and the values of a metric.

    Losses of a wide range have a logarithmic scale, and fractions have a percent scale. The axes of `FROM_ZERO` start at zero.
    """
    from matplotlib.ticker import LogLocator, NullFormatter, PercentFormatter, StrMethodFormatter

    low, high = min(float(v.min()) for v in values), max(float(v.max()) for v in values)
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    if wants_logarithm(values, name):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high / low < 1e3 else (1.0,)))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    elif is_fraction(name, values):
        margin = max((high - low) * 0.05, (LEAST_SHARE - (high - low)) / 2)
        axes.set_ylim(low - margin, high + margin)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    elif name in FROM_ZERO:
        axes.set_ylim(bottom=0)


def draw_times(axes: Axes, seconds: Numbers, bins: int = 32) -> None:
    """Draw a histogram of step times with the median marked; the last bar includes all slower steps."""
    low, median = float(seconds.min()), float(np.median(seconds))
    high = max(min(float(np.quantile(seconds, 0.995)), 3 * median), low * 1.01 + 1e-9)
    unit, word = (1e-3, "ms") if high < 1 else (1.0, "s")
    counts, edges = np.histogram(np.clip(seconds, low, high), bins=min(bins, max(4, seconds.size // 3)), range=(low, high))
    bars = axes.bar(edges[:-1] / unit, counts, np.diff(edges) / unit * 0.94, align="edge", color=COLOURS[TRAIN])
    for bar, count, a, b in zip(bars, counts.tolist(), edges.tolist(), edges[1:].tolist(), strict=False):
        bar.set_gid(tooltips([f"{duration_text(a)} to {duration_text(b)}: {count} steps"]))
    axes.axvline(median / unit, color=INK, linewidth=1, linestyle="--", label=f"median {duration_text(median)}")
    axes.legend(frameon=False, fontsize=9, labelcolor=INK)
    axes.margins(x=0.02, y=0.15)
    axes.locator_params("y", integer=True)
    dress(axes, f"time of a step ({word})")


def dress(axes: Axes, below: str) -> None:
    """Add a light grid, and the text `below` as the label of the x axis."""
    axes.set_xlabel(below, fontsize=9, color=INK)
    axes.grid(True, color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8.5, colors=INK, length=3)
    axes.tick_params(which="minor", length=0)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(INK)
        spine.set_linewidth(0.8)


# -------------------------------------------------------------------- SVG

_BAR = " | "


def tooltips(texts: Iterable[str]) -> str:
    """Encode tooltips, one per marker or bar, in a string for the `gid` of a matplotlib artist."""
    return f"tooltips{_BAR}{_BAR.join(texts)}"


def chart_svg(title: str, draw: Callable[[Axes], None]) -> str:
    """Return the chart that `draw` plots as an SVG element for an HTML page, with tooltips and the page's font and colours."""
    content = io.StringIO()
    with _figure(WIDTH, HEIGHT) as figure:
        draw(figure.add_subplot())
        figure.savefig(content, format="svg", transparent=True)
    root = ElementTree.fromstring(content.getvalue())
    for part in root.iter():
        part.tag = part.tag.rpartition("}")[2]
        texts = part.attrib.pop("id", "").split(_BAR)[1:] if part.tag == "g" else []
        for mark, text in zip([use for use in part.iter() if use.tag.endswith("use")] or [part], texts, strict=False):
            ElementTree.SubElement(mark, "title").text = text
        part.attrib = {name.rpartition("}")[2]: _in_page(value) for name, value in part.attrib.items()}
    for child in ("metadata", "defs"):
        for unused in root.findall(child)[:1]:
            root.remove(unused)
    root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": title}
    return ElementTree.tostring(root, encoding="unicode")


def _in_page(value: str) -> str:
    """Return the value of an SVG attribute with the page's colours and font, and with numbers cut to one decimal."""
    return re.sub("#[0-9a-f]{6}", lambda colour: VARIABLES.get(colour[0], colour[0]), re.sub(r"font-family: [^;]*; |(?<=\.\d)\d+", "", value))
