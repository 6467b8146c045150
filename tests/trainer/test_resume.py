"""Resuming: from any step, on any number of ranks, with equal results; and the errors when it is impossible."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import fsspec
import pytest
from short_runs import Recorder, check_same, loaded, run, write_config

from jobflow.core.errors import CheckpointError, ConfigError
from jobflow.runtime.world.node_map import NodeMap
from jobflow.storage import sessions
from jobflow.storage.owner import Owner
from jobflow.storage.remote import RemotePath
from jobflow.trainer.config import load
from jobflow.trainer.evaluate import evaluate
from jobflow.trainer.resume import Progress, check_alike, check_configurations, differences
from jobflow.trainer.training_run import Outcome

STEPS = 9


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome, Recorder]:
    """Run all steps and save after each; return its configuration."""
    folder = tmp_path_factory.mktemp("whole")
    file = write_config(folder)
    outcome, recorder = run(loaded(file, folder / "out"))
    assert (outcome.step, outcome.stopped, outcome.exit_code) == (STEPS, "end", 0)
    return folder, outcome, recorder


@pytest.mark.parametrize("step", range(1, STEPS))
def test_a_run_resumes_from_any_step_with_equal_results(step: int, whole: tuple[Path, Outcome, Recorder], tmp_path: Path) -> None:
    folder, outcome, recorder = whole
    name = f"step-{step:08d}"
    shutil.copytree(folder / "out" / "checkpoints" / name, tmp_path / "checkpoints" / name)
    how = random.Random(step).choice(
        (("devices=1",), ("devices=2",), ("devices=3",), ("devices=2", "zero=3"), ("devices=2", "view=mirrored"), ("devices=2", "tensor=2"))
    )
    again, rest = run(loaded(folder / "run.yaml", tmp_path, *(f"strategy.{setting}" for setting in how)))
    assert rest.info is not None and rest.info.first_step == step
    assert rest.info.resumed_from == tmp_path / "checkpoints" / name
    assert sorted(rest.steps) == list(range(step + 1, STEPS + 1))
    check_same(rest, recorder, list(rest.steps))
    assert again.metrics == pytest.approx(outcome.metrics, rel=1e-6)


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_checkpoint_that_is_removed_during_reading_is_replaced_by_the_newest(
    how: str, whole: tuple[Path, Outcome, Recorder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another training saves to the directory of --resume and removes old checkpoints."""
    folder, _, recorder = whole
    theirs = tmp_path / "theirs"
    for step in (3, 6):
        shutil.copytree(folder / "out" / "checkpoints" / f"step-{step:08d}", theirs / f"step-{step:08d}")
    load = sessions.load

    def late(session: Any, path: Path, **rest: Any) -> Any:
        newest = theirs / "step-00000006"
        if newest.exists() and not (tmp_path / "gone").exists():
            newest.rename(tmp_path / "gone")
            if how == "replaced":
                shutil.copytree(theirs / "step-00000003", newest)
        return load(session, path, **rest)

    monkeypatch.setattr(sessions, "load", late)
    _, rest = run(loaded(folder / "run.yaml", tmp_path / "out", "checkpoint.resume=" + str(theirs)))
    assert rest.info is not None and (rest.info.first_step, rest.info.resumed_from) == (
        3,
        theirs / ("step-00000003" if how == "removed" else "step-00000006"),
    )
    check_same(rest, recorder, list(rest.steps))
    assert "step-00000006" in capsys.readouterr().err


def test_each_epoch_has_all_samples_in_another_order(whole: tuple[Path, Outcome, Recorder]) -> None:
    _, _, recorder = whole
    epochs = [[number for step in steps for number in recorder.sample_numbers[step]] for steps in (range(1, 5), range(5, 9))]
    assert [len(recorder.sample_numbers[step]) for step in range(1, 5)] == [8, 8, 8, 2]
    assert all(sorted(epoch) == list(range(26)) for epoch in epochs) and epochs[0] != epochs[1]
    assert [recorder.steps[step].epoch for step in (1, 4, 5, 9)] == [0, 0, 1, 2]


