"""The examples of global tensors print the same losses and the same accuracy, once, however they are started and laid out.

On threads, records hold the losses of all layouts (tests/records); with --full, here too.
"""

from __future__ import annotations

import functools
import re
import sys
from typing import Any

import numpy as np
import pytest
from processes import MPIEXEC, ROOT, run_command

STEPS = 20
LOSS = re.compile(r"^step +(\d+)  loss ([\d.]+)$", re.MULTILINE)
ACCURACY = re.compile(r"^test accuracy ([\d.]+)% of 397 digits$", re.MULTILINE)
#: relative, in float32; printed losses have six decimals
TOLERANCE = 1e-5
#: what the command `jobflow` does
JOBFLOW = "import sys; from jobflow.cli import main; sys.exit(main())"
WAYS = {
    "alone": [sys.executable],
    "mpiexec 2": [MPIEXEC, "-n", "2", sys.executable],
    "mpiexec 4": [MPIEXEC, "-n", "4", sys.executable],
    "launch 2": [sys.executable, "-c", JOBFLOW, "launch", "--nproc_per_node", "2"],
    "launch 4": [sys.executable, "-c", JOBFLOW, "launch", "--nproc_per_node", "4"],
}


@functools.cache
def run(way: str, example: str, *options: str) -> tuple[str, str]:
    """Standard output, without the names that the launcher puts before it, and standard error."""
    command = [*WAYS[way], str(ROOT / "examples" / f"{example}.py"), *options]
    done = run_command(command, limit=240)
    assert done.code == 0, f"{' '.join(command)} ended with {done.code}:\n{done.out}\n{done.err}"
    return re.sub(r"^\[rank \d+\] ?", "", done.out, flags=re.MULTILINE), done.err


def curve(output: str) -> list[float]:
    """The printed losses and the accuracy; every step must appear exactly once."""
    parsed, accuracy = LOSS.findall(output), ACCURACY.findall(output)
    assert [int(step) for step, _ in parsed] == list(range(STEPS)) and len(accuracy) == 1, output
    return [*(float(loss) for _, loss in parsed), float(accuracy[0])]


def check(way: str, example: str, *options: str) -> None:
    steps = ("--steps", str(STEPS), "--every", "1")
    expected = curve(run("alone", "global_mlp", *steps)[0])
    assert expected[-1] > 60 and expected[STEPS - 1] < 0.9 * expected[0], "it does not learn"
    np.testing.assert_allclose(curve(run(way, example, *steps, *options)[0]), expected, rtol=TOLERANCE, atol=1e-6)


def test_a_graph_of_two_stages_learns_as_the_model_at_once() -> None:
    check("alone", "mixed_graph")


def _rarely(*values: str | int) -> Any:
    return pytest.param(*values, marks=pytest.mark.full)


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.parametrize(
    ("way", "sbp"),
    [
        ("mpiexec 2", "split1"),
        ("launch 2", "split0"),
        *(_rarely(way, sbp) for way in ("alone", "mpiexec 2", "mpiexec 4") for sbp in ("broadcast", "split0", "split1")),
    ],
)
def test_layouts_on_ranks(way: str, sbp: str) -> None:
    check(way, "global_mlp", "--sbp", sbp)


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.parametrize(("way", "parts"), [("mpiexec 4", 4), _rarely("mpiexec 2", 4), _rarely("launch 4", 10)])
def test_two_stages_on_ranks(way: str, parts: int) -> None:
    check(way, "mixed_graph", "--parts", str(parts))


@pytest.mark.slow
@pytest.mark.mpi
def test_digits_are_learned_behind_one_progress_bar() -> None:
    output, error = run("mpiexec 2", "global_mlp")
    accuracy = ACCURACY.search(output)
    assert accuracy and float(accuracy[1]) >= 97, output
    assert len(re.findall(r" 0/280 ", error)) == 1 and "280/280" in error, error  # a bar begins once; its end may be drawn twice


@pytest.mark.parametrize("example", ["global_mlp", "mixed_graph"])
def test_help(example: str) -> None:
    output, _ = run("alone", example, "--help")
    assert "--steps" in output and "--every" in output
