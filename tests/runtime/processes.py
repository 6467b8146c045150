"""Programs under mpiexec, for the tests in this folder."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass

import pytest
from starting import MPIEXEC, left_over

PROGRAMS = pathlib.Path(__file__).parent / "programs"
ROOT = pathlib.Path(__file__).parents[2]

mpi = pytest.mark.mpi


#: seconds from the accident to the end of mpiexec
PROMPT = 2.0


@dataclass
class Ended:
    """What a job left: exit code, output, and the seconds from the accident, if there was one, to the end of the launcher."""

    code: int
    out: str
    err: str
    late: float


def run(program: str, *arguments: str, ranks: int = 2, limit: float = 60.0) -> Ended:
    """Run a program under mpiexec; nothing of it may be left afterwards."""
    token = f"jobflow-test-{uuid.uuid4()}"
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "JOBFLOW_TEST": token,
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONWARNINGS": "error",
    }
    command = [MPIEXEC, "-n", str(ranks), sys.executable, str(PROGRAMS / program), *arguments]
    job = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, err = job.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        job.kill()
        for process in left_over(token):
            os.kill(process, signal.SIGKILL)
        out, err = job.communicate()
        pytest.fail(f"{arguments} had not ended after {limit} s; it printed\n{out}\n{err}")
    accidents = [float(line.split()[1]) for line in err.splitlines() if re.fullmatch(r"accident [\d.]+", line)]
    late = time.time() - max(accidents) if accidents else 0.0
    deadline = time.monotonic() + 2
    while left_over(token) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert left_over(token) == []
    return Ended(job.returncode, out, err, late)
