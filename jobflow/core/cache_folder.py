"""Where jobflow keeps what it can make again."""

from __future__ import annotations

import os
from pathlib import Path

_chosen: list[str] = []


def choose_cache_folder(folder: str | None) -> None:
    """What `flow.config.cache_folder` says; None leaves it to the environment."""
    _chosen[:] = [] if folder is None else [os.path.abspath(os.path.expanduser(folder))]


def cache_folder(name: str) -> Path:
    """A folder in the chosen one, in $JOBFLOW_CACHE, or in jobflow in $XDG_CACHE_HOME or ~/.cache.  Whatever is in there may be removed."""
    if _chosen:
        return Path(_chosen[0], name)
    base = os.environ.get("JOBFLOW_CACHE") or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "jobflow")
    return Path(base, name)
