"""The programs that the legacy documentation shows run as they are, but for the name of the import, and learn the same on any devices."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import processes
import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PROGRAMS = sorted(path.stem for path in (HERE / "programs").glob("*.py"))
#: those that name a second device
PAIRS = {"mirrored_strategy", "mixed_parallel_lenet"}
#: the programs print every 20th loss of an epoch
BATCHES = 21
#: in float64, so few: the LeNet of these programs, with its large first weights and steps, magnifies the rounding of float32
EXACT = 3
TOLERANCE = 1e-9
#: programs that are one model, spelled in two ways: the views and the relay are about where numbers are computed, and plain SGD is one optimizer
SAME = [("consistent_strategy", "mirrored_strategy"), ("mixed_parallel_lenet", "consistent_strategy")]


def run(*words: str, ranks: int = 0) -> tuple[list[str], list[str]]:
    """The lines that the programs print, and what is said beside."""
    done = processes.run(HERE / "limited.py", *words, ranks=ranks, limit=240)
    assert done.code == 0, f"{words} ended with {done.code}:\n{done.out}\n{done.err}"
    return done.out.splitlines(), done.err.splitlines()


def path(program: str) -> str:
    return str(HERE / "programs" / f"{program}.py")


def exact(devices: int, programs: Sequence[str], ranks: int = 0) -> dict[str, dict[str, float]]:
    """By program, its first loss and how large its variables are after a few steps in float64."""
    lines, _ = run("exact", str(devices), str(EXACT), *map(path, programs), ranks=ranks)
    results, losses = {}, []
    for line in lines:
        program, _, text = line.partition(" ")
        if text:
            results[program] = {"loss": losses.pop(), **ast.literal_eval(text)}
        else:
            losses.append(float(line))
    assert losses == [] and list(results) == list(programs)
    return results


def compare(actual: dict[str, float], expected: dict[str, float], output: str) -> None:
    assert list(actual) == list(expected) and len(actual) > 4, output
    np.testing.assert_allclose(list(actual.values()), list(expected.values()), rtol=TOLERANCE, err_msg=output)


def test_all_are_there() -> None:
    expected = {"consistent_strategy", "mirrored_strategy", "mixed_parallel_mlp", "mixed_parallel_lenet", "hybrid_parallelism_mlp"}
    assert set(PROGRAMS) == expected


@pytest.mark.slow
@pytest.mark.parametrize("programs", [PROGRAMS, *(pytest.param([program], marks=pytest.mark.full) for program in PROGRAMS)], ids=" ".join)
def test_unmodified_programs_run(programs: list[str]) -> None:
    """On two threads; they learn, and say at most once what is old or different here."""
    lines, notices = run(str(BATCHES), *map(path, programs))
    assert len(lines) == 2 * len(programs) and all(re.fullmatch(r"\d+\.\d+", line) for line in lines), lines
    assert all(float(last) < float(first) for first, last in zip(lines[::2], lines[1::2], strict=True)), lines
    assert all(line.startswith("jobflow: ") for line in notices) and len(set(notices)) == len(notices), notices
    assert sum("there is no GPU" in line for line in notices) <= 1


@pytest.mark.slow
@pytest.mark.mpi
def test_results_are_equal_on_any_devices() -> None:
    """One device, two threads and two ranks; and models that are spelled in two ways."""
    threads = exact(2, PROGRAMS)
    for results in (exact(1, [program for program in PROGRAMS if program not in PAIRS]), exact(2, PROGRAMS, ranks=2)):
        for program, values in results.items():
            compare(values, threads[program], program)
    for first, second in SAME:
        compare(threads[first], threads[second], f"{first} and {second}")
