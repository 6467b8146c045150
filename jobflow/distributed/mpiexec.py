"""The mpiexec that belongs to this Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache

from jobflow.distributed.processes import finished

#: seconds for a launcher to say what it is
PATIENCE = 10.0


def find() -> str | None:
    """The path of mpiexec: the one beside the interpreter, where a wheel puts it, before those of PATH; None if there is none."""
    return shutil.which("mpiexec", path=os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)]))


@cache
def flavour(path: str) -> str:
    """The kind of MPI a launcher belongs to: "MPICH", "Open MPI", "Intel MPI", or "" if it does not say."""
    try:
        return kind(finished([path, "--version"], PATIENCE, stderr=subprocess.STDOUT).stdout)
    except (OSError, subprocess.TimeoutExpired):
        return ""


def kind(said: str) -> str:
    """The kind of MPI that says this of itself."""
    for word, name in (("Open MPI", "Open MPI"), ("OpenRTE", "Open MPI"), ("PRRTE", "Open MPI"), ("Intel(R) MPI", "Intel MPI"), ("MPICH", "MPICH")):
        if word in said:
            return name
    return "MPICH" if "HYDRA" in said else ""


def ranks(path: str, size: int, program: Sequence[str]) -> list[str]:
    """The command that runs `program` as `size` ranks on this machine, on as few cores as there are."""
    more = ["--oversubscribe"] if flavour(path) == "Open MPI" else []
    return [path, *more, "-n", str(size), *program]
