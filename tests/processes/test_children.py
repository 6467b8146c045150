"""Child processes of one of several ranks, or of a process with several devices: they are not ranks, and the ranks continue."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import STRICT, run

PROGRAMS = Path(__file__).with_name("programs")


@pytest.mark.parametrize(
    ("how", "ranks", "expected"),
    [
        ("devices", 0, ["rank 0, 3, forked, None, 4.0", "alone 3.0", "4.0"]),  # a session of its own has threads of its own
        pytest.param("ranks", 2, ["rank 1, 3, forked, None, forked", "alone 3.0", "8.0"], marks=pytest.mark.mpi),
    ],
)
def test_child_processes_are_not_ranks(how: str, ranks: int, expected: list[str]) -> None:
    ended = run(PROGRAMS / "children.py", how, ranks=ranks, environment=STRICT)
    assert (ended.code, ended.out.splitlines()) == (0, expected), ended.err


@pytest.mark.mpi
@pytest.mark.parametrize(("how", "code"), [("end", 0), ("exit", 1), ("raise", 5)])
def test_child_processes_exit_like_other_programs(how: str, code: int) -> None:
    """MPI belongs to the ranks: it remains usable while a child runs its atexit functions, and ends with the ranks."""
    ended = run(PROGRAMS / "leaving_children.py", how, ranks=2, environment=STRICT)
    assert (ended.code, sorted(ended.out.splitlines())) == (0, 2 * [f"child {code} 8.0"] + 2 * ["what atexit has"]), ended.err


@pytest.mark.mpi
def test_ranks_finalize_mpi() -> None:
    ended = run(PROGRAMS / "ending.py", ranks=2, environment=STRICT)
    assert (ended.code, ended.err.splitlines()) == (0, 2 * ["MPI has ended"]), ended.out
