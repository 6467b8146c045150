"""The code on docs/strategies.md runs, from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from jobflow import strategies

PAGE = Path(__file__).parents[2] / "docs" / "strategies.md"


def test_code_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 3, "the page has lost some of its code"
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    assert len(set(names["expected"])) == 3, "nothing was learned"


def test_every_strategy_is_described() -> None:
    text = PAGE.read_text(encoding="utf-8")
    missing = [name for name in strategies.__all__ if name[0].islower() and f"`{name}(" not in text]
    assert not missing
