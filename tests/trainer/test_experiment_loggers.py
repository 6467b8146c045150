"""Loggers to MLflow and W&B: their files, resumed and failed runs, helper processes, and missing packages."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

import psutil
import pytest
from short_runs import CONFIG, loaded, write_config

from jobflow.core.errors import ConfigError
from jobflow.trainer import Callback, TrainingRun, train
from jobflow.trainer.experiment_logger import ExperimentLogger
from jobflow.trainer.mlflow_logger import MLflow
from jobflow.trainer.training_run import CallbackError, StepReport
from jobflow.trainer.wandb_logger import WandB

LOGGERS: dict[str, type[ExperimentLogger]] = {"mlflow": MLflow, "wandb": WandB}
HERE = {name: importlib.util.find_spec(name) is not None for name in LOGGERS}


def needs(name: str) -> list[pytest.MarkDecorator]:
    extra = f"needs {name}: pip install 'jobflow-sbp[{name}]'"
    return [pytest.mark.full, pytest.mark.skipif(not HERE[name], reason=extra)]


MLFLOW, WANDB = (pytest.param(LOGGERS[name], id=name, marks=needs(name)) for name in LOGGERS)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("MLFLOW_TRACKING_URI", "WANDB_MODE", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)
    return write_config(tmp_path / "run", CONFIG.replace("steps: 9", "steps: 4"))


class Fails(Callback):
    """Raise an exception in a step."""

    def on_step(self, run: TrainingRun, report: StepReport) -> None:
        if report.step == 3:
            raise LookupError("nothing here")


@pytest.mark.parametrize("kind", [MLFLOW, WANDB])
def test_helper_processes_end_with_the_run_and_after_errors(kind: type[ExperimentLogger], file: Path, tmp_path: Path) -> None:
    before = set(psutil.Process().children(recursive=True))
    ended = train(loaded(file, tmp_path / "out"), callbacks=[kind(every=2)])
    assert ended.stopped == "end" and set(psutil.Process().children(recursive=True)) <= before
    with pytest.raises(CallbackError, match=r"test_experiment_loggers:Fails: on_step at test_experiment_loggers.py:\d+ raised LookupError"):
        train(loaded(file, tmp_path / "failed"), callbacks=[kind(), Fails()])
    assert set(psutil.Process().children(recursive=True)) <= before


@pytest.mark.full
@pytest.mark.skipif(not HERE["mlflow"], reason="needs mlflow: pip install 'jobflow-sbp[mlflow]'")
def test_mlflow_has_values_and_the_configuration_also_of_a_resumed_run(file: Path, tmp_path: Path) -> None:
    mlflow = importlib.import_module("mlflow")

    train(loaded(file, tmp_path / "out", "training.steps=2", "optimizer.schedule.steps=4"), callbacks=[MLflow(every=1)])
    ended = train(loaded(file, tmp_path / "out", "optimizer.schedule.steps=4"), callbacks=[MLflow(every=1)])
    client = mlflow.MlflowClient(tracking_uri=(tmp_path / "out" / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("run")
    (one,) = client.search_runs([experiment.experiment_id])
    losses = client.get_metric_history(one.info.run_id, "train/loss")
    assert sorted(metric.step for metric in losses) == [1, 2, 3, 4] and one.info.status == "FINISHED"
    assert one.data.metrics["validation/loss"] == pytest.approx(ended.metrics["validation/loss"])
    assert one.data.params["optimizer.lr"] == "0.05" and one.data.tags["jobflow.ended"] == "end"
    with pytest.raises(CallbackError):
        train(loaded(file, tmp_path / "out", "training.steps=8", "optimizer.schedule.steps=4"), callbacks=[MLflow(every=1), FailsAtStart()])
    assert client.get_run(one.info.run_id).info.status == "FAILED"


class FailsAtStart(Callback):
    """Raise an exception at the start, after the loggers before it."""

    observes = True

    def on_start(self, run: TrainingRun) -> None:
        raise LookupError("nothing at the start")


@pytest.mark.full
@pytest.mark.skipif(not HERE["wandb"], reason="needs wandb: pip install 'jobflow-sbp[wandb]'")
def test_wandb_writes_files_of_the_same_run_after_a_resume(file: Path, tmp_path: Path) -> None:
    train(loaded(file, tmp_path / "out", "training.steps=2", "optimizer.schedule.steps=4"), callbacks=[WandB()])
    train(loaded(file, tmp_path / "out", "optimizer.schedule.steps=4"), callbacks=[WandB()])
    files = [path.name for path in (tmp_path / "out").glob("wandb/offline-run-*/run-*.wandb")]
    assert len(files) == 2 and len(set(files)) == 1


@pytest.mark.parametrize("name", LOGGERS)
def test_a_missing_package_is_named(name: str, file: Path, tmp_path: Path) -> None:
    if HERE[name]:
        pytest.skip(f"{name} is installed")
    with pytest.raises(CallbackError, match=rf"callback jobflow.*the callback {LOGGERS[name].__name__} needs .*jobflow-sbp\[{name}\]"):
        train(loaded(file, tmp_path / "out"), callbacks=[LOGGERS[name]()])


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"MLflow at test_experiment_loggers.py:\d+: every is 0; pass an integer of 1 or more"):
        MLflow(every=0)
    with pytest.raises(ConfigError, match=r"WandB at test_experiment_loggers.py:\d+: mode is 'on'; pass one of offline, online"):
        WandB(mode="on")
