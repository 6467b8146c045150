"""The first error of any rank is the one that is shown, whatever the others, or this rank on its way out, meet because of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from processes import started

pytestmark = pytest.mark.mpi

PROGRAM = Path(__file__).parent / "programs" / "first_cause.py"
WAYS = ["mpiexec", "launcher", "by hand"]


def _rarely(way: str, case: str, starts: str) -> Any:
    """tests/cli/test_failures.py starts training in other ways."""
    return pytest.param(way, case, marks=[] if way == starts else [pytest.mark.full])


@pytest.mark.parametrize(
    ("way", "case"),
    [_rarely(way, *case) for case in (("train:value:2", "by hand"), ("train:data:2", "mpiexec"), ("train:data:0", "none")) for way in WAYS],
)
def test_samples_that_one_rank_cannot_read(way: str, case: str, tmp_path: Path) -> None:
    code, _, err = started(way, 2, str(PROGRAM), case, str(tmp_path))
    assert code == 1, err
    assert "picture 60 cannot be read" in err and "rank 1" in err, err
    assert "different things" not in err and "without end" not in err, err


@pytest.mark.parametrize(
    ("way", "last"), [("mpiexec", "numpy"), ("launcher", "job"), ("by hand", "numpy"), pytest.param("mpiexec", "job", marks=pytest.mark.full)]
)
def test_what_a_rank_does_on_its_way_out_hides_nothing(way: str, last: str, tmp_path: Path) -> None:
    """`finally` blocks of programs save and print too, which needs the others: they learn why it does not come to that."""
    code, _, err = started(way, 2, str(PROGRAM), f"loop:{last}", str(tmp_path))
    assert code == 1, err
    assert "rank 1 failed with ValueError: picture 60 cannot be read (at first_cause.py:" in err, err
    assert any("rank 0" in line and "job total" in line for line in err.splitlines()), f"where rank 0 was: {err}"
