"""Every example prints the same losses on one device, on threads and under mpiexec, each of them once."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobflow.distributed import mpiexec

ROOT = Path(__file__).parents[2]
STEPS = 20
#: example -> devices it runs on as threads
EXAMPLES = {
    "consistent_strategy": (1, 2, 4),
    "gpt": (1, 2, 4),
    "hybrid_lenet": (1, 2, 4),
    "hybrid_mlp": (1, 2, 4),
    "hybrid_mlp_optimizer": (1, 2, 4),
    "lenet_digits": (1, 2, 4),
    "mirrored_strategy": (1, 2, 4),
}
#: those whose ranks run the same program: see test_global_examples.py
OF_TENSORS = ("global_mlp", "mixed_graph")
#: Winograd's rounding makes near ties in pooling and ReLU fall differently when the batch is cut differently; direct convolution hardly does
OPTIONS = dict.fromkeys(("consistent_strategy", "hybrid_lenet", "lenet_digits"), ("--convolution", "direct"))
#: how the GPT is made parallel on four devices, by its one line
STRATEGIES = ("tp", "pp", "2x2", "2x1x2", "zero1", "zero2", "zero3", "data=2,tensor=2,zero=3", "pipeline=2,data=2,microbatches=2")
LOSS = re.compile(r"^step +(\d+)  loss ([\d.]+)$", re.MULTILINE)
#: relative, in float32; printed losses have six decimals
TOLERANCE = 1e-5


@functools.cache
def data_folder() -> str:
    """Where the programs run: what one of them downloads is there for the next."""
    return tempfile.mkdtemp(prefix="jobflow-examples-")


@functools.cache
def run(example: str, devices: int, ranks: int = 0, steps: int | None = None, strategy: str | None = None) -> str:
    """Standard output of the example on `devices` threads, or on `ranks` processes; `steps` None is the example's own number."""
    command = [sys.executable, str(ROOT / "examples" / f"{example}.py"), "--devices", str(devices)]
    command += [] if steps is None else ["--steps", str(steps), "--every", "1", *OPTIONS.get(example, ())]
    command += [] if strategy is None else ["--strategy", strategy]
    if ranks:
        command = [mpiexec.find() or "mpiexec", "-n", str(ranks), *command]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=data_folder(), env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def curve(output: str) -> list[float]:
    """The printed losses; every step must appear exactly once."""
    found = LOSS.findall(output)
    assert [int(step) for step, _ in found] == list(range(len(found))), output
    return [float(loss) for _, loss in found]


def check(example: str, devices: int, ranks: int) -> None:
    expected = curve(run(example, EXAMPLES[example][0], steps=STEPS))
    found = curve(run(example, devices, ranks, STEPS))
    assert len(expected) == STEPS and min(expected[1:]) < expected[0], "it does not learn"
    np.testing.assert_allclose(found, expected, rtol=TOLERANCE, atol=1e-6)


def _case(example: str, devices: int) -> Any:
    """On threads, records hold the numbers of all but the GPT (tests/records); one other shows here how threads are started; --full has all."""
    rarely = (example, devices) not in (("gpt", 4), ("hybrid_mlp", 4))
    return pytest.param(example, devices, marks=[pytest.mark.full] if rarely else [])


def test_every_example_is_listed() -> None:
    programs = {path.stem for path in (ROOT / "examples").glob("*.py")} - {"mnist_util", *OF_TENSORS}
    assert programs == set(EXAMPLES)


def _started(strategy: str) -> Any:
    return pytest.param(strategy, 4, marks=[pytest.mark.mpi, *([] if strategy in ("2x2", "zero3") else [pytest.mark.full])])


@pytest.mark.slow
@pytest.mark.parametrize(("example", "devices"), [_case(name, n) for name, devices in EXAMPLES.items() for n in devices[1:]])
def test_threads(example: str, devices: int) -> None:
    check(example, devices, 0)


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.full), 4])
@pytest.mark.parametrize("example", sorted(EXAMPLES))
def test_mpi(example: str, ranks: int) -> None:
    check(example, ranks, ranks)


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "ranks"), [*((s, 0) for s in STRATEGIES), *(_started(s) for s in STRATEGIES)])
def test_strategies(strategy: str, ranks: int) -> None:
    """The GPT's losses are those of one device, under whatever strategy."""
    expected = curve(run("gpt", 1, steps=5))
    found = curve(run("gpt", 4, ranks, 5, strategy))
    np.testing.assert_allclose(found, expected, rtol=TOLERANCE)


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.parametrize("example", ["hybrid_mlp", pytest.param("consistent_strategy", marks=pytest.mark.full)])
def test_same_text_from_two_threads_and_two_ranks(example: str) -> None:
    assert run(example, 2, 2, STEPS) == run(example, 2, 0, STEPS)


@pytest.mark.full
@pytest.mark.mpi
def test_digits_are_learned() -> None:
    """The README's program on two ranks, to the end: at least 97 % of the digits it has not seen."""
    output = run("lenet_digits", 2, 2)
    accuracy = re.search(r"test accuracy ([\d.]+)%", output)
    assert accuracy and float(accuracy[1]) >= 97, output
