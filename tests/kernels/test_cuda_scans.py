"""Tests that scan kernels for GPUs, run on the host, equal the operations on arrays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import host_cuda
import laws
import numpy as np
import nvidia_compiler
import pytest
from on_device import TOLERANCE, cases, host_results, single

from jobflow.core.types import type_of
from jobflow.kernels.cuda.pooling_kernels import addresses
from jobflow.kernels.cuda.scan_kernels import ScanKernel, blocks_of
from jobflow.kernels.cuda.scan_text import by_blocks, print_scan
from jobflow.ops.op import Sample, sample, types_tuple
from jobflow.ops.running_extremes import CumExtreme, LogCumSumExp
from jobflow.ops.scan import CumProd, CumProdTail, CumSum

CLASSES = (CumSum, CumProd, CumProdTail, CumExtreme, LogCumSumExp)


def long_cases() -> Iterator[tuple[Sample, list[Any]]]:
    """Yield lines of more than one chunk of a block, with ties and NaN."""
    x = np.random.default_rng(0).integers(-4, 5, (3, 700)).astype(np.float32)
    spoiled = x.copy()
    spoiled[1, 300:] = np.nan
    for reverse in (False, True):
        for exclusive in (False, True):
            yield sample(CumSum(1, reverse, exclusive), x), [x]
    for op in (CumExtreme(1), CumExtreme(1, False)):
        yield sample(op, x), [spoiled]
    yield sample(LogCumSumExp(1), x), [x]
    yield sample(CumSum(0), x), [np.ascontiguousarray(x.T).astype(np.int32)]


@pytest.mark.skipif(host_cuda.COMPILER is None, reason="there is no C++ compiler (g++)")
@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.full)])
def test_scan_kernels_equal_the_operations(every: int, tmp_path: Path) -> None:
    texts, runs = [], []
    cases_of_all = [case for cls in CLASSES for case in cases(cls)] + list(long_cases())
    for number, (case, arrays) in enumerate(cases_of_all[3::every]):
        expected = host_results(case.op, arrays)
        inner, outer = laws.ORDERS[number % 5]
        inputs = [inner(a) for a in arrays]
        outputs = [outer(a) for a in laws.empties(types_tuple(case.op.infer(*map(type_of, arrays))), fill=0)]
        if ScanKernel().refuses(case.op, inputs, outputs) is not None:
            continue
        name = f"scanned{len(texts)}"
        texts.append(print_scan(case.op, [*inputs, *outputs], name))
        runs.append((f"{case} {arrays[0].dtype}", name, blocks_of(case.op, [*inputs, *outputs]), [*inputs, *outputs], outputs, expected))
    loaded = host_cuda.library(texts, tmp_path)
    for what, name, blocks, operands, outputs, expected in runs:
        host_cuda.launch(loaded, name, (min(blocks, 2),), (256,), addresses(operands))
        for ours, theirs in zip(outputs, expected, strict=True):
            one, other = (np.where(array != array, 0, array) for array in (single(theirs), single(ours)))
            assert np.array_equal(ours != ours, theirs != theirs), what
            laws.close(other, one, TOLERANCE[theirs.dtype.name], laws.magnitude(one), what)
    assert len(runs) > 60 // every and {by_blocks(case.op, arrays) for case, arrays in cases_of_all} == {True, False}


@pytest.mark.full
@pytest.mark.skipif(bool(nvidia_compiler.missing()), reason=nvidia_compiler.missing() or "nothing is missing")
@pytest.mark.parametrize("op", [CumSum(1), CumExtreme(1), LogCumSumExp(1)], ids=str)
def test_scan_kernels_compile_without_a_gpu(op: Any) -> None:
    x = np.zeros((3, 700), np.float16)
    outputs = laws.empties(types_tuple(op.infer(type_of(x))), fill=0)
    assert nvidia_compiler.compiled(print_scan(op, [x, *outputs]), "sm_90").startswith(b"\x7fELF")
