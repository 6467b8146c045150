"""Files that readers are given."""

from __future__ import annotations

from jobflow.core.errors import DataError
from jobflow.core.remote import AnyPath, RemotePath
from jobflow.core.untrusted import Fault


def fault_of(what: str) -> Fault:
    """What makes the errors of a reader about a file."""
    return lambda text: DataError(f"{what}: {text}")


def files_at(path: AnyPath, pattern: str, fault: Fault) -> list[AnyPath]:
    """The file, or all in a folder and those in it that match a pattern, in the order of their names."""
    if not path.exists():
        raise fault(f"there is no file or folder {path.absolute()}")
    if not path.is_dir():
        return [path]
    found = files_below(path, pattern)
    if not found:
        raise fault(f"no file in {path.absolute()} matches {pattern!r}")
    return found


def files_below(folder: AnyPath, pattern: str = "*") -> list[AnyPath]:
    """All files in a folder and those in it that match a pattern, in the order of their names."""
    found = [file for file in folder.rglob(pattern) if isinstance(file, RemotePath) or not file.is_dir()]  # in a store there are only files
    return sorted(found, key=str)
