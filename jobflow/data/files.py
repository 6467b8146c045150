"""Files that readers are given."""

from __future__ import annotations

from pathlib import Path

from jobflow.core.errors import DataError
from jobflow.core.untrusted import Fault


def fault_of(what: str) -> Fault:
    """What makes the errors of a reader about a file."""
    return lambda text: DataError(f"{what}: {text}")


def files_at(path: Path, pattern: str, fault: Fault) -> list[Path]:
    """The file, or all in a folder and those in it that match a pattern, in the order of their names."""
    if not path.exists():
        raise fault(f"there is no file or folder {path.absolute()}")
    if not path.is_dir():
        return [path]
    found = sorted((file for file in path.rglob(pattern) if not file.is_dir()), key=lambda file: file.relative_to(path).as_posix())
    if not found:
        raise fault(f"no file in {path.absolute()} matches {pattern!r}")
    return found
