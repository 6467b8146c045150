"""Arithmetic on float16 and bfloat16: operations compute in float32, and results are rounded once.

One place for all ops: whoever binds an op calls `bind` here.  A CPU has no fast arithmetic of such numbers, and NumPy's sums and
products of them would round at every step.  So inputs are copied into float32, the op's own calls run on these copies, as fast as
ever, and the outputs are copied back.  On a GPU likewise, except products and convolutions, for which it has units of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jobflow.core.types import Array, Xp, dtype_of, float32
from jobflow.ops.op import Binder, Binding, Call, Op, ViewOp


def is_half(array: Array) -> bool:
    """True for floating point numbers of two bytes."""
    return array.dtype.itemsize == 2 and array.dtype.kind in "fV"


def bind(op: Op, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array], calls: Binding) -> list[Call]:
    """What `calls` prepares for this op, with every array of two-byte floats replaced by one of float32 while it runs."""
    if not any(map(is_half, (*inputs, *outputs))) or _rounds_once(op, device, inputs, outputs):
        return calls(device, inputs, outputs)
    wide = [_wide(device, a) for a in inputs]
    # an update's new value is written over the old one, and its calls may count on that
    given = [wide[op.alias[i]] if i in op.alias else _wide(device, a) for i, a in enumerate(outputs)]
    before: list[Call] = [(device.xp.copyto, (w, a)) for w, a in zip(wide, inputs, strict=True) if w is not a]
    after: list[Call] = [(rounded, (a, w)) for w, a in zip(given, outputs, strict=True) if w is not a]
    return [*before, *calls(device, wide, given), *after]


def _rounds_once(op: Op, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
    """True for ops whose own calls are right for two-byte floats: they compute nothing, or are products on a GPU, which sums in float32.

    A GPU's product that gives one number is a dot product, which CuPy sums in the type of its operands; and of many bfloat16 matrices
    at once CuPy computes the product without the units that are made for it.
    """
    if isinstance(op, ViewOp):
        return True
    one_number = any(a.size == 1 for a in outputs)
    many_bfloat16 = any(a.dtype.kind == "V" and a.ndim > 2 for a in inputs)
    return op.precision == "half" and device.xp is not np and not one_number and not many_bfloat16


def _wide(device: Binder, array: Array) -> Array:
    return device.scratch(tuple(array.shape), float32) if is_half(array) else array


def rounded(target: Array, source: Array) -> None:
    """target = source, in the type of the target."""
    target[...] = source


def run(op: Op, inputs: Sequence[Array], outputs: Sequence[Array], xp: Xp = np) -> None:
    """`op.kernel`, likewise."""
    given = [xp.empty(a.shape, dtype_of(a.dtype).arithmetic.numpy) for a in outputs]
    op.kernel(xp, *(xp.asarray(a, dtype_of(a.dtype).arithmetic.numpy) for a in inputs), *given)
    for target, source in zip(outputs, given, strict=True):
        target[...] = source
