"""The modules beside this file, and the laws of the ops, are importable by the tests in this folder."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "ops")]
