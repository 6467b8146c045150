"""Charts of measured values, as one picture and for pages; matplotlib's global state does not change."""

from __future__ import annotations

import json
import math
import re
import struct
import sys
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from watched_run import drive, end, info, step_of

from jobflow.tools.plots import smoothed, thinned
from jobflow.trainer.charts import DOTS, HEIGHT, chart_svg, curves_png, draw_curves, draw_times
from jobflow.trainer.history import RATE, SPEED, History, Line, is_fraction, wants_logarithm
from jobflow.trainer.report import Report


def size_of(png: Path) -> tuple[int, int]:
    data = png.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and data[-8:-4] == b"IEND"
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def _settings() -> dict[str, object]:
    return {name: matplotlib.rcParams[name] for name in matplotlib.rcParams if name != "backend"}  # to ask for that one chooses it


def test_a_run_leaves_a_picture_and_nothing_global_changes(tmp_path: Path) -> None:
    settings, backend = _settings(), matplotlib.get_backend(auto_select=False)
    report, run = Report(), info(tmp_path / "new")
    drive(report, run)
    assert [file.name for file in run.output.iterdir()] == ["report.html"]
    end(report, run)
    width, height = size_of(run.output / "curves.png")
    assert width > 1000 and height == pytest.approx((2 * HEIGHT + 0.45) * DOTS, abs=2), "loss, accuracy, learning rate, speed: two by two"
    assert "matplotlib.pyplot" not in sys.modules
    assert _settings() == settings and matplotlib.get_backend(auto_select=False) == backend


def test_a_failed_run_leaves_a_picture_if_it_had_steps(tmp_path: Path) -> None:
    for last, left in ((5, True), (0, False)):
        report, run = Report(), info(tmp_path / str(last))
        report.on_start(run)
        for number in range(1, last + 1):
            report.on_step(run, step_of(number))
        report.on_exception(run, ValueError("failed"))
        assert (run.output / "curves.png").exists() == left
    assert curves_png(History(), tmp_path / "none.png", "nothing") is None


def test_values_that_are_no_numbers_are_left_out(tmp_path: Path) -> None:
    history, run = History(), info(tmp_path)
    history.on_start(run)
    for number, loss in enumerate([1.0, math.nan, 3.0, math.inf], 1):
        history.on_step(run, step_of(number, loss=loss))
    assert list(history.lines["loss"].values) == [1.0, 3.0] and list(history.lines["loss"].steps) == [1, 3]
    assert curves_png(history, tmp_path / "some.png", "nan") is not None


def test_without_matplotlib_a_run_ends_before_it_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match=r'a report \(logging.report\) needs matplotlib: pip install "jobflow-sbp\[train\]"'):
        Report().on_start(info(tmp_path))


def test_curves_of_one_quantity_are_drawn_together(tmp_path: Path) -> None:
    history = History()
    drive(history, info(tmp_path))
    names_by_picture = {name: [curve.of for curve in curves] for name, curves in history.pictures()}
    assert names_by_picture == {"loss": ["train", "validation"], "accuracy": ["train", "validation"], RATE: ["train"], SPEED: ["train"]}
    assert list(names_by_picture) == ["loss", "accuracy", RATE, SPEED]


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


@pytest.mark.parametrize("most", [4, 50, 1000, 1001])
def test_long_curves_keep_ends_minima_and_maxima(most: int) -> None:
    random = np.random.default_rng(0)
    steps, values = np.arange(5000.0) * 3, random.normal(size=5000)
    values[[1234, 4321]] = 99.0, -99.0
    x, y, means = thinned(steps, values, most)
    assert len(x) <= most and means is not None and len(means) == len(x) and (np.diff(x) > 0).all()
    assert (x[0], y[0], x[-1], y[-1]) == (0.0, values[0], 4999 * 3, values[-1]) and (y.max(), y.min()) == (99.0, -99.0)
    assert (y == values[(x / 3).astype(int)]).all() and np.abs(means).max() < 99 and thinned(x, y, len(x))[2] is None
    constant = thinned(steps, np.full(5000, 2.5), most)[2]
    assert constant is not None and np.allclose(constant, 2.5)


