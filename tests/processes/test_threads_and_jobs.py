"""Python threads that call the jobs of one session concurrently: each gets its own results, on one device, on two, and on ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import STRICT, run

PROGRAMS = Path(__file__).with_name("programs")

CASES = ["own", "shapes", "steps", "interleaved", "watches"]


@pytest.mark.parametrize(("devices", "ranks"), [("1", 0), ("2", 0), pytest.param("single", 2, marks=pytest.mark.mpi)])
def test_each_thread_gets_its_own_results(devices: str, ranks: int) -> None:
    ended = run(PROGRAMS / "jobs.py", devices, ranks=ranks, environment=STRICT)
    assert (ended.code, ended.out.splitlines()) == (0, CASES), ended.err


RESULTS = {"two_jobs": "20.0 400.0", "one_job": "20.0 40.0", "tensors": "20.0 40.0", "reduced": "20.0 40.0", "graph": "20.0 40.0"}


@pytest.mark.mpi
def test_threads_that_call_in_one_order_on_all_ranks_succeed() -> None:
    ended = run(PROGRAMS / "orders.py", "same", *RESULTS, ranks=2, environment=STRICT)
    assert (ended.code, sorted(ended.out.splitlines())) == (0, sorted([*RESULTS.values()] * 2)), ended.err


@pytest.mark.mpi
@pytest.mark.parametrize("case", ["two_jobs", "tensors", "graph", *(pytest.param(case, marks=pytest.mark.full) for case in ("one_job", "reduced"))])
def test_threads_that_call_in_different_orders_raise(case: str) -> None:
    """The error names the calls and the threads; no rank continues with the result of another thread's call."""
    ended = run(PROGRAMS / "orders.py", "other", case, ranks=2, environment=STRICT)
    assert ended.code == 1 and ended.out == "", ended.err
    assert "rank 0: " in ended.err and "rank 1: " in ended.err
    assert "'worker 1'" in ended.err and "'worker 2'" in ended.err and "orders.py:" in ended.err
