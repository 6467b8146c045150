"""Batch normalization on CPUs, in blocks of images that stay in the cache, for any order of the axes in memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from jobflow.core.types import Array, dtype_of
from jobflow.kernels.cpu.blocks import BLOCK, blocks, lead_sum_calls, memory_order
from jobflow.kernels.cpu.sums import sum_calls
from jobflow.kernels.registry import implements
from jobflow.ops.batch_norm import BatchNormalizeGrad, CenteredSums, ChannelOp, Normalize, NormalizeSums
from jobflow.ops.matmul import along
from jobflow.ops.op import Binder, Call, Op


def _refused(op: Op, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
    return None if inputs[0].size else "the input has no elements"


def _others(op: ChannelOp, x: Array) -> tuple[int, ...]:
    return tuple(i for i in range(x.ndim) if i != op.axis)


def _wide(op: ChannelOp, x: Array, *vectors: Array) -> list[Array]:
    """Return views of vectors that have one value per channel; the views broadcast along the other axes of x."""
    return [along(vector, op.axis, x.ndim) for vector in vectors]


def _cuts(x: Array, elements: int = BLOCK) -> list[tuple[slice, ...]]:
    """Return slices that cut x into blocks of about `elements` elements, along the outermost axes in memory."""
    slices: list[tuple[slice, ...]] = [tuple(slice(0, n) for n in x.shape)]
    size = x.size
    for axis in memory_order(x):
        if size <= elements:
            break
        n = x.shape[axis]
        step = max(1, n * elements // size)
        slices = [(*at[:axis], slice(i, min(i + step, n)), *at[axis + 1 :]) for at in slices for i in range(0, n, step)]
        size = size // n * step
    return slices


def _like(device: Binder, x: Array) -> Array:
    """Allocate a dense scratch array with the shape and element type of x, and with the same order of axes in memory."""
    order = memory_order(x)
    memory = device.scratch(tuple(x.shape[i] for i in order), dtype_of(x.dtype))
    return memory.transpose([order.index(i) for i in range(x.ndim)])


def _block_sums(device: Binder, axis: int, x: Array, count: int) -> tuple[list[tuple[tuple[slice, ...], Array, list[Array]]], list[Array]]:
    """Prepare the arrays for `count` sums per channel over blocks of x; return the blocks, and all partial sums as arrays [blocks, channels].

    Channels are along `axis`.  A block consists of its slices of x, its scratch and its `count` partial sums.
    """
    cuts = _cuts(x)
    sums = [np.zeros((len(cuts), x.shape[axis]), x.dtype) for _ in range(count)]  # a block does not write channels outside it
    scratch: dict[tuple[int, ...], Array] = {}
    parts = []
    for k, at in enumerate(cuts):
        part = x[at]
        work = scratch.setdefault(part.shape, part) if part.shape in scratch else scratch.setdefault(part.shape, _like(device, part))
        parts.append((at, work, [each[k, at[axis]] for each in sums]))
    return parts, sums


@implements(CenteredSums, refuses=_refused)
def centered_sums_in_blocks(op: CenteredSums, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    x, mean = inputs
    parts, sums = _block_sums(device, op.axis, x, len(outputs))
    calls: list[Call] = []
    for at, work, (plain, squared) in parts:
        (m,) = _wide(op, x, mean[at[op.axis]])
        calls.append((np.subtract, (x[at], m, work)))
        calls += sum_calls(device, work, _others(op, x), plain)
        calls.append((np.multiply, (work, work, work)))
        calls += sum_calls(device, work, _others(op, x), squared)
    for each, y in zip(sums, outputs, strict=True):
        calls += lead_sum_calls(device, each, y)
    return calls


@implements(Normalize, refuses=_refused)
def normalize_in_blocks(op: Normalize, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    (x, mean, variance, gamma, beta), (y,) = inputs, outputs
    factor = device.scratch(gamma.shape, dtype_of(gamma.dtype))
    calls: list[Call] = [(_factor, (variance, op.epsilon, gamma, factor))]
    vectors = [np.broadcast_to(v, x.shape) for v in _wide(op, x, mean, factor, beta)]
    for u, v, m, a, b in blocks([x, y, *vectors]):
        calls += [(np.subtract, (u, m, v)), (np.multiply, (v, a, v)), (np.add, (v, b, v))]
    return calls


def _factor(variance: Array, epsilon: float, gamma: Array, factor: Array) -> None:
    """Compute factor = gamma / sqrt(variance + epsilon)."""
    np.add(variance, variance.dtype.type(epsilon), factor)
    np.sqrt(factor, factor)
    np.divide(gamma, factor, factor)


@implements(NormalizeSums, refuses=_refused)
def sums_in_blocks(op: NormalizeSums, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    dy, x, mean, variance = inputs
    parts, sums = _block_sums(device, op.axis, x, len(outputs))
    calls: list[Call] = []
    for at, work, (weighted, plain, *centred) in parts:
        (m,) = _wide(op, x, mean[at[op.axis]])
        calls.append((np.subtract, (x[at], m, work)))
        for total in centred:
            calls += sum_calls(device, work, _others(op, x), total)
        calls.append((np.multiply, (work, dy[at], work)))
        for what, total in ((work, weighted), (dy[at], plain)):
            calls += sum_calls(device, what, _others(op, x), total)
    for each, y in zip(sums, outputs, strict=True):
        calls += lead_sum_calls(device, each, y)
    return [*calls, (_divide_by_deviation, (variance, op.epsilon, outputs[0], *outputs[2:]))]


def _divide_by_deviation(variance: Array, epsilon: float, *sums: Array) -> None:
    deviation = np.sqrt(variance + variance.dtype.type(epsilon))
    for each in sums:
        np.divide(each, deviation, each)


@implements(BatchNormalizeGrad, refuses=_refused)
def gradient_in_blocks(op: BatchNormalizeGrad, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    (dy, x, mean, variance, gamma, *sums), (dx,) = inputs, outputs
    a, p, q = device.scratch((3, len(gamma)), dtype_of(gamma.dtype))
    calls: list[Call] = [(partial(_vectors, op), (variance, gamma, *sums, a, p, q))]
    vectors = [np.broadcast_to(v, x.shape) for v in _wide(op, x, mean, a, p, q)]
    for g, u, v, m, s, r, t in blocks([dy, x, dx, *vectors]):
        calls += [(np.subtract, (u, m, v)), (np.multiply, (v, t, v)), (np.add, (v, r, v)), (np.subtract, (g, v, v)), (np.multiply, (v, s, v))]
    return calls


def _vectors(op: BatchNormalizeGrad, variance: Array, gamma: Array, dgamma: Array, dbeta: Array, excess: Array, a: Array, p: Array, q: Array) -> None:
    """Compute the vectors of the gradient formula: a = gamma inv_std, p = share - rest slope, q = slope inv_std.

    `BatchNormalizeGrad` defines share, rest and slope; inv_std is 1 / sqrt(variance + epsilon).
    """
    inv_std = 1 / np.sqrt(variance + variance.dtype.type(op.epsilon))
    share, rest = dbeta / op.count, excess / op.count
    slope = dgamma / op.count - share * rest
    np.multiply(gamma, inv_std, a)
    np.subtract(share, rest * slope, p)
    np.multiply(slope, inv_std, q)
