"""Generated pages, drawings of layouts and stages of a job equal the output of the scripts that write them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import drawings
import numpy as np
import pages
import pictures
import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("script", ["docs", "differences", pytest.param("strategies", marks=pytest.mark.full)])
def test_pages_are_up_to_date(script: str) -> None:
    done = subprocess.run([sys.executable, f"scripts/refresh_{script}", "--check"], cwd=ROOT, check=False)
    assert done.returncode == 0, f"run scripts/refresh_{script}"


def test_pictures_are_up_to_date() -> None:
    """The pictures equal those that jobflow's layouts and schedules give now."""
    current = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "pictures").glob("*.svg")}
    stale = [name for name in {*pictures.PICTURES, *current} if name not in pictures.PICTURES or pictures.PICTURES[name]() != current.get(name)]
    assert stale == [], "run scripts/refresh_pictures"


def test_pictures_are_used_and_load_nothing() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in pages.PAGES)
    for name, draw in pictures.PICTURES.items():
        assert f"pictures/{name}.svg)" in text, name
        assert "href" not in draw() and "url(" not in draw()


def test_the_drawn_addends_make_the_tensor() -> None:
    np.testing.assert_array_equal(sum(np.outer(drawings.A[:, i], drawings.W[i]) for i in (0, 1)), drawings.X)
