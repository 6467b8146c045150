"""Pipelines give the numbers of one device without microbatches: every model, every schedule, on threads and under mpiexec."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pipelines
import pytest
from processes import run

PROGRAMS = Path(__file__).with_name("programs")


@cache
def whole(name: str) -> list[float]:
    return pipelines.train(name, ["0:0"], 1, None)


def close(found: list[float], name: str) -> None:
    np.testing.assert_allclose(found, whole(name), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("schedule", pipelines.SCHEDULES)
@pytest.mark.parametrize("name", pipelines.MODELS)
def test_on_threads(name: str, schedule: str) -> None:
    """Four microbatches of 3, 3, 2 and 2 rows; two ranks have two stages each, and one has all, whatever the schedule."""
    for size in {"1f1b": (1, 4), "gpipe": (4,), "interleaved": (2,)}[schedule]:
        close(pipelines.on_ranks(size, schedule, name), name)


@pytest.mark.parametrize("microbatches", [7, *(pytest.param(n, marks=pytest.mark.full) for n in (5, 10))])
def test_other_numbers_of_microbatches(microbatches: int) -> None:
    close(pipelines.on_ranks(3, "1f1b", "transformer", microbatches), "transformer")


def test_without_microbatches_stages_take_turns() -> None:
    close(pipelines.on_ranks(4, "1f1b", "skips", 1), "skips")


@pytest.mark.parametrize("schedule", [pytest.param("gpipe", marks=pytest.mark.full), "1f1b", pytest.param("interleaved", marks=pytest.mark.full)])
def test_data_parallel_stages(schedule: str) -> None:
    """Two ranks in each of two stages: parts of microbatches go from pair to pair."""
    close(pipelines.train("transformer", ["0:0-1", "0:2-3"], 4, schedule), "transformer")


#: every schedule; threads run every model under every one
SOME = [("skips", "gpipe"), ("transformer", "1f1b"), ("tied", "interleaved")]
ALL = [(name, schedule) for name in pipelines.MODELS for schedule in pipelines.SCHEDULES]


@pytest.mark.mpi
@pytest.mark.parametrize(("ranks", "programs"), [(4, SOME), *(pytest.param(n, ALL, marks=pytest.mark.full) for n in (2, 4))], ids=str)
def test_under_mpiexec(ranks: int, programs: list[tuple[str, str]], tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    ended = run(PROGRAMS / "pipelines.py", str(out), *(word for program in programs for word in program), ranks=ranks, limit=300)
    assert ended.code == 0, ended.err
    found = json.loads(out.read_text())
    assert list(found) == [" ".join(program) for program in programs]
    for what, numbers in found.items():
        close(numbers, what.split()[0])
