"""The printed texts of some kernels, so that a change of the printer is visible; NVIDIA's compiler accepts them for two architectures."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import nvidia_compiler
import pytest

from jobflow.core.types import Array, DType, TensorType, bfloat16, contiguous_strides, float32, float64
from jobflow.expressions import language as f
from jobflow.expressions.language import Expression
from jobflow.kernels.cuda.compiled_text import options
from jobflow.kernels.cuda.fused import launched, prepared
from jobflow.kernels.cuda.fused_kernels import FusedKernel
from jobflow.kernels.cuda.kernel_form import multiplier
from jobflow.kernels.region import Region
from jobflow.kernels.registry import at, candidates
from jobflow.kernels.target import target_of
from jobflow.ops.op import Op
from jobflow.ops.softmax import Softmax

GOLDEN = Path(__file__).parent / "golden"
#: expressions, inputs and targets
Kernel = tuple[list[Expression], list[Array], list[Array]]


def placeholder(number: int, dtype: DType, *shape: int) -> Array:
    return at(TensorType(shape, dtype), contiguous_strides(shape, dtype.itemsize), number << 40)


def update() -> Kernel:
    """Return w - rate g, where g is bfloat16 and strided."""
    w, g, rate = f.element(0, float32), f.element(1, bfloat16), f.number(2, float32)
    arrays = [placeholder(1, float32, 64, 100), placeholder(2, bfloat16, 64, 200)[:, ::2], placeholder(3, float32, 1)]
    return [w - rate * f.cast(g, float32)], arrays, [arrays[0]]


def bias() -> Kernel:
    """Return x + b, where b is broadcast along rows."""
    arrays = [placeholder(1, bfloat16, 128, 768), placeholder(2, bfloat16, 768)]
    return [f.element(0, bfloat16) + f.element(1, bfloat16)], arrays, [placeholder(3, bfloat16, 128, 768)]


def scaled() -> Kernel:
    """Return 2 x of a vector with a tail."""
    return [f.element(0, float32) * 2.0], [placeholder(1, float32, 1003)], [placeholder(2, float32, 1003)]


def softmax() -> Kernel:
    """Return a softmax, which takes three passes over a row that a warp shares."""
    e = f.exp(f.element(0, float32) - f.row_max(f.element(0, float32)))
    return [e / f.row_sum(e)], [placeholder(1, float32, 128, 768)], [placeholder(2, float32, 128, 768)]


def norm_gradients() -> Kernel:
    """Return gradients per element, per row, and per column."""
    dy, x, scale = f.element(0, float32), f.element(1, float32), f.element(2, float32)
    mean = f.row_sum(dy * x) / f.cast(f.columns(), float32)
    inputs = [placeholder(1, float32, 1024, 768), placeholder(2, float32, 1024, 768), placeholder(3, float32, 1024, 1)]
    targets = [placeholder(4, float32, 1024, 768), placeholder(5, float32, 1024, 1), placeholder(6, float32, 768)]
    return [(dy - x * mean) * scale, mean, f.column_sum(dy * x)], inputs, targets


def channel_sums() -> Kernel:
    """Return images without their means, and the sums of channels, in groups of rows."""
    x, mean = f.cast(f.element(0, bfloat16), float32), f.element(1, float32)
    inputs = [placeholder(1, bfloat16, 8, 56, 56, 64), placeholder(2, float32, 64)]
    targets = [placeholder(3, bfloat16, 8, 56, 56, 64), placeholder(4, float32, 64)]
    return [f.cast(x - mean, bfloat16), f.column_sum(x - mean)], inputs, targets


KERNELS = [update, bias, scaled, softmax, norm_gradients, channel_sums]


def texts(kernel: Callable[[], Kernel]) -> dict[str, str]:
    """Return the texts of a kernel's stages by the name of their golden file."""
    count = 100

    def allocate(shape: tuple[int, ...], dtype: DType) -> Array:
        nonlocal count
        count += 1
        return placeholder(count, dtype, *shape)

    stages = prepared(*kernel(), allocate)
    return {f"{kernel.__name__}{f'_{ready.form.kind}' if len(stages) > 1 else ''}.cu": ready.text() for ready in stages}


