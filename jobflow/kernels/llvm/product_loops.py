"""Products of matrices as compiled loops: the tier "llvm" of CPUs.

Calls of products occur in many kinds of operations: layers, attention, convolutions by im2col or by Winograd's algorithm.  Therefore
`product_in_loops` replaces products among the calls prepared for the tier `numpy`:

    (np.matmul, (a, b, y)), (a.dot, (b, y))    y = a b, on the last two axes
    calls prepared by `kernels/blas.py`        y += a b, and y -= rate a b

A bias or another addend is read when the product is written (`sum_in_loops`).  Products with a triangle, such as the weights of causal attention,
skip tiles of zeros (`triangle_in_loops`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np

from jobflow.core.types import Array, DType, dtype_of, float32
from jobflow.kernels import blas, blas_threads
from jobflow.kernels.argument_block import address, argument_block
from jobflow.kernels.cpu.product_ops import LowerMatMul, ProductSum
from jobflow.kernels.cpu.products import factors
from jobflow.kernels.llvm.amx_product_text import print_amx_product
from jobflow.kernels.llvm.machine_code import Function, Printed, compiler
from jobflow.kernels.llvm.product_text import FULL, LOWER, UPPER, ProductForm, print_product
from jobflow.kernels.machine_class import machine_class
from jobflow.kernels.registry import implements
from jobflow.ops.matmul import turned
from jobflow.ops.op import Binder, Call
from jobflow.ops.slices import same_memory

#: fewest rows or columns; for fewer, BLAS is as fast as for a matrix-vector product
FEWEST = 4
#: fewest multiply-adds; for fewer, compiling costs more than runs save
SMALLEST = 1 << 12
#: most calls of one product, each of which covers two batch axes
MOST_CALLS = 64


_THREADED = "BLAS uses several threads, or their number is unknown"


def about() -> str:
    """Describe the implementation of matrix products on this machine, for listings."""
    if blas_threads.threads() != 1:
        return f"NumPy: {_THREADED}"
    return "compiled loops, except for products that they do not support" + ("; float32 uses AMX registers" if machine_class() == "amx" else "")


def product_in_loops(call: Call) -> list[Call]:
    """Return loops for a call that is a product; an empty list for other calls and for products that no loop can compute."""
    function, arguments = call
    if function in (np.matmul, np.dot) and len(arguments) == 3:
        return _product(*arguments)
    owner = getattr(function, "__self__", None)
    if isinstance(owner, np.ndarray) and function == owner.dot:
        return _product(owner, *arguments)
    added = blas.added_product(call)
    if added is None or added.beta != 1.0 or (isinstance(added.alpha, float) and added.alpha != 1.0):
        return []
    return _product(added.a, added.b, added.y, added.y, None if isinstance(added.alpha, float) else added.alpha)


def refuses(a: Array, b: Array, y: Array) -> str | None:
    """Return the reason no loop computes y = a b, or None if one does."""
    if {a.dtype, b.dtype, y.dtype} != {y.dtype} or y.dtype.name not in ("float32", "float64"):
        return f"the element types {a.dtype}, {b.dtype} and {y.dtype} are not all float32 or all float64"
    if min(a.ndim, b.ndim) < 2 or min(y.shape[-2:], default=0) < FEWEST or not (a.size and y.size):
        return f"the result has fewer than {FEWEST} rows or columns"
    if y.size * a.shape[-1] < SMALLEST:
        return f"{y.size * a.shape[-1]} multiply-adds; loops are compiled for at least {SMALLEST}"
    if y.strides[-1] != y.itemsize and y.strides[-2] != y.itemsize:
        return f"neither rows nor columns of the result are contiguous, with strides {y.strides}"
    if y.itemsize not in (b if y.strides[-1] == y.itemsize else a).strides[-2:]:
        return "neither rows nor columns of a factor are contiguous"
    if math.prod(y.shape[:-4]) > MOST_CALLS:
        return f"the batch needs more than {MOST_CALLS} calls of two axes each"
    if not compiler().has_fma:
        return "this machine has no fused multiply-adds"
    if any(not x.flags.aligned or any(step % x.itemsize or step < 0 for step in x.strides) for x in (a, b, y)):
        return "an operand is not aligned or has a negative stride"
    if np.may_share_memory(a, y) or np.may_share_memory(b, y):
        return "the result shares memory with an operand"
    return None if blas_threads.threads() == 1 else _THREADED


def refuses_sum(op: ProductSum, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
    """Return the reason no loop computes a product with addends, or None if one does."""
    (y,), (first, *_) = outputs, op.addends(inputs)
    along = -1 if y.strides[-1] == y.itemsize else -2
    if np.broadcast_to(first, y.shape).strides[along] != y.itemsize:
        return f"the addend has strides {first.strides}, the result {y.strides}"
    if np.may_share_memory(first, y) and not same_memory(first, y):
        return "the addend partly shares memory with the result"
    return refuses(*factors(op, inputs), y)


@implements(ProductSum, tier="llvm", refuses=refuses_sum)
def sum_in_loops(op: ProductSum, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    (y,), (first, *others) = outputs, op.addends(inputs)
    return [*_product(*factors(op, inputs), y, np.broadcast_to(first, y.shape)), *((np.add, (y, addend, y)) for addend in others)]


def added(a: Array, b: Array, y: Array) -> list[Call]:
    """Return loops for y += a b on the last two axes; an empty list if no loop can compute it."""
    return _product(a, b, y, y)


def _refuses_triangle(op: LowerMatMul, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
    (a, b), (y,) = inputs, outputs
    if y.strides[-1] != y.itemsize:
        return f"rows of the result are not contiguous, with strides {y.strides}"
    return refuses(turned(a, op.transpose_a), turned(b, op.transpose_b), y)


@implements(LowerMatMul, tier="llvm", refuses=_refuses_triangle)
def triangle_in_loops(op: LowerMatMul, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    (a, b), (y,) = inputs, outputs
    return _product(turned(a, op.transpose_a), turned(b, op.transpose_b), y, triangle=UPPER if op.transpose_a else LOWER)


def _product(a: Array, b: Array, y: Array, c: Array | None = None, by: Array | None = None, triangle: int = FULL) -> list[Call]:
    """Return loops for y = a b, y = c + a b, or y = c - by a b; an empty list if no loop can compute it."""
    if refuses(a, b, y) is not None:
        return []
    if y.strides[-1] != y.itemsize:  # column-major: compute the transpose
        a, b, y = b.swapaxes(-1, -2), a.swapaxes(-1, -2), y.swapaxes(-1, -2)
        c = None if c is None else c.swapaxes(-1, -2)
    a, b = (np.broadcast_to(x, (*y.shape[:-2], *x.shape[-2:])) for x in (a, b))
    function = _compiled(dtype_of(y.dtype))
    return [(function, (_arguments(a[at], b[at], y[at], None if c is None else c[at], by, triangle),)) for at in np.ndindex(y.shape[:-4])]


def _arguments(a: Array, b: Array, y: Array, c: Array | None, by: Array | None, triangle: int) -> object:
    """Return the argument block for matrices with at most two batch axes."""
    matrices = [a, b, y] if c is None else [a, b, y, c]
    while matrices[2].ndim < 4:
        matrices = [x[None] for x in matrices]
    a, b, y, *others = matrices
    nothing = [0] * (4 - len(matrices))
    words = [*map(address, matrices), *nothing, *y.shape[-2:], a.shape[-1], *a.strides[-2:], *b.strides[-2:], y.strides[-2]]
    words += [*(x.strides[-2] for x in others), *nothing]
    for axis in range(2):
        words += [y.shape[axis], *(x.strides[axis] for x in matrices), *nothing]
    if by is None:
        return argument_block([*words, 0, triangle], matrices)
    return argument_block([*words, address(by), triangle], (*matrices, by), (*range(len(matrices)), len(words)))


def form_of(dtype: DType) -> ProductForm:
    """Return the form of products for this machine.

    Vectors have the full width of the machine, tiles leave registers for the factors, and rows of a fill half of the second-level cache.
    """
    width = compiler().vector_bytes
    many = width in (16, 64)  # AArch64 and AVX-512 have 32 registers, and such processors a second-level cache of at least 1 MB
    return ProductForm(dtype, width // dtype.itemsize, (6, 4, 2, 1) if many else (4, 2, 1), 4 if many else 3, 576 if many else 264)


def _compiled(dtype: DType) -> Function:
    return _of_class(dtype, dtype is float32 and machine_class() == "amx")


@cache
def _of_class(dtype: DType, amx: bool) -> Function:
    form, print_form = form_of(dtype), print_amx_product if amx else print_product
    return compiler().printed(f"{print_form.__name__} {form}", lambda: Printed(print_form(form)))[0]
