"""Pooling kernels for GPUs, run on the host, equal the operations on arrays."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import host_cuda
import laws
import numpy as np
import nvidia_compiler
import pytest
from on_device import TOLERANCE, cases, host_results, single

from jobflow.core.types import bfloat16, float32, float64, type_of
from jobflow.kernels.cuda.pooling_kernels import PoolingKernel, addresses, channels_at_once, print_pooling
from jobflow.ops.op import types_tuple
from jobflow.ops.pool import AvgPool, AvgPoolGrad, MaxPool, MaxPoolGrad, MaxPoolPick


@pytest.mark.skipif(host_cuda.COMPILER is None, reason="there is no C++ compiler (g++)")
def test_pooling_kernels_equal_the_operations(tmp_path: Path) -> None:
    texts, runs = [], []
    for cls in (MaxPool, MaxPoolGrad, MaxPoolPick, AvgPool, AvgPoolGrad):
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
    assert len(runs) >= 4 * 5 * 5


@pytest.mark.skipif(host_cuda.COMPILER is None, reason="there is no C++ compiler (g++)")
def test_adjacent_channels_are_pooled_by_vectors(tmp_path: Path) -> None:
    texts, runs = [], []
    window, rng = ((3, 2), (2, 1), ((1, 1), (0, 1))), np.random.default_rng(0)
    for dtype, cls in product((bfloat16, float32), (MaxPool, MaxPoolGrad, MaxPoolPick, AvgPool, AvgPoolGrad)):
        image, pooled = (2, 5, 3, 16), (2, 3, 3, 16)
        shapes = {
            MaxPool: [image],
            AvgPool: [image],
            MaxPoolGrad: [image, pooled, pooled],
            MaxPoolPick: [image, pooled, image],
            AvgPoolGrad: [pooled],
        }[cls]
        op = AvgPoolGrad(*window, spatial=image[1:3]) if cls is AvgPoolGrad else cls(*window)
        # small whole numbers, so that windows have several maxima
        inputs = [rng.integers(0, 3, s).astype(dtype.numpy).transpose(0, 3, 1, 2) for s in shapes]
        output = np.zeros(image if cls in (MaxPoolGrad, AvgPoolGrad) else pooled, dtype.numpy).transpose(0, 3, 1, 2)
        assert channels_at_once([*inputs, output]) == 16 // dtype.itemsize
        texts.append(print_pooling(op, [*inputs, output], f"pooled{len(texts)}"))
        runs.append((str(op), [*inputs, output], host_results(op, inputs)[0]))
    loaded = host_cuda.library(texts, tmp_path)
    for k, (what, operands, expected) in enumerate(runs):
        host_cuda.launch(loaded, f"pooled{k}", (2,), (256,), addresses(operands))
        laws.close(single(operands[-1]), single(expected), TOLERANCE[expected.dtype.name], laws.magnitude(single(expected)), what)


#: images with channels last, and the windows
TILED = (
    (float32, (1, 37, 41, 24), ((3, 3), (2, 2), ((1, 1), (1, 1)))),
    (bfloat16, (2, 20, 19, 16), ((5, 5), (1, 1), ((2, 2), (2, 2)))),
    (bfloat16, (2, 1100, 16), ((2,), (3,), ((0, 1),))),
    (float64, (1, 5, 9, 17, 8), ((2, 3, 2), (1, 2, 2), ((0, 0), (1, 1), (1, 0)))),
    (float32, (1, 33, 7, 80), ((17, 16), (1, 1), ((0, 0), (8, 8)))),
)


@pytest.mark.skipif(host_cuda.COMPILER is None, reason="there is no C++ compiler (g++)")
def test_tiles_of_max_pool_gradients_equal_the_operation(tmp_path: Path) -> None:
    texts, runs, rng = [], [], np.random.default_rng(0)
    for dtype, shape, window in TILED:
        axes = (0, len(shape) - 1, *range(1, len(shape) - 1))
        # several maxima in a window, zeros of both signs, and windows with NaN or without finite elements
        image = np.where(rng.random(shape) < 0.01, np.nan, rng.choice([-np.inf, -0.0, 0.0, 2.0], shape)).astype(dtype.numpy).transpose(axes)
        (pooled,) = host_results(MaxPool(*window), [image])
        channels_last = [0, *range(2, len(shape)), 1]
        y = np.ascontiguousarray(pooled.transpose(channels_last)).transpose(axes)
        dy = rng.standard_normal([y.shape[axis] for axis in channels_last]).astype(dtype.numpy).transpose(axes)
        op, operands = MaxPoolGrad(*window), [image, y, dy, np.zeros(shape, dtype.numpy).transpose(axes)]
        texts.append(print_pooling(op, operands, f"pooled{len(texts)}"))
        runs.append((str(op), operands, host_results(op, operands[:3])[0]))
    assert ["taps[" in text for text in texts] == [True, True, True, True, False]  # 272 taps are too many
    loaded = host_cuda.library(texts, tmp_path)
    for k, (what, operands, expected) in enumerate(runs):
        host_cuda.launch(loaded, f"pooled{k}", (3,), (256,), addresses(operands))
        laws.close(single(operands[-1]), single(expected), TOLERANCE[expected.dtype.name], laws.magnitude(single(expected)), what)


@pytest.mark.skipif(bool(nvidia_compiler.missing()), reason=nvidia_compiler.missing() or "nothing is missing")
def test_pooling_kernels_compile_without_a_gpu() -> None:
    op, x, y = MaxPoolGrad((3, 2), (2, 1), ((1, 1), (0, 1))), np.zeros((2, 3, 5, 3), np.float16), np.zeros((2, 3, 3, 3), np.float16)
    assert nvidia_compiler.compiled(print_pooling(op, [x, y, y, x]), "sm_80").startswith(b"\x7fELF")
