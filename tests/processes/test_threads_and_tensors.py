"""Python threads of one process that use tensors, modules and graphs at once: each gets what it would get alone."""

from __future__ import annotations

from fresh import run

CASES = ["placements", "halves", "graphs", "layouts", "modes", "builds", "blocks", "draws", "leaves", "right"]


def test_each_thread_gets_its_own_numbers() -> None:
    ended = run("tensors.py")
    assert (ended.returncode, ended.stdout.splitlines()) == (0, CASES), ended.stderr
