"""What tests here share, the programs they start, `traced` of the compiler's tests and the benchmarks are importable by the tests in this folder."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "programs"), str(HERE.parent / "compiler"), str(HERE.parents[1] / "benchmarks")]
