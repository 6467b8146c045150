"""A rank that ends without a word ends its job, never with exit code 0, however the ranks were started."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import PROMPT, by_hand, by_launcher, by_mpiexec, late

pytestmark = pytest.mark.mpi

#: a rank ends while the others wait for it, while they work, before the ranks need each other
WHEN = ["together", "asleep", "early"]


def names() -> set[str]:
    """Shared memory of MPI that has a name, and so outlives its processes."""
    return {path.name for path in Path("/dev/shm").glob("mpich_shm_*")}


@pytest.mark.parametrize("how", ["zero", "child"])
@pytest.mark.parametrize("when", WHEN)
def test_under_mpiexec(when: str, how: str) -> None:
    """`os._exit(0)` is no orderly end, and a child that holds a killed rank's connections does not hide it."""
    ended = by_mpiexec(f"{when}:{how}", 2)
    assert ended.code == 1, ended
    assert ended.err.count("rank 1 ended without a report: it was killed, or called os._exit") == 1, ended.err
    assert late([ended]) < PROMPT, ended


@pytest.mark.parametrize("when", WHEN)
def test_under_the_launcher(when: str) -> None:
    ended = by_launcher(f"{when}:zero", 2)
    assert ended.code == 1, ended
    assert "rank 1" in ended.err and "without a report" in ended.err, ended.err
    assert late([ended]) < PROMPT, ended


@pytest.mark.parametrize("when", WHEN)
def test_by_hand(when: str) -> None:
    ended = by_hand(f"{when}:zero", 2)
    assert ended[0].code == 1, ended
    assert "rank 1" in ended[0].err and "ended without a report" in ended[0].err, ended
    assert late(ended) < PROMPT, ended


def test_the_end_of_the_process_manager_ends_its_ranks() -> None:
    """mpiexec's proxy on a node is killed: neither ranks (as `by_mpiexec` sees) nor shared memory are left."""
    before = names()
    ended = by_mpiexec("asleep:manager", 2)
    assert ended.code != 0, ended
    assert mapped_by_nobody(names() - before) == set()


def mapped_by_nobody(files: set[str]) -> set[str]:
    """Those of the files that no process uses: others may have started MPI meanwhile."""
    used = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            used |= {name for name in files if name in maps.read_text(errors="replace")}
        except OSError:
            continue
    return files - used
