"""The cache directory: files that can be regenerated."""

from __future__ import annotations

import os
from pathlib import Path

_chosen: list[str] = []


def choose_cache_folder(folder: str | None) -> None:
    """Set the cache directory of `flow.config.cache_folder`; None selects the directory from the environment."""
    _chosen[:] = [] if folder is None else [os.path.abspath(os.path.expanduser(folder))]


def cache_folder(name: str) -> Path:
    """Return the folder `name` in the cache directory, which is not created; all files in it may be removed.

    The cache directory is the configured one, $JOBFLOW_CACHE, or jobflow in $XDG_CACHE_HOME or ~/.cache.
    """
    if _chosen:
        return Path(_chosen[0], name)
    base = os.environ.get("JOBFLOW_CACHE") or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "jobflow")
    return Path(base, name)
