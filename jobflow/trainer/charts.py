"""Small charts as SVG, drawn in the colours of the page around them: classes name lines, the page says what these look like.

A chart is about as wide as a phone and scales from there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from jobflow.trainer.amounts import duration_text, number_text, percent
from jobflow.trainer.history import RATE, SPEED, TRAIN, Curve, Numbers, is_fraction, smoothed, wants_logarithm

WIDTH, HEIGHT = 440, 270
LEFT, RIGHT, TOP, BOTTOM = 62, 10, 12, 36
#: of an axis of percents, the least span
LEAST_SHARE = 0.1
#: points of a line
POINTS = 400
#: of all points, how many are averaged for the bold line
SMOOTHING = 0.03


class Axis(NamedTuple):
    """Values from `low` to `high` on pixels from `start` to `stop`."""

    low: float
    high: float
    start: float
    stop: float
    logarithmic: bool = False

    def at(self, value: float) -> float:
        """The pixel of a value."""
        low, high, value = map(math.log10, (self.low, self.high, value)) if self.logarithmic else (self.low, self.high, value)
        return self.start + (value - low) / ((high - low) or 1.0) * (self.stop - self.start)

    def ticks(self, count: int) -> list[float]:
        """Round values."""
        return log_ticks(self.low, self.high) if self.logarithmic else ticks(self.low, self.high, count)


def ticks(low: float, high: float, count: int) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten in [low, high]; about `count` of them."""
    if not high > low:
        return [low]
    raw = (high - low) / max(count, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, 12) if abs(i * step) > 1e-9 else i * step for i in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten in [low, high]; with their doubles and fivefolds where there are few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1, 2, 5) if last - first <= 3 else (1,)
    return [factor * 10.0**power for power in range(first, last + 1) for factor in factors if low * 0.999 <= factor * 10.0**power <= high * 1.001]


def curves_chart(name: str, curves: Sequence[Curve], steps: int) -> str:
    """One quantity over the steps of a run."""
    points = [curve.line.arrays(POINTS) for curve in curves]
    values = [y for _, y in points]
    share, logarithmic = is_fraction(name, values), wants_logarithm(values, name)
    x = Axis(min(float(x.min()) for x, _ in points), max(steps, 1), LEFT, WIDTH - RIGHT)
    y = value_axis(values, logarithmic, zero=name in (RATE, SPEED), least=LEAST_SHARE if share else 0.0)
    drawn = "".join(curve_of(name, curve, x, y, *both) for curve, both in zip(curves, points, strict=True))
    labels = [(value, percent(value, 0) if share else number_text(value)) for value in y.ticks(5)]
    return svg(f"{name} by step", frame(x, y, labels, "step") + drawn)


def value_axis(values: Sequence[Numbers], logarithmic: bool, zero: bool = False, least: float = 0.0) -> Axis:
    """An axis on which all values find room, with a margin; it spans `least`, and begins at zero if so wished."""
    low, high = min(float(v.min()) for v in values), max(float(v.max()) for v in values)
    if logarithmic:
        return Axis(low / 1.1, high * 1.1, HEIGHT - BOTTOM, TOP, True)
    margin = max((high - low) * 0.05, (least - (high - low)) / 2) or abs(high) * 0.05 or 1.0
    return Axis(0.0 if zero else low - margin, high + margin, HEIGHT - BOTTOM, TOP)


def curve_of(name: str, curve: Curve, x: Axis, y: Axis, steps: Numbers, values: Numbers) -> str:
    """A noisy line thin and its mean bold; a line of few points with a mark on each."""
    kind = escape(curve.of.split("/")[0])
    if curve.of == TRAIN and len(steps) >= 30 and name != RATE:
        mean = smoothed(values, int(len(values) * SMOOTHING) + 2)
        return polyline(f"{kind} noise", x, y, steps, values) + polyline(kind, x, y, steps, mean)
    marks = ""
    if len(steps) == 1 or (len(steps) < 40 and name != RATE):
        marks = "".join(
            f'<circle class="{kind}" cx="{x.at(s):.1f}" cy="{y.at(v):.1f}" r="3"><title>step {s:.0f}: {v:.5g}</title></circle>'
            for s, v in zip(steps.tolist(), values.tolist(), strict=True)
        )
    return polyline(kind, x, y, steps, values) + marks


def polyline(kind: str, x: Axis, y: Axis, xs: Numbers, ys: Numbers) -> str:
    path = " ".join(f"{x.at(a):.1f},{y.at(b):.1f}" for a, b in zip(xs.tolist(), ys.tolist(), strict=True))
    return f'<polyline class="line {kind}" points="{path}"/>'


def frame(x: Axis, y: Axis, labels: Sequence[tuple[float, str]], below: str, x_labels: Sequence[tuple[float, str]] | None = None) -> str:
    """Grid, numbers on both axes, and what the lower one counts."""
    parts = []
    for value, text in labels:
        at = y.at(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text class="end" x="{LEFT - 6}" y="{at + 4:.1f}">{escape(text)}</text>')
    for value, text in x_labels if x_labels is not None else [(v, f"{v:,.0f}") for v in x.ticks(5) if v == int(v)]:
        parts.append(f'<text class="mid" x="{x.at(value):.1f}" y="{HEIGHT - BOTTOM + 16}">{escape(text)}</text>')
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{HEIGHT - BOTTOM}" y2="{HEIGHT - BOTTOM}"/>')
    parts.append(f'<text class="mid" x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 4}">{escape(below)}</text>')
    return "".join(parts)


def histogram(seconds: Numbers, bins: int = 32) -> str:
    """How long steps took, with the median marked; the last bar has all that are slower, too."""
    if seconds.size == 0:
        return ""
    high = min(float(np.quantile(seconds, 0.995)), 3 * float(np.median(seconds)))
    low = float(seconds.min())
    high = high if high > low else low * 1.01 + 1e-9
    counts, edges = np.histogram(np.clip(seconds, low, high), bins=min(bins, max(4, seconds.size // 3)), range=(low, high))
    x, y = Axis(low, high, LEFT, WIDTH - RIGHT), Axis(0.0, float(counts.max()) * 1.1, HEIGHT - BOTTOM, TOP)
    bars = "".join(
        f'<rect class="train" x="{x.at(a):.1f}" y="{y.at(n):.1f}" width="{max(0.5, x.at(b) - x.at(a) - 1):.1f}" height="{y.at(0) - y.at(n):.1f}">'
        f"<title>{escape(duration_text(a))} to {escape(duration_text(b))}: {n} steps</title></rect>"
        for a, b, n in zip(edges[:-1].tolist(), edges[1:].tolist(), counts.tolist(), strict=True)
    )
    middle = x.at(float(np.median(seconds)))
    mark = f'<line class="mark" x1="{middle:.1f}" x2="{middle:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
    side = "end" if middle > WIDTH / 2 else "start"
    said = f"median {escape(duration_text(float(np.median(seconds))))}"
    label = f'<text class="{side}" x="{middle + (-5 if side == "end" else 5):.1f}" y="{TOP + 12}">{said}</text>'
    labels = [(value, f"{value:,.0f}") for value in y.ticks(4) if value == int(value)]
    unit, word = (1e-3, "ms") if high < 1 else (1.0, "s")
    below = [(value * unit, f"{value:g}") for value in ticks(low / unit, high / unit, 5)]
    return svg("steps by their time", frame(x, y, labels, f"time of a step ({word})", below) + bars + mark + label)


def svg(title: str, content: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}"><title>{escape(title)}</title>{content}</svg>'
