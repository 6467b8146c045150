"""Atomic saves: a failure at any change of the file system leaves nothing or a complete checkpoint."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

from jobflow.core.errors import CheckpointError
from jobflow.storage import local_drafts
from jobflow.storage.store import Files, load, save

T = TypeVar("T")
TENSORS = {"w": np.arange(6, dtype=np.float32), "n": np.array([3])}


class Faulty(Files):
    """Files that fail at change number `at`, and (when `dead`) at all later ones, as in a dead process."""

    def __init__(self, at: int, dead: bool, error: BaseException | None = None) -> None:
        self.at, self.dead, self.error, self.log = at, dead, error or OSError("no space left"), []  # type: ignore[var-annotated]

    def do(self, what: str, path: Path, change: Callable[[], T]) -> T:
        self.log.append(what)
        number = len(self.log) - 1
        if number == self.at or (self.dead and number > self.at):
            if what == "write" and number == self.at:
                path.write_bytes(b"half of it")
            raise self.error
        return change()


def changes() -> list[str]:
    """Return the changes of a save, in order."""
    files = Faulty(10**6, False)
    with tempfile.TemporaryDirectory() as root:
        save(Path(root) / "c", TENSORS, files=files)
    return files.log


CHANGES = changes()


def is_whole(path: Path) -> bool:
    """Return True if the checkpoint exists, False if nothing does; fail otherwise."""
    if not path.exists() or not any(path.iterdir()):
        return False
    loaded = load(path)
    assert {name: loaded[name].tolist() for name in loaded} == {name: array.tolist() for name, array in TENSORS.items()}
    assert (path / "snapshot_done").exists()
    return True


def test_the_order_of_changes() -> None:
    """Everything is synced before the rename; only the sync of the parent directory follows it."""
    assert CHANGES[:2] == ["mkdir", "mkdir"]
    assert CHANGES[-3:] == ["sync", "rename", "sync"]
    assert CHANGES.count("create") == CHANGES.count("sync") - 2 == 3
    assert CHANGES.count("rename") == 1


@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.parametrize("dead", [False, True])
@pytest.mark.parametrize("at", range(len(CHANGES)))
def test_a_failure_at_any_change(tmp_path: Path, at: int, dead: bool, empty: bool) -> None:
    target = tmp_path / "snapshot_1"
    if empty:
        target.mkdir()
    before = is_whole(target)
    renamed = at > CHANGES.index("rename")
    with pytest.raises(CheckpointError, match=r"is complete, but .*no space left" if renamed else r"could not be saved, .*no space left"):
        save(target, TENSORS, files=Faulty(at, dead))
    assert is_whole(target) == (renamed or before)
    left = [entry.name for entry in tmp_path.iterdir() if entry != target]
    assert all(name.startswith(".snapshot_1.saving.") for name in left)
    if not dead:
        assert left == [], "what was unfinished is removed"
    if not renamed:
        save(target, TENSORS)
        assert is_whole(target)


def test_an_interrupt_removes_the_draft_and_is_raised(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path / "c", TENSORS, files=Faulty(CHANGES.index("rename"), False, KeyboardInterrupt()))
    assert list(tmp_path.iterdir()) == []


DYING = """
import os, sys
from pathlib import Path
import numpy as np
from jobflow.storage.store import Files, save

class Dying(Files):
    def rename(self, old, new):
        os._exit(9)

save(Path(sys.argv[1]) / "c", {"w": np.arange(6)}, files=Dying())
"""


def test_the_next_save_removes_drafts_of_dead_processes(tmp_path: Path) -> None:
    assert subprocess.run([sys.executable, "-c", DYING, str(tmp_path)], check=False).returncode == 9
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".c.saving.")
    assert (left / "manifest.json").exists()
    keep = tmp_path / ".c.saving.elsewhere.1.abc"
    keep.mkdir()  # of another machine: not ours to judge
    save(tmp_path / "d", TENSORS)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [keep.name, "d"]


def test_drafts_of_running_processes_are_not_removed(tmp_path: Path) -> None:
    """A draft of a running process is removed only after the process has abandoned it."""
    writing = local_drafts.temporary_path(tmp_path / "c")
    writing.mkdir()
    with pytest.raises(CheckpointError):
        save(tmp_path / "c", TENSORS, files=Faulty(CHANGES.index("rename"), True))
    assert len(list(tmp_path.iterdir())) == 2, "what could not be removed"
    save(tmp_path / "c", TENSORS)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [writing.name, "c"]


def test_two_concurrent_saves_to_one_path(tmp_path: Path) -> None:
    """The second save finds the path occupied at the end and fails; the checkpoint of the first remains."""

    class Overtaken(Files):
        def rename(self, old: Path, new: Path) -> None:
            save(new, TENSORS)
            super().rename(old, new)

    with pytest.raises(CheckpointError, match="could not be saved, and nothing was changed"):
        save(tmp_path / "c", {"other": np.zeros(3)}, files=Overtaken())
    assert is_whole(tmp_path / "c")
    assert [entry.name for entry in tmp_path.iterdir()] == ["c"]
