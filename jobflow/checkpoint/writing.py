"""Saving: all or nothing.

A checkpoint is written into a directory of its own beside the target, file by file and onto the disk, and then takes the target's
name in one step.  Whoever looks sees nothing or all of it.  What a process leaves behind that dies on the way is removed by
the next saving in the same parent directory.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from jobflow.checkpoint import manifest, safetensors
from jobflow.checkpoint.files import Files
from jobflow.errors import CheckpointError

#: Bytes of tensors in one file, unless a single tensor has more.
SHARD = 2**31
#: An empty file that tells tools of the legacy system that a snapshot is complete.
DONE = "snapshot_done"
_UNFINISHED = re.compile(r"\.(?P<target>.+)\.saving\.(?P<host>[^/]+)\.(?P<pid>\d+)\.[0-9a-f]+")


def save(
    path: str | os.PathLike[str],
    tensors: Mapping[str, Any],
    extra: Mapping[str, Any] | None = None,
    *,
    replace: bool = False,
    files: Files | None = None,
) -> None:
    """Write arrays by name, and a JSON tree beside them, to the directory `path`, which is new.

    With `replace`, an older checkpoint may be there, which is gone once the new one is complete.
    CheckpointError if there is something else at `path` that is not an empty directory, or if writing fails; then nothing has changed.
    """
    target, files = Path(os.path.abspath(path)), files or Files()
    older = replace and (target / manifest.NAME).is_file()
    if not older:
        _check_free(target)
    arrays = {_name(name): safetensors.storable(name, array) for name, array in tensors.items()}
    shards = list(_shards(arrays))
    entries = {
        name: manifest.Entry(array.shape, array.dtype.name, file, hashlib.sha256(safetensors.bytes_of(array)).hexdigest())
        for file, group in shards
        for name, array in group.items()
    }
    text = manifest.Manifest(entries, dict(extra or {})).text()
    try:
        files.make_directory(target.parent)
        clean(target.parent, files)
        _write(target, shards, text, files, older)
    except OSError as error:
        raise CheckpointError(f"checkpoint {target} could not be saved, and nothing was changed there: {error}") from error
    try:
        files.sync_directory(target.parent)
    except OSError as error:
        raise CheckpointError(f"checkpoint {target} is complete, but its name may not outlive a failure of power: {error}") from error


def _write(target: Path, shards: list[tuple[str, dict[str, safetensors.Array]]], text: str, files: Files, older: bool) -> None:
    place = target.parent / f".{target.name}.saving.{_host()}.{os.getpid()}.{uuid4().hex[:12]}"
    try:
        files.make_directory(place)
        for file, group in shards:
            files.write(place / file, safetensors.encoded(group))
        files.write(place / manifest.NAME, [text.encode()])
        files.write(place / DONE, [])
        files.sync_directory(place)
        if older:
            files.exchange(place, target)
            files.remove(place)
        else:
            files.rename(place, target)
    except BaseException:
        with suppress(OSError):  # the first failure is the one to show; what remains is removed later by `clean`
            if place.exists():
                files.remove(place)
        raise


def clean(parent: Path, files: Files | None = None) -> None:
    """Remove what processes of this machine that have died left unfinished in `parent`."""
    for entry in sorted(parent.iterdir()):
        left = _UNFINISHED.fullmatch(entry.name)
        if left and left["host"] == _host() and not _alive(int(left["pid"])):
            with suppress(FileNotFoundError):  # another process cleans, too
                (files or Files()).remove(entry)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _host() -> str:
    return socket.gethostname() or "localhost"


def _check_free(target: Path) -> None:
    if target.is_dir() and not any(target.iterdir()):
        return
    if target.exists() or target.is_symlink():
        raise CheckpointError(f"checkpoint {target}: there is something already; give a path that does not exist, or an empty directory")


def _name(name: Any) -> str:
    if not isinstance(name, str) or not name or name == "__metadata__":
        raise CheckpointError(f"{name!r} cannot be the name of a tensor in a checkpoint")
    return name


def _shards(arrays: Mapping[str, safetensors.Array]) -> Iterator[tuple[str, dict[str, safetensors.Array]]]:
    """Arrays by file, in the order given, each file of at most SHARD bytes where tensors allow it."""
    group: dict[str, safetensors.Array] = {}
    number = 1
    for name, array in arrays.items():
        if group and sum(other.nbytes for other in group.values()) + array.nbytes > SHARD:
            yield f"tensors-{number:05d}.safetensors", group
            group, number = {}, number + 1
        group[name] = array
    if group:
        yield f"tensors-{number:05d}.safetensors", group
