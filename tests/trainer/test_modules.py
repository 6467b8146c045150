"""Modules as models of configurations: training, resuming and predictions on one rank and on two."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from nets_to_train import REDUCED
from processes import run_command, under_mpiexec
from short_runs import CONFIG, Recorder, check_same, loaded, run, samples, write_config
from test_processes_that_train import PATHS

from jobflow.core.errors import ConfigError
from jobflow.trainer.config.showing import show
from jobflow.trainer.evaluate import evaluate
from jobflow.trainer.predict import predict

LISTED = CONFIG[CONFIG.index("model:") : CONFIG.index("data:")]


def text(builder: str, more: str = "") -> str:
    return CONFIG.replace(LISTED, f'model: {{builder: "nets_to_train:{builder}"{more}}}\n')


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Recorder]:
    folder = tmp_path_factory.mktemp("module")
    file = write_config(folder, text("Scores", ", arguments: {units: 10}"))
    outcome, recorder = run(loaded(file, folder / "out"))
    assert (outcome.step, outcome.stopped) == (9, "end")
    assert {"train/loss", "validation/accuracy"} <= set(outcome.metrics)
    return folder, recorder


@pytest.mark.parametrize("how", [("devices=2",), ("devices=2", "zero=3"), ("devices=2", "tensor=2")], ids=" ".join)
def test_one_and_two_devices(how: tuple[str, ...], whole: tuple[Path, Recorder], tmp_path: Path) -> None:
    folder, recorder = whole
    _, other = run(loaded(folder / "run.yaml", tmp_path, *(f"strategy.{setting}" for setting in how)))
    check_same(other, recorder, range(1, 10), close=2e-5)


def test_a_run_resumes_and_predicts(whole: tuple[Path, Recorder], tmp_path: Path) -> None:
    folder, recorder = whole
    for devices in (1, 2):
        out = tmp_path / f"{devices}"
        shutil.copytree(folder / "out" / "checkpoints" / "step-00000005", out / "checkpoints" / "step-00000005")
        config = loaded(folder / "run.yaml", out, f"strategy.devices={devices}")
        _, rest = run(config)
        assert list(rest.steps) == [6, 7, 8, 9]
        check_same(rest, recorder, list(rest.steps), close=2e-5)
        assert evaluate(config).metrics == pytest.approx(recorder.evaluations[9].metrics, rel=1e-5)
        np.savez(tmp_path / "new.npz", x=samples(7, 1)["x"])
        scores = predict(config, tmp_path / "new.npz").outputs["scores"]
        assert scores.shape == (7, 4)
        np.testing.assert_allclose(scores, predict(config, "validation").outputs["scores"][:7], rtol=1e-5, atol=1e-6)


@pytest.mark.mpi
def test_two_processes_train_as_one(whole: tuple[Path, Recorder], tmp_path: Path) -> None:
    folder, recorder = whole
    for name, settings in {"plain": (), "split": ("strategy.zero=2",)}.items():
        sets = [f"--set={each}" for each in (f"output={tmp_path / name}", *settings)]
        command = [*under_mpiexec(2), sys.executable, "-m", "jobflow", "train", str(folder / "run.yaml"), *sets]
        done = run_command(command, environment=PATHS)
        assert done.code == 0, done.out + done.err
        config = loaded(folder / "run.yaml", tmp_path / name)
        assert evaluate(config).metrics == pytest.approx(recorder.evaluations[9].metrics, rel=2e-5)


@pytest.mark.mpi
def test_a_dry_run_of_a_module_on_two_processes_prints_one_plan(whole: tuple[Path, Recorder]) -> None:
    command = [*under_mpiexec(2), sys.executable, "-m", "jobflow", "train", str(whole[0] / "run.yaml"), "--dry-run"]
    done = run_command(command, environment=PATHS)
    assert done.code == 0 and done.out.count("This was a dry run; no step was executed.") == 1, done.out + done.err


def test_inputs_and_outputs_of_modules(whole: tuple[Path, Recorder], tmp_path: Path) -> None:
    _, recorder = whole
    file = write_config(tmp_path, text("Named", ", arguments: {units: 10}"))
    outcome, other = run(loaded(file, tmp_path / "named"))
    np.testing.assert_allclose([*other.losses.values()], [*recorder.losses.values()], rtol=1e-5)
    assert {"train/sure", "validation/sure"} <= set(outcome.metrics)
    squares = write_config(tmp_path / "squares", text("scores", ", loss: mean_squared_error"))
    for name in ("train", "validation"):
        arrays = dict(np.load(tmp_path / "squares" / f"{name}.npz"))
        np.savez(tmp_path / "squares" / f"{name}.npz", x=arrays["x"], labels=arrays["x"][:, :4])
    outcome, _ = run(loaded(squares, tmp_path / "out", "training.steps=3"))
    assert "train/accuracy" not in outcome.metrics
    assert "# units: 12" in show(loaded(squares, tmp_path / "out"))
    for builder, message in {
        text("Scores", ", arguments: {unit: 3}"): "unit",
        text("plain", ", loss: mean_squared_error"): "a builder returns its own loss, omit it",
        text("no_module"): "is annotated to return an nn.Module, but returned 12",
    }.items():
        file = write_config(tmp_path / "wrong", builder)
        with pytest.raises(ConfigError, match=message):
            run(loaded(file, tmp_path / "wrong" / "out"))


@pytest.mark.parametrize("model", ["layers", "Large"])
def test_the_cross_entropy_of_layers_and_modules_has_no_limit(model: str, tmp_path: Path) -> None:
    """Compare with log-softmax in float64; the legacy formula stops at 46.05."""
    file = write_config(tmp_path, CONFIG if model == "layers" else text(model))
    sets = ("training.steps=1", "optimizer.lr=1.0e-6", "optimizer.schedule.name=constant", "optimizer.warmup_steps=0")
    config = loaded(file, tmp_path / "out", *sets, *(("model.layers.0.dense.activation=null",) if model == "layers" else ()))
    if model == "layers":
        arrays = dict(np.load(tmp_path / "validation.npz"))
        np.savez(tmp_path / "validation.npz", x=arrays["x"] * np.float32(1e4), labels=arrays["labels"])
    run(config)
    scores = predict(config, "validation").outputs["scores"].astype(np.float64)
    labels = np.load(tmp_path / "validation.npz")["labels"]
    top = scores.max(1)
    expected = np.log(np.exp(scores - top[:, None]).sum(1)) + top - scores[np.arange(len(labels)), labels]
    assert expected.mean() > 100
    assert evaluate(config).metrics["validation/loss"] == pytest.approx(expected.mean(), rel=1e-5)


@pytest.mark.parametrize(("kind", "is_mean"), [(kind, index < 3) for index, kind in enumerate(REDUCED)])
def test_a_reduced_metric_must_be_a_mean(kind: str, is_mean: bool, tmp_path: Path) -> None:
    file = write_config(tmp_path, text("measured", f", arguments: {{kind: {kind}}}"))
    config = loaded(file, tmp_path / "out", "training.steps=1", "optimizer.warmup_steps=0")
    if is_mean:
        run(config)
    else:
        with pytest.raises(ConfigError, match=r'nets_to_train.py:\d+.*the metric "metric" is one number for the whole batch.*not a mean'):
            run(config)


def test_the_mean_cross_entropy_of_a_module_is_a_mean(tmp_path: Path) -> None:
    file = write_config(tmp_path, text("CrossEntropy"))
    outcome, _ = run(loaded(file, tmp_path / "out", "training.steps=1", "optimizer.warmup_steps=0"))
    assert outcome.metrics["validation/nats"] == pytest.approx(outcome.metrics["validation/loss"])


def test_the_error_about_a_metric_names_the_reduction_below_its_casts(tmp_path: Path) -> None:
    file = write_config(tmp_path, text("Counting"))
    with pytest.raises(ConfigError, match=r'nets_to_train.py:\d+: the metric "hits" .* computed by reducesum, which is not a mean'):
        run(loaded(file, tmp_path / "out", "training.steps=1", "optimizer.warmup_steps=0"))
