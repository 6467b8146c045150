"""Kernels for the mean and the variance of channels, run on the host, equal the operation in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import host_cuda
import laws
import numpy as np
import nvidia_compiler
import pytest
from on_device import single

from jobflow.core.types import DType, bfloat16, dtype_of, float32, float64, type_of
from jobflow.kernels.cuda.moment_kernels import MomentsKernel, MomentsText
from jobflow.kernels.cuda.pooling_kernels import addresses
from jobflow.ops.batch_norm import BatchMoments
from jobflow.ops.op import types_tuple

#: relative to the largest element
TOLERANCE = {"float32": 2e-6, "float64": 1e-13}
#: shapes, the axis of the channels, and the axes of the array from outermost to innermost in memory
CASES: tuple[tuple[tuple[int, ...], int, tuple[int, ...]], ...] = (
    ((3, 64, 7, 9), 1, (0, 2, 3, 1)),
    ((2, 3, 5, 4), 1, (0, 2, 3, 1)),
    ((40, 72), 1, (0, 1)),
    ((9, 200, 3), 1, (0, 2, 1)),
    ((5, 6, 11, 13), 1, (0, 1, 2, 3)),
    ((7, 4, 16), 2, (0, 1, 2)),
    ((4, 300), 0, (0, 1)),
    ((70, 8, 40, 41), 1, (0, 2, 3, 1)),
)


def case(shape: tuple[int, ...], order: tuple[int, ...], dtype: DType, mean: float) -> Any:
    values = np.random.default_rng(0).standard_normal([shape[axis] for axis in order]) + mean
    return values.astype(dtype.numpy).transpose(np.argsort(order))


@pytest.mark.skipif(host_cuda.COMPILER is None, reason="there is no C++ compiler (g++)")
def test_moments_equal_those_in_float64_even_if_the_mean_is_large(tmp_path: Path) -> None:
    texts, runs = [], []
    for shape, axis, order in CASES:
        for dtype, mean in ((bfloat16, 0.0), (float32, 1000.0), (float64, -1e6)):
            x, op = case(shape, order, dtype, mean), BatchMoments(axis, 1.25)
            outputs = laws.empties(types_tuple(op.infer(type_of(x))), fill=0)
            assert MomentsKernel().refuses(op, [x], outputs) is None
            text = MomentsText(op, [x, *outputs], f"moments{len(texts)}")
            texts.append(text.text().replace("combined(", f"combined{len(texts)}("))  # texts are compiled together
            expected = laws.empties(types_tuple(op.infer(type_of(x.astype(np.float64)))), fill=0)
            op.kernel(np, np.array(x, np.float64), *expected)
            runs.append((text, [x, *outputs], expected))
    loaded = host_cuda.library(texts, tmp_path)
    for text, operands, expected in runs:
        parts = np.full(text.scratch, np.nan, operands[1].dtype)
        for name, blocks in zip((text.name, f"{text.name}_total"), text.blocks, strict=True):
            host_cuda.launch(loaded, name, (min(blocks, 3),), (256,), addresses([*operands, parts]))
        kind = dtype_of(operands[1].dtype).name
        for ours, theirs in zip(operands[1:], expected, strict=True):
            laws.close(single(ours).astype(np.float64), theirs, TOLERANCE[kind], laws.magnitude(theirs), f"{text.name} {operands[0].shape} {kind}")
    assert {text.blocks[0] > 1 for text, _, _ in runs} == {True, False}


@pytest.mark.skipif(bool(nvidia_compiler.missing()), reason=nvidia_compiler.missing() or "nothing is missing")
def test_moment_kernels_compile_without_a_gpu() -> None:
    op, x = BatchMoments(1), case((4, 64, 56, 56), (0, 2, 3, 1), bfloat16, 0.0)
    outputs = laws.empties(types_tuple(op.infer(type_of(x))), fill=0)
    assert nvidia_compiler.compiled(MomentsText(op, [x, *outputs], "moments").text(), "sm_90").startswith(b"\x7fELF")
