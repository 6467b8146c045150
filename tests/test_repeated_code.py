"""The search for repeated code sees through other names of variables and other texts, and sees nothing in what only looks alike."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "find_repeated_code"
ONE = """
def first(rows, limit):
    for place in range(len(rows)):
        if rows[place] > limit:
            rows[place] = limit * 2 + place
            print(rows, f"above {limit}")
    return [row for row in rows if row is not None]
"""
RENAMED = ONE.replace("first", "second").replace("rows", "values").replace("place", "i").replace("above", "beyond")


@pytest.mark.parametrize(
    ("other", "alike", "count"),
    [
        (RENAMED, False, 1),
        (RENAMED.replace("> limit", "< limit"), False, 0),
        (RENAMED.replace("print", "show"), False, 0),
        (RENAMED.replace("print", "show"), True, 1),
    ],
)
def test_repeated_code_is_reported(other: str, alike: bool, count: int, tmp_path: Path) -> None:
    files = [tmp_path / "one.py", tmp_path / "other.py"]
    for file, source in zip(files, (ONE, other), strict=True):
        file.write_text(source)
    groups = runpy.run_path(str(SCRIPT))["repeated"](files, 30, alike)
    assert len(groups) == count
    assert [(run.file, run.first, run.last) for group in groups for run in group] == [(file, 3, 7) for file in files] * count
