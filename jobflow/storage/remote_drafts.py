"""A checkpoint during its write to an object store, where objects cannot be renamed and each object is written atomically.

    step-00000004/
      .saving.0a1b2c3d4e5f                             the writing process as JSON: the first object of a save, and the last one removed
      tensors-00000-00001.0a1b2c3d4e5f.safetensors     all other objects have the stamp of their save in their names
      part-00001.0a1b2c3d4e5f.json
      manifest.json                                    written last; its presence makes the checkpoint complete

The manifest lists the objects of the checkpoint. Objects with another stamp belong to a running or an abandoned save.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, field
from uuid import uuid4

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import CheckpointError
from jobflow.core.notices import notice
from jobflow.storage import manifest
from jobflow.storage.file_system import Files, files_of
from jobflow.storage.manifest import Manifest
from jobflow.storage.owner import Owner
from jobflow.storage.remote import RemotePath, Status, StoreError
from jobflow.storage.untrusted import HEADER, content, json_tree

#: Seconds without a new object after which a save of another machine counts as abandoned, unless it is the newest.
STALE = 3600.0
_MARKER = re.compile(r"\.saving\.(?P<stamp>[0-9a-f]{12})")
_STAMPED = re.compile(r"(?P<stem>(tensors|part|failed)-[0-9-]+)\.(?P<stamp>[0-9a-f]{12})(?P<ending>|\.json|\.safetensors)")
#: stamps of saves that this process has abandoned and could not remove
_abandoned: set[str] = set()


class UnsureError(CheckpointError):
    """An error for a request that the store did not answer; the checkpoint may or may not be complete."""


@dataclass(frozen=True)
class Objects:
    """The objects of one save, in the folder of the checkpoint."""

    target: RemotePath
    #: the objects of the replaced checkpoint
    older: tuple[str, ...] = ()
    stamp: str = field(default_factory=lambda: uuid4().hex[:12])

    @classmethod
    def begin(cls, target: RemotePath, replace: bool, files: Files) -> Objects:
        """Write the marker of a new save, and return the draft of the checkpoint.

        Raises: CheckpointError if the folder contains objects that must not be replaced.
        """
        present = target.objects()
        is_older = _has_manifest(target)
        others = [name for name in present if stamp_of(name) is None] or [manifest.NAME] * is_older
        if others and not (replace and is_older):
            raise CheckpointError(f"checkpoint {target}: this path already exists (it contains {others[0]}); pass a path that does not exist")
        draft = cls(target, tuple({*(_listed(target) or ()), *others} - {manifest.NAME}) if others else ())
        _clear(target, present, present, files)
        try:
            _mark(target, draft.stamp, files)
        except OSError:
            draft.discard(files)  # the store may have written the marker without an answer
            raise
        return draft

    @property
    def folder(self) -> RemotePath:
        return self.target

    def name_of(self, name: str) -> str:
        """Return the name of an object for the name of a file in a local checkpoint."""
        stem, dot, ending = name.partition(".")
        return f"{stem}.{self.stamp}{dot}{ending}"

    def names(self) -> list[str]:
        """Return the names of this save's objects, as in a local checkpoint."""
        matches = (_STAMPED.fullmatch(path.name) for path in self.target.iterdir())
        return [match["stem"] + match["ending"] for match in matches if match and match["stamp"] == self.stamp]

    def publish(self, text: str, files: Files) -> None:
        """Write the manifest `text`, which completes the checkpoint."""
        path = self.target / manifest.NAME
        try:
            files.put(path, text.encode())
        except StoreError as error:
            if not self._is_written(path, text.encode(), error):
                raise

    def _is_written(self, path: RemotePath, expected: bytes, error: StoreError) -> bool:
        """Return True if the manifest was written although its request failed; raise UnsureError if this cannot be determined."""
        try:
            return path.read_bytes() == expected
        except FileNotFoundError:
            return False
        except StoreError:
            raise UnsureError(f"checkpoint {self.target} may or may not be complete: the store did not confirm its manifest: {error}") from error

    def settle(self, files: Files) -> None:
        """After `publish`, remove the objects that neither the checkpoint nor a running save uses; raise CheckpointError on failure."""
        try:
            present = self.target.objects()
            others = {stamp_of(name) for name in present if is_marker(name)} - {self.stamp}
            going = [name for name in present if name in self.older or stamp_of(name) not in (*others, None)]
            _remove(self.target, [name for name in going if not name.startswith("tensors-") or stamp_of(name) != self.stamp], files)
        except OSError as error:
            _abandoned.add(self.stamp)
            raise CheckpointError(
                f"checkpoint {self.target} is complete, but replaced objects could not be removed; the next save removes them: {error}"
            ) from error

    def discard(self, files: Files) -> None:
        """Remove the objects of a draft unless it was completed; if that fails, `clean` removes them later."""
        _abandoned.add(self.stamp)
        with suppress(OSError):
            present, listed = self.target.objects(), _listed(self.target)
            if listed is not None:
                _remove(self.target, [name for name in present if stamp_of(name) == self.stamp and name not in listed], files)
            _abandoned.discard(self.stamp)


def stamp_of(name: str) -> str | None:
    """Return the stamp of an object's save, or None for an object without a stamp."""
    match = _MARKER.fullmatch(name) or _STAMPED.fullmatch(name)
    return match["stamp"] if match else None


def _marker(stamp: str) -> str:
    return f".saving.{stamp}"


def _mark(folder: RemotePath, stamp: str, files: Files) -> None:
    """Write the marker of a stamp, which names this process as the writer or remover of the objects with this stamp."""
    files.put(folder / _marker(stamp), json.dumps(asdict(Owner.here())).encode())


