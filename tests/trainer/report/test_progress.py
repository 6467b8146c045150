"""Progress: plain lines have the state of the run; a bar fits its terminal and restores it in every case."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len
from watched_run import drive, end, info, step_of

from jobflow.trainer import progress
from jobflow.trainer.progress import Mode, Progress

CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal(io.StringIO):
    """A stream whose isatty is True."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def shown(mode: Mode, tmp_path: Path, every: int = 50, stream: io.StringIO | None = None) -> str:
    out = stream or io.StringIO()
    progress, run = Progress(mode, every, out), info(tmp_path)
    drive(progress, run)
    end(progress, run)
    return out.getvalue()


def test_plain_lines_come_when_they_are_due(tmp_path: Path) -> None:
    lines = shown("plain", tmp_path).splitlines()
    assert lines[0] == "digits & <letters>: 120 steps of 16 samples on 2 ranks"
    steps = [line for line in lines if line.startswith("step ") and "epoch" in line]
    assert [re.findall(r"step +(\d+)/120", line)[0] for line in steps] == ["1", "50", "100", "120"]
    assert re.fullmatch(r"step  50/120  epoch 2/3  loss [\d.]+  1,600 samples/s  \d+:\d\d left  accuracy [\d.]+ %  lr 0.001", steps[1])
    assert "step 40: validation loss 0.3707, accuracy 87.6 %" in lines
    assert lines[-1].startswith("done: step 120, ") and lines[-1].endswith("validation loss 0.25, accuracy 93.8 %")


def test_a_plain_line_has_the_numbers_of_its_step(tmp_path: Path) -> None:
    out = io.StringIO()
    progress, run = Progress("plain", 4, out), info(tmp_path, steps=8)
    progress.on_start(run)
    for number in range(1, 9):
        progress.on_step(run, step_of(number, loss=float(number), metrics={}))
    assert re.findall(r"loss ([\d.]+)", out.getvalue()) == ["1", "4", "8"]


def test_none_says_nothing(tmp_path: Path) -> None:
    assert shown("none", tmp_path) == ""


@pytest.mark.parametrize(
    ("stream", "terminal", "is_bar"),
    [(Terminal(), "xterm", True), (Terminal(), "dumb", False), (Terminal(), "", False), (io.StringIO(), "xterm", False)],
)
def test_a_bar_is_for_terminals(stream: io.StringIO, terminal: str, is_bar: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", terminal)
    monkeypatch.setenv("FORCE_COLOR", "1")
    text = shown("auto", tmp_path, stream=stream)
    assert ("\x1b" in text) == is_bar and ("\nstep  50/120  epoch 2/3" in text) == (not is_bar)


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_bar_fits_any_width(tmp_path: Path, encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "REDRAW", 0.0)
    texts = {}
    for width in [*range(12, 60, 4), 80, 120, 200]:
        monkeypatch.setenv("COLUMNS", str(width))
        stream = Terminal()
        stream.encoding = encoding
        bar, run = Progress("bar", stream=stream), info(tmp_path, per_epoch=20)
        drive(bar, run, last=30)
        bar.close()
        lines = re.split("[\r\n]+", CODES.sub("", stream.getvalue()).rstrip())
        assert all(cell_len(line) <= width for line in lines if "validation" not in line), width
        texts[width] = lines[-1]
        assert ("━" in texts[width]) == (encoding == "utf-8" and width > 12) and texts[width].startswith("epoch 1/6")
    assert "30/120" in texts[24] and "loss" not in texts[24] and texts[40].endswith("loss 0.4463") and "samples" not in texts[40]
    assert "loss" in texts[80] and "samples/s" in texts[80] and "validation" not in texts[80]
    assert "validation loss 0.8358, accuracy 72.1 %" in texts[200] and "lr 0.001" in texts[200]


def test_output_is_printed_above_the_bar(tmp_path: Path) -> None:
    stream, before = Terminal(), sys.stdout
    progress, run = Progress("bar", stream=stream), info(tmp_path)
    drive(progress, run, last=50)
    print("a line of the program")
    end(progress, run)
    assert sys.stdout is before
    text = CODES.sub("", stream.getvalue())
    assert "\ra line of the program\n" in text and "\rstep 40: validation loss 0.3707, accuracy 87.6 %\n" in text
    assert text.splitlines()[-1].startswith("done: step 120")


def test_the_terminal_is_restored_after_an_error(tmp_path: Path) -> None:
    stream, before = Terminal(), sys.stdout
    progress, run = Progress("bar", stream=stream), info(tmp_path)
    drive(progress, run, last=3)
    hidden = stream.getvalue().rfind("\x1b[?25l")
    progress.close()
    progress.close()
    assert sys.stdout is before and stream.getvalue().rfind("\x1b[?25h") > hidden >= 0
    Progress("bar", stream=stream).close()  # nothing had begun


def test_the_time_left_is_the_time_of_the_remaining_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(progress, "perf_counter", lambda: now[0])
    out = io.StringIO()
    plain, run = Progress("plain", 1, out), info(tmp_path)
    plain.on_start(run)
    now[0] = 100.0  # the first step compiles
    for number in range(1, 22):
        plain.on_step(run, step_of(number, seconds=100.0 if number == 1 else 2.0))
        now[0] += 2.0
    first, second, *_, last = [line for line in out.getvalue().splitlines() if line.startswith("step ")]
    assert "left" not in first and "0.16 samples/s" in first and "8 samples/s" in second
    assert "3:18 left" in last and "  8 samples/s" in last


def test_a_stream_has_no_number_of_epochs(tmp_path: Path) -> None:
    out = io.StringIO()
    progress, run = Progress("plain", 1, out), info(tmp_path, per_epoch=0)
    progress.on_start(run)
    progress.on_step(run, step_of(1))
    assert "  epoch 1  " in out.getvalue()
