"""The mpiexec of this Python installation."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache

from jobflow.distributed.processes import finished

#: time limit of `mpiexec --version`, in seconds
PATIENCE = 10.0


def find() -> str | None:
    """Return the path of mpiexec, next to the interpreter (where a wheel installs it) or from PATH; None if there is none."""
    return shutil.which("mpiexec", path=os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)]))


@cache
def flavour(path: str) -> str:
    """Return the MPI library of a launcher: "MPICH", "Open MPI", "Intel MPI", or "" if its version text names none."""
    try:
        return kind(finished([path, "--version"], PATIENCE, stderr=subprocess.STDOUT).stdout)
    except (OSError, subprocess.TimeoutExpired):
        return ""


def kind(text: str) -> str:
    """Return the MPI library that a version text names; "" for an unknown library."""
    for word, name in (("Open MPI", "Open MPI"), ("OpenRTE", "Open MPI"), ("PRRTE", "Open MPI"), ("Intel(R) MPI", "Intel MPI"), ("MPICH", "MPICH")):
        if word in text:
            return name
    return "MPICH" if "HYDRA" in text else ""


def ranks(path: str, size: int, program: Sequence[str]) -> list[str]:
    """Return the command that runs `program` as `size` ranks on this machine, which may have fewer cores than ranks."""
    more = ["--oversubscribe"] if flavour(path) == "Open MPI" else []
    return [path, *more, "-n", str(size), *program]
