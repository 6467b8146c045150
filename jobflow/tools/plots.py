"""Interactive charts of curves by step for pages: their data, and the limit of their size.

A page includes `{% from "parts.html" import plots %}` and `{{ plots(charts) }}`, and is rendered with `scripts=SCRIPTS`.  The script charts.js reads
the data as JSON and draws with uPlot.  Without JavaScript and in print, the page shows `Chart.picture`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any, TypeAlias

import numpy as np

from jobflow.core.dataclass import dataclass

Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
#: the scripts of a page with interactive charts
SCRIPTS = ("uplot/uPlot.iife.min.js", "charts.js")
#: curves with at least this number of points can be smoothed
NOISY = 30
#: curves with fewer points have a marker at each point
FEW = 40
#: default width of the moving mean, in percent of the points
SMOOTHING = 3


@dataclass(frozen=True)
class Series:
    """A curve with ascending steps, finite values, and a colour: a CSS variable such as "--train", or "#rrggbb"."""

    name: str
    x: Numbers
    y: Numbers
    colour: str
    #: the means of the values around each point of a thinned curve; None if the curve has all values
    mean: Numbers | None = None
    #: True for values of single steps, which charts can smooth
    smooth: bool = False
    #: True if a curve of few points has a marker at each point
    marks: bool = True

    def tree(self) -> dict[str, Any]:
        """Return the JSON tree of the curve."""
        axes = {"x": self.x, "y": self.y} | ({} if self.mean is None else {"mean": self.mean})
        lists = {name: [_rounded(value) for value in axis.tolist()] for name, axis in axes.items()}
        return {"name": self.name, "colour": self.colour, "smooth": self.smooth, "marks": self.marks, **lists}


@dataclass(frozen=True)
class Chart:
    """A chart of curves: its scales, and the SVG of its static copy, or "" without a copy."""

    title: str
    series: Sequence[Series]
    #: True for a logarithmic scale at first, for values in percent, and for an axis that starts at 0
    log: bool = False
    share: bool = False
    zero: bool = False
    picture: str = ""

    def tree(self) -> dict[str, Any]:
        """Return the JSON tree of the chart."""
        series = [one.tree() for one in self.series]
        return {"title": self.title, "log": self.log, "share": self.share, "zero": self.zero, "series": series}


@dataclass(frozen=True)
class Charts:
    """Charts with one range of steps, one smoothing, and one pointer."""

    charts: Sequence[Chart] = field(default_factory=list)
    #: True for one legend of all charts, in which a name switches its curves in every chart
    shared: bool = False
    smoothing: int = SMOOTHING

    @property
    def smooths(self) -> bool:
        """True if a curve can be smoothed."""
        return any(one.smooth and len(one.x) >= NOISY for chart in self.charts for one in chart.series)

    @property
    def names(self) -> dict[str, str]:
        """The colours of the curves by name, for static legends."""
        colours = {one.name: one.colour for chart in self.charts for one in chart.series}
        return {name: f"var({colour})" if colour.startswith("--") else colour for name, colour in colours.items()}

    def tree(self) -> dict[str, Any]:
        """Return the JSON tree that charts.js reads."""
        return {"shared": self.shared, "smoothing": self.smoothing, "noisy": NOISY, "few": FEW, "charts": [chart.tree() for chart in self.charts]}


def thinned(x: Numbers, y: Numbers, most: int) -> tuple[Numbers, Numbers, Numbers | None]:
    """Return at most `most` of the points: both ends, and the minimum and maximum of each of the intervals between them.

    The third array has the mean of the interval of each point; it is None if no point is removed.
    """
    if len(x) <= most:
        return x, y, None
    edges = np.linspace(0, len(x), max(1, (most - 2) // 2) + 1).astype(int)
    starts, stops = edges[:-1], edges[1:]
    least = [start + int(y[start:stop].argmin()) for start, stop in zip(starts, stops, strict=True)]
    greatest = [start + int(y[start:stop].argmax()) for start, stop in zip(starts, stops, strict=True)]
    indices = np.unique([0, *least, *greatest, len(x) - 1])
    means = np.add.reduceat(y, starts) / (stops - starts)
    return x[indices], y[indices], means[np.searchsorted(stops, indices, side="right")]


def smoothed(values: Numbers, window: int) -> Numbers:
    """Return the centred moving mean over `window` values; the window shrinks near both ends."""
    last = len(values) - 1
    reach = (min(i, last - i, window // 2) for i in range(last + 1))
    return np.array([values[i - r : i + r + 1].mean() for i, r in enumerate(reach)])


def smoothed_by_default(values: Numbers) -> Numbers:
    """Return the moving mean of a noisy curve, with the default width."""
    return smoothed(values, len(values) * SMOOTHING // 100 + 2)


def _rounded(value: float) -> float:
    """Return a value with six significant digits; whole numbers stay exact."""
    return int(value) if value == int(value) and abs(value) < 2**53 else float(f"{value:.6g}")
