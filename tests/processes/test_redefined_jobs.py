"""Redefined jobs: programs and memory of the earlier definition are released, in the session and on all ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import STRICT, run

PROGRAMS = Path(__file__).with_name("programs")


@pytest.mark.parametrize("devices", ["1", "2"])
def test_a_failed_binding_leaves_no_variables(devices: str) -> None:
    ended = run(PROGRAMS / "bad_binds.py", devices, environment=STRICT)
    lines = ["refused: True", "[3.0, 3.0]", "[7.0, 7.0, 7.0]", "{'kept': [3.0, 3.0], 'w': [7.0, 7.0, 7.0]}"]
    assert (ended.code, ended.out.splitlines()) == (0, lines), ended.err


#: MiB that thirty definitions of a job with 8 MiB of tensors may take
GROWTH = 40


@pytest.mark.parametrize(
    ("devices", "ranks"),
    [
        ("2", 0),
        pytest.param("multi", 2, marks=pytest.mark.mpi),
        pytest.param("1", 0, marks=pytest.mark.full),
        pytest.param("single", 2, marks=[pytest.mark.mpi, pytest.mark.full]),
    ],
)
def test_programs_of_redefined_jobs_are_released(tmp_path: Path, devices: str, ranks: int) -> None:
    ended = run(PROGRAMS / "redefined.py", str(tmp_path), devices, ranks=ranks, environment=STRICT)
    assert ended.code == 0, ended.err
    grown = [int(word) for word in ended.out.split()]
    assert len(grown) == max(ranks, 1) and max(grown) < GROWTH


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.full)])
def test_results_of_closed_sessions_do_not_change(ranks: int) -> None:
    ended = run(PROGRAMS / "reopened.py", ranks=ranks, environment=STRICT)
    assert (ended.code, ended.out) == (0, "right\n"), ended.err


@pytest.mark.mpi
def test_tensors_remain_usable_after_the_session_ends() -> None:
    ended = run(PROGRAMS / "ended.py", ranks=2, environment=STRICT)
    assert (ended.code, ended.out) == (0, "right\nright\n"), ended.err
