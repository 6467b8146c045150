"""Pooling kernels for GPUs, run on the host, equal the operations on arrays."""

from __future__ import annotations

from pathlib import Path

import host_cuda
import laws
import numpy as np
import nvidia_compiler
import pytest
from on_device import TOLERANCE, cases, host_results, single

from jobflow.core.types import type_of
from jobflow.kernels.cuda.pooling_kernels import PoolingKernel, addresses, print_pooling
from jobflow.ops.op import types_tuple
from jobflow.ops.pool import AvgPool, AvgPoolGrad, MaxPool, MaxPoolGrad


@pytest.mark.skipif(host_cuda.COMPILER is None, reason="there is no C++ compiler (g++)")
def test_pooling_kernels_equal_the_operations(tmp_path: Path) -> None:
    texts, runs = [], []
    for cls in (MaxPool, MaxPoolGrad, AvgPool, AvgPoolGrad):
        for k, (sample, arrays) in enumerate(cases(cls)):
            expected = host_results(sample.op, arrays)
            inner, outer = laws.ORDERS[k % 5]
            inputs, outputs = (
                [inner(a) for a in arrays],
                [outer(a) for a in laws.empties(types_tuple(sample.op.infer(*map(type_of, arrays))), fill=0)],
            )
            if PoolingKernel().refuses(sample.op, inputs, outputs) is not None:
                continue
            name = f"pooled{len(texts)}"
            texts.append(print_pooling(sample.op, [*inputs, *outputs], name))
            runs.append((str(sample), name, [*inputs, *outputs], expected[0]))
    loaded = host_cuda.library(texts, tmp_path)
    for what, name, operands, expected_one in runs:
        host_cuda.launch(loaded, name, (2,), (256,), addresses(operands))
        one = single(expected_one)
        laws.close(single(operands[-1]), one, TOLERANCE[expected_one.dtype.name], laws.magnitude(one), what)
    assert len(runs) >= 4 * 4 * 5


@pytest.mark.skipif(bool(nvidia_compiler.missing()), reason=nvidia_compiler.missing() or "nothing is missing")
def test_pooling_kernels_compile_without_a_gpu() -> None:
    op, x, y = MaxPoolGrad((3, 2), (2, 1), ((1, 1), (0, 1))), np.zeros((2, 3, 5, 3), np.float16), np.zeros((2, 3, 3, 3), np.float16)
    assert nvidia_compiler.compiled(print_pooling(op, [x, y, y, x]), "sm_80").startswith(b"\x7fELF")
