"""Training: equal results in every configuration, intervals, early stopping, and steps that are not finite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from short_runs import CONFIG, SAMPLES, WIDTH, Recorder, check_same, loaded, run, samples, write_config

from jobflow.core.errors import CheckpointError, ConfigError
from jobflow.storage import sessions, store
from jobflow.trainer import train
from jobflow.trainer.callbacks import Callback
from jobflow.trainer.training_run import NOT_FINITE, CallbackError, StepReport, TrainingRun

PLAIN = CONFIG.replace(CONFIG[CONFIG.index("model:") : CONFIG.index("data:")], "model: {builder: 'nets_to_train:plain'}\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("runs")
    write_config(directory)
    (directory / "plain.yaml").write_text((write_config(directory / "plain", PLAIN)).read_text())
    return directory


@pytest.fixture(scope="module")
def alone(folder: Path) -> Recorder:
    """A run on one rank."""
    return run(loaded(folder / "run.yaml", folder / "alone"))[1]


@pytest.mark.parametrize(
    "settings",
    [
        ("devices=2",),
        ("devices=3", "view=mirrored"),
        ("devices=2", "zero=2"),
        ("devices=2", "pipeline=2", "microbatches=4"),
        ("devices=4", "data=2", "tensor=2"),
        ("accumulation=4",),
        ("devices=2", "view=mirrored", "accumulation=2"),
    ],
    ids=" ".join,
)
def test_losses_do_not_depend_on_how_it_runs(settings: tuple[str, ...], folder: Path, alone: Recorder, tmp_path: Path) -> None:
    _, recorder = run(loaded(folder / "run.yaml", tmp_path, *(f"strategy.{setting}" for setting in settings), "training.steps=5"))
    # the schedule falls to another end, which the first steps of the warm-up do not see
    check_same(recorder, run(loaded(folder / "run.yaml", tmp_path / "one", "training.steps=5"))[1], range(1, 6), close=3e-6)
    assert recorder.sample_numbers[1] == alone.sample_numbers[1]


def test_halves_are_near(folder: Path, alone: Recorder, tmp_path: Path) -> None:
    for precision in ("bfloat16", "float16"):
        _, recorder = run(loaded(folder / "run.yaml", tmp_path / precision, f"strategy.precision={precision}"))
        np.testing.assert_allclose([*recorder.losses.values()], [*alone.losses.values()], rtol=0.05)


def test_recomputing_changes_nothing(folder: Path, alone: Recorder, tmp_path: Path) -> None:
    _, recorder = run(loaded(folder / "run.yaml", tmp_path, "strategy.recompute=true"))
    check_same(recorder, alone, range(1, 10))


def test_python_takes_a_file_or_a_configuration(folder: Path, tmp_path: Path) -> None:
    file = write_config(tmp_path / "by path", CONFIG.replace("steps: 9", "steps: 2") + f"output: {tmp_path / 'out'}\n")
    recorder = Recorder()
    assert train(file, callbacks=[recorder]).step == 2 == len(recorder.steps)
    assert train(str(file)).metrics.keys() >= {"train/loss", "train/accuracy", "validation/loss", "validation/accuracy"}


def test_callbacks_receive_events_in_order(folder: Path, alone: Recorder, tmp_path: Path) -> None:
    info = alone.info
    assert info is not None and (info.ranks, info.steps, info.first_step, info.steps_per_epoch, info.samples, info.batch_size) == (
        1,
        9,
        0,
        4,
        SAMPLES,
        8,
    )
    assert info.compiled() is not None
    assert alone.events == ["on_start", "on_end"]
    assert list(alone.evaluations) == [4, 8, 9], "after each epoch, and at the end"
    assert alone.evaluations[4].samples == SAMPLES and alone.evaluations[4].epoch == 1
    assert [report.samples for report in alone.steps.values()] == [8, 8, 8, 2, 8, 8, 8, 2, 8]
    assert alone.steps[1].rate == pytest.approx(0.025) and alone.steps[2].rate == pytest.approx(0.0375)


def test_evaluations_and_checkpoints_run_at_their_steps(folder: Path, tmp_path: Path) -> None:
    settings = ("evaluation.every_epochs=null", "evaluation.every_steps=3", "checkpoint.every_steps=null", "checkpoint.every_epochs=2")
    outcome, recorder = run(loaded(folder / "run.yaml", tmp_path, *settings, "checkpoint.asynchronous=true", "training.steps=10"))
    assert list(recorder.evaluations) == [3, 6, 9, 10] and recorder.saves == ["step-00000008", "step-00000010"]
    assert outcome.saved == tmp_path / "checkpoints" / "step-00000010"
    _, recorder = run(loaded(folder / "run.yaml", tmp_path / "epochs", "training.steps=null", "training.epochs=2", "data.drop_last=true"))
    assert len(recorder.steps) == 6 and all(len(samples) == 8 for samples in recorder.sample_numbers.values())


def test_a_dict_trains_as_a_file_with_settings_and_output(folder: Path, tmp_path: Path) -> None:
    file = folder / "run.yaml"
    content = yaml.safe_load(file.read_text())
    first = train(content, {"training.steps": 2}, output=tmp_path / "dict")
    second = train(file, ["training.steps=2"], output=str(tmp_path / "file"))
    assert first.metrics == second.metrics and (first.step, first.output) == (2, tmp_path / "dict")
    assert train(content, {"training.steps": 2}, output=tmp_path / "dict").message.startswith(f"{tmp_path / 'dict'} is complete")
    with pytest.raises(ConfigError, match=r"settings: output=.* comes after the configuration was loaded; pass settings to load"):
        train(first.loaded, output=tmp_path)


def test_old_checkpoints_are_removed_except_the_best(folder: Path, tmp_path: Path) -> None:
    best = ("checkpoint.keep_best=1", "checkpoint.best_metric=validation/loss", "evaluation.every_epochs=null", "evaluation.every_steps=1")
    _, recorder = run(loaded(folder / "run.yaml", tmp_path, "checkpoint.keep_last=2", *best, "optimizer.lr=0.5"))
    losses = {step: report.metrics["validation/loss"] for step, report in recorder.evaluations.items()}
    remaining = {int(path.name[5:]) for path in (tmp_path / "checkpoints").glob("step-*")}
    assert remaining == {8, 9, min(losses, key=losses.__getitem__)}


def test_early_stopping_stops_and_stays_stopped(folder: Path, tmp_path: Path) -> None:
    early = (
        "evaluation.early_stopping.patience=2",
        "evaluation.early_stopping.min_delta=0.5",
        "evaluation.every_epochs=null",
        "evaluation.every_steps=1",
    )
    outcome, recorder = run(loaded(folder / "run.yaml", tmp_path, *early))
    assert (outcome.step, outcome.stopped, outcome.exit_code) == (3, "early", 0) and list(recorder.evaluations) == [1, 2, 3]
    assert "validation/loss did not improve on" in outcome.message
    again, rest = run(loaded(folder / "run.yaml", tmp_path, *early))
    assert (again.step, again.stopped) == (3, "early") and not rest.steps
    longer, rest = run(loaded(folder / "run.yaml", tmp_path, *early, "evaluation.early_stopping.patience=4"))
    assert (longer.step, longer.stopped) == (5, "early") and list(rest.steps) == [4, 5]


def test_an_unknown_metric_raises_before_the_first_step(folder: Path, tmp_path: Path) -> None:
    early = ("evaluation.early_stopping.patience=2", "evaluation.early_stopping.metric=validation/acuracy")
    with pytest.raises(ConfigError, match=r"returns no metric .validation/acuracy.; did you mean .validation/accuracy."):
        run(loaded(folder / "run.yaml", tmp_path, *early))


# -------------------------------------------------------------------- not finite


def state(path: Path) -> dict[str, Any]:
    tensors = store.load(path)
    return {name: tensors[name] for name in tensors}


@pytest.mark.parametrize("strategy", [(), ("strategy.devices=2",), ("strategy.devices=2", "strategy.view=mirrored")], ids=" ".join)
@pytest.mark.parametrize("net, op", [("steep", "root"), ("exploding", "explode")])
def test_a_step_that_is_not_finite_is_explained_and_leaves_the_state_before_it(
    net: str, op: str, strategy: tuple[str, ...], folder: Path, tmp_path: Path
) -> None:
    settings = (f"model.builder=nets_to_train:{net}", "optimizer.lr=0.3", "checkpoint.every_steps=100", *strategy)
    outcome, _ = run(loaded(folder / "plain.yaml", tmp_path, *settings))
    assert (outcome.stopped, outcome.exit_code) == ("nan", NOT_FINITE)
    assert f"step {outcome.step + 1}: " in outcome.message and op in outcome.message and "nets_to_train.py:" in outcome.message
    assert outcome.saved is not None and outcome.saved.name == f"step-{outcome.step:08d}"
    before, _ = run(loaded(folder / "plain.yaml", tmp_path / "before", *settings, f"training.steps={outcome.step}", "optimizer.schedule.steps=9"))
    assert before.stopped == "end" and before.saved is not None
    expected, result = state(before.saved), state(outcome.saved)
    assert expected.keys() == result.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(result[name], value, rtol=1e-6, err_msg=name)
    again, rest = run(loaded(folder / "plain.yaml", tmp_path, *settings))
    assert (again.stopped, again.step) == ("nan", outcome.step), "whoever starts it again sees the same"
    assert rest.info is not None and rest.info.first_step == outcome.step


def test_without_halting_a_loss_that_is_not_finite_ends_the_run_all_the_same(folder: Path, tmp_path: Path) -> None:
    settings = ("model.builder=nets_to_train:exploding", "optimizer.lr=0.3", "checkpoint.every_steps=1", "training.halt_where_not_finite=false")
    outcome, _ = run(loaded(folder / "plain.yaml", tmp_path, *settings))
    assert (outcome.stopped, outcome.exit_code) == ("nan", NOT_FINITE)
    assert outcome.saved is not None and outcome.saved.name == f"step-{outcome.step:08d}", "the last checkpoint is what remains"


def test_data_that_is_not_finite_is_named(folder: Path, tmp_path: Path) -> None:
    bad = samples(SAMPLES, 0)
    bad["x"][3, 1] = np.nan
    np.savez(tmp_path / "bad.npz", **bad)
    outcome, _ = run(loaded(folder / "plain.yaml", tmp_path, f"data.train.path={tmp_path / 'bad.npz'}"))
    assert outcome.stopped == "nan" and f'the argument "x" has non-finite values (1 of {8 * WIDTH} elements)' in outcome.message


# -------------------------------------------------------------------- trouble


@pytest.mark.parametrize("key", ["output", "checkpoint.directory"])
def test_an_unwritable_directory_raises_before_the_first_step(key: str, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    config = loaded(folder / "plain.yaml", tmp_path / "runs", f"{key}={tmp_path / 'file' / 'below'}")
    with pytest.raises(ConfigError, match=rf"^--set {key}=.*: {key}: .*below is not writable: Not a directory"):
        run(config)
    assert not list(tmp_path.rglob("step-*"))


def test_only_a_failed_final_checkpoint_ends_the_run(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    real = sessions.save

    def failing(session: Any, path: Path, *rest: Any, **named: Any) -> Any:
        if path.name in broken:
            raise CheckpointError(f"checkpoint {path} could not be saved: no space left")
        return real(session, path, *rest, **named)

    monkeypatch.setattr(sessions, "save", failing)
    broken = {"step-00000001", "step-00000002"}
    outcome, recorder = run(loaded(folder / "run.yaml", tmp_path, "training.steps=3"))
    assert outcome.stopped == "end" and recorder.saves == ["step-00000003"]
    assert "training continues without a checkpoint of step 2: checkpoint" in capfd.readouterr().err
    broken = {"step-00000004"}
    closed = Recorder()
    with pytest.raises(CheckpointError, match="no space left"):
        run(loaded(folder / "run.yaml", tmp_path, "training.steps=4"), closed)
    assert closed.events == ["on_start", "on_exception"]


class Late:
    """An asynchronous checkpoint whose `wait` returns this result."""

    done = True

    def __init__(self, path: Path, error: Exception | None) -> None:
        self.path, self.error = path, error

    def wait(self) -> None:
        if self.error is not None:
            raise self.error


def test_errors_of_asynchronous_checkpoints_are_reported(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    real = sessions.save
    late = {"step-00000003": CheckpointError("full"), "step-00000002": sessions.AfterSavingError("2 is complete, but the old one is left")}

    def save(session: Any, path: Path, *rest: Any, **named: Any) -> Any:
        return Late(path, late[path.name]) if path.name in late else real(session, path, *rest, **named)

    monkeypatch.setattr(sessions, "save", save)
    # that of step 3 has failed when the last one, of step 4, is to be written
    outcome, recorder = run(loaded(folder / "run.yaml", tmp_path, "training.steps=4", "checkpoint.asynchronous=true"))
    assert outcome.stopped == "end" and outcome.saved == tmp_path / "checkpoints" / "step-00000004"
    assert recorder.saves == ["step-00000001", "step-00000002", "step-00000004"]
    notices = capfd.readouterr().err
    assert "2 is complete, but the old one is left" in notices and "training continues without a checkpoint of step 3: full" in notices


def test_a_raising_callback_is_named_with_its_line(folder: Path, tmp_path: Path) -> None:
    class Failing(Callback):
        def on_step(self, run: TrainingRun, report: StepReport) -> None:
            raise OSError("the disk is gone")

    recorder = Recorder()
    message = r"callback .*:Failing: on_step at test_loop.py:\d+ raised OSError at step 1: the disk is gone; correct the callback or omit it"
    with pytest.raises(CallbackError, match=message):
        run(loaded(folder / "run.yaml", tmp_path), recorder, Failing())
    assert recorder.events == ["on_start", "on_exception"]


def test_models_without_a_loss_raise(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nets_to_train:nameless at nets_to_train.py:\d+ returned a tensor.* a builder returns a dict of tensors"):
        run(loaded(folder / "plain.yaml", tmp_path, "model.builder=nets_to_train:nameless"))
    with pytest.raises(ConfigError, match="has no parameter `recompute`"):
        run(loaded(folder / "plain.yaml", tmp_path, "strategy.recompute=true"))
