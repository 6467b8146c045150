"""The printed artifacts in docs/internals/life_of_a_job.md are what `jobflow explain` prints today."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_page_is_up_to_date() -> None:
    done = subprocess.run([sys.executable, "scripts/refresh_docs", "--check"], cwd=ROOT, check=False)
    assert done.returncode == 0, "run scripts/refresh_docs"
