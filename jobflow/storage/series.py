"""A directory of checkpoints, one per step: listing, the search for the newest complete checkpoint, and the removal of old checkpoints.

    checkpoints/step-00000100/  step-00000200/  step-00000300/

The last `keep_last` checkpoints, the `keep_best` best by a metric saved with them, and the newest intact one are kept.
A later checkpoint with an equal metric is not better.
This module uses files only; `sessions.on_first` calls it on rank 0 for all ranks.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ArgumentError, CheckpointError, ReplacedError
from jobflow.engine.session import Session
from jobflow.storage import checkpoint_reader as reading
from jobflow.storage import drafts, manifest, remote_drafts, sessions
from jobflow.storage.manifest import Manifest
from jobflow.storage.remote import AnyPath, RemotePath, StoreError, path_of

#: attempts to find the newest checkpoint while another process saves and removes
TRIES = 10
_STEP = re.compile(r"step-(\d+)")


@dataclass(frozen=True)
class Skipped:
    """A checkpoint that cannot be used, and the reason."""

    step: int
    path: AnyPath
    reason: str

    def __str__(self) -> str:
        return f"{self.path} is skipped: {self.reason}"


@dataclass(frozen=True)
class Newest:
    """The newest intact checkpoint, and the newer checkpoints that were skipped; `step` and `path` are None if no checkpoint is intact."""

    step: int | None
    path: AnyPath | None
    skipped: tuple[Skipped, ...]


@dataclass(frozen=True)
class Series:
    """The checkpoints in `directory`, and the rule by which old checkpoints are removed.

    `keep_last` 0 keeps all checkpoints. `best_metric` is a key of the saved dict "metrics"; `best_mode` is "min" if lower values are better,
    otherwise "max".
    """

    directory: AnyPath
    keep_last: int = 3
    keep_best: int = 0
    best_metric: str | None = None
    best_mode: Literal["min", "max"] = "min"

    def __post_init__(self) -> None:
        object.__setattr__(self, "directory", path_of(self.directory, absolute=True))
        if self.keep_last < 0 or self.keep_best < 0:
            raise ArgumentError(f"keep_last (0 keeps all) and keep_best must be at least 0; got {self.keep_last} and {self.keep_best}")
        if self.keep_best and self.best_metric is None:
            raise ArgumentError(f"keep_best is {self.keep_best} without best_metric; pass the name of a saved metric")
        if self.best_mode not in ("min", "max"):
            raise ArgumentError(f'best_mode must be "min" or "max"; got {self.best_mode!r}')

    def path_of(self, step: int) -> AnyPath:
        return self.directory / f"step-{step:08d}"

    def steps(self) -> list[int]:
        """Return the steps with a manifest, ascending; their data is not checked."""
        if isinstance(self.directory, RemotePath):
            return _steps(name.removesuffix(f"/{manifest.NAME}") for name in self.directory.objects())
        return [step for step in self.present() if _has_manifest(self.path_of(step))]

    def present(self) -> list[int]:
        """Return the steps of all checkpoints, ascending, including incomplete and unreadable ones.

        Empty directories and unfinished saves to a store are excluded.
        Raises: CheckpointError if the directory cannot be listed.
        """
        if isinstance(self.directory, RemotePath):
            return _steps(_published(self.directory.objects()))
        try:
            entries = os.listdir(self.directory)
            return [step for step in _steps(entries) if not _is_empty(self.path_of(step))]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CheckpointError(f"{self.directory}: the directory cannot be listed: {error.strerror or error}; check its permissions") from None

    def newest_good(self) -> Newest:
        """Return the newest intact checkpoint, after reading every byte of this checkpoint and of damaged newer checkpoints.

        Search again if a checkpoint disappears because another process saves here.
        Raises: ReplacedError after `TRIES` attempts.
        """
        for _ in range(TRIES - 1):
            with suppress(ReplacedError):
                return self._newest_good()
        return self._newest_good()

    def _newest_good(self) -> Newest:
        skipped: list[Skipped] = []
        steps = self.present()
        for step in reversed(steps):
            path = self.path_of(step)
            reason = _problem(path)
            if reason is None:
                return Newest(step, path, tuple(skipped))
            skipped.append(Skipped(step, path, reason))
        if self.present() != steps:  # a listing during another process's save may lack both checkpoints
            raise ReplacedError(f"{self.directory}: another process replaced checkpoints during the search; try again")
        return Newest(None, None, tuple(skipped))

    def misnamed(self) -> tuple[Skipped, ...]:
        """Return the checkpoints whose names are not step-NUMBER; `newest_good` ignores these checkpoints."""
        if isinstance(self.directory, RemotePath):
            names = {name.partition("/")[0] for name in self.directory.objects() if name.endswith(f"/{manifest.NAME}")}
        else:
            names = {path.parent.name for path in self.directory.glob(f"*/{manifest.NAME}") if not path.parent.name.startswith(".")}
        others = (self.directory / name for name in sorted(names) if not _STEP.fullmatch(name))
        return tuple(Skipped(-1, path, "its name is not step-NUMBER") for path in others)

    def clean(self) -> None:
        """Remove unfinished checkpoints of dead processes."""
        drafts.clean(self.directory)

    def best(self) -> list[int]:
        """Return the steps of checkpoints that have the metric `best_metric`, best first; among equal values, earliest first."""
        scores = {step: self._score(step) for step in self.steps()}
        return sorted((step for step in scores if not math.isnan(scores[step])), key=lambda step: (scores[step], step))

    def _score(self, step: int) -> float:
        """Return the metric of a checkpoint, negated if larger values are better; NaN without a readable metric."""
        try:
            metrics = Manifest.read(self.path_of(step) / manifest.NAME).extra.get("metrics")
        except StoreError:
            raise
        except (CheckpointError, OSError):
            return math.nan
        value = metrics.get(self.best_metric) if isinstance(metrics, Mapping) else None
        if not isinstance(value, int | float):
            return math.nan
        return -float(value) if self.best_mode == "max" else float(value)

    def prune(self, keep: Sequence[int] = ()) -> list[int]:
        """Remove the checkpoints that neither this series' rule nor `keep` retains; return their steps.

        Checkpoints that cannot be opened, and the newest intact checkpoint, are not removed.
        A checkpoint becomes invisible to readers before its first file is removed.
        """
        steps = self.steps()
        needed = {*keep, *(steps[-self.keep_last :] if self.keep_last else steps), *(self.best()[: self.keep_best] if self.keep_best else ())}
        going = [step for step in steps if step not in needed]
        going = [step for step in going if reading.unreadable(self.path_of(step)) is None]
        if going:
            good = next((step for step in reversed(steps) if _is_good(self.path_of(step))), None)
            going = [step for step in going if step != good]
        for step in going:
            drafts.put_away(self.path_of(step))
        if isinstance(self.directory, RemotePath):  # a save to a disk cleans before it begins
            drafts.clean(self.directory)
        return going

    def save(self, session: Session, step: int, extra: Mapping[str, Any] | None = None, *, asynchronous: bool = False) -> sessions.Saving:
        """Save the session as the checkpoint of `step`, replacing an existing checkpoint of this step, and prune afterwards.  Collective.

        The new checkpoint is kept even if other checkpoints have later steps, for example after a program resumed from an earlier step.
        """
        whole = {"step": step, **(extra or {})}
        return sessions.save(session, self.path_of(step), whole, asynchronous=asynchronous, replace=True, then=partial(self.prune, (step,)))


def _steps(names: Iterable[str]) -> list[int]:
    """Return the step numbers in these directory names, ascending; other names are ignored."""
    return sorted(int(match[1]) for match in map(_STEP.fullmatch, names) if match)


def _published(names: Iterable[str]) -> Iterator[str]:
    """Yield the folders of a store that contain a checkpoint: folders without the marker of a save, and folders with a manifest."""
    folders: dict[str, list[str]] = {}
    for folder, _, name in (name.partition("/") for name in names):
        folders.setdefault(folder, []).append(name)
    for folder, inside in folders.items():
        if manifest.NAME in inside or not any(map(remote_drafts.is_marker, inside)):
            yield folder


def _is_empty(path: AnyPath) -> bool:
    try:
        return path.is_dir() and not any(path.iterdir())
    except PermissionError:
        return False


def _is_gone(path: AnyPath) -> bool:
    if isinstance(path, RemotePath):
        return not path.exists()
    try:
        path.lstat()
    except FileNotFoundError:
        return True
    except PermissionError:
        return False
    return False


def _has_manifest(path: AnyPath) -> bool:
    """Return True if a manifest exists, or if this process lacks the permission to check."""
    try:
        return (path / manifest.NAME).is_file()
    except PermissionError:
        return True


def _problem(path: AnyPath) -> str | None:
    """Return the first problem of a checkpoint, or None; raise ReplacedError if it was replaced or removed during the read."""
    problem = _first_problem(path)
    if problem is not None and _is_gone(path):
        raise ReplacedError(f"checkpoint {path} was removed during the read; load another checkpoint")
    return problem


def _first_problem(path: AnyPath) -> str | None:
    if not _has_manifest(path):
        return f"{path / manifest.NAME} is missing"
    return next(reading.problems(path), None)


def _is_good(path: AnyPath) -> bool:
    """Return True if a checkpoint is intact; in a store, if all of its objects exist with the recorded lengths."""
    try:
        if isinstance(path, RemotePath):
            reading.load(path)
            return True
        return _problem(path) is None
    except StoreError:
        raise
    except CheckpointError:
        return False
