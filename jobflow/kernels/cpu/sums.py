"""Sums over axes on CPUs, as products with vectors of ones where possible."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import takewhile

import numpy as np

from jobflow.core.types import Array, dtype_of
from jobflow.kernels.cpu.blocks import SHORT, lead_sum_calls, memory_order
from jobflow.kernels.registry import implements, kernel_call
from jobflow.ops.broadcast import SumTo, stretched
from jobflow.ops.matmul import AxisSum
from jobflow.ops.op import Binder, Call
from jobflow.ops.reduce import ArgExtreme, Reduce, ReduceAll, ReduceAny, ReduceMax, ReduceMin, ReduceProd, ReduceSum, SquareSum

#: squares added by one dot product
SQUARES = 4096
UFUNCS = {ReduceMax: np.maximum, ReduceMin: np.minimum, ReduceProd: np.multiply, ReduceAny: np.logical_or, ReduceAll: np.logical_and}


@implements(AxisSum)
def sum_of_lines(op: AxisSum, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    (x,), (y,) = inputs, outputs
    return sum_calls(device, x, tuple(i for i in range(x.ndim) if i != op.axis), y)


@implements(SumTo)
def sum_over_stretched_axes(op: SumTo, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    (x,), (y,) = inputs, outputs
    axes, lead = stretched(y.shape, x.shape), x.ndim - y.ndim
    if not axes:
        return [(np.copyto, (y, x))]
    return sum_calls(device, x, axes, y[(*(0 if lead + i in axes else slice(None) for i in range(y.ndim)), ...)])


def _no_elements(op: Reduce, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
    return None if inputs[0].size else "the input has no elements"


@implements(Reduce, refuses=_no_elements)
def reduced_axes(op: Reduce, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    return [(UFUNCS[type(op)].reduce, (inputs[0], op.axes, None, outputs[0], op.keepdims))]


def _no_axis(op: ArgExtreme, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
    return None if inputs[0].shape[op.axis] else "the input has no elements along the axis"


@implements(ArgExtreme, refuses=_no_axis)
def position_along_an_axis(op: ArgExtreme, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    return [(_put_positions, (np.argmax if op.largest else np.argmin, inputs[0], op.axis, outputs[0]))]


def _put_positions(function: Callable[..., Array], x: Array, axis: int, y: Array) -> None:
    y[...] = function(x, axis)


@implements(ReduceSum)
def sum_over_axes(op: ReduceSum, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    if not op.axes:
        return kernel_call(op, device, inputs, outputs)
    return sum_calls(device, inputs[0], op.axes, op.without(outputs[0]))


@implements(SquareSum)
def sum_of_squares(op: SquareSum, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    (x,), (y,) = inputs, outputs
    turned = x.transpose(sorted(range(x.ndim), key=lambda i: -x.strides[i]))
    if x.dtype.itemsize < 4 or not turned.flags.c_contiguous:
        return kernel_call(op, device, inputs, outputs)
    flat = turned.reshape(-1)
    whole, rest = divmod(flat.size, SQUARES)
    if whole < 2:
        return [(np.dot, (flat, flat, y))]
    part = device.scratch((whole + bool(rest),), dtype_of(x.dtype))  # added pairwise, because sequential addition would lose small sums
    rows, left = flat[: whole * SQUARES].reshape(whole, SQUARES), flat[whole * SQUARES :]
    calls: list[Call] = [(np.vecdot, (rows, rows, part[:whole]))]
    if rest:
        calls.append((np.dot, (left, left, part[whole:].reshape(()))))
    return [*calls, (np.add.reduce, (part, 0, None, y))]


def sum_calls(device: Binder, x: Array, axes: Sequence[int], y: Array) -> list[Call]:
    """Return the calls for y = x summed over `axes`; y lacks these axes.

    For dense floats whose memory order has the summed axes first, last, or both, the calls are products with ones.  BLAS reads memory once and in
    order, in contrast to a strided ufunc reduction.
    """
    long = x.dtype == np.float32 and math.prod(x.shape[i] for i in axes) > SHORT and y.ndim > 0  # NumPy adds these sequentially
    plain: list[Call] = [(np.add.reduce, (x, tuple(axes), np.float64 if long else None, y))]
    if x.dtype.kind != "f" or x.dtype.itemsize < 4 or not x.size:
        return plain
    wide = [i for i in range(x.ndim) if x.shape[i] != 1]
    summed = [wide.index(i) for i in axes if i in wide]
    x, y = x.squeeze(), y.squeeze()
    order = memory_order(x)
    lead = list(takewhile(lambda i: i in summed, order))
    remaining = list(takewhile(lambda i: i not in summed, order[len(lead) :]))
    last = order[len(lead) + len(remaining) :]
    if not remaining or not summed or any(i not in summed for i in last):
        return plain
    try:
        sizes = [math.prod(x.shape[i] for i in group) for group in (lead, remaining, last)]
        flat = x.transpose(order).reshape(sizes, copy=False)
        column = y.transpose([sorted(remaining).index(i) for i in remaining]).reshape(-1, copy=False)
    except ValueError:
        return plain
    dense = flat.flags.c_contiguous and column.flags.c_contiguous
    return _gemv(device, flat, column) if dense else plain


#: elements of a row in one product, where BLAS adds sequentially in several lanes
ROW = 1024


def _gemv(device: Binder, x: Array, y: Array) -> list[Call]:
    """Return the calls for y[k] = sum_ij x[i,k,j] on dense x and y."""
    n, m, k = x.shape
    if k == 1:
        return lead_sum_calls(device, x.reshape(n, m), y)
    part = y if n == 1 else device.scratch((n * m,), dtype_of(x.dtype))
    calls = _row_sums(device, x.reshape(n * m, k), part)
    return calls if n == 1 else calls + lead_sum_calls(device, part.reshape(n, m), y)


def _row_sums(device: Binder, x: Array, y: Array) -> list[Call]:
    """Return the calls for y[k] = sum_j x[k,j] on dense x and y."""
    m, k = x.shape
    whole, rest = divmod(k, ROW)
    ones = np.ones(min(k, ROW), x.dtype)
    if not whole or (whole == 1 and not rest):
        return [(np.dot, (x, ones, y))]
    part = device.scratch((m, whole + bool(rest)), dtype_of(x.dtype))
    calls: list[Call] = [(np.matmul, (x[:, : whole * ROW].reshape(m, whole, ROW), ones, part[:, :whole]))]
    if rest:
        calls.append((np.matmul, (x[:, whole * ROW :], ones[:rest], part[:, whole])))
    return [*calls, (np.add.reduce, (part, 1, np.float64, y))]
