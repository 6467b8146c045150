"""The page on data: its program runs, and its table has every reader."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from jobflow.data import READERS

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")


def test_its_program_goes_through_two_epochs() -> None:
    program = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
    seen: list[int] = []

    def train(images: np.ndarray[Any, Any], labels: np.ndarray[Any, Any]) -> float:
        seen.append(len(images))
        return float(labels.mean())

    found: dict[str, Any] = {"train": train}
    exec(program, found)
    assert seen == [*[64] * 20, 20] * 2 and found["position"] == (2, 0)


def test_its_table_has_every_reader() -> None:
    table = PAGE.partition("| reader | reads |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)`", table, re.MULTILINE) == list(READERS)
