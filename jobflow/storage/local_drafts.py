"""The temporary directory of a checkpoint, its rename to the target, and the removal of abandoned directories.

    .<target>.saving.<machine>.<pid>-<start>.<random>      a checkpoint during its write or its removal
    .<target>.replaced.<machine>.<pid>-<start>.<random>    a checkpoint during its replacement, if the system cannot exchange names

<pid> is the process of rank 0, which publishes; <start> is its start time, because process numbers are reused. The next process that saves or lists
checkpoints in the directory removes the leftovers of dead processes.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import CheckpointError
from jobflow.core.notices import notice
from jobflow.storage import manifest
from jobflow.storage.file_system import Files, files_of
from jobflow.storage.owner import file_time, is_alive, machine, start_of

#: The empty file that marks a complete snapshot for tools of the legacy system.
DONE = "snapshot_done"
#: Prefix of the files in which ranks list the shards that they have written.
PART = "part-"
#: Seconds without a change after which a draft of another machine counts as abandoned.
STALE = 24 * 3600.0
_UNFINISHED = re.compile(r"\.(?P<target>.+)\.(?P<what>saving|replaced)\.(?P<machine>[^/]+)\.(?P<pid>\d+)(-(?P<start>\d+))?\.[0-9a-f]+")
#: drafts that this process failed to remove
_abandoned: set[Path] = set()


def temporary_path(target: Path) -> Path:
    """Return an unused path next to `target` for a draft of this process."""
    pid = os.getpid()
    return target.parent / f".{target.name}.saving.{machine()}.{pid}-{start_of(pid)}.{uuid4().hex[:12]}"


@dataclass(frozen=True)
class Folder:
    """The temporary directory next to `target` in which a checkpoint is written."""

    target: Path
    folder: Path
    #: True if it replaces a complete or damaged checkpoint, or a file
    older: bool = False

    @classmethod
    def begin(cls, target: Path, replace: bool, files: Files, over_files: bool = False) -> Folder:
        """Remove leftovers of dead processes, and return a new empty draft.

        Raises: CheckpointError if `target` exists and must not be replaced.
        """
        older = (over_files and target.is_file()) or _is_older(target, replace)
        missing = [folder for folder in (target.parent, *target.parent.parents) if not folder.exists()]
        files.make_directory(target.parent)
        for folder in reversed(missing):
            files.sync_directory(folder.parent)
        clean(target.parent, files)
        draft = temporary_path(target)
        files.make_directory(draft)
        return cls(target, draft, older)

    def name_of(self, name: str) -> str:
        """Return the name of a file inside the draft."""
        return name

    def names(self) -> list[str]:
        """Return the names of the written files."""
        return os.listdir(self.folder)

    def publish(self, text: str, files: Files) -> None:
        """Write the manifest `text`, and rename the directory to the target in one step."""
        for name in sorted(self.names()):
            if name.startswith(PART):  # the manifest contains its entries
                files.remove_file(self.folder / name)
        files.write(self.folder / manifest.NAME, [text.encode()])
        files.write(self.folder / DONE, [])
        files.sync_directory(self.folder)
        if self.older:
            files.exchange(self.folder, self.target, self._between)
        else:
            files.rename(self.folder, self.target)

    @property
    def _between(self) -> Path:
        """The temporary path to which the replaced checkpoint is moved if the file system cannot exchange names."""
        return self.folder.with_name(".replaced.".join(self.folder.name.rsplit(".saving.", 1)))

    def settle(self, files: Files) -> None:
        """Sync the new name and remove the replaced checkpoint after `publish`; raise CheckpointError on failure."""
        old = self._between if self._between.exists() else self.folder
        try:
            files.sync_directory(self.target.parent)
        except OSError as error:
            _abandoned.add(old)
            raise CheckpointError(f"checkpoint {self.target} is complete, but its name may be lost in a power failure: {error}") from error
        try:
            if old.exists():
                files.remove(old)
        except OSError as error:
            _abandoned.add(old)
            raise CheckpointError(
                f"checkpoint {self.target} is complete, but the replaced checkpoint could not be removed; the next save removes it: {error}"
            ) from error

    def discard(self, files: Files) -> None:
        """Remove a draft that will not be completed; if that fails, `clean` removes it later."""
        _abandoned.add(self.folder)
        with suppress(OSError):
            if self.folder.exists():
                files.remove(self.folder)
            _abandoned.discard(self.folder)


def _is_older(target: Path, replace: bool) -> bool:
    """Return True for a complete or damaged checkpoint if `replace` is set; return False for a missing path or an empty directory.

    Raises: CheckpointError for any other `target`.
    """
    if replace and ((target / manifest.NAME).is_file() or any(target.glob("tensors-*.safetensors"))):
        _check_own(target)
        return True
    if is_occupied(target):
        raise CheckpointError(f"checkpoint {target}: this path already exists; pass a path that does not exist, or an empty directory")
    return False


def _check_own(target: Path) -> None:
    """Raise CheckpointError if the checkpoint `target` contains files that are not its own, which a replacement would remove."""
    own = (manifest.NAME, DONE)
    others = sorted(path.name for path in target.iterdir() if path.name not in own and not path.name.startswith(("tensors-", PART, ".")))
    if others:
        raise CheckpointError(
            f"checkpoint {target} is not replaced, because it also contains {', '.join(others[:5])}; move these files, or pass another path"
        )


def is_occupied(target: Path) -> bool:
    """Return True for a path that exists, unless it is an empty directory."""
    return (target.exists() or target.is_symlink()) and not (target.is_dir() and not any(target.iterdir()))


def put_away(path: Path, files: Files) -> None:
    """Remove a checkpoint; it becomes invisible to readers before its first file is removed."""
    hidden = temporary_path(path)
    files.rename(path, hidden)
    _abandoned.add(hidden)
    files.remove(hidden)
    _abandoned.discard(hidden)


def clean(parent: Path, files: Files | None = None) -> None:
    """Remove drafts of dead processes from `parent`, and restore the name of a checkpoint whose replacement they interrupted.

    A notice lists files that cannot be removed.
    """
    for entry in sorted(parent.iterdir()):
        left = _UNFINISHED.fullmatch(entry.name)
        if left is None or (entry not in _abandoned and _in_use(left, entry)):
            continue
        try:
            _clear(entry, left, files or files_of())
        except FileNotFoundError:
            pass  # another process has removed it
        except OSError as error:
            notice(f"{entry} is a leftover of a dead process and cannot be removed: {error}; remove it by hand")


def _clear(entry: Path, left: re.Match[str], files: Files) -> None:
    target = entry.with_name(left["target"])
    if left["what"] == "replaced" and not target.exists():
        files.rename(entry, target)
    else:
        files.remove(entry)
        _abandoned.discard(entry)


def _in_use(left: re.Match[str], entry: Path) -> bool:
    if left["machine"] == machine():
        return is_alive(int(left["pid"]), left["start"])
    with suppress(OSError):
        return file_time(entry.parent) - max(path.stat().st_mtime for path in (entry, *(entry.iterdir() if entry.is_dir() else ()))) < STALE
    return True
