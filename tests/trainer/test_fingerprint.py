"""The fingerprint of a model's program: changes that alter it, and resuming with another fingerprint."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from nets_to_train import Changing
from short_runs import CONFIG, loaded, run, write_config

from jobflow.core.errors import CheckpointError
from jobflow.trainer.fingerprint import Fingerprint
from jobflow.trainer.jobs import prepared

LISTED = CONFIG[CONFIG.index("model:") : CONFIG.index("data:")]
MODULE = CONFIG.replace(LISTED, 'model: {builder: "nets_to_train:Changing"}\n')


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run three steps of a module; return its configuration."""
    folder = tmp_path_factory.mktemp("stopped")
    file = write_config(folder, MODULE)
    run(loaded(file, folder / "out", "training.steps=3", "optimizer.schedule.steps=9"))
    return folder


def resumed(folder: Path, out: Path, *settings: str, **options: Any) -> int:
    """Continue a copy of the run; return its first step."""
    shutil.copytree(folder / "out" / "checkpoints", out / "checkpoints")
    _, recorder = run(loaded(folder / "run.yaml", out, "training.steps=4", "optimizer.schedule.steps=9", *settings), **options)
    assert recorder.info is not None
    return recorder.info.first_step


def fingerprint(text: str, folder: Path, *settings: str) -> Fingerprint | None:
    with prepared(loaded(write_config(folder, text), folder / "out", *settings), only=("train",)) as jobs:
        return jobs.fingerprint()


@pytest.mark.parametrize("model", [CONFIG, MODULE], ids=["layers", "module"])
def test_layouts_batch_size_precision_and_ranks_do_not_change_it(model: str, tmp_path: Path) -> None:
    expected = fingerprint(model, tmp_path)
    assert expected is not None
    for setting in ("data.batch_size=5", "strategy.devices=2", "strategy.view=mirrored", "strategy.precision=bfloat16", "strategy.accumulation=2"):
        assert fingerprint(model, tmp_path, setting) == expected, setting
    for layout in ("strategy.zero=2", "strategy.tensor=2"):
        assert fingerprint(model, tmp_path, "strategy.devices=2", layout) == expected, layout
    assert fingerprint("# a line more" + model, tmp_path) == expected


@pytest.mark.parametrize(
    "setting",
    [
        "model.layers.0.dense.activation=relu",
        "model.layers.0.dense.units=13",
        "model.layers.0.dense.use_bias=false",
        "model.layers.1.dropout.rate=0.5",
        "model.loss=mean_squared_error",
    ],
)
def test_operations_attributes_and_parameters_change_it(setting: str, tmp_path: Path) -> None:
    text = CONFIG if "loss" not in setting else CONFIG.replace("units: 4", "units: 1")
    assert fingerprint(text, tmp_path, setting) != fingerprint(text, tmp_path)


def test_a_run_does_not_resume_with_another_program(
    stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert resumed(stopped, tmp_path / "same") == 3
    monkeypatch.setattr(Changing, "extra", True)
    assert resumed(stopped, tmp_path / "metric") == 3, "a metric is not part of the program of the loss"
    assert "program" not in capfd.readouterr().err
    monkeypatch.setattr(Changing, "function", "tanh")
    with pytest.raises(CheckpointError, match=r"a different model.*--resume never.*--set checkpoint\.accept_changed_model=true"):
        resumed(stopped, tmp_path / "other")
    assert resumed(stopped, tmp_path / "accepted", "checkpoint.accept_changed_model=true") == 3
    assert "the model's program changed since" in capfd.readouterr().err
    assert resumed(stopped, tmp_path / "never", resume="never") == 0


@pytest.mark.parametrize("saved", [None, {"version": 1, "program": "a"}])
def test_a_checkpoint_without_a_comparable_fingerprint_is_resumed_with_a_notice(saved: Any) -> None:
    notice = Fingerprint("b").check(Path("step-00000003"), saved, False)
    assert "so a change of the model is not detected" in notice and "training resumes" in notice


def test_checkpoints_hold_the_fingerprint(stopped: Path) -> None:
    manifest = json.loads((stopped / "out" / "checkpoints" / "step-00000003" / "manifest.json").read_text())
    assert manifest["extra"]["fingerprint"]["version"] == 2


def test_another_shape_names_the_ways_out(stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    init = Changing.__init__

    def wider(module: Changing) -> None:
        init(module)
        nn = __import__("jobflow").nn
        module.first, module.last = nn.Linear(6, 9), nn.Linear(9, 4)

    monkeypatch.setattr(Changing, "__init__", wider)
    with pytest.raises(CheckpointError, match="--resume never"):
        resumed(stopped, tmp_path / "checked")
    with pytest.raises(CheckpointError, match="if the model changed, --resume never starts a new run"):
        resumed(stopped, tmp_path / "accepted", "checkpoint.accept_changed_model=true")
