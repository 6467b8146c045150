"""Python threads of one process that use tensors, modules and graphs concurrently: each gets the results of a single thread."""

from __future__ import annotations

from pathlib import Path

from processes import STRICT, run

PROGRAMS = Path(__file__).with_name("programs")

CASES = ["placements", "halves", "graphs", "layouts", "modes", "builds", "blocks", "draws", "leaves", "right"]


def test_each_thread_gets_its_own_results() -> None:
    ended = run(PROGRAMS / "tensors.py", environment=STRICT)
    assert (ended.code, ended.out.splitlines()) == (0, CASES), ended.err
