"""Flips along the last axis as compiled loops, sixteen elements at a time."""

from __future__ import annotations

from collections.abc import Sequence

from jobflow.core.types import Array, dtype_of
from jobflow.expressions import language as f
from jobflow.kernels import llvm
from jobflow.kernels.compiled_loops import FEWEST
from jobflow.kernels.registry import implements
from jobflow.ops.op import Binder, Call
from jobflow.ops.slices import Flip


def _refused(op: Flip, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
    (x,), (y,) = inputs, outputs
    if x.ndim - 1 not in op.axes or x.size < FEWEST:
        return f"rows are not reversed, or the tensor has fewer than {FEWEST} elements, which NumPy copies faster"
    return llvm.refuses((f.element(0, dtype_of(y.dtype)),), [op.turned(x)], [y])


@implements(Flip, tier="llvm", rank=10, refuses=_refused)
def copy_backwards_in_a_loop(op: Flip, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    return llvm.bind((f.element(0, dtype_of(outputs[0].dtype)),), [op.turned(inputs[0])], outputs, device.scratch)
