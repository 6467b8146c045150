"""Causal softmax on CPUs: each block of rows covers only the columns visible to its last row, which halves the work."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from jobflow.core.types import Array, dtype_of
from jobflow.kernels.cpu.blocks import BLOCK
from jobflow.kernels.cpu.numpy_formulas import fastest_exponential
from jobflow.kernels.cpu.row_calls import row_max_calls
from jobflow.kernels.registry import implements
from jobflow.ops.op import Binder, Call, Op
from jobflow.ops.softmax import CausalSoftmax

#: number of blocks of rows, and fewest rows of a block
_BLOCKS, _ROWS = 8, 16


def _matrices(*arrays: Array) -> list[Array] | None:
    """Return views as [batch, rows, columns], or None if an array has no such view."""
    try:
        return [a.reshape((math.prod(a.shape[:-2]), *a.shape[-2:]), copy=False) for a in arrays]
    except ValueError:
        return None


def _refused(op: Op, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
    assert isinstance(op, CausalSoftmax)
    if op.diagonal < 0:
        return "some rows have no visible column"
    return "the batch axes are not contiguous in memory" if _matrices(*inputs, *outputs) is None else None


@implements(CausalSoftmax, refuses=_refused)
def visible_blocks(op: CausalSoftmax, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    matrices = _matrices(*inputs, *outputs)
    assert matrices is not None
    return _calls(op, device, *matrices) if outputs[0].size else []


def _calls(op: CausalSoftmax, device: Binder, x: Array, y: Array) -> list[Call]:
    batch, rows, columns = x.shape
    height = max(-(-rows // _BLOCKS), min(rows, _ROWS))
    step = max(1, BLOCK // (height * columns))
    dtype = dtype_of(x.dtype)
    memory = device.scratch((min(step, batch) * height * columns,), dtype)
    column, ones = device.scratch((min(step, batch) * height, 1), dtype), np.ones(columns, x.dtype)
    hidden = np.where(np.arange(columns) - np.arange(rows)[:, None] <= op.diagonal, 0, -math.inf).astype(x.dtype)
    calls: list[Call] = []
    for first in range(0, rows, height):
        last = min(first + height, rows)
        clear, width = min(first + op.diagonal + 1, columns), min(last + op.diagonal, columns)
        for start in range(0, batch, step):
            u, v = (a[start : start + step, first:last] for a in (x, y))
            work = memory[: len(u) * (last - first) * width].reshape(len(u), last - first, width)
            c = column[: len(u) * (last - first)]
            calls += _block(op.scale, u[:, :, :width], v[:, :, :width], work, c, ones[:width], hidden[first:last, clear:width])
            if width < columns:
                calls.append((v[:, :, width:].fill, (0,)))
    return calls


def _block(scale: float, x: Array, y: Array, work: Array, column: Array, ones: Array, hidden: Array) -> list[Call]:
    """Return the calls for y = softmax(scale x) in one block of rows; `work` and `column` are scratch.

    The mask `hidden`, of zeros and -inf, is added to the last `hidden.shape[1]` columns.
    """
    exponential, unit = fastest_exponential()
    calls: list[Call] = [(np.multiply, (x, np.asarray(scale * unit, x.dtype), work))]
    if hidden.size:
        edge = work[:, :, work.shape[2] - hidden.shape[1] :]
        calls.append((np.add, (edge, hidden, edge)))
    rows = work.reshape(-1, work.shape[2])
    return [
        *calls,
        *row_max_calls(rows, column[:, 0]),
        (np.subtract, (rows, column, rows)),
        (exponential, (rows, rows)),
        (np.dot if rows.shape[1] > 1 else np.matmul, (rows, ones, column[:, 0])),
        (np.reciprocal, (column, column)),
        (np.multiply, (work, column.reshape(*work.shape[:2], 1), y)),
    ]
