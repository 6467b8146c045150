"""Python threads of one process that use tensors, modules and graphs at once: each gets what it would get alone."""

from __future__ import annotations

import pytest
from fresh import run

CASES = ("placements", "halves", "graphs", "layouts", "modes", "builds", "blocks", "draws", "leaves")


@pytest.mark.parametrize("case", CASES)
def test_each_thread_gets_its_own_numbers(case: str) -> None:
    ended = run("tensors.py", case)
    assert (ended.returncode, ended.stdout) == (0, "right\n"), ended.stderr
