"""Checkpoints during their write: in a temporary directory on a disk, or as objects in a store.

A draft maps the names of a checkpoint's files to their temporary locations. Readers cannot see a draft until `publish` completes it.
"""

from __future__ import annotations

from uuid import uuid4

from jobflow.core.errors import CheckpointError
from jobflow.storage import checkpoint_reader as reading
from jobflow.storage import local_drafts, remote_drafts
from jobflow.storage.file_system import Files, files_of
from jobflow.storage.local_drafts import Folder
from jobflow.storage.remote import AnyPath, RemotePath
from jobflow.storage.remote_drafts import Objects

Draft = Folder | Objects


def begin(target: AnyPath, replace: bool, files: Files, over_files: bool = False) -> Draft:
    """Return a new draft of the checkpoint `target`, which replaces a checkpoint, or with `over_files` a file of a disk.

    Raises: CheckpointError if `target` exists and must not be replaced, or cannot be read; OSError if the file system or store fails.
    """
    if replace and (reason := reading.unreadable(target)):
        raise CheckpointError(
            f"checkpoint {target} is not replaced, because this process cannot read it: {reason}; rename the checkpoint, or pass another path"
        )
    return Objects.begin(target, replace, files) if isinstance(target, RemotePath) else Folder.begin(target, replace, files, over_files)


def free_path(target: AnyPath) -> AnyPath:
    """Return the first path of target, target-2, target-3, ... that is missing or an empty directory."""
    number, path = 1, target
    while remote_drafts.is_occupied(path) if isinstance(path, RemotePath) else local_drafts.is_occupied(path):
        number += 1
        path = target.with_name(f"{target.name}-{number}")
    return path


def check_writable(directory: RemotePath) -> None:
    """Raise OSError if this process cannot create or remove objects in a directory of a store."""
    path, files = directory / f".writable.{uuid4().hex}", files_of()
    files.put(path, b"")
    files.remove_file(path)


def clean(directory: AnyPath) -> None:
    """Remove abandoned drafts from a directory of checkpoints."""
    if isinstance(directory, RemotePath):
        remote_drafts.clean(directory)
    elif directory.is_dir():
        local_drafts.clean(directory)


def put_away(path: AnyPath) -> None:
    """Remove a checkpoint; it becomes invisible to readers before its first file is removed."""
    if isinstance(path, RemotePath):
        remote_drafts.put_away(path, files_of())
    else:
        local_drafts.put_away(path, files_of())


def move(old: AnyPath, new: AnyPath) -> None:
    """Move a checkpoint, or a directory of checkpoints, within one file system or store."""
    if isinstance(old, RemotePath) and isinstance(new, RemotePath):
        remote_drafts.move(old, new, files_of())
    elif isinstance(old, RemotePath) or isinstance(new, RemotePath):
        raise ValueError(f"move: {old} and {new} are not in the same store")
    else:
        new.parent.mkdir(parents=True, exist_ok=True)
        old.rename(new)


def unfinished_in(directory: AnyPath) -> list[str]:
    """Return the names of the running and abandoned drafts in a directory of checkpoints."""
    if isinstance(directory, RemotePath):
        return remote_drafts.unfinished_in(directory)
    return [entry.name for entry in directory.iterdir() if entry.name.startswith(".") and ".saving." in entry.name]
