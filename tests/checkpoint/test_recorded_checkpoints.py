"""Checkpoints of earlier commits in every format: each is loaded and resumed on one rank and on two."""

from __future__ import annotations

import tarfile
from pathlib import Path

import processes
import pytest
from halfway import JOBS, RUNS, TENSORS
from keeping import WAYS, facts, path_in
from ranks import on_ranks

HERE = Path(__file__).parent
SETS = sorted((HERE / "kept").glob("*.tar.xz"))


@pytest.fixture(scope="module", params=SETS, ids=lambda path: path.name.partition(".")[0])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    result = tmp_path_factory.mktemp("kept")
    with tarfile.open(request.param) as archive:
        archive.extractall(result, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))  # from Python 3.11.4 on
    return result


def test_every_way_is_in_every_set(folder: Path) -> None:
    assert set(facts(folder)) == set(WAYS)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", [name for name in WAYS if name.removesuffix(", processes") in JOBS])
def test_jobs_resume(name: str, ranks: int, folder: Path) -> None:
    facts(folder)[name].check(WAYS[name].begin(ranks), path_in(folder, name), WAYS[name].close)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", [name for name in WAYS if name.removesuffix(", processes") in TENSORS])
def test_tensors_and_graphs_resume(name: str, ranks: int, folder: Path) -> None:
    way, remaining = WAYS[name], facts(folder)[name]
    on_ranks(ranks, lambda rank: remaining.check(way.begin(ranks), path_in(folder, name), way.close))


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", list(RUNS))
def test_runs_resume(name: str, ranks: int, folder: Path, tmp_path: Path) -> None:
    facts(folder)[name].check(RUNS[name].begin(ranks, tmp_path), path_in(folder, name), RUNS[name].close)


@pytest.mark.mpi
def test_two_processes_resume_from_all(folder: Path) -> None:
    ended = processes.run(HERE / "keeping.py", "check", folder, ranks=2)
    assert (ended.code, ended.out) == (0, "done\ndone\n"), ended.err
