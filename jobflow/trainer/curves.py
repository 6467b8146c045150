"""`curves.png`: loss, metrics, learning rate and speed over the steps of a run.

Drawn with matplotlib's objects on a canvas of their own: no window, no backend is chosen, nothing global changes.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jobflow.trainer.history import RATE, SPEED, TRAIN, Curve, History, Reading, is_fraction, smoothed, wants_logarithm
from jobflow.trainer.leaving import leave
from jobflow.trainer.watching import RunInfo

#: of Okabe and Ito: told apart by everybody
COLOURS = {TRAIN: "#0072B2", "validation": "#D55E00", "test": "#009E73"}
OTHERS = ("#CC79A7", "#E69F00", "#56B4E9")
INK, GRID = "#333333", "#DDDDDD"
#: points of a line; more cannot be seen
POINTS = 1000
#: of all points, how many are averaged for the bold line
SMOOTHING = 0.03
#: a panel, in inches
WIDTH, HEIGHT, DOTS = 5.6, 3.4, 144


class Curves(Reading):
    """Writes the picture when a run ends, however it ends; into the run's output unless a path is given."""

    def __init__(self, path: Path | None = None, history: History | None = None) -> None:
        super().__init__(history)
        self._path = path
        self._written = False

    def started(self, run: RunInfo) -> None:
        importlib.import_module("matplotlib")  # better missed now than when all is done
        super().started(run)

    def closed(self, run: RunInfo) -> None:
        if not self._written and self.history.step_number > run.first_step:
            self._written = True
            draw(self.history, self._path or run.output / "curves.png", run.name, run.steps_per_epoch)


def draw(history: History, path: Path, title: str, steps_per_epoch: int = 0) -> Path | None:
    """The picture of a history as a PNG file; None if there is nothing to draw, or no place for it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    pictures = list(history.pictures())
    if not pictures:
        return None
    columns = min(2, len(pictures))
    rows = -(-len(pictures) // columns)
    figure = Figure(
        figsize=(WIDTH * columns, HEIGHT * rows + 0.45), dpi=DOTS, facecolor="white", layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1)
    )
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=13, fontweight="bold", color=INK)
    for i, (name, curves) in enumerate(pictures):
        panel(figure.add_subplot(rows, columns, i + 1), name, curves, steps_per_epoch)
    content = io.BytesIO()
    figure.savefig(content, format="png")
    return path if leave(path, content.getvalue()) else None


def panel(axes: Any, name: str, curves: Sequence[Curve], steps_per_epoch: int) -> None:
    """One quantity: noisy lines thin with their mean bold, evaluations as points on a line."""
    points = [curve.line.arrays(POINTS) for curve in curves]
    for i, (curve, (x, y)) in enumerate(zip(curves, points, strict=True)):
        colour = COLOURS.get(curve.of, OTHERS[i % len(OTHERS)])
        noisy = curve.of == TRAIN and len(x) >= 30 and name != RATE
        if noisy:
            axes.plot(x, y, color=colour, linewidth=0.7, alpha=0.3)
            axes.plot(x, smoothed(y, int(len(y) * SMOOTHING) + 2), color=colour, linewidth=1.8, label=curve.of)
        else:
            marker = "o" if len(x) == 1 or (len(x) < 40 and name != RATE) else None
            axes.plot(x, y, color=colour, linewidth=1.6, marker=marker, markersize=4, label=curve.of)
    first, last = min(float(x[0]) for x, _ in points), max(float(x[-1]) for x, _ in points)
    axes.set_xlim(first - 0.02 * (last - first), last + max(0.02 * (last - first), float(first == last)))
    scales(axes, name, [y for _, y in points])
    dress(axes, name, steps_per_epoch)
    if len(curves) > 1:
        axes.legend(frameon=False, fontsize=9, labelcolor=INK)


def scales(axes: Any, name: str, values: Sequence[Any]) -> None:
    """Logarithm or percent where they serve; speeds from zero."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, PercentFormatter, StrMethodFormatter

    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    if wants_logarithm(values, name):
        axes.set_yscale("log")
        few = max(float(v.max()) for v in values) / min(float(v.min()) for v in values) < 1e3
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,)))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    elif is_fraction(name, values):
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    if name in (RATE, SPEED):
        axes.set_ylim(bottom=0)


def dress(axes: Any, name: str, steps_per_epoch: int) -> None:
    """Titles, units and a light grid."""
    axes.set_title(name, fontsize=11, color=INK, loc="left")
    axes.set_xlabel(f"step   (an epoch has {steps_per_epoch})" if steps_per_epoch else "step", fontsize=9, color=INK)
    axes.grid(True, color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8.5, colors=INK, length=3)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(INK)
        spine.set_linewidth(0.8)
