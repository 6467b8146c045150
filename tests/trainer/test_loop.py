"""Training: the same numbers however it runs, what is due when, early stopping, and steps that are not finite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from short_runs import CONFIG, SAMPLES, WIDTH, Seen, check_same, loaded, run, samples, write_config

from jobflow.core.errors import CheckpointError, ConfigError
from jobflow.storage import sessions, store
from jobflow.trainer import train
from jobflow.trainer.watching import NOT_FINITE, RunInfo, StepReport, Watcher

PLAIN = CONFIG.replace(CONFIG[CONFIG.index("model:") : CONFIG.index("data:")], "model: {builder: 'nets_to_train:plain'}\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("runs")
    write_config(found)
    (found / "plain.yaml").write_text((write_config(found / "plain", PLAIN)).read_text())
    return found


@pytest.fixture(scope="module")
def alone(folder: Path) -> Seen:
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
def test_losses_do_not_depend_on_how_it_runs(settings: tuple[str, ...], folder: Path, alone: Seen, tmp_path: Path) -> None:
    _, seen = run(loaded(folder / "run.yaml", tmp_path, *(f"strategy.{setting}" for setting in settings), "training.steps=5"))
    # the schedule falls to another end, which the first steps of the warm-up do not see
    check_same(seen, run(loaded(folder / "run.yaml", tmp_path / "one", "training.steps=5"))[1], range(1, 6), close=3e-6)
    assert seen.numbers[1] == alone.numbers[1]


def test_halves_are_near(folder: Path, alone: Seen, tmp_path: Path) -> None:
    for precision in ("bfloat16", "float16"):
        _, seen = run(loaded(folder / "run.yaml", tmp_path / precision, f"strategy.precision={precision}"))
        np.testing.assert_allclose([*seen.losses.values()], [*alone.losses.values()], rtol=0.05)


def test_recomputing_changes_nothing(folder: Path, alone: Seen, tmp_path: Path) -> None:
    _, seen = run(loaded(folder / "run.yaml", tmp_path, "strategy.recompute=true"))
    check_same(seen, alone, range(1, 10))


def test_python_takes_a_file_or_a_configuration(folder: Path, tmp_path: Path) -> None:
    file = write_config(tmp_path / "by path", CONFIG.replace("steps: 9", "steps: 2") + f"output: {tmp_path / 'out'}\n")
    seen = Seen()
    assert train(file, callbacks=[seen]).step == 2 == len(seen.steps)
    assert train(str(file)).metrics.keys() >= {"train/loss", "train/accuracy", "validation/loss", "validation/accuracy"}


def test_what_is_told(folder: Path, alone: Seen, tmp_path: Path) -> None:
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
    assert alone.events == ["started", "finished", "closed"]
    assert list(alone.evaluations) == [4, 8, 9], "after each epoch, and at the end"
    assert alone.evaluations[4].samples == SAMPLES and alone.evaluations[4].epoch == 1
    assert [report.samples for report in alone.steps.values()] == [8, 8, 8, 2, 8, 8, 8, 2, 8]
    assert alone.steps[1].rate == pytest.approx(0.025) and alone.steps[2].rate == pytest.approx(0.0375)


def test_what_is_due(folder: Path, tmp_path: Path) -> None:
    settings = ("evaluation.every_epochs=null", "evaluation.every_steps=3", "checkpoint.every_steps=null", "checkpoint.every_epochs=2")
    outcome, seen = run(loaded(folder / "run.yaml", tmp_path, *settings, "checkpoint.asynchronous=true", "training.steps=10"))
    assert list(seen.evaluations) == [3, 6, 9, 10] and seen.saves == ["step-00000008", "step-00000010"]
    assert outcome.saved == tmp_path / "checkpoints" / "step-00000010"
    _, seen = run(loaded(folder / "run.yaml", tmp_path / "epochs", "training.steps=null", "training.epochs=2", "data.drop_last=true"))
    assert len(seen.steps) == 6 and all(len(numbers) == 8 for numbers in seen.numbers.values())


def test_old_checkpoints_go_and_the_best_stays(folder: Path, tmp_path: Path) -> None:
    best = ("checkpoint.keep_best=1", "checkpoint.best_metric=validation/loss", "evaluation.every_epochs=null", "evaluation.every_steps=1")
    _, seen = run(loaded(folder / "run.yaml", tmp_path, "checkpoint.keep_last=2", *best, "optimizer.lr=0.5"))
    losses = {step: report.metrics["validation/loss"] for step, report in seen.evaluations.items()}
    kept = {int(path.name[5:]) for path in (tmp_path / "checkpoints").glob("step-*")}
    assert kept == {8, 9, min(losses, key=losses.__getitem__)}


def test_early_stopping_stops_and_stays_stopped(folder: Path, tmp_path: Path) -> None:
    early = (
        "evaluation.early_stopping.patience=2",
        "evaluation.early_stopping.min_delta=0.5",
        "evaluation.every_epochs=null",
        "evaluation.every_steps=1",
    )
    outcome, seen = run(loaded(folder / "run.yaml", tmp_path, *early))
    assert (outcome.step, outcome.stopped, outcome.exit_code) == (3, "early", 0) and list(seen.evaluations) == [1, 2, 3]
    assert "validation/loss was not better than" in outcome.message
    again, rest = run(loaded(folder / "run.yaml", tmp_path, *early))
    assert (again.step, again.stopped) == (3, "early") and not rest.steps
    longer, rest = run(loaded(folder / "run.yaml", tmp_path, *early, "evaluation.early_stopping.patience=4"))
    assert (longer.step, longer.stopped) == (5, "early") and list(rest.steps) == [4, 5]


def test_a_metric_that_the_model_does_not_give_is_refused_before_the_first_step(folder: Path, tmp_path: Path) -> None:
    early = ("evaluation.early_stopping.patience=2", "evaluation.early_stopping.metric=validation/acuracy")
    with pytest.raises(ConfigError, match=r"does not give .validation/acuracy.; did you mean .validation/accuracy."):
        run(loaded(folder / "run.yaml", tmp_path, *early))


# -------------------------------------------------------------------- not finite


def state(path: Path) -> dict[str, Any]:
    found = store.load(path)
    return {name: found[name] for name in found}


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
    expected, found = state(before.saved), state(outcome.saved)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, err_msg=name)
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
    assert outcome.stopped == "nan" and f'the argument "x" is not finite (1 of {8 * WIDTH} numbers)' in outcome.message


# -------------------------------------------------------------------- trouble


@pytest.mark.parametrize("key", ["output", "checkpoint.directory"])
def test_a_directory_that_cannot_be_written_to_is_told_before_the_first_step(key: str, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    given = loaded(folder / "plain.yaml", tmp_path / "runs", f"{key}={tmp_path / 'file' / 'below'}")
    with pytest.raises(ConfigError, match=rf"^--set {key}=.*: {key}: nothing can be written to .*below: Not a directory"):
        run(given)
    assert not list(tmp_path.rglob("step-*"))


def test_a_checkpoint_that_fails_does_not_end_the_run_but_the_last_does(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    real = sessions.save

    def failing(session: Any, path: Path, *rest: Any, **named: Any) -> Any:
        if path.name in broken:
            raise CheckpointError(f"checkpoint {path} could not be saved: no space left")
        return real(session, path, *rest, **named)

    monkeypatch.setattr(sessions, "save", failing)
    broken = {"step-00000001", "step-00000002"}
    outcome, seen = run(loaded(folder / "run.yaml", tmp_path, "training.steps=3"))
    assert outcome.stopped == "end" and seen.saves == ["step-00000003"]
    assert "training goes on without a checkpoint of step 2: checkpoint" in capfd.readouterr().err
    broken = {"step-00000004"}
    closed = Seen()
    with pytest.raises(CheckpointError, match="no space left"):
        run(loaded(folder / "run.yaml", tmp_path, "training.steps=4"), closed)
    assert closed.events == ["started", "closed"]


class Late:
    """A checkpoint that is written behind training's back, and of which `wait` has this to say."""

    done = True

    def __init__(self, path: Path, error: Exception | None) -> None:
        self.path, self.error = path, error

    def wait(self) -> None:
        if self.error is not None:
            raise self.error


