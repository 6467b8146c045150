"""Files that a run leaves for people, and can do without."""

from __future__ import annotations

from pathlib import Path

from jobflow.core.notices import notice


def leave(path: Path, content: bytes) -> bool:
    """Write a file; if that fails, a notice says why, and the run goes on.  True if it is there."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        notice(f"{path} could not be written: {error.strerror or error}")
        return False
    return True
