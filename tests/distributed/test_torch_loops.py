"""Data parallel loops written for PyTorch run with every launcher, with the losses of one process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from processes import run_command, started

LOOP = str(Path(__file__).parent / "programs" / "torch_loop.py")


def loss(line: str) -> float:
    return float(line.rpartition(": ")[2])


@pytest.fixture(scope="module")
def alone() -> float:
    """Return the loss of one process."""
    ended = run_command([sys.executable, LOOP], environment={"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"})
    assert ended.code == 0, ended.err
    return loss(ended.out)


@pytest.mark.mpi
@pytest.mark.parametrize("way", [pytest.param("mpiexec", marks=pytest.mark.full), "by hand", pytest.param("launcher", marks=pytest.mark.full)])
def test_the_launcher_determines_the_ranks(way: str, alone: float) -> None:
    code, lines, errors = started(way, 2, LOOP)
    assert code == 0, errors
    assert [line.partition(":")[0] for line in lines] == ["rank 0 of 2", "rank 1 of 2"], lines
    assert [loss(line) for line in lines] == pytest.approx([alone] * 2, rel=1e-4)


@pytest.mark.mpi
@pytest.mark.full
def test_spawn_starts_ranks(alone: float) -> None:
    ended = run_command([sys.executable, LOOP, "spawn"])
    assert ended.code == 0, ended.err
    assert [loss(line) for line in ended.out.splitlines()] == pytest.approx([alone] * 2, rel=1e-4)


@pytest.mark.mpi
@pytest.mark.full
def test_a_failed_process_of_spawn_raises() -> None:
    ended = run_command([sys.executable, LOOP, "fail"])
    assert ended.code == 1 and "ValueError: no luck" in ended.err and "the process ended with exit code" in ended.err
