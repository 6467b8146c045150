"""Checkpoints of arrays in one process: directories with a manifest and safetensors files, which are read lazily and checked by hashes.

A checkpoint is written as a draft, file by file, and synced to the disk. The draft is then renamed to the target in one step, so readers see
either no checkpoint or a complete one. `sessions` does the same with many ranks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from jobflow.core.errors import CheckpointError, FileError, user_line
from jobflow.storage import drafts, safetensors
from jobflow.storage import rank_files as parts
from jobflow.storage.checkpoint_reader import Checkpoint, Stored, load, problems
from jobflow.storage.file_system import Files, files_of
from jobflow.storage.local_drafts import clean
from jobflow.storage.manifest import check_extra
from jobflow.storage.rank_files import Piece
from jobflow.storage.remote import RemotePath, path_of

__all__ = ["Checkpoint", "Files", "Stored", "clean", "load", "problems", "save"]


def save(
    path: str | os.PathLike[str] | RemotePath,
    tensors: Mapping[str, Any],
    extra: Mapping[str, Any] | None = None,
    *,
    replace: bool = False,
    over_files: bool = False,
    files: Files | None = None,
) -> None:
    """Write arrays by name, and a JSON tree, to the new directory `path` atomically.

    With `replace`, `path` may be an older checkpoint, which is removed after the new checkpoint is complete.  With `over_files`, it may be a file.
    Raises: CheckpointError if `path` exists and is neither an empty directory nor to be replaced, or if writing fails. After an error nothing
    has changed.
    """
    target, files = path_of(path, absolute=True), files or files_of()
    pieces = {name_of(name): _piece(name, array) for name, array in tensors.items()}
    check_extra(extra or {})
    try:
        draft = drafts.begin(target, replace, files, over_files)
        _write(draft, pieces, extra or {}, files)
    except OSError as error:
        raise CheckpointError(f"checkpoint {target} could not be saved, and nothing was changed: {error}") from error
    draft.settle(files)


@contextmanager
def located(what: str) -> Iterator[None]:
    """Append `what`, the user's function, and the user's line to the message of a CheckpointError or FileError of the block."""
    try:
        yield
    except (CheckpointError, FileError) as error:
        raise type(error)(f"{error} ({what} at {user_line()})") from error.__cause__


def _write(draft: drafts.Draft, pieces: Mapping[str, Piece], extra: Mapping[str, Any], files: Files) -> None:
    try:
        part = parts.write(draft, "tensors-", pieces, files)
        types = {name: (piece.array.shape, piece.array.dtype.name) for name, piece in pieces.items()}
        parts.publish(draft, types, [part], extra, files)
    except BaseException:
        draft.discard(files)  # the first failure is raised
        raise


def _piece(name: str, array: Any) -> Piece:
    stored = safetensors.storable(name, array)
    return Piece(tuple((0, n) for n in stored.shape), stored)


def name_of(name: Any) -> str:
    """Return the name; raise CheckpointError unless it is a valid name of a tensor."""
    if not isinstance(name, str) or not name or name == "__metadata__":
        raise CheckpointError(f"tensor {name!r} cannot be saved in a checkpoint under this name; use a non-empty string other than __metadata__")
    return name
