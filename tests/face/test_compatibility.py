"""The page of legacy names agrees with jobflow: each name, with the published signature."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "refresh_compatibility"


def test_the_page_lists_the_available_names() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, f"run scripts/refresh_compatibility if this is meant:\n{done.stdout}{done.stderr}"
