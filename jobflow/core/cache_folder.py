"""Where jobflow keeps what it can make again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(name: str) -> Path:
    """A folder in $JOBFLOW_CACHE, or in jobflow in $XDG_CACHE_HOME or ~/.cache.  Whatever is in there may be removed."""
    base = os.environ.get("JOBFLOW_CACHE") or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "jobflow")
    return Path(base, name)
