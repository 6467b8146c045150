"""The programs of docs/global_tensors.md run, one after another, on two ranks."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "eager"))
from ranks import on_ranks  # noqa: E402 - beside the eager tests

PAGE = (ROOT / "docs" / "global_tensors.md").read_text(encoding="utf-8")


def test_every_program_runs(capsys: pytest.CaptureFixture[str]) -> None:
    programs = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    assert len(programs) == 4

    def run(rank: int) -> None:
        names: dict[str, Any] = {"__name__": "page"}
        for program in programs:
            exec(compile(program, "global_tensors.md", "exec"), names)

    on_ranks(2, run)
    printed = capsys.readouterr().out.split()
    assert len(printed) == 2 and len(set(printed)) == 1