def test_smoothing_keeps_lines_and_means() -> None:
    line = np.arange(50.0)
    np.testing.assert_allclose(smoothed(line, 9), line)
    noisy = np.where(np.arange(200) % 2, 1.0, -1.0)
    assert np.abs(smoothed(noisy, 20)[30:-30]).max() < 0.1
    assert smoothed(np.zeros(0), 5).size == 0
    np.testing.assert_allclose(smoothed(falling := np.geomspace(1, 1e-30, 61), 3)[1:-1], falling[1:-1] * (10**0.5 + 1 + 10**-0.5) / 3, rtol=1e-12)


def test_scales_are_chosen_by_the_values() -> None:
    steep, flat = np.geomspace(3.0, 0.01, 50), np.linspace(3.0, 2.0, 50)
    assert wants_logarithm([steep], "loss") and not wants_logarithm([flat], "loss") and not wants_logarithm([steep - 0.02], "loss")
    assert not wants_logarithm([steep], "accuracy")
    assert is_fraction("accuracy", [np.array([0.0, 1.0])]) and not is_fraction("accuracy", [np.array([93.0])]) and not is_fraction("loss", [steep])


def test_charts_of_pages_have_text_tooltips_and_the_colours_of_the_page() -> None:
    history, settings = History(), _settings()
    drive(history, info(Path("nowhere")))
    drawn = {name: chart_svg(f"{name} <&>", lambda axes, n=name, c=curves: draw_curves(axes, n, c, 200)) for name, curves in history.pictures()}  # type: ignore[misc]
    seconds = np.random.default_rng(0).gamma(3.0, 0.02, 300)
    drawn["times"] = chart_svg("times", lambda axes: draw_times(axes, seconds))
    texts = {name: [text.text for text in ElementTree.fromstring(svg).iter("text")] for name, svg in drawn.items()}
    assert {"200", "step", "train", "validation"} <= set(texts["loss"]) and "100%" in texts["accuracy"] and "time of a step (ms)" in texts["times"]
    tips = {name: [tip.text for tip in ElementTree.fromstring(svg).iter("title")] for name, svg in drawn.items()}
    assert tips["loss"] == ["step 40: 0.37067", "step 80: 0.13663", "step 120: 0.10496"] and tips[RATE] == []
    assert sum(int(str(tip).split()[-2]) for tip in tips["times"]) == 300 and f"median {1e3 * np.median(seconds):.1f} ms" in texts["times"]
    for svg in drawn.values():
        assert (
            set(re.findall(r"#[0-9a-f]{6}", re.sub(r"url\(#\w+\)|href=\"#\w+\"|id=\"\w+\"", "", svg))) == set()
            and "var(--train)" in svg
            and "font-family" not in svg
        )
        names = re.findall(r' id="(\w+)"', svg)
        assert len(names) == len(set(names)) and set(re.findall(r"#(\w+)", svg)) <= set(names)
    everything = re.findall(r' id="(\w+)"', "".join(drawn.values()))
    assert len(everything) == len(set(everything)), "charts of one page do not take each other's marks"
    assert _settings() == settings
    for few in ([0.0], [0.5] * 7, [1e-6, 5.0]):
        assert "<path" in chart_svg("few", lambda axes, few=few: draw_times(axes, np.array(few)))  # type: ignore[misc]


def test_names_are_text_and_no_formulas(tmp_path: Path) -> None:
    """matplotlib parses text between dollar signs as mathematics."""
    line = Line()
    for step in range(3):
        line.add(step, 0.5)
    history = History(lines={r"$\nowhere$/<b>$x_1$": line, "loss/<b>$x_1$": line})
    assert curves_png(history, tmp_path / "x.png", r"$\frac{1}$ & <run>") == tmp_path / "x.png"
    ((name, curves),) = history.pictures()
    svg = chart_svg(name, lambda axes: draw_curves(axes, name, curves))
    assert name == "<b>$x_1$" and r"$\nowhere$" in svg and "<b>" not in svg
