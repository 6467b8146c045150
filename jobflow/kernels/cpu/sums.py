"""Sums over axes on CPUs."""

from __future__ import annotations

from collections.abc import Sequence

from jobflow.core.types import Array
from jobflow.kernels.registry import implements
from jobflow.ops.broadcast import sum_calls
from jobflow.ops.matmul import AxisSum
from jobflow.ops.op import Binder, Call


@implements(AxisSum)
def sum_of_lines(op: AxisSum, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    (x,), (y,) = inputs, outputs
    return sum_calls(device, x, tuple(i for i in range(x.ndim) if i != op.axis), y)
