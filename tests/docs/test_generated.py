"""Generated pages, drawings of layouts and stages of a job equal the output of the scripts that write them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import drawings
import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("script", ["docs", "differences"])
def test_pages_are_up_to_date(script: str) -> None:
    done = subprocess.run([sys.executable, f"scripts/refresh_{script}", "--check"], cwd=ROOT, check=False)
    assert done.returncode == 0, f"run scripts/refresh_{script}"


def test_the_drawn_addends_make_the_tensor() -> None:
    np.testing.assert_array_equal(sum(np.outer(drawings.A[:, i], drawings.W[i]) for i in (0, 1)), drawings.X)