def test_a_finished_run_does_not_run_again(whole: tuple[Path, Outcome, Recorder]) -> None:
    folder, outcome, _ = whole
    again, recorder = run(loaded(folder / "run.yaml", folder / "out"))
    assert not recorder.steps and not recorder.saves and not recorder.events, "nothing that a run has left is touched"
    assert (again.step, again.stopped, again.metrics, again.saved) == (STEPS, "end", outcome.metrics, outcome.saved)


def test_a_damaged_checkpoint_is_skipped_and_set_aside(
    whole: tuple[Path, Outcome, Recorder], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, _, recorder = whole
    for step in (6, 7):
        name = f"step-{step:08d}"
        shutil.copytree(folder / "out" / "checkpoints" / name, tmp_path / "checkpoints" / name)
    broken = next((tmp_path / "checkpoints" / "step-00000007").glob("*.safetensors"))
    broken.write_bytes(broken.read_bytes()[:-3] + b"abc")
    _, rest = run(loaded(folder / "run.yaml", tmp_path))
    assert rest.info is not None and rest.info.first_step == 6
    check_same(rest, recorder, [7, 8, 9])
    notices = capfd.readouterr().err
    assert "step-00000007 is skipped" in notices and broken.name in notices
    assert "training resumes from step 6; checkpoints of later steps are now in" in notices
    assert [path.name for path in (tmp_path / "checkpoints-1").iterdir()] == ["step-00000007"]


def test_a_named_checkpoint_must_not_be_damaged(whole: tuple[Path, Outcome, Recorder], tmp_path: Path) -> None:
    folder, _, recorder = whole
    file = folder / "run.yaml"
    with pytest.raises(CheckpointError, match="there is no such directory"):
        run(loaded(file, tmp_path), resume=str(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=r"the directory has no complete checkpoint; pass a checkpoint, auto or never$"):
        run(loaded(file, tmp_path), resume=str(tmp_path / "empty"))
    with pytest.raises(CheckpointError, match=r"it is the output of a training: pass --output .*out --resume auto, or --resume .*out/checkpoints$"):
        run(loaded(file, tmp_path), resume=str(folder / "out"))
    with pytest.raises(CheckpointError, match='there is no such directory; did you mean "never"'):
        run(loaded(file, tmp_path), resume="nevr")
    _, rest = run(loaded(file, tmp_path), resume=str(folder / "out" / "checkpoints" / "step-00000005"))
    check_same(rest, recorder, [6, 7, 8, 9])
    copy = tmp_path / "copy"
    shutil.copytree(folder / "out" / "checkpoints" / "step-00000005", copy)
    broken = next(copy.glob("*.safetensors"))
    broken.write_bytes(broken.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=broken.name):
        run(loaded(file, tmp_path), resume=str(copy))


def test_never_sets_the_checkpoints_aside(whole: tuple[Path, Outcome, Recorder], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder, _, recorder = whole
    shutil.copytree(folder / "out" / "checkpoints", tmp_path / "checkpoints")
    _, rest = run(loaded(folder / "run.yaml", tmp_path, "training.steps=2", "optimizer.schedule.steps=9"), resume="never")
    check_same(rest, recorder, [1, 2])
    assert len(list((tmp_path / "checkpoints-1").iterdir())) == STEPS and len(list((tmp_path / "checkpoints").iterdir())) == 2
    assert "checkpoints of an earlier run are now in" in capfd.readouterr().err


def of_a_newer_format(checkpoint: Path) -> None:
    manifest = checkpoint / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"version": 2', '"version": 99'))


def without_a_file(checkpoint: Path) -> None:
    next(checkpoint.glob("*.safetensors")).unlink()


def misnamed(checkpoint: Path) -> None:
    checkpoint.rename(checkpoint.with_name("best"))


def dangling(checkpoint: Path) -> None:
    shutil.rmtree(checkpoint)
    checkpoint.symlink_to("elsewhere")


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (of_a_newer_format, "step-00000003: .*of version 99; this release reads"),
        (without_a_file, r"step-00000003: .*safetensors is missing"),
        (lambda checkpoint: (checkpoint / "manifest.json").unlink(), r"step-00000003: .*manifest\.json is missing"),
        (misnamed, "best: its name is not step-NUMBER"),
        (dangling, r"step-00000003: .*manifest\.json is missing"),
    ],
    ids=["newer format", "missing file", "no manifest", "misnamed", "dangling link"],
)
def test_a_run_whose_checkpoints_cannot_be_read_does_not_start_anew(
    spoil: Callable[[Path], None], reason: str, whole: tuple[Path, Outcome, Recorder], tmp_path: Path
) -> None:
    """The error lists each checkpoint; only `--resume never` renames them."""
    folder, _, _ = whole
    name = "step-00000003"
    shutil.copytree(folder / "out" / "checkpoints" / name, tmp_path / "checkpoints" / name)
    spoil(tmp_path / "checkpoints" / name)
    before = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    config = loaded(folder / "run.yaml", tmp_path, "checkpoint.keep_last=1")
    with pytest.raises(CheckpointError, match=rf"(?s)none of the checkpoints in .* can be read:.*{reason}.*--resume never"):
        run(config)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == before
    run(loaded(folder / "run.yaml", tmp_path, "training.steps=1", "optimizer.schedule.steps=9"), resume="never")
    assert sorted(path.name for path in (tmp_path / "checkpoints-1").iterdir()) == before


def test_a_header_over_the_limit_is_not_a_missing_checkpoint(
    whole: tuple[Path, Outcome, Recorder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _, _ = whole
    shutil.copytree(folder / "out" / "checkpoints" / "step-00000003", tmp_path / "checkpoints" / "step-00000003")
    monkeypatch.setenv("JOBFLOW_MAX_HEADER", "100")
    with pytest.raises(CheckpointError, match=r"(?s)step-00000003: .*JOBFLOW_MAX_HEADER.*--resume never"):
        run(loaded(folder / "run.yaml", tmp_path))


def test_resuming_with_another_model_data_seed_or_batch_raises(whole: tuple[Path, Outcome, Recorder]) -> None:
    folder, _, _ = whole
    settings = ("seed=6", "data.batch_size=13", "model.layers.1.dropout.rate=0.5", "data.train.path=" + str(folder / "validation.npz"))
    with pytest.raises(ConfigError) as caught:
        run(loaded(folder / "run.yaml", folder / "out", *settings))
    text = str(caught.value)
    for line in ("seed: it was 5, it is 6", "data.batch_size: it was 8, it is 13", "model.layers", "0.25", "0.5", "train.npz", "validation.npz"):
        assert line in text
    assert "--resume never" in text
    changed = ("optimizer.lr=0.01", "training.steps=10", "evaluation.every_epochs=2", "strategy.accumulation=2", "data.evaluation_batch_size=5")
    outcome, recorder = run(loaded(folder / "run.yaml", folder / "out", *changed))
    assert outcome.step == 10 and list(recorder.steps) == [10]


def test_differences_are_named_by_their_keys() -> None:
    before, now = {"a": {"b": 1, "c": [1, 2]}, "d": None}, {"a": {"b": 2, "c": [1, 2]}, "d": None, "e": True}
    assert differences("m", before, now, {}) == ["m.a.b: it was 1, it is 2", "m.e: it was null, it is true"]
    assert differences("m", before, before, {}) == []


def test_checkpoints_of_other_runs_raise_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"was not saved by the trainer.*position"):
        Progress.of({"step": 3}, tmp_path)


class Others:
    """A world in which rank 1 has another configuration."""

    multi = True
    map = NodeMap.of_one(2)

    def __init__(self, **other: str) -> None:
        self.other = other

    def start(self) -> Others:
        return self

    def call(self, command: Any) -> list[Any]:
        return [command.item, {**command.item, **self.other} if self.other else command.item]


def test_ranks_must_read_equal_configurations() -> None:
    same: Any = Others()
    check_alike(same, {"configuration": "a", "data.train": "b"})
    for name in ("configuration", "data.train"):
        others: Any = Others(**{name: "z"})
        with pytest.raises(ConfigError, match=f"{re.escape(name)} differs between ranks: rank 0 has ., rank 1 has z"):
            check_alike(others, {"configuration": "a", "data.train": "b"})


def test_different_configurations_of_ranks_are_listed_with_keys_values_and_sources(tmp_path: Path) -> None:
    file = write_config(tmp_path)
    mine, other = (load(file, [f"optimizer.lr={rate}", f"output={tmp_path}"]) for rate in (0.1, 0.2))
    world: Any = Others()
    check_configurations(world, mine)
    world.call = lambda command: [command.item, (other.plain, {key: str(source) for key, source in other.origins.items()})]
    expected = r"optimizer\.lr: rank 0 has 0\.1 \(--set optimizer\.lr=0\.1.*\), rank 1 has 0\.2 \(--set optimizer\.lr=0\.2"
    with pytest.raises(ConfigError, match=expected):
        check_configurations(world, mine)


def test_a_run_with_checkpoints_in_an_object_store(
    whole: tuple[Path, Outcome, Recorder], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Save, resume, evaluate and list, and set aside checkpoints of another run."""
    folder, _, recorder = whole
    memory = fsspec.filesystem("memory")
    settings = ("checkpoint.directory=memory://run/checkpoints", "checkpoint.asynchronous=true", "strategy.devices=2")
    file = folder / "run.yaml"
    first, _ = run(loaded(file, tmp_path, *settings, "checkpoint.keep_last=4"))
    assert first.saved == RemotePath("memory://run/checkpoints/step-00000009")
    assert {name.split("/")[3] for name in memory.store} == {f"step-{step:08d}" for step in (6, 7, 8, 9)}
    _, rest = run(loaded(file, tmp_path, *settings), resume="memory://run/checkpoints/step-00000006")
    check_same(rest, recorder, [7, 8, 9])
    assert "checkpoints of later steps are now in memory://run/checkpoints-1" in capsys.readouterr().err
    assert {name.split("/")[3] for name in memory.store if "checkpoints-1/" in name} == {f"step-{step:08d}" for step in (7, 8, 9)}
    assert evaluate(loaded(file, tmp_path, *settings), place="validation").step == STEPS
    run(loaded(file, tmp_path, *settings, "training.steps=1"), resume="never")
    assert "the checkpoints of an earlier run are now in memory://run/checkpoints-2" in capsys.readouterr().err
    check_locks(memory, lambda: run(loaded(file, tmp_path, *settings)), capsys)
    monkeypatch.setattr(type(memory), "pipe_file", lambda *_, **__: (_ for _ in ()).throw(PermissionError("read only")))
    with pytest.raises(ConfigError, match=r"checkpoint\.directory: memory://run/checkpoints is not writable: .*refuses access \(read only\)"):
        run(loaded(file, tmp_path, *settings))
    with pytest.raises(ConfigError, match=r"output: memory://run is remote; pass a local directory"):
        run(load(file, ["output=memory://run"]))
    memory.store.clear()


def check_locks(memory: Any, train: Callable[[], Any], capsys: pytest.CaptureFixture[str]) -> None:
    """A second training raises while the first one runs.

    The process shows that on this machine, the time of its lock on others; no lock is left behind.
    """
    path = "/run/checkpoints/train.lock.a"
    here = {**asdict(Owner.here()), "since": "noon", "token": "a"}
    for owner, named in (
        (here, f"process {here['pid']} on "),
        ({**here, "host": "elsewhere", "pid": 7}, "process 7 on elsewhere"),
        ("?", "an unknown process"),
    ):
        memory.pipe_file(path, json.dumps(owner).encode())
        with pytest.raises(ConfigError, match=rf"memory://run/checkpoints is in use: .*{named}.*set another checkpoint.directory"):
            train()
        assert [name for name in memory.store if "lock" in name] == [path]
    memory.store[path].modified = memory.store[path].created = memory.store[path].created - timedelta(seconds=1000)
    train()
    assert "is an abandoned lock of an unknown process" in capsys.readouterr().err and not [name for name in memory.store if "lock" in name]
