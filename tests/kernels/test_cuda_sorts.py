"""Tests that kernels for sorts and adaptive pooling on GPUs, run on the host, equal the operations on arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import host_cuda
import laws
import numpy as np
import nvidia_compiler
import pytest
from on_device import TOLERANCE, cases, host_results, single

from jobflow.core.types import type_of
from jobflow.kernels.cuda.adaptive_kernels import AdaptiveKernel, print_adaptive
from jobflow.kernels.cuda.pooling_kernels import addresses
from jobflow.kernels.cuda.sort_kernels import LONGEST, SortKernel, print_sort
from jobflow.ops.adaptive_pool import AdaptiveAvgPool, AdaptiveAvgPoolGrad
from jobflow.ops.op import sample, types_tuple
from jobflow.ops.sort import Sort, TopK

CLASSES: Any = ((Sort, SortKernel, print_sort), (TopK, SortKernel, print_sort), (AdaptiveAvgPool, AdaptiveKernel, print_adaptive))
ALL: Any = (*CLASSES, (AdaptiveAvgPoolGrad, AdaptiveKernel, print_adaptive))


def long_cases() -> Any:
    """Return lines of more elements than a block has threads, with ties and NaN."""
    x = np.random.default_rng(0).integers(-40, 40, (3, 700)).astype(np.float32)
    x[1, ::9] = np.nan
    return [(sample(op, x), [x]) for op in (Sort(1), Sort(1, True), TopK(1, 300), TopK(1, 5, False))]


@pytest.mark.skipif(host_cuda.COMPILER is None, reason="there is no C++ compiler (g++)")
@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.full)])
def test_kernels_equal_the_operations(every: int, tmp_path: Path) -> None:
    texts, runs = [], []
    cases_of_all = [(case, arrays, kernel, text) for cls, kernel, text in ALL for case, arrays in cases(cls)]
    cases_of_all += [(case, arrays, SortKernel, print_sort) for case, arrays in long_cases()]
    for number, (case, arrays, kernel, text) in enumerate(cases_of_all[3::every]):
        expected = host_results(case.op, arrays)
        inner, outer = laws.ORDERS[number % 5]
        inputs = [inner(a) for a in arrays]
        outputs = [outer(a) for a in laws.empties(types_tuple(case.op.infer(*map(type_of, arrays))), fill=0)]
        if kernel().refuses(case.op, inputs, outputs) is not None:
            continue
        name = f"kernel{len(texts)}"
        texts.append(text(case.op, [*inputs, *outputs], name))
        runs.append((f"{case} {arrays[0].dtype}", name, [*inputs, *outputs], outputs, expected))
    loaded = host_cuda.library(texts, tmp_path)
    for what, name, operands, outputs, expected in runs:
        host_cuda.launch(loaded, name, (2,), (256,), addresses(operands))
        for ours, theirs in zip(outputs, expected, strict=True):
            one, other = (np.where(array != array, 0, array) for array in (single(theirs), single(ours)))
            assert np.array_equal(ours != ours, theirs != theirs), what
            laws.close(other, one, TOLERANCE[theirs.dtype.name], laws.magnitude(one), what)
    assert len(runs) > 50 // every


def test_lines_longer_than_shared_memory_are_refused() -> None:
    x = np.zeros((2, LONGEST + 1), np.float32)
    assert SortKernel().refuses(Sort(1), [x], [x, x]) == "2049 elements along the axis; a block sorts at most 2048"


@pytest.mark.full
@pytest.mark.skipif(bool(nvidia_compiler.missing()), reason=nvidia_compiler.missing() or "nothing is missing")
def test_kernels_compile_without_a_gpu() -> None:
    x, places = np.zeros((3, LONGEST), np.float64), np.zeros((3, LONGEST), np.int64)
    assert nvidia_compiler.compiled(print_sort(Sort(1), [x, x, places]), "sm_90").startswith(b"\x7fELF")
    images, pooled = np.zeros((2, 3, 5, 7), np.float16), np.zeros((2, 3, 2, 3), np.float16)
    assert nvidia_compiler.compiled(print_adaptive(AdaptiveAvgPoolGrad((5, 7)), [pooled, images]), "sm_90").startswith(b"\x7fELF")
