"""Curves: what is measured is drawn, by objects of its own; nothing of matplotlib's global state is touched."""

from __future__ import annotations

import json
import math
import struct
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from watched_run import drive, end, info, step_of

from jobflow.trainer.charts import log_ticks, ticks
from jobflow.trainer.curves import DOTS, HEIGHT, Curves, draw
from jobflow.trainer.history import RATE, SPEED, History, Line, is_fraction, smoothed, wants_logarithm


def size_of(png: Path) -> tuple[int, int]:
    data = png.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and data[-8:-4] == b"IEND"
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def _settings() -> dict[str, object]:
    return {name: matplotlib.rcParams[name] for name in matplotlib.rcParams if name != "backend"}  # to ask for that one chooses it


def test_a_run_leaves_a_picture_and_nothing_else(tmp_path: Path) -> None:
    settings, backend = _settings(), matplotlib.get_backend(auto_select=False)
    watcher, run = Curves(), info(tmp_path / "new")
    drive(watcher, run)
    assert not run.output.exists()
    end(watcher, run)
    width, height = size_of(run.output / "curves.png")
    assert width > 1000 and height == pytest.approx((2 * HEIGHT + 0.45) * DOTS, abs=2), "loss, accuracy, learning rate, speed: two by two"
    assert "matplotlib.pyplot" not in sys.modules
    assert _settings() == settings and matplotlib.get_backend(auto_select=False) == backend


def test_a_run_that_fails_leaves_one_too_unless_it_did_nothing(tmp_path: Path) -> None:
    for last, left in ((5, True), (0, False)):
        watcher, run = Curves(tmp_path / f"{last}.png"), info(tmp_path)
        watcher.started(run)
        for number in range(1, last + 1):
            watcher.step(run, step_of(number))
        watcher.closed(run)
        assert (tmp_path / f"{last}.png").exists() == left
    assert draw(History(), tmp_path / "none.png", "nothing") is None


def test_values_that_are_no_numbers_are_left_out(tmp_path: Path) -> None:
    history, run = History(), info(tmp_path)
    history.started(run)
    for number, loss in enumerate([1.0, math.nan, 3.0, math.inf], 1):
        history.step(run, step_of(number, loss=loss))
    assert list(history.lines["loss"].values) == [1.0, 3.0] and list(history.lines["loss"].steps) == [1, 3]
    assert draw(history, tmp_path / "some.png", "nan") is not None


def test_curves_of_one_quantity_are_drawn_together(tmp_path: Path) -> None:
    history = History()
    drive(history, info(tmp_path))
    found = {name: [curve.of for curve in curves] for name, curves in history.pictures()}
    assert found == {"loss": ["train", "validation"], "accuracy": ["train", "validation"], RATE: ["train"], SPEED: ["train"]}
    assert list(found) == ["loss", "accuracy", RATE, SPEED]


def test_a_run_that_goes_on_shows_what_was_before(tmp_path: Path) -> None:
    before = [
        {"step": n, "epoch": 0, "train/loss": 5.0 - n, "train/accuracy": 0.5, "rate": 0.1, "seconds": 0.1, "samples_per_second": 7.0}
        for n in (1, 2, 3)
    ]
    text = "\n".join(
        [*map(json.dumps, before), '{"step": 2, "epoch": 0, "validation/loss": 1.5}', '{"step": 2, "train/loss": null}', '{"step": 2, "tra']
    )
    (tmp_path / "metrics.jsonl").write_text(text)
    history = History()
    drive(history, info(tmp_path, first=2, steps=4))
    assert list(history.lines["loss"].steps) == [1, 2, 3, 4] and list(history.lines["loss"].values)[:2] == [4.0, 3.0]
    assert list(history.lines["validation/loss"].values) == [1.5] and history.lines[SPEED].values[0] == 7.0
    assert set(history.lines) == {"loss", "accuracy", "validation/loss", RATE, SPEED}
    history.read(tmp_path / "there is none", before=2)


def test_many_points_are_averaged() -> None:
    line = Line()
    for number in range(10):
        line.add(number, float(number))
    x, y = line.arrays(most=4)
    assert x.tolist() == y.tolist() == [1.0, 4.0, 7.0, 9.0]


def test_smoothing_keeps_lines_and_means() -> None:
    line = np.arange(50.0)
    np.testing.assert_allclose(smoothed(line, 9), line)
    noisy = np.where(np.arange(200) % 2, 1.0, -1.0)
    assert np.abs(smoothed(noisy, 20)[30:-30]).max() < 0.1
    assert smoothed(np.zeros(0), 5).size == 0


def test_scales_are_chosen_by_the_values() -> None:
    steep, flat = np.geomspace(3.0, 0.01, 50), np.linspace(3.0, 2.0, 50)
    assert wants_logarithm([steep], "loss") and not wants_logarithm([flat], "loss") and not wants_logarithm([steep - 0.02], "loss")
    assert not wants_logarithm([steep], "accuracy")
    assert is_fraction("accuracy", [np.array([0.0, 1.0])]) and not is_fraction("accuracy", [np.array([93.0])]) and not is_fraction("loss", [steep])


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6), st.integers(2, 8))
def test_ticks_are_few_round_and_inside(low: float, span: float, count: int) -> None:
    high = low + span
    if high <= low:
        return
    found = ticks(low, high, count)
    steps = np.diff(found)
    slack = 1e-6 * max(abs(low), abs(high), span)
    assert all(low - slack <= t <= high + slack for t in found) and len(found) <= 2 * count + 2
    if steps.size:
        assert steps.min() > 0
        assert steps.max() - steps.min() <= 2 * slack


@given(st.floats(1e-9, 1e3), st.floats(11.0, 1e9))
def test_logarithmic_ticks_hold_powers_of_ten(low: float, factor: float) -> None:
    found = log_ticks(low, low * factor)
    assert any(math.isclose(math.log10(t), round(math.log10(t)), abs_tol=1e-9) for t in found)
    assert all(low * 0.99 <= t <= low * factor * 1.01 for t in found) and found == sorted(found)
