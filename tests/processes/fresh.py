"""Programs of this folder in processes of their own: alone, and as ranks under mpiexec."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from jobflow.distributed import mpiexec

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).with_name("programs")
#: seconds after which a program is taken to hang
LIMIT = 120.0


def run(program: str, *arguments: str, ranks: int = 1, path: str = "") -> subprocess.CompletedProcess[str]:
    """The program's end; the test fails if it does not come.  Modules in the folder `path` come before others."""
    folders = os.pathsep.join(filter(None, (path, str(ROOT))))
    environment = {**os.environ, "PYTHONPATH": folders, "PYTHONWARNINGS": "error", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command: Sequence[str] = [*_launcher(ranks), sys.executable, str(PROGRAMS / program), *arguments]
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True)
    try:
        out, err = job.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, 9)
        out, err = job.communicate()
        pytest.fail(f"{' '.join(command)} was still running after {LIMIT:g} s\n{out}\n{err}")
    return subprocess.CompletedProcess(command, job.returncode, out, err)


def _launcher(ranks: int) -> list[str]:
    if ranks == 1:
        return []
    launcher = mpiexec.find()
    if launcher is None:
        pytest.fail("there is no mpiexec: install the extra mpi, or deselect these tests with -m 'not mpi'")
    return [launcher, "-n", str(ranks)]
