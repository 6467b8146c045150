"""The printed text of two loops, so that a change of the printer is visible."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobflow.core.types import bfloat16, float32
from jobflow.expressions import language as f
from jobflow.expressions.language import Expression
from jobflow.kernels.decompositions import lowered
from jobflow.kernels.llvm.loop_text import print_loop
from jobflow.kernels.loop_space import LoopForm, OperandAccess

DENSE, APART, NUMBER = OperandAccess(float32, "dense"), OperandAccess(bfloat16, "strided"), OperandAccess(float32, "number")


def update() -> tuple[list[Expression], LoopForm]:
    """Return w - rate g, where g is bfloat16 and strided."""
    w, g, rate = f.element(0, float32), f.element(1, bfloat16), f.number(2, float32)
    return [w - rate * f.cast(g, float32)], LoopForm(1, (DENSE, APART, NUMBER), (DENSE,))


def softmax() -> tuple[list[Expression], LoopForm]:
    """Return a softmax in three passes over a row; the second pass stores its exponentials for the third."""
    e = f.exp(f.element(0, float32) - f.row_max(f.element(0, float32)))
    return [e / f.row_sum(e)], LoopForm(1, (DENSE,), (DENSE,))


@pytest.mark.parametrize("kernel", [update, softmax])
def test_loops_are_printed_as_before(kernel: object) -> None:
    outputs, form = kernel()  # type: ignore[operator]
    printed = print_loop(*_lowered_arguments(outputs, form))
    golden = Path(__file__).parent / "golden" / f"{kernel.__name__}.ll"  # type: ignore[attr-defined]
    assert printed.text == golden.read_text(), f"print_loop prints something else: write {golden.name} anew if that is meant"
    assert printed.note == ("float32" if kernel is softmax else "")


def _lowered_arguments(outputs: list[Expression], form: LoopForm) -> tuple[list[Expression], LoopForm, set[Expression]]:
    expanded, expensive = lowered(outputs)
    return expanded, form, expensive
