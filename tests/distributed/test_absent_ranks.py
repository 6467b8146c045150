"""Absent ranks under mpiexec: a rank in MPI's start names them, and ends the job after JOBFLOW_JOIN_SECONDS."""

from __future__ import annotations

import sys

import pytest
from processes import MPIEXEC, Exited, crowd

pytestmark = pytest.mark.mpi

PROGRAM = """
import sys, time
import jobflow as flow
time.sleep(float(sys.argv[1]))
total = flow.ones(4, 2, placement=flow.placement.all("cpu"), sbp=flow.sbp.split(0)).sum().item()
print(total, flush=True)
"""
PRESENT = [sys.executable, "-c", PROGRAM, "0"]


def run(limit: str, *others: list[str], variable: str = "JOBFLOW_JOIN_SECONDS") -> Exited:
    """Start rank 0 with PROGRAM, and each other rank with another command."""
    words = [word for command in others for word in (":", "-n", "1", *command)]
    with crowd() as jobs:
        jobs.start([MPIEXEC, "-n", "1", *PRESENT, *words], {variable: limit})
        return jobs.wait(20)[0]


@pytest.mark.parametrize("missing", [[sys.executable, "missing.py"], [sys.executable, "-c", "raise ImportError"], ["sleep", "30"]])
def test_a_rank_that_does_not_import_jobflow_ends_the_job(missing: list[str]) -> None:
    ended = run("2", PRESENT, missing)
    assert ended.code != 0 and ended.out == "", ended
    if missing[0] == "sleep":
        assert ended.err.count("has waited 2 s for rank 2; start all ranks with a program that imports jobflow") == 1, ended.err
        assert "JOBFLOW_JOIN_SECONDS" in ended.err and "of 3" in ended.err, ended.err
    else:
        assert ended.err.count("of 3 waits for rank 2, which ended without importing jobflow; its output states the reason") == 1, ended.err


def test_a_rank_that_ended_before_it_imported_jobflow_is_not_awaited() -> None:
    ended = run("300", [sys.executable, "missing.py"])
    assert ended.code != 0 and "start of MPI: rank 0 of 2 waits for rank 1, which ended without importing jobflow" in ended.err, ended


@pytest.mark.full
def test_ranks_that_have_imported_jobflow_may_start_later() -> None:
    ended = run("2.5", [sys.executable, "-c", PROGRAM, "3"], ["sh", "-c", f"{sys.executable} -c '{PROGRAM}' 3; true"])
    assert (ended.code, ended.err) == (0, ""), ended


@pytest.mark.parametrize(
    ("variable", "text"), [("JOBFLOW_JOIN_SECONDS", "JOBFLOW_JOIN_SECONDS is '-1'"), ("JOBFLOW_SHARED_MIB", "is not a number of MiB")]
)
def test_a_wrong_limit_is_an_error_without_traceback(variable: str, text: str) -> None:
    ended = run("-1", PRESENT, variable=variable)
    assert ended.code == 1 and text in ended.err and "Traceback" not in ended.err, ended
