"""jobflow train, eval and predict: options, output, exit codes."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from jobflow.cli import main
from jobflow.cli.train_command import seconds
from jobflow.core.command_line import not_negative

CONFIG = """
model: {builder: "jobflow.models:mlp", arguments: {hidden: [8]}}
data:
  train: {reader: digits, split: validation, edge: 8}
  test: {reader: digits, split: test, edge: 8}
  batch_size: 100
optimizer: {name: adam, lr: 0.01}
training: {steps: 6}
logging: {every_steps: 2, progress: plain}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("commands")
    (directory / "run.yaml").write_text(CONFIG)
    return directory


@pytest.fixture(scope="module")
def run(folder: Path) -> list[str]:
    words = [str(folder / "run.yaml"), "--set", f"output={folder / 'out'}"]
    assert main(["train", *words, "--devices", "2"]) == 0
    return words


def test_files_of_a_run(run: list[str], folder: Path) -> None:
    lines = [json.loads(line) for line in (folder / "out" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "train/loss" in line] == [1, 2, 4, 6]
    assert {"metrics.csv", "report.html", "curves.png", "checkpoints"} <= {path.name for path in (folder / "out").iterdir()}


def test_going_on_and_beginning_anew(run: list[str], folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *run, "--set", "training.steps=7", "--set", "logging.report=false"]) == 0
    assert "step 7" in capfd.readouterr().out.replace("step  7", "step 7")
    assert main(["train", *run, "--set", "seed=4"]) == 2
    assert "seed: it was 0, it is 4" in capfd.readouterr().err
    elsewhere = ["--output", str(folder / "other"), "--set", "logging.report=false"]
    assert main(["train", run[0], *elsewhere, "--resume", str(folder / "out" / "checkpoints")]) == 0
    assert main(["train", run[0], *elsewhere, "--resume", "never", "--time-limit", "0.001s"]) == 75
    assert "the time limit is near" in capfd.readouterr().err


def test_dry_run_and_profile(run: list[str], folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *run, "--output", str(folder / "dry"), "--dry-run"]) == 0
    assert not (folder / "dry").exists() and "memory" in capfd.readouterr().out
    assert main(["train", run[0], "--output", str(folder / "traced"), "--profile", "--set", "logging.report=false"]) == 0
    assert "ui.perfetto.dev" in capfd.readouterr().out and (folder / "traced" / "trace.json").stat().st_size > 0


def test_eval(run: list[str], folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    checkpoint = str(folder / "out" / "checkpoints" / "step-00000006")
    assert main(["eval", *run, "--json", "--checkpoint", checkpoint, "--devices", "2"]) == 0
    result = json.loads(capfd.readouterr().out)
    assert result["step"] == 6 and result["samples"] == 297 and 0 < result["test/accuracy"] <= 1
    assert main(["eval", *run, "--on", "train", "--checkpoint", checkpoint]) == 0
    assert "train/loss" in capfd.readouterr().out
    assert main(["eval", *run, "--on", "validation"]) == 2


def test_predict(run: list[str], folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    output = folder / "scores.csv"
    assert main(["predict", *run, "--input", "test", "--output", str(output)]) == 0
    assert "297 samples: scores [297, 10]" in capfd.readouterr().out and len(output.read_text().splitlines()) == 298
    assert main(["predict", *run, "--input", "test"]) == 2
    assert "pass --input FILE and --output FILE" in capfd.readouterr().err


@pytest.mark.parametrize("text, value", [("90", 90), ("90s", 90), ("15m", 900), ("1.5h", 5400), ("1d", 86400), ("3:55:00", 14100), ("1:30", 90)])
def test_times(text: str, value: float) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "0", "-5", "soon", "1x", "inf", "nan", "::"])
def test_invalid_times_raise(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"is not a (positive )?time"):
        seconds(text)


def test_temperatures() -> None:
    assert not_negative("0") == 0 and not_negative("0.8") == 0.8
    for text in ("-1", "warm", "inf", "nan"):
        with pytest.raises(argparse.ArgumentTypeError, match="is not a finite number of at least 0"):
            not_negative(text)
