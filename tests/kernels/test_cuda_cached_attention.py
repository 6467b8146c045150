"""Tests that attention over caches by kernels for GPUs, run on the host, equals the operation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import host_cuda
import laws
import numpy as np
import nvidia_compiler
import pytest
from on_device import TOLERANCE, cases, host_results, single

from jobflow.core.types import bfloat16, float16, float32, int32, type_of
from jobflow.kernels.cuda import cached_attention_kernels
from jobflow.kernels.cuda.cached_attention_kernels import CachedAttentionKernel, CachedAttentionText
from jobflow.kernels.cuda.pooling_kernels import addresses
from jobflow.ops.cached_attention import CachedAttention
from jobflow.ops.op import types_tuple

#: element type, batch, heads, groups, new tokens, length of the cache, sizes of a key and of a value, valid rows of the cache; blocks that share keys
CASES: Any = (
    ((float32, 3, 2, 2, 5, 150, 40, 24, [0, 150, 37]), 4),
    ((bfloat16, 2, 1, 1, 1, 70, 64, 64, [999, -1]), 3),
    ((float16, 1, 2, 1, 70, 90, 16, 8, [20]), 1),
)


def arrays_of(dtype: Any, batch: int, heads: int, groups: int, new: int, length: int, size: int, value: int, rows: list[int]) -> list[Any]:
    random = np.random.default_rng(0)
    shapes = [(groups * new, size), (new, size), (new, value), (length, size), (length, value)]
    arrays = [random.standard_normal((batch, heads, *shape)).astype(dtype.numpy) for shape in shapes]
    return [*arrays, np.array(rows, int32.numpy)]


@pytest.mark.skipif(host_cuda.COMPILER is None, reason="there is no C++ compiler (g++)")
@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.full)])
def test_cached_attention_equals_the_operation(every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts, runs = [], []
    samples = [(case.op, arrays, 2) for case, arrays in cases(CachedAttention)]
    for op, arrays, splits in [*samples[1::every], *((CachedAttention(0.2), arrays_of(*case), splits) for case, splits in CASES)]:
        inner, outer = laws.ORDERS[len(runs) % 5]
        inputs, types = [inner(a) for a in arrays], types_tuple(op.infer(*map(type_of, arrays)))
        operands = [*inputs, *(outer(a) for a in laws.empties(types, fill=0))]
        if CachedAttentionKernel().refuses(op, inputs, operands[6:]) is not None:
            continue
        printed = CachedAttentionText(op, operands, f"attention{len(runs)}")
        monkeypatch.setattr(cached_attention_kernels, "OCCUPIED", splits * printed.heads * printed.row_tiles)
        texts.append(printed.text())
        runs.append((printed, operands, host_results(op, arrays)[0]))
    loaded = host_cuda.library(texts, tmp_path)
    for printed, operands, expected in runs:
        pointers = addresses([*operands, *(scratch := [np.full(shape, np.nan, np.float32) for shape in printed.scratch_shapes()])])
        host_cuda.launch(loaded, printed.name, (printed.blocks,), (256,), pointers)
        if scratch:
            host_cuda.launch(loaded, f"{printed.name}_combined", (2,), (256,), pointers)
        one = single(expected)
        laws.close(single(operands[-1]), one, TOLERANCE[expected.dtype.name], laws.magnitude(one), f"{printed.arrays[0].shape} {expected.dtype}")
    assert {printed.tile for printed, *_ in runs} == {(16, 64), (64, 64)} and {printed.splits for printed, *_ in runs} == {1, 2, 3, 4}


def test_unsupported_operands_are_refused_with_the_reason() -> None:
    def refused(*case: Any) -> str | None:
        inputs = arrays_of(*case)
        return CachedAttentionKernel().refuses(CachedAttention(1.0), inputs, [np.zeros((*inputs[0].shape[:3], inputs[2].shape[3]), inputs[0].dtype)])

    assert refused(float32, 1, 1, 1, 1, 2, 129, 4, [1]) == "heads of 129 and 4 elements are longer than 128"
    assert refused(float32, 1, 1, 1, 1, 0, 4, 4, [0]) == "an operand has no elements"
    assert refused(float32, 1, 1, 1, 1, 2, 128, 128, [1]) is None


@pytest.mark.full
@pytest.mark.skipif(bool(nvidia_compiler.missing()), reason=nvidia_compiler.missing() or "nothing is missing")
@pytest.mark.parametrize("heads", [1, 600])
def test_kernels_compile_without_a_gpu(heads: int) -> None:
    arrays = arrays_of(bfloat16, 1, heads, 2, 3, 40, 128, 128, [1])
    text = CachedAttentionText(CachedAttention(0.5), [*arrays, arrays[0]]).text()
    assert nvidia_compiler.compiled(text, "sm_90").startswith(b"\x7fELF")