def is_marker(name: str) -> bool:
    """Return True if an object is the marker of a save."""
    return _MARKER.fullmatch(name) is not None


def put_away(path: RemotePath, files: Files) -> None:
    """Remove a checkpoint, starting with its manifest, so that readers ignore the checkpoint during its removal."""
    names = path.objects()
    stamps = {stamp for name in names if (stamp := stamp_of(name)) is not None}
    _abandoned.update(stamps)
    for stamp in stamps:  # if this process dies, the marker lets another one clean up
        _mark(path, stamp, files)
    _remove(path, {*names, *map(_marker, stamps)}, files)
    _abandoned.difference_update(stamps)


def move(old: RemotePath, new: RemotePath, files: Files) -> None:
    """Move the checkpoints below `old`; each checkpoint is complete below `new` before it becomes incomplete below `old`."""
    names = sorted(old.objects(), key=lambda name: name.rpartition("/")[2] == manifest.NAME)
    for name in names:
        files.copy(old / name, new / name)
    _remove(old, names, files)


def unfinished_in(directory: RemotePath) -> list[str]:
    """Return the folders with unfinished saves, each followed by the writing process if the marker is readable."""
    writers: dict[str, str] = {}
    for name in directory.objects():
        folder, _, own = name.rpartition("/")
        if is_marker(own):
            owner = owner_of(directory / name)
            writers[folder or directory.name] = f" (by process {owner.pid} on {owner.host})" if owner else ""
        elif folder and stamp_of(own) is not None and not (directory / folder / manifest.NAME).exists():
            writers.setdefault(folder, "")
    return [f"{folder}{who}" for folder, who in writers.items()]


def is_occupied(target: RemotePath) -> bool:
    """Return True if the folder contains objects without a stamp, such as a manifest."""
    return any(stamp_of(name) is None for name in target.objects())


def clean(directory: RemotePath, files: Files | None = None) -> None:
    """Remove abandoned saves below a directory of checkpoints; a notice lists objects that cannot be removed."""
    present = directory.objects()
    by_folder: dict[str, dict[str, Status]] = {}
    for name, status in present.items():
        folder, _, own = name.rpartition("/")
        by_folder.setdefault(folder, {})[own] = status
    for folder, inside in by_folder.items():
        _clear(directory / folder, inside, present, files or files_of())


def _clear(folder: RemotePath, inside: Mapping[str, Status], around: Mapping[str, Status], files: Files) -> None:
    """Remove abandoned objects from the folder of one checkpoint; `around` lists the objects of all checkpoints in the series."""
    by_stamp: dict[str, list[str]] = {}
    for name in inside:
        if (stamp := stamp_of(name)) is not None:
            by_stamp.setdefault(stamp, []).append(name)
    if not by_stamp or (not any(map(is_marker, inside)) and len(by_stamp) < 2 and manifest.NAME in inside):
        return  # a complete checkpoint without leftovers
    try:
        listed = _listed(folder)
        if listed is None:
            return  # the manifest is unreadable, so any object may belong to the checkpoint
        for stamp, names in by_stamp.items():
            going = [name for name in names if name not in listed]
            if going and not _in_use(folder, stamp, max(inside[name].st_mtime for name in names), around):
                _remove(folder, going, files)
                _abandoned.discard(stamp)
    except OSError as error:
        notice(f"{folder} contains objects of abandoned saves that cannot be removed: {error}; remove them by hand")


def _in_use(folder: RemotePath, stamp: str, last: float, around: Mapping[str, Status]) -> bool:
    """Return True if a save may still be running; `last` is the time of the newest object of this save."""
    if stamp in _abandoned:
        return False
    owner = owner_of(folder / _marker(stamp))
    alive = None if owner is None else owner.is_alive
    if alive is not None:
        return alive
    ends = (status.st_mtime for name, status in around.items() if name.rpartition("/")[2] == manifest.NAME or is_marker(name.rpartition("/")[2]))
    is_newest = owner is not None and all(end <= last for end in ends)
    return is_newest or time.time() - last < STALE


def owner_of(marker: RemotePath) -> Owner | None:
    """Return the process that a marker records; None if the marker is missing or unreadable."""
    try:
        return Owner.of(json_tree(content(marker, HEADER, CheckpointError)))
    except StoreError:
        raise
    except (FileNotFoundError, CheckpointError, ValueError, KeyError, TypeError):
        return None


def _has_manifest(folder: RemotePath) -> bool:
    """Return True if the manifest can be fetched, even if a listing lacks it."""
    try:
        (folder / manifest.NAME).span(0, 1)
    except FileNotFoundError:
        return False
    return True


def _listed(folder: RemotePath) -> Collection[str] | None:
    """Return the names that the manifest lists; () without a manifest, and None if the manifest is damaged.

    A listing may lack the manifest of a complete checkpoint, so the manifest is requested by its name.
    Raises: StoreError if the store fails.
    """
    if not _has_manifest(folder):
        return ()
    try:
        return Manifest.read(folder / manifest.NAME).files.keys() | {manifest.NAME}
    except StoreError:
        raise
    except CheckpointError:
        return None


def _remove(folder: RemotePath, names: Iterable[str], files: Files) -> None:
    """Remove objects: the manifest first, so that the checkpoint is incomplete, and markers last, so that an interrupted removal can resume."""
    for name in sorted(names, key=lambda name: (is_marker(name.rpartition("/")[2]), name.rpartition("/")[2] != manifest.NAME, name)):
        with suppress(FileNotFoundError):  # another process has removed it
            files.remove_file(folder / name)
