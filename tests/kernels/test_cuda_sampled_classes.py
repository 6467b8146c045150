"""Tests that samples of classes by kernels for GPUs, run on the host, equal the operation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import host_cuda
import numpy as np
import nvidia_compiler
import pytest
from memory_orders import plain, strided

from jobflow.core.layout import Box
from jobflow.core.types import dtype_named, dtype_of, int64, type_of
from jobflow.expressions import philox
from jobflow.expressions.on_arrays import evaluate
from jobflow.kernels.cuda.sampled_class_kernels import LOWER, SampledClasses, keys_of, launches_of_samples, print_samples, ranges_of
from jobflow.kernels.cuda.segment_text import TILE, print_sort
from jobflow.ops.sampled_classes import SampleClasses

TYPES = ("int64", "int32", "uint8")
KERNELS = ("mark_labels", "order_ties", "write_samples", "map_labels")
WIDE = SampleClasses(2 * TILE + 99, 700, 1, "wide", seed=5)


class HostSamples:
    """The kernels of the samples, compiled by g++."""

    def __init__(self, folder: Path) -> None:
        texts = [print_sort()]
        self.names = {print_samples(dtype_named(name)): name for name in TYPES}
        for text, name in self.names.items():
            for kernel in KERNELS:
                text = text.replace(f"{kernel}(", f"{kernel}_{name}(")
            texts.append(text)
        self.loaded = host_cuda.library(texts, folder)

    def launch(self, text: str, name: str, blocks: int, arguments: Sequence[Any]) -> Any:
        own = text in self.names
        where = (f"{name}_{self.names[text]}", (min(blocks, 2),)) if own else (name, (blocks,))
        return host_cuda.launch, (self.loaded, *where, (256,), arguments)

    def run(self, op: SampleClasses, keys: Any, lower: Any, operands: Sequence[Any]) -> None:
        scratch = lambda shape, dtype: np.full(shape, -77, dtype.numpy)  # noqa: E731
        for call, arguments in launches_of_samples(op, self.launch, scratch, keys, lower, operands):
            call(*arguments)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> HostSamples:
    if host_cuda.COMPILER is None:
        pytest.skip("there is no C++ compiler (g++)")
    return HostSamples(tmp_path_factory.mktemp("samples"))


def of_rank(op: SampleClasses, begin: int, end: int) -> SampleClasses:
    """Return the operation of a rank with the samples `begin` to `end`."""
    return replace(op, box=Box(((begin, end),), (op.count,)))


CASES = [
    *((case.op, *case.arrays) for case in SampleClasses.samples()),
    (of_rank(SampleClasses(11, 6, 2, "k"), 2, 5), [0, 10, 3, 5, 4, 99, -1], [-3]),
    (of_rank(SampleClasses(90, 12, 3, "k", 9), 8, 12), np.arange(89, 0, -1, np.int32), [1 << 40]),
    (SampleClasses(200, 20, 2, "k", 1), np.array([199, 0, 7, 7, 150], np.uint8), [2]),
    (WIDE, np.arange(0, 5000, 9), [7]),
]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_samples_equal_the_operation(number: int, host: HostSamples) -> None:
    op, classes_of_labels, runs = CASES[number]
    labels, counter = np.asarray(classes_of_labels), np.asarray(runs)
    mapped, sampled = (np.full(type.shape, 77, labels.dtype) for type in op.infer(type_of(labels), type_of(counter)))
    expected = [np.full_like(mapped, 5), np.full_like(sampled, 5)]
    op.kernel(np, labels, counter, *expected)
    order = strided if number % 2 else plain
    operands = [order(labels), order(mapped), order(sampled)]
    assert SampledClasses().refuses(op, [operands[0], counter], operands[1:]) is None
    classes = (ranges_of(op)[-1].high - ranges_of(op)[0].low,)
    keys, lower = (a.copy() for a in evaluate(keys_of(op, dtype_of(counter.dtype)), [counter[0]], np, classes))
    host.run(op, keys, lower, operands)
    assert np.array_equal(operands[1], expected[0]) and np.array_equal(operands[2], expected[1]), op


def test_equal_keys_are_sorted_by_their_lower_bits_and_then_by_class(host: HostSamples) -> None:
    random, op = np.random.default_rng(0), WIDE
    keys = random.integers(1, 40, op.classes).astype(np.int32)
    keys[random.permutation(op.classes)[:3000]] |= np.int32(-1 << 31)  # unsigned numbers that are larger than the others
    lower = random.integers(0, 60, op.classes).astype(np.int32) | 1 << LOWER
    labels = np.array([4000, 3])
    mapped, sampled = np.zeros(2, np.int64), np.zeros(op.count, np.int64)
    others = np.lexsort((lower, keys.view(np.uint32)))
    others = others[~np.isin(others, labels)][: op.count - 2]
    host.run(op, keys, lower, (labels, mapped, sampled))
    assert np.array_equal(sampled, [3, 4000, *others]) and np.array_equal(mapped, [1, 0])


def test_keys_and_lower_bits_have_the_order_of_the_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    words = np.array([[0, 1, 0, 1, 0xFFFFFFFF, 1 << 31, 2], [1 << 31, 5000, 0, 9000, 0, 0xFFFFFFFF, 0]], np.uint32)
    monkeypatch.setattr(philox.Stream, "bits_at", lambda _, index, plane: words[plane])
    key, lower = evaluate(keys_of(WIDE, int64), [np.int64(1)], np, (words.shape[1],))
    unit = philox.Drawn(philox.Stream(np, (0, 0), 1), np.arange(words.shape[1], dtype=np.uint64)).unit(np.dtype(np.float64))
    assert np.array_equal(np.lexsort((lower, key.view(np.uint32))), np.argsort(unit, kind="stable")) and key.view(np.uint32).min() == 1


@pytest.mark.full
@pytest.mark.skipif(bool(nvidia_compiler.missing()), reason=nvidia_compiler.missing() or "nothing is missing")
@pytest.mark.parametrize("name", TYPES)
def test_kernels_compile_without_a_gpu(name: str) -> None:
    assert nvidia_compiler.compiled(print_samples(dtype_named(name)), "sm_90").startswith(b"\x7fELF")
