"""A rank whose address space is used up ends the job within seconds, with an error that states the limit."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import Exited, crowd, ranks_of_python

pytestmark = pytest.mark.mpi

#: sets the limit of one rank at a point of the program to the address space in use and some KiB
PROGRAM = """
import os, resource, sys

def at(point):
    if point == sys.argv[1] and os.environ.get("PMI_RANK", os.environ.get("RANK")) == sys.argv[2]:
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (int(sys.argv[3]) << 10), resource.RLIM_INFINITY))

def meet():
    flow.ones(4, 2, placement=flow.placement.all("cpu"), sbp=flow.sbp.split(0)).sum().item()

at("before import")
import jobflow as flow
from jobflow.data.ahead import Pool
at("before the first step")
meet()
at("between steps")
pool = Pool(2)
pool.ask(lambda: 1, lambda: "a file").result()
pool.close()
at("before the last step")
meet()
meet()
print("done", flush=True)
"""
POINTS = ["before import", "before the first step", "between steps", "before the last step"]
#: KiB
MARGINS = [0, 64, 1 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 48 << 10, 64 << 10]
#: the interpreter itself may fail by SystemError or SIGSEGV in an import
CAUSES = (
    "SystemError",
    "SIGSEGV",
    "ulimit -v",
    "MemoryError",
    "Cannot allocate memory",
    "Memory allocation",
    "failed to map segment",
    "can't start new thread",
)
#: seconds
PROMPT = 20.0


def run(tmp_path: Path, way: str, point: str, rank: int, margin: int) -> Exited:
    (script := tmp_path / "limited.py").write_text(PROGRAM)
    with crowd() as jobs:
        jobs.start([*ranks_of_python(way, 2), str(script), point, str(rank), str(margin)], {"JOBFLOW_JOIN_SECONDS": "5"})
        return jobs.wait(PROMPT)[0]


@pytest.mark.parametrize("way", ["mpiexec", "launch"])
def test_a_thread_that_cannot_start_ends_all_ranks(way: str, tmp_path: Path) -> None:
    ended = run(tmp_path, way, "between steps", 1, 0)
    assert ended.code == 1 and "done" not in ended.out, ended
    assert "rank 1" in ended.err and "JobError: start of thread 'reader-0' at limited.py:" in ended.err, ended.err
    assert "the address space of the process is used up (limit " in ended.err and "raise the limit (ulimit -v)" in ended.err, ended.err


@pytest.mark.full
@pytest.mark.parametrize("margin", MARGINS)
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("way", ["mpiexec", "launch"])
def test_a_used_up_address_space_ends_all_ranks_or_none(way: str, rank: int, point: str, margin: int, tmp_path: Path) -> None:
    ended = run(tmp_path, way, point, rank, margin)
    if ended.code == 0:
        assert ended.out.count("done") == 2, ended
    else:
        assert "done" not in ended.out and any(cause in ended.err for cause in CAUSES) and f"rank {rank}" in ended.err, ended
