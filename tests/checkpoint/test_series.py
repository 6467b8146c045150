"""A directory of steps: the newest intact checkpoint, pruning, and cleaning."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import IDS, begin, same, values

from jobflow.core.errors import ArgumentError, CheckpointError
from jobflow.engine.session import started_session
from jobflow.storage import local_drafts, owner, sessions, store
from jobflow.storage.file_system import Files
from jobflow.storage.series import Series


def add(series: Series, *steps: int, **metrics: float) -> None:
    for step in steps:
        store.save(series.path_of(step), {"w": np.full(4, step, np.float32)}, {"step": step, "metrics": metrics})


def spoil(series: Series, step: int) -> None:
    """Flip a bit of the data."""
    file = series.path_of(step) / "tensors-00001.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\x7f")


def test_steps(tmp_path: Path) -> None:
    series = Series(tmp_path / "c")
    assert series.steps() == [] and series.prune() == [] and series.newest_good().path is None
    add(series, 200, 30, 123456789)
    (tmp_path / "c" / "step-00000007").mkdir()
    (tmp_path / "c" / "other").mkdir()
    assert series.steps() == [30, 200, 123456789]
    assert series.path_of(30) == tmp_path / "c" / "step-00000030"
    assert store.load(series.path_of(200)).extra["step"] == 200


def test_the_newest_intact_checkpoint_is_selected(tmp_path: Path) -> None:
    series = Series(tmp_path)
    add(series, 1, 2, 3, 4, 5)
    assert (series.newest_good().step, series.newest_good().skipped) == (5, ())
    spoil(series, 5)
    (series.path_of(4) / "manifest.json").unlink()
    (series.path_of(3) / "tensors-00001.safetensors").unlink()
    result = series.newest_good()
    assert (result.step, result.path) == (2, series.path_of(2))
    assert [skipped.step for skipped in result.skipped] == [5, 4, 3]
    texts = [str(skipped) for skipped in result.skipped]
    assert 'tensor "w" is damaged: its content, box [0:4]' in texts[0] and "is skipped" in texts[0]
    assert "manifest.json is missing" in texts[1]
    assert "tensors-00001.safetensors is missing" in texts[2]
    for step in (1, 2):
        spoil(series, step)
    assert (series.newest_good().step, len(series.newest_good().skipped)) == (None, 5)


@settings(max_examples=40)
@given(
    st.lists(st.one_of(st.none(), st.just(float("nan")), st.integers(0, 3)), min_size=1, max_size=8),
    st.integers(0, 3),
    st.integers(0, 3),
    st.sampled_from(["min", "max"]),
    st.sets(st.integers(0, 7)),
)
def test_pruning_keeps_the_last_the_best_and_the_newest_intact(
    tmp_path_factory: pytest.TempPathFactory, scores: list[Any], keep_last: int, keep_best: int, mode: Any, damaged: set[int]
) -> None:
    """The last, the best (ties: the earliest) and the newest intact checkpoint are kept; all if keep_last is 0."""
    series = Series(tmp_path_factory.mktemp("kept"), keep_last, keep_best, "loss", mode)
    for step, score in enumerate(scores):
        add(series, step, **({} if score is None else {"loss": float(score)}))
        if step in damaged:
            spoil(series, step)
    steps = list(range(len(scores)))
    ranked = sorted(
        (step for step in steps if scores[step] is not None and scores[step] == scores[step]),
        key=lambda step: (scores[step] if mode == "min" else -scores[step], step),
    )
    good = [step for step in steps if step not in damaged][-1:]
    expected = set(steps if not keep_last else [*steps[-keep_last:], *ranked[:keep_best], *good])
    removed = series.prune()
    assert set(series.steps()) == expected
    assert set(removed) == set(steps) - expected
    assert {entry.name for entry in series.directory.iterdir()} == {series.path_of(step).name for step in expected}
    assert series.newest_good().step == (good[0] if good else None)


def test_checkpoints_that_cannot_be_read_are_not_pruned_or_replaced(tmp_path: Path) -> None:
    series = Series(tmp_path, keep_last=1)
    add(series, 1, 2, 3, 4)
    manifest = series.path_of(2) / "manifest.json"
    newer = manifest.read_text().replace('"version": 2', '"version": 3')
    manifest.write_text(newer)
    (series.path_of(3) / "tensors-00001.safetensors").unlink()
    assert series.prune() == [1] and series.steps() == [2, 3, 4]
    with pytest.raises(CheckpointError, match=r"step-00000002 is not replaced, because this process cannot read it: .*version 3"):
        store.save(series.path_of(2), {"w": np.zeros(1)}, replace=True)
    assert manifest.read_text() == newer


def test_invalid_settings_raise(tmp_path: Path) -> None:
    for wrong, text in (
        ({"keep_last": -1}, "at least 0"),
        ({"keep_best": 1}, "without best_metric"),
        ({"best_mode": "least"}, "best_mode"),
    ):
        with pytest.raises(ArgumentError, match=text):
            Series(tmp_path, **wrong)  # type: ignore[arg-type]


def test_sessions_save_into_series(tmp_path: Path) -> None:
    job = begin(2)
    session = started_session()
    series = Series(tmp_path / "c", keep_last=2, keep_best=1, best_metric="validation/loss")
    for step, loss in enumerate([3.0, 1.0, 2.0, 4.0, 5.0]):
        job(IDS)
        saving = series.save(session, step, {"metrics": {"validation/loss": loss}}, asynchronous=step % 2 == 0)
    saving.wait()
    assert series.steps() == [1, 3, 4]
    first = values(session)
    job(IDS)
    series.save(session, 4)  # in its place
    second = values(session)
    assert second["table"].tobytes() != first["table"].tobytes()
    newest = sessions.on_first(session, series.newest_good)
    sessions.load(session, series.path_of(1))
    assert session.runs == {"train_job": 2}
    assert newest.path is not None
    extra = sessions.load(session, newest.path)
    assert (newest.step, extra["step"], extra["runs"]) == (4, 4, {"train_job": 6})
    same(values(session), second)
    assert {entry.name for entry in series.directory.iterdir()} == {series.path_of(step).name for step in (1, 3, 4)}


def test_a_program_may_resume_from_an_earlier_step(tmp_path: Path) -> None:
    """A new checkpoint is kept although there are later steps, and it replaces the rest of a damaged one."""
    begin(1)
    session = started_session()
    series = Series(tmp_path, keep_last=2)
    add(series, 3, 6, 7)
    (series.path_of(3) / "manifest.json").unlink()
    series.save(session, 3)
    assert series.steps() == [3, 6, 7]
    series.save(session, 4)
    assert series.steps() == [4, 6, 7]


# ---- leftovers -----------------------------------------------------------------------------------------------------------------------


def left_over(parent: Path, what: str = "saving", host: str | None = None, pid: int | None = None, start: str = "1") -> Path:
    """Create a directory as left by a process with several ranks."""
    path = parent / f".step-00000002.{what}.{host or owner.machine()}.{pid or os.getpid()}-{start}.abc"
    path.mkdir()
    for name in ("tensors-00000-00001.safetensors", "tensors-00001-00001.safetensors", "part-00001.json", "failed-00002.new"):
        (path / name).write_text("x")
    return path


def test_drafts_of_dead_processes_are_removed(tmp_path: Path) -> None:
    """Drafts are removed even if another process has the process id now."""
    series = Series(tmp_path)
    add(series, 1)
    left_over(tmp_path)
    left_over(tmp_path, pid=2**22 + 5)
    alive = local_drafts.temporary_path(series.path_of(3))
    alive.mkdir()
    elsewhere = left_over(tmp_path, host="elsewhere")
    series.clean()
    assert {entry.name for entry in tmp_path.iterdir()} == {"step-00000001", alive.name, elsewhere.name}
    for path in (*elsewhere.iterdir(), elsewhere):
        os.utime(path, (time.time() - local_drafts.STALE - 5,) * 2)
    series.clean()
    assert {entry.name for entry in tmp_path.iterdir()} == {"step-00000001", alive.name}


@pytest.mark.parametrize("renames", [0, 1, 2])
def test_a_file_system_without_exchange_replaces_in_two_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames: int) -> None:
    """Two renames replace a checkpoint; a process that dies between them loses neither the old nor the new one."""
    monkeypatch.setattr("jobflow.storage.file_system._exchanged", lambda a, b: False)
    series = Series(tmp_path)
    add(series, 1, 2)

    class Dying(Files):
        left = renames

        def do(self, what: str, path: Path, change: Any) -> Any:
            if self.left == 0 and what in ("rename", "unlink", "rmdir"):
                raise SystemExit
            self.left -= what == "rename"
            return change()

    new = {"w": np.zeros(4, np.float32)}
    with pytest.raises(SystemExit):
        store.save(series.path_of(2), new, replace=True, files=Dying())
    monkeypatch.setattr("jobflow.storage.owner._status", lambda pid: ["S", "another process"])
    series.clean()
    result = store.load(series.path_of(2))["w"].tolist()
    assert result == ([2] * 4 if renames < 2 else [0] * 4)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["step-00000001", "step-00000002"]
    store.save(series.path_of(2), {"w": np.ones(4, np.float32)}, replace=True)
    same(dict(store.load(series.path_of(2))), {"w": np.ones(4, np.float32)})
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["step-00000001", "step-00000002"]


@pytest.mark.parametrize(
    ("what", "number", "text"),
    [
        ("rename", 0, "nothing was changed"),
        ("rename", 1, "nothing was changed"),
        ("rmdir", 0, "is complete, but the replaced checkpoint could not be"),
    ],
)
def test_a_failing_exchange_by_three_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, number: int, text: str) -> None:
    monkeypatch.setattr("jobflow.storage.file_system._exchanged", lambda a, b: False)
    series = Series(tmp_path)
    add(series, 2)

    class Failing(Files):
        observed = 0

        def do(self, kind: str, path: Path, change: Any) -> Any:
            self.observed += kind == what
            if kind == what and self.observed == number + 1:
                raise OSError(5, "Input/output error", str(path))
            return change()

    new = {"w": np.zeros(4, np.float32)}
    with pytest.raises(CheckpointError, match=text):
        store.save(series.path_of(2), new, replace=True, files=Failing())
    assert store.load(series.path_of(2))["w"].tolist() == ([2] * 4 if what == "rename" else [0] * 4)
    store.save(series.path_of(2), new, replace=True)
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-00000002"]


def test_files_that_cannot_be_removed_are_reported_and_do_not_stop_a_save(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    left = left_over(tmp_path)

    class Stuck(Files):
        def do(self, kind: str, path: Path, change: Any) -> Any:
            if left in (path, path.parent):
                raise PermissionError(13, "Permission denied", str(path))
            return change()

    store.save(tmp_path / "c", {"w": np.zeros(4)}, files=Stuck())
    assert list(store.problems(tmp_path / "c")) == []
    assert f"{left} is a leftover of a dead process and cannot be removed: [Errno 13]" in capsys.readouterr().err
    store.save(tmp_path / "d", {"w": np.zeros(4)})
    assert not left.exists()


@pytest.mark.parametrize("content", [None, "\n"])
def test_a_machine_without_a_machine_id_is_named_by_its_boot(content: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "machine-id").write_text(content)
    monkeypatch.setattr(owner, "MACHINE_ID", tmp_path / "machine-id")
    monkeypatch.setattr(owner, "INITIAL_SPACE", os.readlink("/proc/self/ns/pid"))
    names = set()
    for boot in ("a", "b"):
        monkeypatch.setattr(owner, "node_name", lambda boot=boot: boot)
        names.add(owner.machine.__wrapped__())
    assert len(names) == 2
