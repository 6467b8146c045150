"""Tests that kernels for connectionist temporal classification on GPUs, run on the host, equal the operations on arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import host_cuda
import laws
import numpy as np
import nvidia_compiler
import pytest
from on_device import TOLERANCE, cases, host_results, single

from jobflow.core.types import bfloat16, float16, float32, float64, int8, int64, type_of, uint8
from jobflow.kernels.cuda.ctc_kernels import CtcKernels, CtcLaunch, launches
from jobflow.kernels.cuda.ctc_text import print_classes, print_decoder, print_recursions
from jobflow.kernels.cuda.kernel_text import THREADS
from jobflow.ops.ctc import CtcGreedyDecoder, CtcLoss, CtcLossGrad, CtcPaths
from jobflow.ops.op import Op, Sample, sample, types_tuple

LOSSES: Any = (CtcLoss, CtcPaths, CtcLossGrad)
COMPILED = pytest.mark.skipif(host_cuda.COMPILER is None, reason="there is no C++ compiler (g++)")


class HostCtc:
    """Operations whose kernels are compiled together, and then run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.runs = folder, list[list[CtcLaunch]]()

    def add(self, op: Op, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        assert CtcKernels().refuses(op, inputs, outputs) is None
        self.runs.append(launches(op, laws.Bench().scratch, inputs, outputs, "NAME"))

    def run(self) -> None:
        names = {text: f"ctc{k}" for k, text in enumerate(dict.fromkeys(launch.text for run in self.runs for launch in run))}
        loaded = host_cuda.library([text.replace("NAME", name) for text, name in names.items()], self.folder)
        for launch in (launch for run in self.runs for launch in run):
            name = launch.name.replace("NAME", names[launch.text])
            host_cuda.launch(loaded, name, (min(launch.blocks, 2),), launch.block, launch.arguments)


def losses(x: Any, targets: Any, frames: Any, labels: Any, blank: int = 0, zero_infinity: bool = False) -> Iterator[Sample]:
    """Yield samples of the loss, its paths and its gradient."""
    inputs = [x, targets, frames, labels]
    for cls in LOSSES:
        yield sample(cls(blank, zero_infinity), *inputs, *([np.linspace(-1, 2, len(frames)).astype(x.dtype)] if cls is CtcLossGrad else []))


def edges() -> Iterator[Sample]:
    """Yield samples with unusual lengths, labels and scores."""
    random = np.random.default_rng(3)
    x = np.log(random.dirichlet(np.ones(5), (9, 6)))
    targets = random.integers(-4, 5, (6, 4)).astype(np.int8)  # negative classes count from the last; some labels equal the blank
    targets[1] = 2
    frames, labels = np.array([9, 4, 0, 0, -2, 11], np.int16), np.array([4, 4, 0, 1, 0, 2], np.uint8)
    for zero_infinity in (False, True):
        yield from losses(x, targets, frames, labels, 1, zero_infinity)
    yield from losses(x[:, :3], np.zeros((3, 0), np.int64), np.array([9, 1, 0]), np.array([0, 0, 0]))
    yield from losses(x[:0, :2], np.ones((2, 1), np.int64), np.array([0, 0]), np.array([0, 1]))
    yield from losses(x[:, :1], np.ones((1, 2), np.int64), np.array([5]), np.array([-1]))
    spoiled = x.copy()
    spoiled[3, 0, 2], spoiled[4, 1, 2], spoiled[2, 5] = np.nan, np.inf, -np.inf
    yield from losses(spoiled, targets, np.full(6, 9), np.array([4, 4, 2, 1, 3, 2]))


def long_sequences() -> Iterator[Sample]:
    """Yield samples with more states, frames and classes than a block has threads."""
    random = np.random.default_rng(4)
    longest = THREADS // 2 + 2
    x, labels = np.log(random.dirichlet(np.ones(5), (longest + 4, 2))), random.integers(1, 5, longest)
    distinct = np.arange(longest) % 4 + 1  # adjacent labels differ, so the input is long enough
    yield from losses(x, np.stack([distinct, labels]), np.array([longest + 4, longest]), np.array([longest, 3]))
    scores = random.integers(0, 3, (2 * THREADS + 9, 3, 4)).astype(np.float64)
    scores[5, 1, 1:3], scores[7] = np.nan, 1
    lengths = np.array([2 * THREADS + 9, THREADS + 1, -1], np.int32)
    for merge in (True, False):
        yield sample(CtcGreedyDecoder(merge), scores, lengths)
    yield sample(CtcGreedyDecoder(), -random.permuted(np.arange(1200.0).reshape(2, 2, 300), axis=2), np.array([1, 9], np.int8))


def compared(cases_of_all: Sequence[tuple[Sample, Sequence[Any]]], folder: Path) -> int:
    """Raise AssertionError unless kernels equal the operations, in different memory orders; return the number of cases."""
    host, results = HostCtc(folder), []
    for number, (case, arrays) in enumerate(cases_of_all):
        inner, outer = laws.ORDERS[number % len(laws.ORDERS)]
        outputs = [outer(y) for y in laws.empties(types_tuple(case.op.infer(*map(type_of, arrays))), fill=0)]
        host.add(case.op, [inner(a) for a in arrays], outputs)
        results.append((f"case {number}: {case.op} {arrays[0].dtype}", outputs, host_results(case.op, arrays)))
    host.run()
    for what, outputs, expected in results:
        for ours, theirs in zip(map(single, outputs), expected, strict=True):
            one, other = (np.where(array != array, 0, array) for array in (single(theirs), ours))
            assert np.array_equal(ours != ours, single(theirs) != single(theirs)), f"{what}\n{ours}\n{theirs}"
            laws.close(other, one, TOLERANCE[theirs.dtype.name], laws.magnitude(one), what)
    return len(results)


@COMPILED
def test_kernels_equal_the_operations(tmp_path: Path) -> None:
    first = [next((c, a) for c, a in cases(cls) if a[0].dtype == bfloat16.numpy) for cls in (*LOSSES, CtcGreedyDecoder)]
    assert compared([*first, *((case, case.arrays) for case in (*list(edges())[:6], *long_sequences()))], tmp_path) == 16


@pytest.mark.full
@COMPILED
def test_kernels_equal_the_operations_in_all_cases(tmp_path: Path) -> None:
    samples = [case for cls in (*LOSSES, CtcGreedyDecoder) for case in cases(cls)]
    assert compared([*samples, *((case, case.arrays) for case in (*edges(), *long_sequences()))], tmp_path) > 60


@pytest.mark.full
@COMPILED
def test_results_of_invalid_labels_and_lengths_are_nan(tmp_path: Path) -> None:
    x, targets = np.zeros((5, 4, 3)), np.array([[1, 2], [3, 1], [1, -4], [1, 2]])
    host, loss, dx = HostCtc(tmp_path), np.zeros(4), np.zeros((5, 4, 3))
    inputs = [x, targets, np.full(4, 5), np.array([2, 2, 2, 3])]
    host.add(CtcLoss(0), inputs, [loss])
    host.add(CtcLossGrad(0), [*inputs, np.ones(4)], [dx])
    host.run()
    assert np.isnan(loss).tolist() == [False, True, True, True]
    assert np.isnan(dx).any(axis=(0, 2)).tolist() == [False, True, True, True]


@pytest.mark.full
@pytest.mark.skipif(bool(nvidia_compiler.missing()), reason=nvidia_compiler.missing() or "nothing is missing")
@pytest.mark.parametrize("architecture", ["sm_75", "sm_90"])
def test_kernels_compile_without_a_gpu(architecture: str) -> None:
    texts = [print_decoder(dtype, int8) for dtype in (float16, float64)]
    for x, ids in ((float32, int64), (bfloat16, uint8)):
        texts += [*(print_recursions([x, ids, ids, ids], kind) for kind in ("loss", "paths", "gradient")), print_classes([x, ids, ids, ids])]
    for text in texts:
        assert nvidia_compiler.compiled(text, architecture).startswith(b"\x7fELF")


def test_strides_of_parts_of_elements_are_refused() -> None:
    x, lengths = np.zeros((2, 3, 4), np.float32), np.zeros(3, np.int64)
    odd = np.lib.stride_tricks.as_strided(x, (2, 1, 2), (6, 4, 4))
    assert CtcKernels().refuses(CtcGreedyDecoder(), [odd, lengths[:1]], [lengths, x]) == "a stride is not a multiple of the element size"
