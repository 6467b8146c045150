"""`launching` of the job tests is importable by the tests in this folder."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "jobs"))
