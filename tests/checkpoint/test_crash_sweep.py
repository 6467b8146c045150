"""A sample of scripts/crash_sweep: kills, errors and damage lose nothing, and the sweep detects wrong implementations."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: what each defect is found by
DEFECTS = {
    "not synced": "broken: the new step can be seen",
    "short writes are whole": "broken: the new step can be seen",
    "errors are swallowed": "broken: the new step can be seen",
    "written in place": "lost: step 1 holds",
    "the old one goes first": "lost: step 1 holds",
    "nothing is cleaned": "debris: ",
    "not copied": "the new step can be seen, and holds",
    "samples again": "has the samples",
    "random numbers again": "mixed: the loss of step",
}


def python(*words: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process with one thread, which may be forked."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=300, env=environment, check=False)


def sweep(*words: str) -> list[list[str]]:
    """Return the rows of the table that the sweep prints, without its header."""
    ended = python(str(ROOT / "scripts" / "crash_sweep"), *words)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    head, *rows, end = [line.split() for line in ended.stdout.splitlines() if not line.startswith("largest difference")]
    assert head == ["done", "not", "met", "lost", "mixed", "debris", "other", "time"] and end[2:4] == ["0", "problems"], ended.stdout
    return rows


def test_kills_errors_and_damage() -> None:
    counts = ["--kills", "24", "--errors", "14", "--damages", "150", "--mpi", "0"]
    rows = sweep("--only", "kill", "--only", "io", "--only", "flip", *counts, "--seed", "5", "--ranks", "2")
    done = {kind: int(count) for kind, count, *_ in rows}
    assert [row[0] for row in rows] == ["kill", "io", "flip"]
    assert done["kill"] >= 20 and done["io"] >= 10 and done["flip"] == 300
    assert all(row[3:7] == ["0"] * 4 for row in rows)


@pytest.mark.slow
def test_kills_on_other_numbers_of_ranks() -> None:
    ((_, done, *_),) = sweep("--only", "kill", "--kills", "16", "--seed", "6", "--ranks", "1", "4", "--mpi", "0")
    assert int(done) >= 13


@pytest.mark.mpi
def test_kills_of_processes() -> None:
    ((_, done, *_),) = sweep("--only", "kill", "--kills", "1", "--mpi", "3", "--seed", "8", "--ranks", "2")
    assert int(done) >= 3


def test_killed_runs_resume_with_the_same_results() -> None:
    ((_, done, *counts, _, _),) = sweep("--only", "resume", "--resumes", "2", "--seed", "7", "--mpi", "0")
    assert int(done) >= 3 and set(counts) == {"0"}


def test_the_sweep_detects_wrong_implementations() -> None:
    ended = python(str(ROOT / "tests" / "checkpoint" / "crash_mutants.py"))
    assert ended.returncode == 0, ended.stderr
    result: dict[str, str] = json.loads(ended.stdout)
    assert set(result) == set(DEFECTS)
    assert {defect: text for defect, text in result.items() if DEFECTS[defect] not in text} == {}
