"""Tools of the CUDA toolkit, which may be installed without being on PATH."""

from __future__ import annotations

import os
import shutil


def find(name: str) -> str | None:
    """Return the path of a tool, or None if it is not installed."""
    folders = [os.environ.get("PATH", os.defpath), *(os.path.join(os.environ[v], "bin") for v in ("CUDA_HOME", "CUDA_PATH") if v in os.environ)]
    return shutil.which(name, path=os.pathsep.join([*folders, "/usr/local/cuda/bin"]))
