"""`starting` and `ranks` of other folders are importable by the tests in this one."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("distributed", "eager")]
