"""A run and its directory: one training at a time, resuming, finished runs, and consistent numbers."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jobflow.cli import main

LIMIT = 120
CONFIG = """
model: {builder: "jobflow.models:mlp", arguments: {hidden: [8]}}
data:
  train: {reader: digits, split: validation, edge: 8}
  validation: {reader: digits, split: test, edge: 8}
  batch_size: 50
optimizer: {name: adam, lr: 0.01}
training: {steps: 6}
logging: {every_steps: 2, progress: plain}
"""


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """Return the command that trains."""
    (tmp_path / "run.yaml").write_text(CONFIG)
    return ["train", str(tmp_path / "run.yaml"), "--output", str(tmp_path / "out")]


@pytest.fixture
def without_report(words: list[str]) -> list[str]:
    """Return the command without a report, which takes ten times as long as the training."""
    return [*words, "--set", "logging.report=false"]


def files(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


# -------------------------------------------------------------------- repeating and going on


def test_a_run_that_is_complete_stays_as_it_is(words: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    before = files(tmp_path / "out")
    assert {"report.html", "metrics.jsonl", "curves.png"} <= before.keys()
    capfd.readouterr()
    for again in (words, [*words, "--set", "training.steps=4"], [*words, "--profile"]):
        assert main(again) == 0
        out, err = capfd.readouterr()
        assert str(tmp_path / "out") in err and "complete" in err and "training.steps" in err and "--resume never" in err
        assert "0 steps" not in out + err and "-2" not in out
        assert files(tmp_path / "out") == before


def test_a_resumed_run_prints_the_remaining_steps_and_keeps_metrics(words: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for settings in ((), ("--set", "logging.jsonl=false")):
        output_options = ["--output", str(tmp_path / f"{len(settings)}")]
        assert main([*words, *output_options, *settings, "--set", "training.steps=5"]) == 0
        capfd.readouterr()
        assert main([*words, *output_options, *settings]) == 0
        out = capfd.readouterr().out
        assert "1 step of 50 samples on 1 rank" in out and "resuming from step 5" in out
        page = (tmp_path / f"{len(settings)}" / "report.html").read_text()
        evaluated = re.search(r"validation loss.*?at step (\d+)", page, re.DOTALL)
        assert evaluated is not None and "5 steps" in page and "earlier parts of the run" in page
        curve = re.search(r"<svg.*?</svg>", page, re.DOTALL)
        assert curve is not None and curve[0].count(" ") > 10, "the steps before are drawn"
        rows = list(csv.DictReader((tmp_path / f"{len(settings)}" / "metrics.csv").read_text().splitlines()))
        assert [row["step"] for row in rows if row["train/loss"]] == ["1", "2", "4", "5", "6"]


def test_the_report_names_steps_without_saved_metrics(words: list[str], tmp_path: Path) -> None:
    nothing = ["--set", "logging.jsonl=false", "--set", "logging.csv=false"]
    assert main([*words, *nothing, "--set", "training.steps=5"]) == 0 == main([*words, *nothing])
    assert "steps 1 to 5 measured was kept nowhere" in (tmp_path / "out" / "report.html").read_text()


def test_a_skipped_evaluation_runs_once(without_report: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    each = ["--set", "checkpoint.every_steps=3", "--set", "checkpoint.every_epochs=null", "--set", "evaluation.every_epochs=4"]
    assert main([*without_report, *each]) == 0
    shorter = [*without_report, *each, "--set", "training.steps=3", "--resume", str(tmp_path / "out" / "checkpoints" / "step-00000003")]
    capfd.readouterr()
    assert main(shorter) == 0
    out = capfd.readouterr().out
    assert "step 3: validation loss" in out and "steps of" not in out
    assert main([*without_report, *each, "--set", "training.steps=3"]) == 0
    assert "complete" in capfd.readouterr().err


def test_one_number_for_one_thing(words: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Compare the training loss of a step on the screen, in all files, in the report and in the summary.

    Metrics have the same digits in all commands.
    """
    assert main(words) == 0
    out = capfd.readouterr().out
    written = {
        line["step"]: line for text in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines() if "train/loss" in (line := json.loads(text))
    }
    shown = {int(step): loss for step, loss in re.findall(r"step +(\d+)/6 .*?loss ([\d.]+)", out)}
    assert shown == {step: f"{line['train/loss']:.4g}" for step, line in written.items()} and len(shown) == 4
    last = shown[6]
    assert f"train loss {last}" in out.splitlines()[-2] + out.splitlines()[-1]
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count(f">{last}<") >= 2, "the card and the table"
    (validation,) = re.findall(r"step 6: validation loss (\S+), accuracy (\S+ %)", out)
    assert main(["eval", words[1], "--set", f"output={tmp_path / 'out'}"]) == 0
    measured = capfd.readouterr().out
    assert re.search(rf"validation/loss +{validation[0]}\n", measured) and re.search(rf"validation/accuracy +{validation[1]}\n", measured)
    assert main(["ckpt", "ls", str(tmp_path / "out" / "checkpoints")]) == 0
    listed = capfd.readouterr().out
    assert f"validation/loss={validation[0]} " in listed and f"validation/accuracy={validation[1]}" in listed and f"train/loss={last} " in listed


