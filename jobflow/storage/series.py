"""A directory of checkpoints, one per step: list them, find the newest complete one, delete old ones.

    checkpoints/step-00000100/  step-00000200/  step-00000300/

Kept are the last `keep_last`, the `keep_best` best by the metric that was saved with them, and in any case the newest that is whole.
All of this knows only files; `sessions.on_first` has rank 0 do it for all.
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

#: how often the newest is looked for, where another process saves and removes at the same time
TRIES = 10
_STEP = re.compile(r"step-(\d+)")


@dataclass(frozen=True)
class Skipped:
    """A checkpoint that cannot be used, and why."""

    step: int
    path: AnyPath
    reason: str

    def __str__(self) -> str:
        return f"{self.path} is passed over: {self.reason}"


@dataclass(frozen=True)
class Newest:
    """The newest checkpoint that is whole (None if none is), and the newer ones that were passed over."""

    step: int | None
    path: AnyPath | None
    skipped: tuple[Skipped, ...]


@dataclass(frozen=True)
class Series:
    """The checkpoints in `directory`.

    `keep_last` 0 keeps all.  `best_metric` is a key of the "metrics" saved beside the tensors; `best_mode` says whether less or
    more is better.
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
            raise ArgumentError(f"a series that keeps the {self.keep_best} best needs best_metric, the name of a metric")
        if self.best_mode not in ("min", "max"):
            raise ArgumentError(f'best_mode is "min" or "max", not {self.best_mode!r}')

    def path_of(self, step: int) -> AnyPath:
        return self.directory / f"step-{step:08d}"

    def steps(self) -> list[int]:
        """Those that have a manifest, ascending; whether they are whole is not looked at."""
        if isinstance(self.directory, RemotePath):
            return _numbers(name.removesuffix(f"/{manifest.NAME}") for name in self.directory.objects())
        return [step for step in self.present() if _has_manifest(self.path_of(step))]

    def present(self) -> list[int]:
        """Return the steps of all checkpoints, ascending, those that are incomplete or cannot be read included.

        Empty directories and saves to a store that have not ended are no checkpoints.  CheckpointError if the directory cannot be listed.
        """
        if isinstance(self.directory, RemotePath):
            return _numbers(_published(self.directory.objects()))
        try:
            entries = os.listdir(self.directory)
            return [step for step in _numbers(entries) if not _is_empty(self.path_of(step))]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CheckpointError(f"{self.directory}: the checkpoints cannot be listed: {error.strerror or error}; change its permissions") from None

    def newest_good(self) -> Newest:
        """Every byte of the newest is read; if one is damaged, the next older follows.

        If one goes meanwhile, since another process saves here, all is looked at anew.  ReplacedError if that does not end.
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
            reason = _wrong(path)
            if reason is None:
                return Newest(step, path, tuple(skipped))
            skipped.append(Skipped(step, path, reason))
        if self.present() != steps:  # a directory that is written while it is listed may show neither the old step nor the new one
            raise ReplacedError(f"{self.directory}: its checkpoints were replaced while they were listed")
        return Newest(None, None, tuple(skipped))

    def misnamed(self) -> tuple[Skipped, ...]:
        """Return the checkpoints whose names have no number of a step, which `newest_good` does not consider."""
        if isinstance(self.directory, RemotePath):
            names = {name.partition("/")[0] for name in self.directory.objects() if name.endswith(f"/{manifest.NAME}")}
        else:
            names = {path.parent.name for path in self.directory.glob(f"*/{manifest.NAME}") if not path.parent.name.startswith(".")}
        others = (self.directory / name for name in sorted(names) if not _STEP.fullmatch(name))
        return tuple(Skipped(-1, path, "its name is not step-NUMBER") for path in others)

    def clean(self) -> None:
        """Remove what processes that are no more have left unfinished."""
        drafts.clean(self.directory)

    def best(self) -> list[int]:
        """The steps that have the metric, best first; equal ones newest first."""
        scores = {step: self._score(step) for step in self.steps()}
        return sorted((step for step in scores if not math.isnan(scores[step])), key=lambda step: (scores[step], -step))

    def _score(self, step: int) -> float:
        """Less is better; NaN if it has none."""
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
        """Remove those that need not be kept, nor are in `keep`; which these were.  Each is gone for who looks before its first file is."""
        steps = self.steps()
        kept = {*keep, *(steps[-self.keep_last :] if self.keep_last else steps), *(self.best()[: self.keep_best] if self.keep_best else ())}
        going = [step for step in steps if step not in kept]
        going = [step for step in going if reading.unreadable(self.path_of(step)) is None]
        if going:
            good = next((step for step in reversed(steps) if _is_good(self.path_of(step))), None)
            going = [step for step in going if step != good]
        for step in going:
            drafts.put_away(self.path_of(step))
        if isinstance(self.directory, RemotePath):  # a local save has cleaned before it began
            drafts.clean(self.directory)
        return going

    def save(self, session: Session, step: int, extra: Mapping[str, Any] | None = None, *, asynchronous: bool = False) -> sessions.Saving:
        """A checkpoint of the session as that of `step`, in place of one that is there; afterwards `prune`.  Collective.

        It is kept though others may be of later steps, as they are after a program went back to an earlier one.
        """
        whole = {"step": step, **(extra or {})}
        return sessions.save(session, self.path_of(step), whole, asynchronous=asynchronous, replace=True, then=partial(self.prune, (step,)))


def _numbers(names: Iterable[str]) -> list[int]:
    """The steps of directories with such names, ascending."""
    return sorted(int(match[1]) for match in map(_STEP.fullmatch, names) if match)


def _published(names: Iterable[str]) -> Iterator[str]:
    """Yield the folders in a store that hold a checkpoint: those without the marker of a save, and those with a manifest."""
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
    """True if a manifest is there, or if this process may not look."""
    try:
        return (path / manifest.NAME).is_file()
    except PermissionError:
        return True


def _wrong(path: AnyPath) -> str | None:
    """The first thing that is wrong with a checkpoint.  ReplacedError if it is another one by now, or has gone."""
    found = _first_wrong(path)
    if found is not None and _is_gone(path):
        raise ReplacedError(f"checkpoint {path} was removed while it was being read")
    return found


def _first_wrong(path: AnyPath) -> str | None:
    if not _has_manifest(path):
        return f"{path / manifest.NAME} is missing"
    return next(reading.problems(path), None)


def _is_good(path: AnyPath) -> bool:
    """Whether a checkpoint is whole; of one in a store, whether all of its objects are there and as long as they were."""
    try:
        if isinstance(path, RemotePath):
            reading.load(path)
            return True
        return _wrong(path) is None
    except StoreError:
        raise
    except CheckpointError:
        return False