def test_what_becomes_of_a_checkpoint_behind_trainings_back(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    real = sessions.save
    late = {"step-00000003": CheckpointError("full"), "step-00000002": sessions.AfterSavingError("2 is complete, but the old one is left")}

    def save(session: Any, path: Path, *rest: Any, **named: Any) -> Any:
        return Late(path, late[path.name]) if path.name in late else real(session, path, *rest, **named)

    monkeypatch.setattr(sessions, "save", save)
    # that of step 3 has failed when the last one, of step 4, is to be written
    outcome, seen = run(loaded(folder / "run.yaml", tmp_path, "training.steps=4", "checkpoint.asynchronous=true"))
    assert outcome.stopped == "end" and outcome.saved == tmp_path / "checkpoints" / "step-00000004"
    assert seen.saves == ["step-00000001", "step-00000002", "step-00000004"]
    said = capfd.readouterr().err
    assert "2 is complete, but the old one is left" in said and "training goes on without a checkpoint of step 3: full" in said


def test_watchers_are_closed_after_errors(folder: Path, tmp_path: Path) -> None:
    class Failing(Watcher):
        def step(self, run: RunInfo, report: StepReport) -> None:
            raise OSError("the disk is gone")

    seen = Seen()
    with pytest.raises(OSError, match="the disk is gone"):
        run(loaded(folder / "run.yaml", tmp_path), seen, Failing())
    assert seen.events == ["started", "closed"]


def test_models_that_give_no_loss_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nets_to_train:nameless at nets_to_train.py:\d+ returned a tensor.* a builder returns a dict of tensors"):
        run(loaded(folder / "plain.yaml", tmp_path, "model.builder=nets_to_train:nameless"))
    with pytest.raises(ConfigError, match="has no parameter `recompute`"):
        run(loaded(folder / "plain.yaml", tmp_path, "strategy.recompute=true"))
