"""A rank that ends without a report ends its job, never with exit code 0, in every way of starting."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import PROMPT, by_hand, by_launcher, by_mpiexec, late

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
    """Return the files that no process maps, because other programs may have started MPI meanwhile."""
    used = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            used |= {name for name in files if name in maps.read_text(errors="replace")}
        except OSError:
            continue
    return files - used
