"""Matrix products on CPUs:  y = alpha a b + addends.

    gemm(device, a, b, y)                                 np.matmul, with operands copied if BLAS cannot read them
    gemm(device, a, b, y, addends=[x, bias])              writes x + bias to y, and OpenBLAS adds the product
    gemm(device, a, b, w, addends=[w], alpha=-1, by=lr)   w - lr a b; lr is read when the call runs

There are two providers: NumPy, and the OpenBLAS of its wheels, called through ctypes (`kernels/blas.py`), which can add to existing values.
`RANKS` orders the providers for each kind of product, independent of sizes.  All ranks therefore use the same provider, however a batch is split.
`benchmarks/gemm.py` measures both providers.  Neither provider has epilogues: a bias is written before the product, and an activation is a
separate call.
In plans of the tier `llvm`, compiled loops replace the calls of either provider (`kernels/llvm/product_loops.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jobflow.core.types import Array, dtype_of
from jobflow.kernels import blas
from jobflow.ops.op import Binder, Call
from jobflow.ops.slices import same_memory

#: kind of product and provider -> the rank of the implementation; higher ranks are tried first
RANKS = {("product", "numpy"): 0, ("sum", "openblas"): 1, ("sum", "numpy"): 0}
#: multiply-adds below which the short call of np.dot saves more than np.matmul's handling of strided operands
SMALL_PRODUCT = 1 << 15


def gemm(
    device: Binder, a: Array, b: Array, y: Array, addends: Sequence[Array] = (), alpha: float = 1.0, by: Array | None = None, provider: str = "numpy"
) -> list[Call]:
    """Return the calls for y = alpha by a b + addends on matrices or rows, along the last two axes.

    `by` has one element; by default, this factor is 1.
    """
    if not addends:
        assert alpha == 1.0 and by is None and provider == "numpy", "a product without addends cannot be scaled"
        return _product(device, a, b, y)
    first, *others = addends
    there = same_memory(first, y)
    if provider == "openblas":
        first_sum: list[Call] = [] if there else [(np.add, (first, others.pop(0), y)) if others else (np.copyto, (y, first))]
        return [*first_sum, *((np.add, (y, addend, y)) for addend in others), _added(a, b, y, alpha, by)]
    product = device.scratch(y.shape, dtype_of(y.dtype)) if there else y
    scaled: list[Call] = [] if by is None else [(np.multiply, (product, by.reshape(()), product))]
    sums: list[Call] = [(np.add, (product, first, y)) if alpha > 0 else (np.subtract, (first, product, y))]
    return [*_product(device, a, b, product), *scaled, *sums, *((np.add, (y, addend, y)) for addend in others)]


def refuses_to_add(a: Array, b: Array, y: Array) -> str | None:
    """Return the reason OpenBLAS cannot add a product to y, or None if it can."""
    return blas.refuses_product(a, b, y)


def _added(a: Array, b: Array, y: Array, alpha: float, by: Array | None) -> Call:
    if by is not None:
        assert alpha == -1.0
        call = blas.subtracting_product(a, b, y, by)
        assert call is not None
        return call
    add = blas.adding_product(a, b, y)
    assert add is not None
    return add, (alpha,)


def _product(device: Binder, a: Array, b: Array, y: Array) -> list[Call]:
    if y.ndim == 2 and y.flags.c_contiguous and y.size * a.shape[1] < SMALL_PRODUCT:
        return [(a.dot, (b, y))]
    if a.shape[-1] == 1:  # without a sum, broadcasting takes a quarter of the time of BLAS, which packs its factors
        return [(np.multiply, (a, b, y))]
    calls: list[Call] = []
    operands = []
    for x in (a, b):
        if not _blas_ready(x):
            copy = device.scratch(x.shape, dtype_of(x.dtype))
            calls.append((np.copyto, (copy, x)))
            x = copy
        operands.append(x)
    if _blas_ready(y):
        return [*calls, (np.matmul, (*operands, y))]
    result = device.scratch(y.shape, dtype_of(y.dtype))
    return [*calls, (np.matmul, (*operands, result)), (np.copyto, (y, result))]


def _blas_ready(x: Array) -> bool:
    """Return True if BLAS can read the last two axes without a copy: one has unit stride, and the other does not overlap it."""
    rows, columns = x.strides[-2:]
    size = x.itemsize
    return bool((columns == size and rows >= size * x.shape[-1]) or (rows == size and columns >= size * x.shape[-2]))
