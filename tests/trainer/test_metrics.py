"""Metrics as files: whole lines, no duplicates, also after interrupted runs."""

from __future__ import annotations

import csv
import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from short_runs import loaded, run, write_config

from jobflow.core.errors import ConfigError
from jobflow.trainer import lock
from jobflow.trainer.callbacks import Callback
from jobflow.trainer.metrics import JsonLines, Lines, Table, TensorBoard
from jobflow.trainer.training_run import EvaluationReport, StepReport, TrainingRun


def info(output: Path, first_step: int = 0, steps: int = 6) -> TrainingRun:
    config: Any = None
    return TrainingRun("run", config, output, 1, steps, first_step, 3, 30, 10)


def step(number: int, **metrics: float) -> StepReport:
    return StepReport(number, (number - 1) // 3, 1.0 / number, metrics, 0.5, 10, 0.1)


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_lines_are_whole(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "a" / "file")
    assert lines.read() == []
    lines.replace(["one"])
    lines.add("two")
    lines.flush()
    with open(lines.path, "a") as file:
        file.write("a part of thr")
    assert lines.read() == ["one", "two"] and [path.name for path in lines.path.parent.iterdir()] == ["file"]
    lines.close()


def test_json_resumes_after_the_checkpoint(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    first = JsonLines(file)
    first.on_start(info(tmp_path))
    for number in (1, 2, 3):
        first.on_step(info(tmp_path), step(number, accuracy=0.5))
    first.on_evaluation(info(tmp_path), EvaluationReport(3, 1, {"validation/loss": float("nan")}))
    first.on_step(info(tmp_path), step(4))
    first.close()
    with open(file, "a") as out:
        out.write('{"step": 5, "epo')
    again = JsonLines(file)
    again.on_start(info(tmp_path, first_step=3))
    again.on_step(info(tmp_path, first_step=3), step(4))
    again.on_checkpoint(info(tmp_path), tmp_path)
    again.close()
    written = records(file)
    assert [(one["step"], one["epoch"]) for one in written] == [(1, 0), (2, 0), (3, 0), (3, 1), (4, 1)]
    assert written[0] == {
        "step": 1, "epoch": 0, "train/loss": 1.0, "train/accuracy": 0.5, "rate": 0.1, "seconds": 0.5, "samples_per_second": 20.0,
    }  # fmt: skip
    assert written[3]["validation/loss"] is None
    fresh = JsonLines(file)
    fresh.on_start(info(tmp_path))
    fresh.close()
    assert not records(file), "a run that begins anew begins with an empty file"


def test_steps_are_written_at_the_interval(tmp_path: Path) -> None:
    run = info(tmp_path, steps=11)
    lines = JsonLines(tmp_path / "metrics.jsonl", every=4)
    lines.on_start(run)
    for number in range(1, 12):
        lines.on_step(run, step(number))
    lines.close()
    assert [one["step"] for one in records(tmp_path / "metrics.jsonl")] == [1, 4, 8, 11]


def test_a_table_grows_columns(tmp_path: Path) -> None:
    file, run = tmp_path / "metrics.csv", info(tmp_path)
    table = Table(file)
    table.on_start(run)
    table.on_step(run, step(1))
    table.on_evaluation(run, EvaluationReport(1, 0, {"validation/loss": 2.5}))
    table.on_step(run, step(2, **{"odd, name": 3.0}))
    table.close()
    rows = list(csv.DictReader(file.read_text().splitlines()))
    assert [row["validation/loss"] for row in rows] == ["", "2.5", ""] and rows[2]["train/odd, name"] == "3.0"
    again = Table(file)
    again.on_start(info(tmp_path, first_step=1))
    again.on_step(run, step(2))
    again.close()
    rows = list(csv.DictReader(file.read_text().splitlines()))
    assert [row["step"] for row in rows] == ["1", "1", "2"] and rows[1]["validation/loss"] == "2.5"


def test_a_resumed_run_leaves_the_files_of_one_that_was_not(tmp_path: Path) -> None:
    file = write_config(tmp_path)
    for output, ends in (("whole", [7]), ("parts", [3, 5, 7])):
        for end in ends:
            config = loaded(file, tmp_path / output, f"training.steps={end}", "optimizer.schedule.steps=9", "logging.every_steps=1")
            run(config)
    whole, parts = (records(tmp_path / output / "metrics.jsonl") for output in ("whole", "parts"))
    timeless = [{k: v for k, v in one.items() if k not in ("seconds", "samples_per_second")} for one in whole]
    assert [one["step"] for one in whole if "train/loss" in one] == list(range(1, 8))
    # the parts measure at their ends too
    assert [{k: one[k] for k in same} for same in timeless for one in parts if one.keys() >= same.keys() and one["step"] == same["step"]] == timeless
    steps = [row["step"] for row in csv.DictReader((tmp_path / "parts" / "metrics.csv").read_text().splitlines()) if row["train/loss"]]
    assert steps == [str(number) for number in range(1, 8)]


def test_tensorboard_needs_its_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ConfigError, match="pip install tensorboardX"):
        TensorBoard(tmp_path)


def test_tensorboard_gets_scalars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Any] = []

    class SummaryWriter:
        def __init__(self, logdir: str, purge_step: int | None) -> None:
            written.append((logdir, purge_step))

        def add_scalar(self, *scalar: Any) -> None:
            written.append(scalar)

        def flush(self) -> None:
            written.append("flush")

        def close(self) -> None:
            written.append("close")

    module = type(sys)("tensorboardX")
    module.SummaryWriter = SummaryWriter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tensorboardX", module)
    board, run = TensorBoard(tmp_path), info(tmp_path, first_step=4)
    board.on_start(run)
    board.on_evaluation(run, EvaluationReport(5, 1, {"validation/loss": 2.0}))
    board.on_checkpoint(run, tmp_path)
    board.close()
    board.close()
    assert written == [(str(tmp_path), 5), ("validation/loss", 2.0, 5), "flush", "close"]


def test_an_output_folder_that_is_removed_during_training_is_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lock, "BEAT", 0.01)
    out, locked = tmp_path / "out", []

    class Remover(Callback):
        def on_step(self, run: TrainingRun, report: StepReport) -> None:
            if report.step == 4:
                out.rename(tmp_path / "removed")
                shutil.rmtree(tmp_path / "removed")
                deadline = time.monotonic() + 10
                while not (out / lock.NAME).exists() and time.monotonic() < deadline:
                    time.sleep(0.01)
                locked.append((out / lock.NAME).exists())

    config = loaded(write_config(tmp_path), out, "logging.csv=true")
    run(config, Remover())
    assert locked == [True] and not (out / lock.NAME).exists()
    assert [record["step"] for record in records(out / "metrics.jsonl")] == [4, 4, 4, 5, 6, 7, 8, 8, 8, 9, 9]
    with open(out / "metrics.csv") as file:
        assert [row["step"] for row in csv.DictReader(file) if row["train/loss"]] == ["4", "5", "6", "7", "8", "9"]
    assert sorted(path.name for path in (out / "checkpoints").iterdir()) == [f"step-{step:08d}" for step in range(4, 10)]
    notices = capfd.readouterr().err
    assert "metrics.jsonl was removed during training; it is created again, without the records before step 4" in notices
    assert f"{lock.NAME} was removed during training" in notices