@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_are_printed_as_recorded(kernel: Callable[[], Kernel]) -> None:
    for name, text in texts(kernel).items():
        assert text == (GOLDEN / name).read_text(), f"the text of a kernel differs from {name}: write the file again if that is meant"


@pytest.mark.skipif(bool(nvidia_compiler.missing()), reason=nvidia_compiler.missing() or "nothing is missing")
@pytest.mark.parametrize("architecture", ["sm_80", pytest.param("sm_90", marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "kernel", [bias, softmax, *(pytest.param(k, marks=pytest.mark.full) for k in (update, scaled, norm_gradients, channel_sums))]
)
def test_kernels_are_compiled_without_a_gpu(kernel: Callable[[], Kernel], architecture: str) -> None:
    for text in texts(kernel).values():
        code = nvidia_compiler.compiled(text, architecture)
        assert code.startswith(b"\x7fELF") and b"fused" in code


def test_bias_gradient_of_1024_rows_has_132_blocks_or_more() -> None:
    outputs = [f.column_sum(f.element(0, float32))]
    arrays, target = [placeholder(1, float32, 1024, 768)], placeholder(2, float32, 768)
    tiles, _ = prepared(outputs, arrays, [target], lambda shape, dtype: placeholder(3, dtype, *shape))
    assert launched(tiles)[0] == 192


@pytest.mark.parametrize(
    ("kind", "rows", "width", "count", "dtype"),
    [
        ("walks", 2048, 1024, 6, float32),
        ("walks", 2048, 2048, 3, float32),
        ("walks", 2048, 1024, 3, float64),
        ("totals", 20000, 64, 60, float32),
        ("totals", 20000, 64, 30, float64),
    ],
)
def test_sums_of_columns_fit_into_shared_memory(kind: str, rows: int, width: int, count: int, dtype: DType) -> None:
    x = f.element(0, dtype)
    scaled = x * f.row_sum(x) if kind == "walks" else x
    outputs = [f.column_sum(scaled * float(k)) for k in range(count)]
    targets = [placeholder(2 + k, dtype, width) for k in range(count)]
    stages = prepared(outputs, [placeholder(1, dtype, rows, width)], targets, lambda shape, dtype: placeholder(100, dtype, *shape))
    (text,) = (ready.text() for ready in stages if ready.form.kind == kind)
    arrays = re.findall(r"__shared__ \w+ part\d+\[(\d+)\]\[(\d+)\]", text)
    # a reduction of rows has an array of eight numbers
    assert sum(int(y) * int(x) for y, x in arrays) * dtype.itemsize + 64 <= 48 << 10, arrays


def test_multipliers_divide_all_indices_of_31_bits() -> None:
    draw = np.random.default_rng(0)
    divisors = [1, 2, 3, 7, 96, 641, 50304, (1 << 30) - 1, 1 << 30, (1 << 31) - 1, *draw.integers(1, 1 << 31, 50)]
    for divisor in map(int, divisors):
        factor, shift = multiplier(divisor)
        near = np.arange(-2, 3) + divisor * draw.integers(0, (1 << 31) // divisor + 1, 20)[:, None]
        for i in (int(i) for i in np.unique(near) if 0 <= i < 1 << 31):
            assert ((i * (factor % (1 << 32)) >> 32) + i) >> shift == i // divisor


@pytest.mark.parametrize("op", [Softmax, Region])
def test_the_setting_exact_selects_kernels_without_fused_multiply_add(op: type[Op]) -> None:
    first = {setting: candidates(op, target_of("gpu", setting))[0] for setting in ("auto", "exact")}
    assert first["exact"] == FusedKernel("exact", exact=True) and first["auto"] == FusedKernel()
    assert options(True)[-1] == "--fmad=false" and options(False)[-1] == "--fmad=true"
