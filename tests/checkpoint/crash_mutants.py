"""Deliberately wrong implementations of a save, each of which a sweep must detect.

Prints a JSON object: name of the defect -> the first verdict against it.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import crashing
import resuming
from crashing import Case
from faults import DEATHS, FAILURES

from jobflow.storage import safetensors
from jobflow.storage.file_system import Files
from jobflow.storage.local_drafts import Folder
from jobflow.storage.rank_commands import Task, Write
from jobflow.trainer.resume import Progress


def _no_sync(self: Files, path: Path, parts: Any) -> int:
    with self.do("create", path, lambda: open(path, "xb", buffering=0)) as file:
        views = [memoryview(part).cast("B") for part in parts]
        return sum(self.do("write", path, lambda left=left: file.write(left)) for left in views)  # type: ignore[misc]


def _short_writes_are_whole(self: Files, path: Path, parts: Any) -> int:
    total = 0
    with self.do("create", path, lambda: open(path, "xb", buffering=0)) as file:
        for part in parts:
            left = memoryview(part).cast("B")
            self.do("write", path, lambda left=left: file.write(left))  # type: ignore[misc]
            total += left.nbytes
        self.do("sync", path, lambda: os.fsync(file.fileno()))
    return total


def _in_place(self: Folder, text: str, files: Files) -> None:
    """Replace the old files one after another."""
    files.make_directory(self.target)
    for entry in sorted(self.folder.iterdir()):
        files.rename(entry, self.target / entry.name)
    (self.target / "manifest.json").unlink(missing_ok=True)
    files.write(self.target / "manifest.json", [text.encode()])


def _remove_first(self: Folder, text: str, files: Files) -> None:
    """Remove the old checkpoint before the new one is renamed."""
    files.write(self.folder / "manifest.json", [text.encode()])
    if self.older:
        files.remove(self.target)
    files.rename(self.folder, self.target)


def _not_copied(self: Write, rank: Any, order: Any) -> None:
    """Write the variables without a copy, after a delay."""
    uncopied = mock.patch("jobflow.storage.rank_commands._array", lambda state, name, copied: safetensors.storable(name, state.array(name)))
    with uncopied, mock.patch.object(Task, "start", _later):
        _write(self, rank, order)


def _later(self: Task, name: str) -> None:
    self.thread = threading.Timer(0.1, self.run)
    self.thread.start()


def _swallowed(self: Files, path: Path, parts: Any) -> int:
    try:
        return _write_file(self, path, parts)
    except OSError:
        return path.stat().st_size if path.exists() else 0


_write, _write_file = Write.__call__, Files.write

#: name -> (what is replaced by what, ways of saving, faults)
MUTANTS: dict[str, tuple[str, Any, dict[str, Any], tuple[str, ...]]] = {
    "not synced": ("jobflow.storage.file_system.Files.write", _no_sync, {}, DEATHS),
    "short writes are whole": ("jobflow.storage.file_system.Files.write", _short_writes_are_whole, {}, FAILURES),
    "errors are swallowed": ("jobflow.storage.file_system.Files.write", _swallowed, {}, FAILURES),
    "written in place": ("jobflow.storage.local_drafts.Folder.publish", _in_place, {"replace": True}, DEATHS),
    "the old one goes first": ("jobflow.storage.local_drafts.Folder.publish", _remove_first, {"replace": True}, DEATHS),
    "nothing is cleaned": ("jobflow.storage.local_drafts.clean", lambda parent, files=None: None, {}, DEATHS),
    "not copied": ("jobflow.storage.rank_commands.Write.__call__", _not_copied, {"asynchronous": True}, DEATHS),
}


def _samples_again(extra: Mapping[str, Any], path: Path) -> Progress:
    result = _progress(extra, path)
    result.sample = 0
    return result


_progress = Progress.of
#: the same for runs that are gone on with
FORGETFUL: dict[str, tuple[str, Any]] = {
    "samples again": ("jobflow.trainer.resume.Progress.of", _samples_again),
    "random numbers again": ("jobflow.storage.sessions._runs", lambda extra, here: {}),
}


@contextmanager
def quiet() -> Iterator[None]:
    """Hide the messages of children about expected errors."""
    remaining, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(remaining, 2)


def first(folder: Path, way: dict[str, Any], hows: tuple[str, ...]) -> str:
    """Return the first verdict against the defect, among cases in random order; "" without one."""
    case = Case(ranks=2, **way)
    work: Callable[..., tuple[bool, list[str]]] = crashing.kill if hows is DEATHS else crashing.fail
    try:
        created = crashing.changes(case, folder / "template", folder / "case")
    except RuntimeError as error:
        return str(error)
    cases = crashing.sample(list(crashing.every(case, created, hows)), 10**6, 1)
    return next((problem for one in cases for problem in work(one, folder / "template", folder / "case")[1]), "")


def main() -> None:
    with tempfile.TemporaryDirectory() as name, quiet():
        folder = Path(name)
        crashing.begin(folder / "template")
        result = {}
        for mutant, (what, by, way, hows) in MUTANTS.items():
            with mock.patch(what, by):
                result[mutant] = first(folder, way, hows)
            shutil.rmtree(folder / "case", ignore_errors=True)
        expected = resuming.whole(folder / "whole")
        trial = resuming.Trial(resuming.Strike(8), "devices=1", "devices=1")
        for mutant, (what, by) in FORGETFUL.items():
            with mock.patch(what, by):
                result[mutant] = next(iter(resuming.attempt(trial, folder / "resumed", expected)[1]), "")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
