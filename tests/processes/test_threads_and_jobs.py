"""Python threads that call the jobs of one session at once: each gets its own numbers, on one device, on two, and on ranks."""

from __future__ import annotations

import pytest
from fresh import run

CASES = ["own", "shapes", "steps", "beside", "watches"]


@pytest.mark.parametrize(("devices", "ranks"), [("1", 1), ("2", 1), pytest.param("single", 2, marks=pytest.mark.mpi)])
def test_each_thread_gets_its_own_numbers(devices: str, ranks: int) -> None:
    ended = run("jobs.py", devices, ranks=ranks)
    assert (ended.returncode, ended.stdout.splitlines()) == (0, CASES), ended.stderr


RESULTS = {"two_jobs": "20.0 400.0", "one_job": "20.0 40.0", "tensors": "20.0 40.0", "reduced": "20.0 40.0", "graph": "20.0 40.0"}


@pytest.mark.mpi
def test_threads_of_ranks_that_call_in_one_order() -> None:
    ended = run("orders.py", "same", *RESULTS, ranks=2)
    assert (ended.returncode, sorted(ended.stdout.splitlines())) == (0, sorted([*RESULTS.values()] * 2)), ended.stderr


@pytest.mark.mpi
@pytest.mark.parametrize("case", ["two_jobs", "tensors", "graph", *(pytest.param(case, marks=pytest.mark.full) for case in ("one_job", "reduced"))])
def test_threads_of_ranks_that_call_in_different_orders(case: str) -> None:
    """An error that names the calls and the threads; no rank goes on with numbers of the other thread's call."""
    ended = run("orders.py", "other", case, ranks=2)
    assert ended.returncode == 1 and ended.stdout == "", ended.stderr
    assert "rank 0: " in ended.stderr and "rank 1: " in ended.stderr
    assert "'worker 1'" in ended.stderr and "'worker 2'" in ended.stderr and "orders.py:" in ended.stderr
