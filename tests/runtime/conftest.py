"""What tests here share, the programs they start, and `traced` of the compiler's tests are importable by the tests in this folder."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "programs"), str(HERE.parent / "compiler")]
