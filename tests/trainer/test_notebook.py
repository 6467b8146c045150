"""Training in the kernel of a notebook: one output that is updated in place, and the repr of a run.  A stand-in replaces IPython's shell."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from short_runs import CONFIG, loaded, write_config

from jobflow.core.errors import SourceLine
from jobflow.tools.plots import Chart, Series
from jobflow.trainer import Callback, TrainingRun, train
from jobflow.trainer.notebook_progress import REDRAW
from jobflow.trainer.run_html import address_of, chart_html, ticks
from jobflow.trainer.training_run import CallbackError

FAST = CONFIG.replace("progress: none", "progress: auto").replace("keep_last: 99", "keep_last: 1") + "metrics: [accuracy]\n"


@dataclass
class Shell:
    """The parts of IPython's shell that jobflow uses."""

    kernel: Any = None
    outputs: list[dict[str, Any]] = field(default_factory=list)

    @property
    def display_pub(self) -> Any:
        return SimpleNamespace(publish=lambda **message: self.outputs.append(message))

    @property
    def compile(self) -> Any:
        return SimpleNamespace(format_code_name=lambda file: ("Cell", "In[3]") if "ipykernel" in file else None)


@pytest.fixture
def start_shell(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], Shell]]:
    """Return a function that starts a shell of IPython, with the kernel of a notebook or without."""

    def start(kernel: Any) -> Shell:
        shell = Shell(kernel)
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell, version_info=(9, 0)))
        return shell

    yield start


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_config(tmp_path_factory.mktemp("notebook"), FAST)


def parsed(html: str) -> ElementTree.Element:
    """Check that HTML is well-formed, without scripts and addresses of other hosts, and return its tree."""
    assert "<script" not in html and "http" not in html.replace("http://www.w3.org", "")
    return ElementTree.fromstring(html.replace("<br>", "<br/>"))


def test_a_run_is_one_output_of_a_cell(
    file: Path, tmp_path: Path, start_shell: Callable[[Any], Shell], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobflow.trainer.notebook_progress.REDRAW", 0.0)
    monkeypatch.setattr("jobflow.trainer.notebook_progress.SHARE", 1e9)
    monkeypatch.chdir(tmp_path)
    shell = start_shell("kernel")
    run = train(loaded(file, Path("runs/<one>"), "checkpoint.every_steps=5"))
    assert capsys.readouterr().out == ""
    assert [output["update"] for output in shell.outputs] == [False] + [True] * 10
    assert len({output["transient"]["display_id"] for output in shell.outputs}) == 1
    assert "compiling" in shell.outputs[0]["data"]["text/html"] and "epoch 2/3" in shell.outputs[6]["data"]["text/html"]
    last = shell.outputs[-1]["data"]
    assert last["text/plain"] == repr(run) and last["text/html"] == run._repr_html_()
    text = "|".join(parsed(last["text/html"]).itertext())
    assert "done|, step 9 of 9" in text and "|loss|" in text and "|accuracy|" in text and "validation" in text
    assert "report.html" not in last["text/html"] and len(last["text/html"]) < 12_000
    Path("runs/<one>/report.html").touch()
    again = train(loaded(file, Path("runs/<one>"), "logging.report=true"))  # complete: the files remain
    assert '<a href="runs/%3Cone%3E/report.html"' in again._repr_html_() and "<svg" in again._repr_html_() and len(shell.outputs) == 11


@pytest.mark.parametrize(("kernel", "progress"), [(None, "auto"), ("kernel", "plain"), pytest.param("kernel", "none", marks=pytest.mark.full)])
def test_progress_is_text_outside_of_notebooks(
    file: Path, tmp_path: Path, start_shell: Callable[[Any], Shell], capsys: pytest.CaptureFixture[str], kernel: Any, progress: str
) -> None:
    shell = start_shell(kernel)
    train(loaded(file, tmp_path / "out", "training.steps=2", f"logging.progress={progress}"))
    assert shell.outputs == []
    assert ("step 1/2" in capsys.readouterr().out) == (progress != "none")


def test_the_output_of_a_failed_run_shows_the_error(file: Path, tmp_path: Path, start_shell: Callable[[Any], Shell]) -> None:
    class Failing(Callback):
        observes = True

        def on_step(self, run: TrainingRun, report: Any) -> None:
            raise ValueError("<b>")

    shell = start_shell("kernel")
    with pytest.raises(CallbackError, match="raised ValueError"):
        train(loaded(file, tmp_path / "out"), callbacks=[Failing()])
    shown = shell.outputs[-1]["data"]
    assert "failed" in "".join(parsed(shown["text/html"]).itertext()) and "&lt;b&gt;" in shown["text/html"] and "CallbackError" in shown["text/plain"]


def test_updates_are_rare(file: Path, tmp_path: Path, start_shell: Callable[[Any], Shell]) -> None:
    shell = start_shell("kernel")
    run = train(loaded(file, tmp_path / "out", "training.steps=30", "checkpoint.every_steps=null", "evaluation={every_epochs: 8}"))
    assert run.recorded is not None
    assert len(shell.outputs) <= 3 + run.recorded.elapsed / REDRAW


def test_lines_of_cells_have_the_names_of_cells(start_shell: Callable[[Any], Shell]) -> None:
    file = "/tmp/ipykernel_12/345.py"
    assert str(SourceLine(file, 2)) == "345.py:2"
    start_shell(None)
    assert [str(SourceLine(name, 2)) for name in (file, "/tmp/own.py")] == ["In[3]:2", "own.py:2"]


@pytest.mark.parametrize(
    ("low", "high", "log", "expected"),
    [
        (0.0, 1.0, False, [0.0, 0.25, 0.5, 0.75, 1.0]),
        (-3.1, 2.9, False, [-2.0, 0.0, 2.0]),
        (0.04, 2.1, True, [0.05, 0.1, 0.2, 0.5, 1.0, 2.0]),
        (1e-9, 5.0, True, [1e-9, 1e-6, 1e-3, 1.0]),
    ],
)
def test_ticks_are_round_numbers(low: float, high: float, log: bool, expected: list[float]) -> None:
    assert ticks(low, high, log) == pytest.approx(expected)


@pytest.mark.parametrize("values", [[0.5], [0.0, 0.0], [1e-30, 1e30], [3.0] * 200])
@pytest.mark.parametrize("log", [False, True])
def test_charts_of_extreme_values_have_finite_numbers(values: list[float], log: bool) -> None:
    y: Any = np.array(values) + (1e-9 if log else 0)
    html = chart_html(Chart("a & b", [Series("<train>", np.arange(len(y)) + 1.0, y, "--train", smooth=True)], log=log))
    assert "nan" not in html and "inf" not in html
    parsed(html)


def test_links_are_relative_in_the_current_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert address_of(Path("runs/a b/report.html")) == address_of(tmp_path / "runs/a b/report.html") == "runs/a%20b/report.html"
    assert address_of(Path("/other/report.html")) == "file:///other/report.html"
