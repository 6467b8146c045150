"""Arithmetic on float16 and bfloat16: operations compute in float32, and results are rounded once.

Every implementation by array functions binds its calls through `bind`.  A CPU has no fast half-precision arithmetic, and NumPy's sums and
products would round at every step.  Inputs are therefore copied into float32, the operation's calls run on the copies, and the outputs are
copied back.  The same holds on a GPU, except for products and convolutions, for which a GPU has half-precision units.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jobflow.core.types import Array, Xp, dtype_of, float32
from jobflow.ops.op import Binder, Binding, Call, Op, ViewOp


def is_half(array: Array) -> bool:
    """Return True for an array of float16 or bfloat16."""
    return array.dtype.itemsize == 2 and array.dtype.kind in "fV"


def bind(op: Op, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array], calls: Binding) -> list[Call]:
    """Prepare the calls of this operation, with float32 copies in place of half-precision arrays unless the operation itself rounds only once."""
    if not any(map(is_half, (*inputs, *outputs))) or _rounds_once(op, device, inputs, outputs):
        return calls(device, inputs, outputs)
    wide = [_wide(device, a) for a in inputs]
    # calls of an update may rely on the output and the aliased input being the same array
    targets = [wide[op.alias[i]] if i in op.alias else _wide(device, a) for i, a in enumerate(outputs)]
    before: list[Call] = [(device.xp.copyto, (w, a)) for w, a in zip(wide, inputs, strict=True) if w is not a]
    after: list[Call] = [(rounded, (a, w)) for w, a in zip(targets, outputs, strict=True) if w is not a]
    return [*before, *calls(device, wide, targets), *after]


def _rounds_once(op: Op, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
    """Return True if the operation's own calls are correct for half-precision arrays: a view, or a product on a GPU, which sums in float32.

    Two kinds of product are excluded.  CuPy computes a product with one element as a dot product, which sums in the type of the operands.  CuPy
    also computes batched bfloat16 products without the tensor cores.
    """
    if isinstance(op, ViewOp):
        return True
    one_number = any(a.size == 1 for a in outputs)
    many_bfloat16 = any(a.dtype.kind == "V" and a.ndim > 2 for a in inputs)
    return op.precision == "half" and device.xp is not np and not one_number and not many_bfloat16


def _wide(device: Binder, array: Array) -> Array:
    return device.scratch(tuple(array.shape), float32) if is_half(array) else array


def rounded(target: Array, source: Array) -> None:
    """Copy the source into the target, rounded to the target's type."""
    target[...] = source


def run(op: Op, inputs: Sequence[Array], outputs: Sequence[Array], xp: Xp = np) -> None:
    """Run `op.kernel` with float32 copies in place of half-precision arrays, and round the results to the outputs."""
    results = [xp.empty(a.shape, dtype_of(a.dtype).arithmetic.numpy) for a in outputs]
    op.kernel(xp, *(xp.asarray(a, dtype_of(a.dtype).arithmetic.numpy) for a in inputs), *results)
    for target, source in zip(outputs, results, strict=True):
        target[...] = source
