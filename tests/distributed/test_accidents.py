"""Accidents of ranks that used to leave processes behind: a stopped rank, a forked child of a reader, a port that another program uses."""

from __future__ import annotations

import signal
import socket
import sys
import time
from pathlib import Path

import pytest
from processes import MPIEXEC, crowd, ranks_of_python, variables

pytestmark = pytest.mark.mpi

#: ranks that do not end by SIGTERM at once, one of which is stopped
STOPPED = """
import os, signal, sys
import jobflow as flow
signal.signal(signal.SIGTERM, lambda *_: None)
def meet():
    flow.ones(4, 2, placement=flow.placement.all("cpu"), sbp=flow.sbp.split(0)).sum().item()
meet()
if os.environ.get("PMI_RANK", os.environ.get("RANK")) == "1":
    print("stops", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
while True:
    meet()
"""
#: a reader that forks a child, which ends in one of several ways
READER = """
import os, sys
import jobflow as flow
from jobflow.data.ahead import Pool

def read():
    child = os.fork()
    if child == 0:
        if sys.argv[1] == "exit":
            sys.exit(3)
        if sys.argv[1] == "raise":
            raise ValueError("of the child")
        return -1
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

pool = Pool(1)
print(pool.ask(read, lambda: "a file").result(), flush=True)
pool.close()
flow.ones(4, 2, placement=flow.placement.all("cpu"), sbp=flow.sbp.split(0)).sum().item()
"""


@pytest.mark.parametrize("way", ["mpiexec", "launch"])
def test_sigterm_ends_a_job_with_a_stopped_rank(way: str, tmp_path: Path) -> None:
    (script := tmp_path / "stopped.py").write_text(STOPPED)
    with crowd() as jobs:
        job = jobs.start([*ranks_of_python(way, 2), str(script)])
        jobs.await_text(0, "stops")
        began = time.monotonic()
        time.sleep(0.3)
        job.send_signal(signal.SIGTERM)
        (ended,) = jobs.wait(20)
    assert ended.code != 0 and time.monotonic() - began < 8, ended


@pytest.mark.parametrize(("how", "code", "error"), [("exit", 3, ""), ("raise", 1, "of the child"), ("return", 0, "")])
def test_a_forked_child_of_a_reader_ends(how: str, code: int, error: str) -> None:
    with crowd() as jobs:
        jobs.start([MPIEXEC, "-n", "2", sys.executable, "-W", "ignore", "-c", READER, how])
        (ended,) = jobs.wait(20)
    assert (ended.code, ended.out) == (0, f"{code}\n") and error in ended.err, ended


def test_a_port_of_a_silent_program_is_reported_immediately() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, crowd() as jobs:
        port = other.getsockname()[1]
        began = time.monotonic()
        jobs.start([sys.executable, "-c", "import jobflow"], variables(0, 2, port))
        (ended,) = jobs.wait(20)
    assert ended.code == 1 and f"MASTER_PORT={port} at 127.0.0.1 is in use by another program" in ended.err, ended
    assert "Traceback" not in ended.err, ended
    assert time.monotonic() - began < 6, ended
