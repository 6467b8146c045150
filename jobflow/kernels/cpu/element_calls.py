"""Elementwise operations on CPUs: one NumPy function, or the calls of a formula, block by block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from jobflow.core.types import Array, DType, dtype_of
from jobflow.expressions import language
from jobflow.kernels import blas
from jobflow.kernels.cpu.blocks import BLOCK, blocks
from jobflow.kernels.cpu.numpy_calls import POSITIONAL, CompiledFormula, block_calls, compiled
from jobflow.kernels.cpu.numpy_formulas import FAST_ERF, fastest_exponential, lacks_vector_loop
from jobflow.kernels.registry import implements, kernel_call
from jobflow.ops.activation import BELL, ROOT_HALF, Gelu
from jobflow.ops.matmul import BiasAdd, along
from jobflow.ops.op import Binder, Binding, Call
from jobflow.ops.pointwise import Elementwise, Pointwise


def _at_once(op: Pointwise, inputs: Sequence[DType], outputs: Sequence[DType]) -> Binding:
    """Return a function that prepares the calls for arrays of these types; its NumPy function or formula is looked up only once."""
    function = _function(op, inputs[0])
    if function is not None:
        return lambda device, read, written: [(function, (*read, *written))]
    program = _program(op, outputs[0].numpy, *[dtype.numpy for dtype in inputs])
    if program is None:
        return partial(kernel_call, op)
    if program.alone is None:
        return lambda device, read, written: block_calls(program, device, read, (), written)
    (alone, arguments), constants = program.alone, program.constants
    return lambda device, read, written: [(alone, arguments((*read, *written, *constants)))]


@implements(Pointwise, at_once=_at_once)
def calls_over_elements(op: Pointwise, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    """Prepare NumPy calls; if the operation has none, prepare the call of its kernel."""
    return _at_once(op, [dtype_of(a.dtype) for a in inputs], [dtype_of(a.dtype) for a in outputs])(device, inputs, outputs)


@implements(BiasAdd)
def sum_with_a_vector(op: BiasAdd, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    value, bias = inputs
    return [(np.add, (value, along(bias, op.axis, value.ndim), outputs[0]))]


def _function(op: Pointwise, dtype: DType) -> Callable[..., Any] | None:
    """Return the NumPy function that computes the operation; None if NumPy has none, or if a formula is faster.

    The output is its last positional argument, which saves 150 ns compared with `out=`.
    """
    ufunc = op.ufunc if isinstance(op, Elementwise) else ""
    return (POSITIONAL.get(ufunc) or getattr(np, ufunc)) if ufunc and not lacks_vector_loop(ufunc, dtype) else None


@lru_cache(1024)
def _program(op: Pointwise, output: Any, *read: Any) -> CompiledFormula | None:
    """Return the operation's formula, compiled for inputs of the NumPy types `read`.

    The result is None without a formula for CPUs that can be compiled, or if an output of the formula has another type than `output`.
    """
    if op.formula is None or "cpu" not in op.loops_on:
        return None
    outputs = op.output_expressions(*(language.element(i, dtype_of(each)) for i, each in enumerate(read)))
    if any(y.dtype is not dtype_of(output) for y in outputs):
        return None
    return compiled(outputs, len(read), 0, {**op.in_place, **{k: (i,) for k, i in op.alias.items()}})


# GELU of float32 and its derivative, block by block, from functions that NumPy has vectorized -------------------------


@implements(Gelu)
def gelu_in_blocks(op: Gelu, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    if inputs[0].dtype != np.float32:
        return calls_over_elements(op, device, inputs, outputs)
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
    """Cut arrays of one shape into blocks of about `elements` elements; return each block with `count` scratch arrays of its shape.

    All blocks share the memory of the scratch arrays.
    """
    parts = list(blocks(arrays, elements))
    most = max(part[0].size for part in parts)
    memory = [device.scratch((most,), dtype_of(arrays[0].dtype)) for _ in range(count)]
    return [(part, tuple(m[: part[0].size].reshape(part[0].shape) for m in memory)) for part in parts]
