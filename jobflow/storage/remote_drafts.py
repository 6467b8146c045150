"""A checkpoint that is being written to a store of objects, where nothing has a second name and each object is there as a whole or not at all.

    step-00000004/
      .saving.0a1b2c3d4e5f                             who writes, as JSON: the first object of a saving, and the last that is removed
      tensors-00000-00001.0a1b2c3d4e5f.safetensors     all other objects bear the stamp of their saving
      part-00001.0a1b2c3d4e5f.json
      manifest.json                                    the checkpoint is complete when this is there; it is written last

The manifest says which objects are of the checkpoint.  What bears another stamp is of a saving that has not ended, or is left over.
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

#: Seconds without a new object after which a saving of another machine is taken for abandoned, unless it is the newest.
STALE = 3600.0
_MARKER = re.compile(r"\.saving\.(?P<stamp>[0-9a-f]{12})")
_STAMPED = re.compile(r"(?P<stem>(tensors|part|failed)-[0-9-]+)\.(?P<stamp>[0-9a-f]{12})(?P<ending>|\.json|\.safetensors)")
#: stamps of what this process has given up and could not remove
_abandoned: set[str] = set()


class UnsureError(CheckpointError):
    """Nobody knows whether a checkpoint is complete."""


@dataclass(frozen=True)
class Objects:
    """The objects of one saving, in the folder of the checkpoint itself."""

    target: RemotePath
    #: those that the checkpoint has which is replaced
    older: tuple[str, ...] = ()
    stamp: str = field(default_factory=lambda: uuid4().hex[:12])

    @classmethod
    def begin(cls, target: RemotePath, replace: bool, files: Files) -> Objects:
        """Show that somebody saves there.  CheckpointError if there is something else already."""
        found = target.objects()
        is_older = _has_manifest(target)
        others = [name for name in found if stamp_of(name) is None] or [manifest.NAME] * is_older
        if others and not (replace and is_older):
            raise CheckpointError(f"checkpoint {target}: there is something already ({others[0]}); give a path where there is nothing")
        made = cls(target, tuple({*(_listed(target) or ()), *others} - {manifest.NAME}) if others else ())
        _clear(target, found, found, files)
        try:
            _mark(target, made.stamp, files)
        except OSError:
            made.discard(files)  # perhaps only the answer was lost
            raise
        return made

    @property
    def folder(self) -> RemotePath:
        return self.target

    def name_of(self, name: str) -> str:
        """What a file is called that is called so in a local checkpoint."""
        stem, dot, ending = name.partition(".")
        return f"{stem}.{self.stamp}{dot}{ending}"

    def names(self) -> list[str]:
        """What this saving has written, as it is called in a local checkpoint."""
        found = (_STAMPED.fullmatch(path.name) for path in self.target.iterdir())
        return [match["stem"] + match["ending"] for match in found if match and match["stamp"] == self.stamp]

    def publish(self, text: str, files: Files) -> None:
        """Complete the checkpoint."""
        path = self.target / manifest.NAME
        try:
            files.put(path, text.encode())
        except StoreError as error:
            if not self._is_there(path, text.encode(), error):
                raise

    def _is_there(self, path: RemotePath, wanted: bytes, error: StoreError) -> bool:
        """Whether a manifest was written although the store did not say so.  UnsureError if nobody can say."""
        try:
            return path.read_bytes() == wanted
        except FileNotFoundError:
            return False
        except StoreError:
            raise UnsureError(
                f"nobody knows whether checkpoint {self.target} is complete, for the answer was lost when its manifest was written: {error}"
            ) from error

    def settle(self, files: Files) -> None:
        """After `publish`: what is not of the checkpoint is gone.  CheckpointError if not."""
        try:
            found = self.target.objects()
            others = {stamp_of(name) for name in found if is_marker(name)} - {self.stamp}
            going = [name for name in found if name in self.older or stamp_of(name) not in (*others, None)]
            _remove(self.target, [name for name in going if not name.startswith("tensors-") or stamp_of(name) != self.stamp], files)
        except OSError as error:
            _abandoned.add(self.stamp)
            raise CheckpointError(
                f"checkpoint {self.target} is complete, but not all that it replaced could be removed; the next save tries again: {error}"
            ) from error

    def discard(self, files: Files) -> None:
        """Remove what will not be completed, unless it was; what cannot be removed is left to `clean`."""
        _abandoned.add(self.stamp)
        with suppress(OSError):
            found, kept = self.target.objects(), _listed(self.target)
            if kept is not None:
                _remove(self.target, [name for name in found if stamp_of(name) == self.stamp and name not in kept], files)
            _abandoned.discard(self.stamp)


def stamp_of(name: str) -> str | None:
    """That of the saving to which an object belongs; None if it bears none."""
    found = _MARKER.fullmatch(name) or _STAMPED.fullmatch(name)
    return found["stamp"] if found else None


def _marker(stamp: str) -> str:
    return f".saving.{stamp}"


def _mark(folder: RemotePath, stamp: str, files: Files) -> None:
    """Say in the store who writes, or removes, what bears a stamp."""
    files.put(folder / _marker(stamp), json.dumps(asdict(Owner.here())).encode())


def is_marker(name: str) -> bool:
    """Whether an object says that somebody saves."""
    return _MARKER.fullmatch(name) is not None


def put_away(path: RemotePath, files: Files) -> None:
    """Remove a checkpoint; it is none any more before its second object is removed."""
    names = path.objects()
    stamps = {stamp for name in names if (stamp := stamp_of(name)) is not None}
    _abandoned.update(stamps)
    for stamp in stamps:  # should this process die, the next one knows by it what is left over
        _mark(path, stamp, files)
    _remove(path, {*names, *map(_marker, stamps)}, files)
    _abandoned.difference_update(stamps)


def move(old: RemotePath, new: RemotePath, files: Files) -> None:
    """Give checkpoints another place: they are complete there before they are incomplete here."""
    names = sorted(old.objects(), key=lambda name: name.rpartition("/")[2] == manifest.NAME)
    for name in names:
        files.copy(old / name, new / name)
    _remove(old, names, files)


def unfinished_in(directory: RemotePath) -> list[str]:
    """The folders in which savings have not ended, and who saves there."""
    found: dict[str, str] = {}
    for name in directory.objects():
        folder, _, own = name.rpartition("/")
        if is_marker(own):
            owner = owner_of(directory / name)
            found[folder or directory.name] = f" (by process {owner.pid} on {owner.host})" if owner else ""
        elif folder and stamp_of(own) is not None and not (directory / folder / manifest.NAME).exists():
            found.setdefault(folder, "")
    return [f"{folder}{who}" for folder, who in found.items()]


def is_taken(target: RemotePath) -> bool:
    """True if there are objects that are not marks of a saving."""
    return any(stamp_of(name) is None for name in target.objects())


def clean(directory: RemotePath, files: Files | None = None) -> None:
    """Remove what savings have left unfinished below a directory of checkpoints; a notice names what cannot be removed."""
    found = directory.objects()
    by_folder: dict[str, dict[str, Status]] = {}
    for name, status in found.items():
        folder, _, own = name.rpartition("/")
        by_folder.setdefault(folder, {})[own] = status
    for folder, inside in by_folder.items():
        _clear(directory / folder, inside, found, files or files_of())


def _clear(folder: RemotePath, inside: Mapping[str, Status], around: Mapping[str, Status], files: Files) -> None:
    """Remove what is left over in the folder of one checkpoint; `around` are the objects of all."""
    by_stamp: dict[str, list[str]] = {}
    for name in inside:
        if (stamp := stamp_of(name)) is not None:
            by_stamp.setdefault(stamp, []).append(name)
    if not by_stamp or (not any(map(is_marker, inside)) and len(by_stamp) < 2 and manifest.NAME in inside):
        return  # as a checkpoint is
    try:
        kept = _listed(folder)
        if kept is None:
            return  # any object may belong to the checkpoint
        for stamp, names in by_stamp.items():
            going = [name for name in names if name not in kept]
            if going and not _in_use(folder, stamp, max(inside[name].st_mtime for name in names), around):
                _remove(folder, going, files)
                _abandoned.discard(stamp)
    except OSError as error:
        notice(f"{folder} has objects of savings that have not ended, which cannot be removed: {error}")


def _in_use(folder: RemotePath, stamp: str, last: float, around: Mapping[str, Status]) -> bool:
    """Whether a saving, whose last object is of the time `last`, may go on."""
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
    """Who saves, as the marker says; None if there is none, or none that can be read."""
    try:
        return Owner.of(json_tree(content(marker, HEADER, CheckpointError)))
    except StoreError:
        raise
    except (FileNotFoundError, CheckpointError, ValueError, KeyError, TypeError):
        return None


def _has_manifest(folder: RemotePath) -> bool:
    """True if the manifest can be fetched, even if a listing lacks it."""
    try:
        (folder / manifest.NAME).span(0, 1)
    except FileNotFoundError:
        return False
    return True


def _listed(folder: RemotePath) -> Collection[str] | None:
    """Return the files that the manifest lists; none without a manifest, and None if the manifest cannot be read.

    A listing may lack the manifest of a complete checkpoint, so the manifest is requested by its name.  StoreError if the store fails.
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
    """The manifest first, so that nobody takes the rest for a checkpoint, and markers last, so that nobody forgets it."""
    for name in sorted(names, key=lambda name: (is_marker(name.rpartition("/")[2]), name.rpartition("/")[2] != manifest.NAME, name)):
        with suppress(FileNotFoundError):  # another process removes it, too
            files.remove_file(folder / name)
