"""The code on docs/checkpoints.md runs, from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "checkpoints.md"


def test_code_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 3, "the page has lost some of its code"
    names: dict[str, Any] = {"ROOT": str(tmp_path)}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    assert "is damaged: its content, box" in capsys.readouterr().out
