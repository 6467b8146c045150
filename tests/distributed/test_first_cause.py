"""The first error of any rank is shown, not the later errors that it causes on this or other ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from processes import started

pytestmark = pytest.mark.mpi

PROGRAM = Path(__file__).parent / "programs" / "first_cause.py"
WAYS = ["mpiexec", "launcher", "by hand"]


def _rarely(way: str, case: str, starts: str) -> Any:
    """Run only with --full: tests/cli/test_failures.py covers other ways of starting."""
    return pytest.param(way, case, marks=[] if way == starts else [pytest.mark.full])


@pytest.mark.parametrize(
    ("way", "case"),
    [_rarely(way, *case) for case in (("train:value:2", "by hand"), ("train:data:2", "mpiexec"), ("train:data:0", "none")) for way in WAYS],
)
def test_an_unreadable_sample_of_one_rank_is_the_first_error(way: str, case: str, tmp_path: Path) -> None:
    code, _, err = started(way, 2, str(PROGRAM), case, str(tmp_path))
    assert code == 1, err
    assert "picture 60 cannot be read" in err and "rank 1" in err, err
    assert "different things" not in err and "without end" not in err, err


@pytest.mark.parametrize(
    ("way", "last"), [("mpiexec", "numpy"), ("launcher", "job"), ("by hand", "numpy"), pytest.param("mpiexec", "job", marks=pytest.mark.full)]
)
def test_collectives_during_unwinding_do_not_hide_the_first_error(way: str, last: str, tmp_path: Path) -> None:
    """`finally` blocks that save and print need the other ranks, which raise the first error instead."""
    code, _, err = started(way, 2, str(PROGRAM), f"loop:{last}", str(tmp_path))
    assert code == 1, err
    assert "rank 1 failed with ValueError: picture 60 cannot be read (at first_cause.py:" in err, err
    assert any("rank 0" in line and "job total" in line for line in err.splitlines()), f"where rank 0 was: {err}"
