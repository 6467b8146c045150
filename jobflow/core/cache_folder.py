"""The cache directory: files that can be regenerated."""

from __future__ import annotations

import os
from pathlib import Path

_chosen: list[str] = []


def choose_cache_folder(folder: str | None) -> None:
    """Set the cache directory, for `flow.config.cache_folder`; None selects the directory from the environment."""
    _chosen[:] = [] if folder is None else [os.path.abspath(os.path.expanduser(folder))]


def cache_folder(name: str) -> Path:
    """Return the path of the folder `name` in the cache directory, without creating it; all files in this folder may be removed.

    The cache directory is the configured directory, else $JOBFLOW_CACHE, else the folder jobflow in $XDG_CACHE_HOME or ~/.cache.
    """
    if _chosen:
        return Path(_chosen[0], name)
    base = os.environ.get("JOBFLOW_CACHE") or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "jobflow")
    return Path(base, name)
