"""Convolution kernels for GPUs, run on the host, equal the operations on arrays."""

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

from jobflow.core.types import DType, bfloat16, dtype_of, float32, type_of
from jobflow.kernels.cuda.convolution_kernels import ConvolutionKernel
from jobflow.kernels.cuda.convolution_tiles import SHORTEST, ConvolutionText
from jobflow.kernels.cuda.pooling_kernels import addresses
from jobflow.ops.conv import Conv, ConvGradInput, ConvGradWeight, ConvOp
from jobflow.ops.op import types_tuple

needs_compiler = pytest.mark.skipif(host_cuda.COMPILER is None, reason="there is no C++ compiler (g++)")


class Kernels:
    """Kernels that are compiled together, then run and compared."""

    def __init__(self) -> None:
        self.runs: list[tuple[str, ConvolutionText, list[Any], Any]] = []

    def add(self, op: ConvOp, inputs: list[Any], output: Any, expected: Any) -> ConvolutionText:
        assert ConvolutionKernel().refuses(op, inputs, [output]) is None
        text = ConvolutionText(op, [*inputs, output], f"convolution{len(self.runs)}")
        self.runs.append((str(op), text, [*inputs, output], expected))
        return text

    def check(self, folder: Path) -> None:
        loaded = host_cuda.library([text.text() for _, text, _, _ in self.runs], folder)
        for what, text, operands, expected in self.runs:
            sums = np.full(max(text.scratch, 1), np.nan, dtype_of(operands[-1].dtype).arithmetic.numpy)
            pointers = addresses([*operands, *([sums] if text.scratch else [])])
            for each in text.launches():
                host_cuda.launch(loaded, each.name, (min(each.blocks, 3),), (256,), pointers)
            kind = dtype_of(operands[-1].dtype).name
            laws.close(single(operands[-1]), single(expected), TOLERANCE[kind], laws.magnitude(single(expected)), f"{what} {kind}")


@needs_compiler
def test_convolution_kernels_equal_the_operations_for_all_strides(tmp_path: Path) -> None:
    kernels = Kernels()
    for cls in (Conv, ConvGradInput, ConvGradWeight):
        for k, (sample, arrays) in enumerate(cases(cls)):
            (type_,) = types_tuple(sample.op.infer(*map(type_of, arrays)))
            inner, outer = laws.ORDERS[k % 5]
            kernels.add(sample.op, [inner(a) for a in arrays], outer(laws.empties([type_], fill=0)[0]), host_results(sample.op, arrays)[0])
    assert len(kernels.runs) == 3 * 4 * 9
    kernels.check(tmp_path)


def channels_last(shape: tuple[int, ...], dtype: DType, random: np.random.Generator | None = None) -> Any:
    """Return an array with the channels innermost, of random numbers or zeros."""
    stored = (shape[0], *shape[2:], shape[1])
    values = np.zeros(stored) if random is None else random.standard_normal(stored)
    return np.moveaxis(values.astype(dtype.numpy), -1, 1)


def large_cases() -> Iterator[tuple[ConvOp, tuple[int, ...], tuple[int, ...]]]:
    """Yield convolutions of several tiles, with the shapes of images and filters."""
    yield Conv((2, 2), ((1, 1), (1, 1)), (1, 1)), (2, 16, 11, 9), (72, 16, 3, 3)
    yield Conv((1, 1), ((0, 0), (0, 0)), (1, 1)), (3, 72, 5, 5), (16, 72, 1, 1)
    yield Conv((2, 2), ((3, 3), (3, 3)), (1, 1)), (1, 3, 17, 16), (8, 3, 7, 7)
    yield Conv((1, 2), ((1, 1), (0, 1)), (2, 1), groups=2), (2, 32, 7, 6), (16, 16, 3, 2)
    yield Conv((1, 1, 1), ((1, 1),) * 3, (1, 1, 1)), (1, 8, 4, 5, 3), (8, 8, 3, 3, 3)
    yield Conv((1, 1), ((1, 1), (1, 1)), (1, 1)), (3, 8, 20, 21), (16, 8, 3, 3)


@needs_compiler
def test_adjacent_channels_are_read_by_vectors_in_tiles(tmp_path: Path) -> None:
    kernels, random = Kernels(), np.random.default_rng(0)
    divided = 0
    for conv, image, filters in large_cases():
        for dtype in (bfloat16, float32):
            x, w = channels_last(image, dtype, random), channels_last(filters, dtype, random)
            (y_type,) = types_tuple(conv.infer(type_of(x), type_of(w)))
            dy = channels_last(y_type.shape, dtype, random)
            options = (conv.strides, conv.padding, conv.dilations, conv.groups, conv.algorithm)
            runs: tuple[tuple[ConvOp, list[Any]], ...] = (
                (conv, [x, w]),
                (ConvGradInput(*options, image[2:]), [dy, w]),
                (ConvGradWeight(*options, filters[2:]), [x, dy]),
            )
            for op, inputs in runs:
                expected = host_results(op, inputs)[0]
                text = kernels.add(op, inputs, channels_last(expected.shape, dtype), expected)
                divided += text.parts > 1
                if image[1] % 8 == 0:
                    assert {text.first.vector, text.second.vector, text.result.vector} == {16 // dtype.itemsize}
    assert divided >= 2 and SHORTEST < 3 * 20 * 21
    kernels.check(tmp_path)


@pytest.mark.skipif(bool(nvidia_compiler.missing()), reason=nvidia_compiler.missing() or "nothing is missing")
def test_convolution_kernels_compile_without_a_gpu() -> None:
    x, w, dy = (channels_last(shape, bfloat16) for shape in ((4, 64, 56, 56), (64, 64, 3, 3), (4, 64, 56, 56)))
    conv = Conv((1, 1), ((1, 1), (1, 1)), (1, 1))
    options = (conv.strides, conv.padding, conv.dilations, conv.groups, conv.algorithm)
    for op, arrays in ((conv, [x, w, dy]), (ConvGradInput(*options, (56, 56)), [dy, w, x]), (ConvGradWeight(*options, (3, 3)), [x, dy, w])):
        assert nvidia_compiler.compiled(ConvolutionText(op, arrays, "convolution").text(), "sm_90").startswith(b"\x7fELF")
