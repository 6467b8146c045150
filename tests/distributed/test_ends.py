"""A rank that ends without a report ends its job, never with exit code 0, in every way of starting."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import PROMPT, by_hand, by_launcher, by_mpiexec, crowd, late, ranks_of_python

pytestmark = pytest.mark.mpi

#: a rank ends while the others wait for it, while they work, before the ranks need each other
WHEN = ["together", "asleep", "early"]


def names() -> set[str]:
    """Return the named shared memory of MPI, which outlives its processes."""
    return {path.name for path in Path("/dev/shm").glob("mpich_shm_*")}


@pytest.mark.parametrize("how", ["zero", "child"])
@pytest.mark.parametrize("when", WHEN)
def test_a_dead_rank_ends_the_job_under_mpiexec(when: str, how: str) -> None:
    """`os._exit(0)` is not an orderly end, and a child with the connections of a killed rank does not hide its end."""
    ended = by_mpiexec(f"{when}:{how}", 2)
    assert ended.code == 1, ended
    assert ended.err.count("rank 1 ended without a report: it was killed, or called os._exit") == 1, ended.err
    assert late([ended]) < PROMPT, ended


@pytest.mark.parametrize("when", WHEN)
def test_a_dead_rank_ends_the_job_under_the_launcher(when: str) -> None:
    ended = by_launcher(f"{when}:zero", 2)
    assert ended.code == 1, ended
    assert "rank 1" in ended.err and "without a report" in ended.err, ended.err
    assert late([ended]) < PROMPT, ended


@pytest.mark.parametrize("when", WHEN)
def test_a_dead_rank_ends_the_job_in_several_terminals(when: str) -> None:
    ended = by_hand(f"{when}:zero", 2)
    assert ended[0].code == 1, ended
    assert "rank 1" in ended[0].err and "ended without a report" in ended[0].err, ended
    assert late(ended) < PROMPT, ended


def test_the_end_of_the_process_manager_ends_its_ranks() -> None:
    """After mpiexec's proxy on a node is killed, no ranks (checked by `by_mpiexec`) and no shared memory remain."""
    before = names()
    ended = by_mpiexec("asleep:manager", 2)
    assert ended.code != 0, ended
    assert mapped_by_nobody(names() - before) == set()


def mapped_by_nobody(files: set[str]) -> set[str]:
    """Return the files that no process maps; other programs may have started MPI meanwhile."""
    used = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            used |= {name for name in files if name in maps.read_text(errors="replace")}
        except OSError:
            continue
    return files - used


#: rank 1 ends its main thread before or after the first meeting of the ranks, while a thread, a pool or a child process still runs
LINGERING = """
import multiprocessing, os, sys, threading, time
import jobflow as flow

def meet():
    return flow.ones(4, 2, placement=flow.placement.all("cpu"), sbp=flow.sbp.split(0)).sum().item()

def wait():
    time.sleep(20)

def call():
    time.sleep(1.5)
    print(meet(), flush=True)

when, remaining = sys.argv[1:]
if when == "after":
    meet()
if os.environ.get("PMI_RANK", os.environ.get("RANK")) == "0" and remaining != "call":
    meet()
if remaining == "pool":
    from concurrent.futures import ThreadPoolExecutor
    ThreadPoolExecutor().submit(wait)
elif remaining == "process":
    multiprocessing.get_context("fork").Process(target=wait, name="worker").start()
else:
    threading.Thread(target=globals()[remaining], name="worker").start()
sys.exit(3)
"""


@pytest.mark.parametrize(
    ("way", "when", "remaining", "what"),
    [
        ("mpiexec", "before", "wait", "thread 'worker' at lingering.py:9 still runs, and rank 0 began to wait for this rank in the start of MPI"),
        ("mpiexec", "after", "process", "child process 'worker' still runs, and rank 0 began to wait for this rank in collective 2"),
        (
            "launch",
            "before",
            "pool",
            "thread 'ThreadPoolExecutor-0_0' at lingering.py:9 still runs, and rank 0 began to wait for this rank in the start of a session",
        ),
        pytest.param("mpiexec", "after", "wait", "thread 'worker' at lingering.py:9 still runs", marks=pytest.mark.full),
        pytest.param("mpiexec", "before", "pool", "thread 'ThreadPoolExecutor-0_0' at lingering.py:9 still runs", marks=pytest.mark.full),
        pytest.param("launch", "before", "process", "child process 'worker' still runs", marks=pytest.mark.full),
        pytest.param("launch", "after", "wait", "thread 'worker' at lingering.py:9 still runs", marks=pytest.mark.full),
        pytest.param("mpiexec", "before", "call", "", marks=pytest.mark.full),
        pytest.param("launch", "after", "call", "", marks=pytest.mark.full),
    ],
)
def test_a_rank_whose_main_thread_has_ended_is_awaited_for_a_limited_time(way: str, when: str, remaining: str, what: str, tmp_path: Path) -> None:
    """A thread that calls jobs after the end of the main thread continues."""
    (script := tmp_path / "lingering.py").write_text(LINGERING)
    with crowd() as jobs:
        jobs.start([*ranks_of_python(way, 2), str(script), when, remaining], {"JOBFLOW_JOIN_SECONDS": "1"})
        (ended,) = jobs.wait(15)
    if remaining == "call":
        assert ended.code == 3 and "8.0" in ended.out and "the main thread" not in ended.err, ended
    else:
        prefix = "rank 1: " if way == "mpiexec" else "[rank 1] "
        assert ended.code == 1 and f"{prefix}the main thread has ended, but {what}" in ended.err, ended
        assert "JOBFLOW_JOIN_SECONDS" in ended.err, ended
