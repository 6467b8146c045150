"""GELU of float32 and its derivative on CPUs, block by block, from functions that NumPy has vectorized."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jobflow.core.types import Array, dtype_of
from jobflow.kernels import blas
from jobflow.kernels.cpu import element_calls
from jobflow.kernels.cpu.blocks import BLOCK, blocks
from jobflow.kernels.cpu.exponential import fastest_exponential
from jobflow.kernels.cpu.numpy_formulas import FAST_ERF
from jobflow.kernels.registry import implements
from jobflow.ops.activation import BELL, ROOT_HALF, Gelu
from jobflow.ops.op import Binder, Call


@implements(Gelu)
def gelu_in_blocks(op: Gelu, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    if inputs[0].dtype != np.float32:
        return element_calls.calls_over_elements(op, device, inputs, outputs)
    calls: list[Call] = []
    for (slope, y, x), (share, square) in _with_scratch(device, (outputs[1], outputs[0], inputs[0]), 2):
        calls += _block(x, y, slope, share, square)
    return calls


def _number(value: float, x: Array) -> Array:
    return np.asarray(value, x.dtype)


def _block(x: Array, y: Array, slope: Array, share: Array, square: Array) -> list[Call]:
    """Return the calls for share = Phi(x) = (1 + erf(x / sqrt 2)) / 2, y = x share, slope = share + x exp(-x^2 / 2) / sqrt(2 pi)."""
    one, half, bell = (_number(c, x) for c in (1, 0.5, BELL))
    exponential, unit = fastest_exponential()
    calls: list[Call] = [(np.square, (x, square))]
    calls += _erf(x, square, share, [c * ROOT_HALF ** (2 * i + 1) for i, c in enumerate(FAST_ERF)])
    calls += [(np.add, (share, one, share)), (np.multiply, (share, half, share)), (np.multiply, (share, x, y))]
    calls += [(np.multiply, (square, _number(-unit / 2, x), square)), (exponential, (square, square)), (np.multiply, (square, x, slope))]
    return [*calls, *blas.mixed(one, share, bell, slope, slope, square)]


def _erf(x: Array, square: Array, y: Array, powers: Sequence[float]) -> list[Call]:
    """Return the calls for y = tanh(x p(square)); `powers` are the coefficients of p: FAST_ERF scaled to x and square."""
    p = [np.asarray(c, x.dtype) for c in powers]
    calls: list[Call] = [(np.multiply, (square, p[-1], y))]
    for c in p[-2:0:-1]:
        calls += [(np.add, (y, c, y)), (np.multiply, (y, square, y))]
    return [*calls, (np.add, (y, p[0], y)), (np.multiply, (y, x, y)), (np.tanh, (y, y))]


def _with_scratch(device: Binder, arrays: Sequence[Array], count: int, elements: int = BLOCK) -> list[tuple[tuple[Array, ...], tuple[Array, ...]]]:
    """Return the blocks of arrays of one shape, each with `count` scratch arrays of its shape; all blocks share this memory."""
    parts = list(blocks(arrays, elements))
    most = max(part[0].size for part in parts)
    memory = [device.scratch((most,), dtype_of(arrays[0].dtype)) for _ in range(count)]
    return [(part, tuple(m[: part[0].size].reshape(part[0].shape) for m in memory)) for part in parts]
