"""The cache directory: files that can be regenerated."""

from __future__ import annotations

import os
from pathlib import Path

_chosen: list[str] = []


def choose_cache_folder(folder: str | None) -> None:
    """Set the directory of `flow.config.cache_folder`; None selects the directory from the environment."""
    _chosen[:] = [] if folder is None else [os.path.abspath(os.path.expanduser(folder))]


def cache_folder(name: str) -> Path:
    """Return a folder in the configured directory, in $JOBFLOW_CACHE, or in jobflow in $XDG_CACHE_HOME or ~/.cache.

    All files in the folder may be removed.
    """
    if _chosen:
        return Path(_chosen[0], name)
    base = os.environ.get("JOBFLOW_CACHE") or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "jobflow")
    return Path(base, name)
