"""Numbers read with their units."""

from __future__ import annotations

import math

import pytest

from jobflow.trainer.units import clock_text, count_text, duration_text, metric_text, metrics_text, number_text, rate_text, size_text


@pytest.mark.parametrize(
    ("nbytes", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (20 * 2**20, "20.0 MiB"), (3.25 * 2**30, "3.25 GiB"), (2**41, "2.00 TiB")]
)
def test_sizes(nbytes: float, text: str) -> None:
    assert size_text(nbytes) == text


@pytest.mark.parametrize(
    ("number", "text"), [(950, "950"), (61706, "61,706"), (1.24e6, "1.24 million"), (3.1e9, "3.10 billion"), (2e12, "2.00 trillion")]
)
def test_counts(number: float, text: str) -> None:
    assert count_text(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (850e-6, "850 µs"),
        (0.0125, "12.5 ms"),
        (3.21, "3.2 s"),
        (59.97, "1:00 min"),
        (65, "1:05 min"),
        (7390, "2:03:10 h"),
        (93784, "1 d 02:03 h"),
        (math.inf, "?"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_clocks_and_rates() -> None:
    assert [clock_text(s) for s in (5, 65, 7390, math.nan)] == ["0:05", "1:05", "2:03:10", "?"]
    assert [rate_text(r) for r in (5600.4, 12.54, 0.25)] == ["5,600", "12.5", "0.25"]
    assert [number_text(v) for v in (0.123456, 12345.6, 1.2345e-5, math.nan)] == ["0.1235", "12,346", "1.234e-05", "nan"]


def test_metrics_read_as_their_kind() -> None:
    assert metric_text("accuracy", 0.9375) == "93.8 %" and metric_text("accuracy", 0.99375) == "99.38 %" and metric_text("loss", 0.9375) == "0.9375"
    assert (
        metrics_text({"train/loss": 0.5, "validation/loss": 0.25, "validation/accuracy": 0.5})
        == "train loss 0.5, validation loss 0.25, accuracy 50.0 %"
    )
