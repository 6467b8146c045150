"""The modules beside this file, and ranks that are threads, are importable by the tests in this folder."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "eager")]
