"""Compiling does not depend on the order of sets or on hashes: every stage prints the same under other hash seeds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def explained(job: str, devices: int, seed: int) -> str:
    """Return the output of `jobflow explain` in a process with this hash seed."""
    command = [sys.executable, "-m", "jobflow", "explain", str(ROOT / "examples" / job), "--devices", str(devices)]
    environment = os.environ | {"PYTHONHASHSEED": str(seed), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("job", "devices"),
    [pytest.param("hybrid_mlp.py:train_job", 2, marks=pytest.mark.full), ("hybrid_mlp_optimizer.py:train_job", 3), ("hybrid_lenet.py:train_job", 4)],
)
def test_every_stage_prints_the_same(job: str, devices: int) -> None:
    first, second = (explained(job, devices, seed) for seed in (0, 1))
    assert len(first.splitlines()) > 100
    assert first == second
