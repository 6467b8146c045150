"""Callbacks of jobflow: early stopping, best checkpoints, averages of the parameters, and statistics of the gradients."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from short_runs import CONFIG, check_same, loaded, run, write_config

from jobflow.core.errors import CheckpointError, ConfigError
from jobflow.storage import sessions, store
from jobflow.trainer import Callback, TrainingRun, train
from jobflow.trainer.best_checkpoint import BestCheckpoint
from jobflow.trainer.early_stopping import EarlyStopping
from jobflow.trainer.evaluate import evaluate
from jobflow.trainer.gradient_statistics import GradientStatistics
from jobflow.trainer.learning_rate_finder import LearningRateFinder
from jobflow.trainer.parameter_average import ParameterAverage
from jobflow.trainer.report_samples import TextSamples
from jobflow.trainer.training_run import CallbackError, EvaluationReport, StepReport

SGD = CONFIG.replace("{name: momentum, lr: 0.05, schedule: {name: cosine}, warmup_steps: 2}", "{name: sgd, lr: 0.5, weight_decay: 0}")
AVERAGE = 'callbacks=[{callback: "jobflow.trainer.parameter_average:ParameterAverage", arguments: {decay: 0.8, start: 2}}]'
RANKS: dict[str, tuple[str, ...]] = {
    "one rank": (),
    "two ranks": ("strategy.devices=2",),
    "zero": ("strategy.devices=2", "strategy.zero=2"),
    "tensor": ("strategy.devices=2", "strategy.tensor=2"),
    "mirrored": ("strategy.devices=2", "strategy.view=mirrored"),
    "accumulation": ("strategy.accumulation=2",),
}
FULL = RANKS.keys() - {"zero"}
EACH = pytest.mark.parametrize("settings", [pytest.param(RANKS[n], id=n, marks=[pytest.mark.full] if n in FULL else []) for n in RANKS])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("shipped")
    write_config(path / "usual", CONFIG)
    write_config(path / "sgd", SGD)
    yield path


class Parameters(Callback):
    """Record the parameters at the start and after each step."""

    changes_rate = False

    def __init__(self) -> None:
        self.values: list[dict[str, Any]] = []

    def on_start(self, run: TrainingRun) -> None:
        self.values.append({name: run.read(name) for name in run.parameters})

    def on_step(self, run: TrainingRun, report: StepReport) -> None:
        self.on_start(run)


@EACH
def test_evaluations_and_checkpoints_have_averages_of_the_parameters(settings: tuple[str, ...], folder: Path, tmp_path: Path) -> None:
    file, parameters = folder / "usual" / "run.yaml", Parameters()
    whole, steps = run(loaded(file, tmp_path / "whole", AVERAGE, *settings), parameters)
    average = parameters.values[0]
    for step, values in enumerate(parameters.values[1:], 1):
        average = values if step <= 2 else {name: 0.8 * average[name] + 0.2 * value for name, value in values.items()}
        saved = store.load(tmp_path / "whole" / "checkpoints" / f"step-{step:08d}")
        for name, value in average.items():
            np.testing.assert_allclose(saved[name], value, rtol=1e-5, atol=1e-7, err_msg=f"{name} after step {step}")
    evaluated = evaluate(loaded(file, tmp_path / "whole"), place="validation")
    assert evaluated.metrics["validation/loss"] == pytest.approx(whole.metrics["validation/loss"], rel=1e-6)
    run(loaded(file, tmp_path / "parts", AVERAGE, "training.steps=5", "optimizer.schedule.steps=9"))
    _, rest = run(loaded(file, tmp_path / "parts", AVERAGE, *settings))
    check_same(rest, steps, [6, 7, 8, 9], 1e-5)


def test_training_continues_with_the_parameters_after_a_failed_save_of_averages(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = sessions.save

    def failing(session: Any, path: Path, *rest: Any, **named: Any) -> Any:
        if path.name == "step-00000002":
            raise CheckpointError(f"checkpoint {path} could not be saved: no space left")
        saving = real(session, path, *rest, **named)
        if path.name == "step-00000003":
            saving.wait()
            raise sessions.AfterSavingError(f"{path} is complete, but an older one is left")
        return saving

    file = folder / "usual" / "run.yaml"
    settings = AVERAGE, "training.steps=4", "optimizer.schedule.steps=4"
    _, steps = run(loaded(file, tmp_path / "whole", *settings))
    monkeypatch.setattr(sessions, "save", failing)
    _, failed = run(loaded(file, tmp_path / "failed", *settings))
    check_same(failed, steps, [1, 2, 3, 4], 0)


def test_early_stopping_names_a_metric_that_was_always_nan() -> None:
    class Stops:
        def stop(self, reason: str) -> None:
            self.reason = reason

    run, early = Stops(), EarlyStopping(patience=2)
    for step in (1, 2):
        early.on_evaluation(run, EvaluationReport(step, 0, {"validation/loss": math.nan}, 0.0))  # type: ignore[arg-type]
    assert run.reason == "validation/loss was NaN in 2 evaluations"


@pytest.mark.full
def test_averages_may_begin_in_a_resumed_run_but_not_end(folder: Path, tmp_path: Path) -> None:
    file, parameters = folder / "usual" / "run.yaml", Parameters()
    run(loaded(file, tmp_path, "training.steps=3", "optimizer.schedule.steps=9"))
    run(loaded(file, tmp_path, AVERAGE, "training.steps=5", "optimizer.schedule.steps=9"), parameters)
    first, *values = [one["dense1-bias"] for one in parameters.values]
    saved = store.load(tmp_path / "checkpoints" / "step-00000005")["dense1-bias"]
    np.testing.assert_allclose(saved, 0.8 * (0.8 * first + 0.2 * values[0]) + 0.2 * values[1], rtol=1e-5)
    with pytest.raises(ConfigError, match=r"step-00000005 was saved with the callback ParameterAverage, and this run has none; list the callback"):
        run(loaded(file, tmp_path))


@EACH
def test_statistics_are_those_of_the_gradients_on_any_ranks(settings: tuple[str, ...], folder: Path, tmp_path: Path) -> None:
    parameters, statistics = Parameters(), GradientStatistics(every=3, parameters="dense1*")
    settings = ("training.steps=7", "optimizer.clip_norm=1000000.0", *settings)
    ended = train(loaded(folder / "sgd" / "run.yaml", tmp_path, *settings), callbacks=[parameters, statistics])
    history = ended.history
    assert history["step"][np.isfinite(history["gradient_norm"])].tolist() == [1, 3, 6]
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    logged = {line["step"]: line for line in lines if "gradient_norm" in line}
    assert list(logged) == [1, 3, 6]
    for step in logged:
        before, after = parameters.values[step - 1 : step + 1]
        gradients = {name: (before[name] - after[name]) / 0.5 for name in before}
        joined = np.concatenate([x.ravel() for x in gradients.values()])
        assert logged[step]["gradient_norm"] == pytest.approx(float(np.linalg.norm(joined)), rel=1e-3)
        assert logged[step]["gradient_max"] == pytest.approx(float(np.abs(joined).max()), rel=1e-3)
        assert logged[step]["dense1-bias/gradient_norm"] == pytest.approx(float(np.linalg.norm(gradients["dense1-bias"])), rel=1e-3)
        assert logged[step]["gradient_zeros"] == pytest.approx(float((joined == 0).mean()), abs=0.03)
    assert "dense2-bias/gradient_norm" not in history and "dense1-weight/gradient_zeros" in history


@pytest.mark.full
def test_the_best_checkpoints_are_saved_and_stay(folder: Path, tmp_path: Path) -> None:
    settings = ("checkpoint.every_steps=null", "checkpoint.keep_last=1", "evaluation={every_steps: 1}")
    best = BestCheckpoint("validation/loss", keep=2)
    _, steps = run(loaded(folder / "usual" / "run.yaml", tmp_path, *settings), best)
    losses = {step: report.metrics["validation/loss"] for step, report in steps.evaluations.items()}
    expected = sorted(losses, key=lambda step: losses[step])[:2]
    assert best.best == [losses[step] for step in expected]
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {f"step-{step:08d}" for step in {*expected, 9}}


def test_early_stopping_in_python_equals_the_key(folder: Path, tmp_path: Path) -> None:
    file, settings = folder / "usual" / "run.yaml", ("evaluation={every_steps: 1}", "checkpoint.every_steps=100")
    stopped = train(loaded(file, tmp_path / "python", *settings), callbacks=[EarlyStopping(patience=2, min_delta=0.5)])
    key = train(loaded(file, tmp_path / "key", *settings, "evaluation.early_stopping={patience: 2, min_delta: 0.5}"))
    assert (stopped.step, stopped.stopped, stopped.message) == (3, "early", key.message) and key.stopped == "early"
    again = train(loaded(file, tmp_path / "python", *settings), callbacks=[EarlyStopping(patience=2, min_delta=0.5)])
    assert again.stopped == "early" and "omit the callback jobflow.trainer.early_stopping:EarlyStopping" in again.message


WRONG: dict[str, tuple[type[Callback], dict[str, Any], str]] = {
    "decay": (
        ParameterAverage,
        {"decay": 1.0},
        r"ParameterAverage at test_shipped_callbacks.py:\d+: decay is 1.0; pass a number above 0 and below 1",
    ),
    "every": (GradientStatistics, {"every": 0}, r"GradientStatistics at test_shipped_callbacks.py:\d+: every is 0; pass an integer of 1 or more"),
    "mode": (EarlyStopping, {"mode": "most"}, r"EarlyStopping at test_shipped_callbacks.py:\d+: mode is 'most'; pass .min."),
    "patience": (EarlyStopping, {"patience": 0}, r"EarlyStopping at test_shipped_callbacks.py:\d+: patience is 0; pass an integer of 1 or more"),
    "change": (EarlyStopping, {"min_delta": math.nan}, "min_delta is nan; pass a finite change of 0 or more"),
    "keep": (BestCheckpoint, {"keep": 0}, r"BestCheckpoint at test_shipped_callbacks.py:\d+: keep is 0; pass an integer of 1 or more"),
    "missing": (EarlyStopping, {"patience": None}, "patience is None; pass an integer of 1 or more"),
    "not a number": (BestCheckpoint, {"keep": math.nan}, "keep is nan; pass an integer of 1 or more"),
    "fraction": (LearningRateFinder, {"steps": 3.5}, "steps is 3.5; pass an integer of 3 or more"),
    "order": (LearningRateFinder, {"lowest": 1.0}, "highest is 1.0; pass a finite number above lowest, 1"),
    "prompts": (TextSamples, {"prompts": 3}, "prompts is 3; pass a text, or a list of texts"),
    "temperature": (TextSamples, {"prompts": "a", "temperature": -1}, "temperature is -1 and top_k 0; pass a finite number"),
    "patterns": (GradientStatistics, {"parameters": []}, r"parameters is \[\]; pass a text, or a list of texts"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_refused(name: str) -> None:
    kind, arguments, message = WRONG[name]
    with pytest.raises(ConfigError, match=message):
        kind(**arguments)


@pytest.mark.parametrize(
    ("metric", "message"),
    [("validation/los", r'measure no metric "validation/los"; did you mean "validation/loss"\?'), ("", r"the run has no evaluations; set data.va")],
)
def test_callbacks_refuse_metrics_that_no_evaluation_measures(metric: str, message: str, folder: Path, tmp_path: Path) -> None:
    settings = () if metric else ("data.validation=null", "evaluation.every_epochs=null")
    with pytest.raises(CallbackError, match=rf"callback jobflow.trainer.early_stopping:EarlyStopping: .*{message}"):
        train(loaded(folder / "usual" / "run.yaml", tmp_path, *settings), callbacks=[EarlyStopping(metric or "validation/loss")])


def test_two_averages_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"two callbacks write the variable System-Train-Callback-Average-dense1-.*list ParameterAverage once"):
        train(loaded(folder / "usual" / "run.yaml", tmp_path), callbacks=[ParameterAverage(), ParameterAverage(0.5)])
