"""Formatting of numbers with units."""

from __future__ import annotations

import math
from collections.abc import Mapping


def size_text(nbytes: float) -> str:
    """Return bytes as text: 512 B, 1.5 KiB, 20.0 MiB, 3.25 GiB."""
    for unit, digits in (("B", 0), ("KiB", 1), ("MiB", 1), ("GiB", 2)):
        if abs(nbytes) < 1024:
            return f"{nbytes:.{digits}f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.2f} TiB"


def count_text(number: float) -> str:
    """Return a count as text: 950, 61,706, 1.24 million, 3.10 billion, 2.00 trillion."""
    for limit, word in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if abs(number) >= limit:
            return f"{number / limit:.2f} {word}"
    return f"{number:,.0f}"


def duration_text(seconds: float) -> str:
    """Return seconds as text: 850 µs, 12.5 ms, 3.2 s, 1:05 min, 2:03:10 h, 1 d 02:03 h."""
    if not math.isfinite(seconds):
        return "?"
    if seconds < 1:
        return f"{seconds * 1e6:.0f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.1f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    return f"{clock_text(seconds)} {'min' if round(seconds) < 3600 else 'h'}"


def clock_text(seconds: float) -> str:
    """Return seconds as a clock: 0:05, 1:05, 2:03:10, 1 d 02:03."""
    if not math.isfinite(seconds):
        return "?"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    if not hours:
        return f"{minute}:{second:02d}"
    days, hour = divmod(hours, 24)
    return f"{days} d {hour:02d}:{minute:02d}" if days else f"{hours}:{minute:02d}:{second:02d}"


def percent(share: float, digits: int = 1) -> str:
    """Return a fraction as text: 12.5 %."""
    return f"{share * 100:.{digits}f} %"


def number_text(value: float) -> str:
    """Return a number with four significant digits: 0.1235, 12.35, 12,350, 1.235e-05."""
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e7 else f"{value:.4g}"


def metric_text(name: str, value: float) -> str:
    """Return a metric as text; fractions of one, such as accuracies, are in percent."""
    return percent(value, 2 if 0.99 < value < 1 else 1) if is_share(name) and 0 <= value <= 1 else number_text(value)


def is_share(name: str) -> bool:
    """Return True if the name of a metric denotes a fraction of one."""
    return any(word in name for word in ("accuracy", "top", "precision", "recall", "error_rate"))


def larger_is_better(name: str) -> bool:
    """Return True if the name of a metric denotes a score rather than a loss or an error."""
    return any(word in name for word in ("accuracy", "precision", "recall", "top", "score", "f1", "auc", "r2"))


def metrics_text(metrics: Mapping[str, float]) -> str:
    """Return metrics as text, with a prefix such as "validation" only once: "validation loss 0.07123, accuracy 97.2 %"."""
    parts, before = [], ""
    for name, value in metrics.items():
        of, _, base = name.rpartition("/")
        parts.append(f"{f'{of} ' if of != before else ''}{base} {metric_text(base, value)}")
        before = of
    return ", ".join(parts)


def rate_text(rate: float) -> str:
    """Return a number of samples per second as text, without the unit: 5,600, 12.5, 0.25."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"
