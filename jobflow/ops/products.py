"""Matrix products on views: shapes, and the calls that bring operands into a form that BLAS takes."""

from __future__ import annotations

import numpy as np

from jobflow.core.errors import DtypeError, ShapeError
from jobflow.core.types import Array, TensorType, dtype_of
from jobflow.ops.op import Binder, Call

#: multiply-adds below which the shorter call of np.dot matters more than what np.matmul does for strided operands
SMALL_PRODUCT = 1 << 15


def same_dtype(what: str, **operands: TensorType) -> None:
    a, b = operands.values()
    if a.dtype is not b.dtype:
        first, second = operands
        raise DtypeError(f"{what}: {first} {a} and {second} {b} differ in element type; cast one of them")


def product_shape(a: TensorType, b: TensorType, transpose_a: bool, transpose_b: bool) -> tuple[int, int]:
    """(m, n) of the product of the last two axes."""
    same_dtype("matmul", a=a, b=b)
    m, k = a.shape[-2:][::-1] if transpose_a else a.shape[-2:]
    k2, n = b.shape[-2:][::-1] if transpose_b else b.shape[-2:]
    if k != k2:
        raise ShapeError(f"matmul: a {a} and b {b} disagree on the summed axis ({k} != {k2})")
    return m, n


def turned(x: Array, transpose: bool) -> Array:
    """x with its last two axes exchanged if asked for: a view."""
    return x.swapaxes(-1, -2) if transpose else x


def blas_ready(x: Array) -> bool:
    """True if BLAS takes the last two axes as they are: one of them has unit stride and the other does not overlap it."""
    rows, columns = x.strides[-2:]
    size = x.itemsize
    return bool((columns == size and rows >= size * x.shape[-1]) or (rows == size and columns >= size * x.shape[-2]))


def product_calls(device: Binder, a: Array, b: Array, y: Array) -> list[Call]:
    """Calls for y = a b on the last two axes, with operands and result brought into a form that BLAS takes."""
    if y.ndim == 2 and y.flags.c_contiguous and y.size * a.shape[1] < SMALL_PRODUCT:
        return [(a.dot, (b, y))]
    calls: list[Call] = []
    operands = []
    for x in (a, b):
        if not blas_ready(x):
            copy = device.scratch(x.shape, dtype_of(x.dtype))
            calls.append((np.copyto, (copy, x)))
            x = copy
        operands.append(x)
    if blas_ready(y):
        return [*calls, (np.matmul, (*operands, y))]
    result = device.scratch(y.shape, dtype_of(y.dtype))
    return [*calls, (np.matmul, (*operands, result)), (np.copyto, (y, result))]
