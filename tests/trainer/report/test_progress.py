"""Progress: plain lines say how far a run is; a bar fits its terminal, and gives it back whatever happens."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console
from watched_run import drive, end, evaluation_of, info, step_of

from jobflow.trainer import progress
from jobflow.trainer.progress import Bar, Display, Mode, Picture, Plain, Progress, State, display_of

CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal(io.StringIO):
    """A stream that says it is one."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def shown(mode: Mode, tmp_path: Path, every: int = 50, stream: io.StringIO | None = None) -> str:
    out = stream or io.StringIO()
    watcher, run = Progress(mode, every, out), info(tmp_path)
    drive(watcher, run)
    end(watcher, run)
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
    watcher, run = Progress("plain", 4, out), info(tmp_path, steps=8)
    watcher.started(run)
    for number in range(1, 9):
        watcher.step(run, step_of(number, loss=float(number), metrics={}))
    assert re.findall(r"loss ([\d.]+)", out.getvalue()) == ["1", "4", "8"]


def test_none_says_nothing(tmp_path: Path) -> None:
    assert shown("none", tmp_path) == ""


@pytest.mark.parametrize(
    ("stream", "terminal", "kind"),
    [(Terminal(), "xterm", Bar), (Terminal(), "dumb", Plain), (Terminal(), "", Plain), (io.StringIO(), "xterm", Plain)],
)
def test_a_bar_is_for_terminals(stream: io.StringIO, terminal: str, kind: type[Display], tmp_path: Path) -> None:
    assert type(display_of("auto", stream, State(info(tmp_path)), 10, {"TERM": terminal})) is kind


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_bar_fits_any_width(tmp_path: Path, encoding: str) -> None:
    state = State(info(tmp_path))
    for number in range(1, 31):
        state.step(step_of(number))
    state.evaluation = evaluation_of(40)
    texts = {}
    for width in [*range(12, 60), 80, 120, 200]:
        stream = Terminal()
        stream.encoding = encoding
        Console(file=stream, width=width, force_terminal=True).print(Picture(state), end="")
        texts[width] = CODES.sub("", stream.getvalue())
        assert "\n" not in texts[width] and cell_len(texts[width]) < width, width
    assert "30/120" in texts[20] and "loss" not in texts[20]
    assert "loss" in texts[80] and "samples/s" in texts[80] and "validation" not in texts[80]
    assert "validation loss 0.3707" in texts[200]
    assert ("━" in texts[80]) == (encoding == "utf-8") and ("#" in texts[80]) == (encoding == "ascii")


def test_what_is_printed_stands_above_the_bar(tmp_path: Path) -> None:
    stream, before = Terminal(), sys.stdout
    watcher, run = Progress("bar", stream=stream), info(tmp_path)
    drive(watcher, run, last=50)
    print("a line of the program")
    end(watcher, run)
    assert sys.stdout is before
    text = CODES.sub("", stream.getvalue())
    assert "\ra line of the program\n" in text and "\rstep 40: validation loss 0.3707, accuracy 87.6 %\n" in text
    assert text.splitlines()[-1].startswith("done: step 120")


def test_the_terminal_is_given_back_after_an_error(tmp_path: Path) -> None:
    stream, before = Terminal(), sys.stdout
    watcher, run = Progress("bar", stream=stream), info(tmp_path)
    drive(watcher, run, last=3)
    hidden = stream.getvalue().rfind("\x1b[?25l")
    watcher.closed(run)
    watcher.closed(run)
    assert sys.stdout is before and stream.getvalue().rfind("\x1b[?25h") > hidden >= 0
    Progress("bar", stream=stream).closed(run)  # nothing had begun


def test_the_time_left_is_that_of_the_steps_to_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(progress, "perf_counter", lambda: now[0])
    state = State(info(tmp_path))
    now[0] = 100.0  # the first step compiles
    state.step(step_of(1))
    assert "left" not in " ".join(state.fields())
    for number in range(2, 22):
        now[0] += 2.0
        state.step(step_of(number))
    assert state.left == pytest.approx(99 * 2.0) and "3:18 left" in state.fields()


def test_a_stream_has_no_number_of_epochs(tmp_path: Path) -> None:
    state = State(info(tmp_path, per_epoch=0))
    state.step(step_of(1))
    assert state.epoch_text() == "epoch 1"
