"""`watched_run` is importable by the tests in this folder; `trace_format` by the programs they start, too."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent / "programs")]
