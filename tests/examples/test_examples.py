"""Every example prints the same losses on one device, on threads and under mpiexec, each of them once.

On threads, records hold the losses of 20 steps, to the bit (tests/records); here programs are started.  Those that are started alike run
one after another in one world.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import processes
import pytest

ROOT = Path(__file__).parents[2]
STEPS = 3
#: the examples of jobs, with the options that they need here: Winograd's rounding makes near ties in pooling and ReLU fall differently when
#: the batch is cut differently; direct convolution hardly does
EXAMPLES: dict[str, tuple[str, ...]] = {
    "consistent_strategy": ("--convolution", "direct"),
    "gpt": (),
    "hybrid_lenet": ("--convolution", "direct"),
    "hybrid_mlp": (),
    "hybrid_mlp_optimizer": (),
    "lenet_digits": ("--convolution", "direct"),
    "mirrored_strategy": (),
}
#: those whose ranks run the same program: see test_global_examples.py
OF_TENSORS = ("global_mlp", "mixed_graph")
#: how the GPT is made parallel on four devices, by its one line
STRATEGIES = ("tp", "pp", "2x2", "2x1x2", "zero1", "zero2", "zero3", "data=2,tensor=2,zero=3", "pipeline=2,data=2,microbatches=2")
LOSS = re.compile(r"^step +(\d+)  loss ([\d.]+)$", re.MULTILINE)
#: relative, in float32; printed losses have six decimals
TOLERANCE = 1e-5


def started(program: Path, *words: str, ranks: int = 0, folder: Path) -> str:
    """Standard output of a program in a process of its own, or on `ranks` processes."""
    done = processes.run(program, *words, ranks=ranks, limit=240, folder=folder)
    assert done.code == 0, f"{program} {words} ended with {done.code}:\n{done.out}\n{done.err}"
    return done.out


def words(example: str, devices: int, *options: str, steps: int = STEPS) -> list[str]:
    return [str(ROOT / "examples" / f"{example}.py"), "--devices", str(devices), "--steps", str(steps), "--every", "1", *options, *EXAMPLES[example]]


def curves(runs: Sequence[list[str]], folder: Path, ranks: int = 0) -> list[list[float]]:
    """The losses that each of the runs prints, one after another in the same processes; every step must appear exactly once."""
    output = started(Path(__file__).with_name("in_turn.py"), *map(json.dumps, runs), ranks=ranks, folder=folder)
    *parts, _ = re.split(r"^that was .*\n", output, flags=re.MULTILINE)
    assert len(parts) == len(runs), output
    parsed = [LOSS.findall(part) for part in parts]
    assert all([int(step) for step, _ in losses] == list(range(len(losses))) and losses for losses in parsed), output
    return [[float(loss) for _, loss in losses] for losses in parsed]


def test_every_example_is_listed() -> None:
    programs = {path.stem for path in (ROOT / "examples").glob("*.py")} - {"mnist_util", *OF_TENSORS}
    assert programs == set(EXAMPLES)


def _mpi(ranks: int, *more: Any) -> Any:
    return pytest.param(ranks, ranks, marks=[pytest.mark.mpi, *more], id=f"{ranks} ranks")


def _threads(devices: int) -> Any:
    return pytest.param(devices, 0, marks=pytest.mark.full, id=f"{devices} threads")


@pytest.mark.slow
@pytest.mark.parametrize(("devices", "ranks"), [_mpi(2), _mpi(4, pytest.mark.full), _threads(2), _threads(4)])
def test_all(devices: int, ranks: int, tmp_path: Path) -> None:
    expected = curves([words(example, 1) for example in EXAMPLES], tmp_path)
    results = curves([words(example, devices) for example in EXAMPLES], tmp_path, ranks)
    for example, losses, reference in zip(EXAMPLES, results, expected, strict=True):
        assert min(reference[1:]) < reference[0], f"{example} does not learn"
        np.testing.assert_allclose(losses, reference, rtol=TOLERANCE, atol=1e-6, err_msg=example)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategies", "ranks"),
    [(("2x2", "zero3"), 4), (("2x1x2",), 0), (STRATEGIES, 4)],
)
@pytest.mark.full  # tests/strategies trains the same GPT with each strategy
def test_strategies(strategies: tuple[str, ...], ranks: int, tmp_path: Path) -> None:
    """The GPT's losses are those of one device, under whatever strategy: tests/strategies has them all on threads."""
    (expected,) = curves([words("gpt", 1, steps=3)], tmp_path)
    results = curves([words("gpt", 4, "--strategy", strategy, steps=3) for strategy in strategies], tmp_path, ranks)
    for strategy, losses in zip(strategies, results, strict=True):
        np.testing.assert_allclose(losses, expected, rtol=TOLERANCE, err_msg=strategy)


@pytest.mark.slow
@pytest.mark.mpi
def test_same_text_from_two_threads_and_two_ranks(tmp_path: Path) -> None:
    """Start both as the example's author would."""
    program, *options = words("hybrid_mlp", 2)
    assert started(Path(program), *options, ranks=2, folder=tmp_path) == started(Path(program), *options, folder=tmp_path)


@pytest.mark.full
@pytest.mark.mpi
def test_digits_are_learned(tmp_path: Path) -> None:
    """The README's program on two ranks, to the end: at least 97 % of the digits it has not seen."""
    output = started(ROOT / "examples" / "lenet_digits.py", "--devices", "2", ranks=2, folder=tmp_path)
    accuracy = re.search(r"test accuracy ([\d.]+)%", output)
    assert accuracy and float(accuracy[1]) >= 97, output
