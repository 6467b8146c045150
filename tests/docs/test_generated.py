"""Generated parts of README and docs - drawings of layouts, stages of a job - equal the output of scripts/refresh_docs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import drawings
import numpy as np

ROOT = Path(__file__).parents[2]


def test_pages_are_up_to_date() -> None:
    done = subprocess.run([sys.executable, "scripts/refresh_docs", "--check"], cwd=ROOT, check=False)
    assert done.returncode == 0, "run scripts/refresh_docs"


def test_the_drawn_addends_make_the_tensor() -> None:
    np.testing.assert_array_equal(sum(np.outer(drawings.A[:, i], drawings.W[i]) for i in (0, 1)), drawings.X)