# -------------------------------------------------------------------- two trainings


def start(words: list[str], *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-m", "jobflow", *words, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + LIMIT
    while not path.exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)


def test_a_second_training_in_a_directory_raises(without_report: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    lock = tmp_path / "out" / "train.lock"
    with start(without_report, "--set", "training.steps=1000000") as first:
        try:
            wait_for(lock, first)
            for second in ([], ["--resume", "never"], ["--output", str(tmp_path / "out" / ".." / "out")]):
                assert main([*without_report, *second]) == 2
                notices = capfd.readouterr().err
                assert f"process {first.pid} on {os.uname().nodename}" in notices and str(tmp_path) in notices and "--output" in notices
            elsewhere = ["--output", str(tmp_path / "other"), "--set", f"checkpoint.directory={tmp_path / 'out' / 'checkpoints'}"]
            assert main([*without_report, *elsewhere]) == 2, "another output, but the checkpoints would lie among those of the run that goes on"
            assert not (tmp_path / "out-1").exists() and not (tmp_path / "out" / "checkpoints-1").exists()
            first.send_signal(signal.SIGKILL)
            first.wait(LIMIT)
            assert lock.exists()
            assert main([*without_report, "--resume", "never"]) == 0
            notices = capfd.readouterr().err
            assert f"process {first.pid}" in notices and "abandoned lock" in notices and not lock.exists()
        finally:
            first.kill()


def test_two_that_start_at_once_and_one_that_is_stopped(without_report: list[str], tmp_path: Path) -> None:
    both = [start(without_report, "--set", "training.steps=1000000") for _ in range(2)]
    try:
        deadline = time.monotonic() + LIMIT
        while all(process.poll() is None for process in both):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        refused, goes_on = sorted(both, key=lambda process: process.poll() is None)
        assert refused.returncode == 2 and f"process {goes_on.pid}" in refused.communicate()[1]
        wait_for(tmp_path / "out" / "metrics.jsonl", goes_on)
        goes_on.send_signal(signal.SIGTERM)
        assert goes_on.wait(LIMIT) == 75 and not (tmp_path / "out" / "train.lock").exists()
    finally:
        for process in both:
            process.kill()
            process.communicate()


def test_locks_of_other_machines(without_report: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").mkdir()
    lock = tmp_path / "out" / "train.lock"
    text = json.dumps({"host": "elsewhere", "pid": 7, "start": "1", "space": "x", "since": "2026-11-22 12:00", "token": "t"})
    for content in (text, "nonsense", "[" * 100_000):
        lock.write_text(content)
        assert main(without_report) == 2
        notices = capfd.readouterr().err
        assert str(lock) in notices and "remove" in notices and ("process 7 on elsewhere" in notices) == (content == text)
    lock.write_text(text)
    os.utime(lock, (time.time() - 1000,) * 2)
    assert main(without_report) == 0
    assert "process 7 on elsewhere" in capfd.readouterr().err and not lock.exists()
