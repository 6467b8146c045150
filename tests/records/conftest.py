"""The modules beside this file, and those of the docs and of the configurations, are importable by the tests in this folder."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / folder) for folder in ("records", "docs", "configs")]
