"""The programs that the legacy documentation shows run as they are, but for the name of the import, and learn the same on any devices."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from jobflow.distributed import mpiexec

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PROGRAMS = sorted(path.stem for path in (HERE / "programs").glob("*.py"))
#: those that name a second device
PAIRS = {"mirrored_strategy", "mixed_parallel_lenet"}
#: the programs print every 20th loss of an epoch
BATCHES = 41
#: relative, in float64: the LeNet of these programs, with its large first weights and steps, magnifies the rounding of float32
TOLERANCE = 1e-9


@functools.cache
def run(program: str, *options: str, ranks: int = 0) -> tuple[list[float], str]:
    """The losses that the program prints, and what it says beside."""
    command = [sys.executable, str(HERE / "limited.py"), str(HERE / "programs" / f"{program}.py"), *options]
    if ranks:
        command = [mpiexec.find() or "mpiexec", "-n", str(ranks), *command]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    assert all(re.fullmatch(r"\d+\.\d+", line) for line in done.stdout.splitlines()), done.stdout
    return [float(line) for line in done.stdout.splitlines()], done.stderr


def exact(program: str, *devices: str, ranks: int = 0) -> list[float]:
    """The losses of steps 0 and 20 in float64; on the devices that the program asks for unless they are given."""
    losses, _ = run(program, "21", "float64", *devices, ranks=ranks)
    assert len(losses) == 2 and losses[1] < losses[0]
    return losses


def test_all_are_there() -> None:
    expected = {"consistent_strategy", "mirrored_strategy", "mixed_parallel_mlp", "mixed_parallel_lenet", "hybrid_parallelism_mlp"}
    assert set(PROGRAMS) == expected


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_as_it_is(program: str) -> None:
    """On two threads; it learns, and says at most once what is old or different here."""
    losses, said = run(program, str(BATCHES))
    assert len(losses) == 3
    assert losses[2] < losses[1] < losses[0]
    lines = said.splitlines()
    assert all(line.startswith("jobflow: ") for line in lines) and len(set(lines)) == len(lines), said
    assert sum("there is no GPU" in line for line in lines) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("program", sorted(set(PROGRAMS) - PAIRS))
def test_solo(program: str) -> None:
    np.testing.assert_allclose(exact(program, "1"), exact(program), rtol=TOLERANCE)


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.parametrize("program", PROGRAMS)
def test_two_ranks(program: str) -> None:
    np.testing.assert_allclose(exact(program, ranks=2), exact(program), rtol=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("same", [("consistent_strategy", "mirrored_strategy"), ("mixed_parallel_lenet", "consistent_strategy")], ids=" and ".join)
def test_one_model_spelled_in_two_ways(same: tuple[str, str]) -> None:
    """The views and the relay are about where numbers are computed; the two spellings of plain SGD are one optimizer."""
    first, second = same
    np.testing.assert_allclose(exact(first), exact(second), rtol=TOLERANCE)
