"""The page of legacy names says what jobflow has: each name, with the signature that programs were written against."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "refresh_compatibility"


def test_the_page_says_what_is_there() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, f"run scripts/refresh_compatibility if this is meant:\n{done.stdout}{done.stderr}"
