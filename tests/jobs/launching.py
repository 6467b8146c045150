"""Programs under mpiexec, for the tests of this folder."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from jobflow.distributed import mpiexec

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).with_name("programs")


@dataclass(frozen=True)
class Ended:
    """A program that has come to its end, and how."""

    code: int
    out: str
    err: str
    seconds: float


def run_ranks(script: Path, *arguments: str, ranks: int, limit: float = 120.0) -> Ended:
    """The script under mpiexec, in a process group of its own that is killed if it takes longer than `limit` seconds."""
    launcher = mpiexec.find()
    if launcher is None:
        pytest.fail("there is no mpiexec: install the extra mpi, or deselect these tests with -m 'not mpi'")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [launcher, "-n", str(ranks), sys.executable, str(script), *arguments]
    started = time.monotonic()
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True)
    try:
        out, err = job.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, 9)
        out, err = job.communicate()
        return Ended(-9, out, f"killed after {limit} s\n{err}", time.monotonic() - started)
    return Ended(job.returncode, out, err, time.monotonic() - started)
