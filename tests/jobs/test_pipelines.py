"""Pipelines have the results of one device without microbatches: every model and schedule, on threads and under mpiexec."""

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


def close(values: list[float], name: str) -> None:
    np.testing.assert_allclose(values, whole(name), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("schedule", pipelines.SCHEDULES)
@pytest.mark.parametrize("name", pipelines.MODELS)
def test_on_threads(name: str, schedule: str) -> None:
    """Train four microbatches of 3, 3, 2 and 2 rows on one rank, on two ranks with two stages each, and on more."""
    for size in {"1f1b": (1, 4), "gpipe": (4,), "interleaved": (2,)}[schedule]:
        close(pipelines.on_ranks(size, schedule, name), name)


@pytest.mark.parametrize("microbatches", [7, *(pytest.param(n, marks=pytest.mark.full) for n in (5, 10))])
def test_other_numbers_of_microbatches(microbatches: int) -> None:
    close(pipelines.on_ranks(3, "1f1b", "transformer", microbatches), "transformer")


def test_stages_run_one_after_another_without_microbatches() -> None:
    close(pipelines.on_ranks(4, "1f1b", "skips", 1), "skips")


@pytest.mark.parametrize("schedule", [pytest.param("gpipe", marks=pytest.mark.full), "1f1b", pytest.param("interleaved", marks=pytest.mark.full)])
def test_data_parallel_stages(schedule: str) -> None:
    """Train two stages of two ranks each; shards of microbatches move from pair to pair."""
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
    results = json.loads(out.read_text())
    assert list(results) == [" ".join(program) for program in programs]
    for what, values in results.items():
        close(values, what.split()[0])
