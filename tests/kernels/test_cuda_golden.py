"""The printed text of three kernels, so that a change of the printer is visible; NVIDIA's compiler accepts it for two architectures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import nvidia_compiler
import pytest

from jobflow.core.types import bfloat16, float32
from jobflow.expressions import language as f
from jobflow.expressions.language import Expression
from jobflow.kernels.cuda.kernel_text import KernelForm, print_kernel
from jobflow.kernels.cuda.primitives import NATIVE
from jobflow.kernels.decompositions import lowered
from jobflow.kernels.loop_space import LoopForm, OperandAccess

DENSE, APART, NUMBER, ONE = (
    OperandAccess(float32, "dense"),
    OperandAccess(bfloat16, "strided"),
    OperandAccess(float32, "number"),
    OperandAccess(float32, "splat"),
)
ARCHITECTURES = ("sm_80", "sm_90")


def update() -> tuple[list[Expression], KernelForm]:
    """Return w - rate g, where g is bfloat16 and strided."""
    w, g, rate = f.element(0, float32), f.element(1, bfloat16), f.number(2, float32)
    return [w - rate * f.cast(g, float32)], KernelForm(LoopForm(1, (DENSE, APART, NUMBER), (DENSE,)), 0, wide=True)


def softmax() -> tuple[list[Expression], KernelForm]:
    """Return a softmax, which takes three passes over a row that a warp shares."""
    e = f.exp(f.element(0, float32) - f.row_max(f.element(0, float32)))
    return [e / f.row_sum(e)], KernelForm(LoopForm(1, (DENSE,), (DENSE,)), 32)


def norm_gradients() -> tuple[list[Expression], KernelForm]:
    """Return gradients per element, per row, and per column by blocks."""
    dy, x, scale = f.element(0, float32), f.element(1, float32), f.element(2, float32)
    mean = f.row_sum(dy * x) / f.cast(f.columns(), float32)
    return [(dy - x * mean) * scale, mean, f.column_sum(dy * x)], KernelForm(LoopForm(1, (DENSE, DENSE, ONE), (DENSE, ONE, DENSE)), 256)


@pytest.mark.parametrize("kernel", [update, softmax, norm_gradients])
def test_kernels_are_printed_as_before(kernel: Callable[[], tuple[list[Expression], KernelForm]]) -> None:
    outputs, form = kernel()
    printed = print_kernel(lowered(outputs, NATIVE)[0], form)
    golden = Path(__file__).parent / "golden" / f"{kernel.__name__}.cu"
    assert printed == golden.read_text(), f"print_kernel prints something else: write {golden.name} anew if that is meant"


@pytest.mark.skipif(bool(nvidia_compiler.missing()), reason=nvidia_compiler.missing() or "nothing is missing")
@pytest.mark.parametrize("kernel", [update, softmax, norm_gradients])
def test_kernels_are_compiled_without_a_gpu(kernel: Callable[[], object]) -> None:
    text = (Path(__file__).parent / "golden" / f"{kernel.__name__}.cu").read_text()
    for architecture in ARCHITECTURES:
        code = nvidia_compiler.compiled(text, architecture)
        assert code.startswith(b"\x7fELF") and b"fused" in code
