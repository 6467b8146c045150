"""Running sums and products on CPUs, accumulated in place by NumPy."""

from __future__ import annotations

from collections.abc import Sequence

from jobflow.core.types import Array
from jobflow.kernels.registry import implements, kernel_call
from jobflow.ops.op import Binder, Call
from jobflow.ops.scan import Scan


@implements(Scan)
def accumulate(op: Scan, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    (x,), (y,) = inputs, outputs
    if not y.size:
        return kernel_call(op, device, inputs, outputs)
    source, target = op.operands(x, y)
    first: list[Call] = [(op.turned(y)[:1].fill, (op.of_nothing,))] if op.exclusive else []
    return [*first, (op.ufunc.accumulate, (source, 0, op.running(y), target))]
