"""Tests that ranks which compile independently get equal plans; these do not depend on string hashes or object addresses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def printed(seed: int) -> str:
    path = os.pathsep.join(map(str, (HERE, HERE.parent / "support", HERE.parents[1])))
    environment = os.environ | {"PYTHONHASHSEED": str(seed), "PYTHONPATH": path}
    done = subprocess.run([sys.executable, str(HERE / "printed_plans.py")], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_plans_are_the_same_under_any_hash_seed() -> None:
    """Compare the plans of a perceptron, a convolutional network, an attention block, and five random programs, on two ranks."""
    first, second = (printed(seed) for seed in (0, 1))
    assert first.count("job job, rank 1") == 8 and "all_reduce" in first
    assert first == second
