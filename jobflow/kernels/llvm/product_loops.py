"""Products of matrices as compiled loops: the tier "llvm" of CPUs.

Products stand among the calls of operations of every kind: layers, attention, convolutions by windows or by Winograd's transforms.  So
what is prepared for the tier `numpy` is gone through, and each product that a loop takes becomes one (`product_in_loops`):

    (np.matmul, (a, b, y)), (a.dot, (b, y))    y = a b, on the last two axes
    what `kernels/blas.py` prepared            y += a b, and y -= rate a b

A bias or another matrix that a product is added to is read where the product is written (`sum_in_loops`), and of a triangle, as weights of
causal attention are, nothing is multiplied that is known to be zero, but for the rest of a tile (`triangle_in_loops`).
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

#: rows or columns below which BLAS multiplies a matrix with a vector, or nearly so
FEWEST = 4
#: multiply-adds; for fewer, compiling costs more than many runs save
SMALLEST = 1 << 12
#: pairs of matrices, beyond those that one call goes through, for which there is a call of its own
MOST_CALLS = 64


_THREADED = "BLAS uses several threads here, or does not say how many"


def about() -> str:
    """Who multiplies matrices here, for listings."""
    if blas_threads.threads() != 1:
        return f"NumPy: {_THREADED}"
    return "compiled loops, where they take them" + (", of float32 in AMX registers" if machine_class() == "amx" else "")


def product_in_loops(call: Call) -> list[Call]:
    """The product that a call is; nothing if it is none, or none that a loop takes."""
    function, arguments = call
    if function in (np.matmul, np.dot) and len(arguments) == 3:
        return _product(*arguments)
    owner = getattr(function, "__self__", None)
    if isinstance(owner, np.ndarray) and function == owner.dot:
        return _product(owner, *arguments)
    added = blas.added_product(call)
    if added is None or added.share != 1.0 or (isinstance(added.alpha, float) and added.alpha != 1.0):
        return []
    return _product(added.a, added.b, added.y, added.y, None if isinstance(added.alpha, float) else added.alpha)


def refuses(a: Array, b: Array, y: Array) -> str | None:
    """Why there is no loop for y = a b; None if there is one."""
    if {a.dtype, b.dtype, y.dtype} != {y.dtype} or y.dtype.name not in ("float32", "float64"):
        return f"elements of {a.dtype}, {b.dtype} and {y.dtype}"
    if min(a.ndim, b.ndim) < 2 or min(y.shape[-2:], default=0) < FEWEST or not (a.size and y.size):
        return f"fewer than {FEWEST} rows or columns"
    if y.size * a.shape[-1] < SMALLEST:
        return f"{y.size * a.shape[-1]} multiply-adds; a loop is compiled for {SMALLEST} and more"
    if y.strides[-1] != y.itemsize and y.strides[-2] != y.itemsize:
        return f"a result with strides {y.strides}"
    if y.itemsize not in (b if y.strides[-1] == y.itemsize else a).strides[-2:]:
        return "a factor that lies neither by rows nor by columns"
    if math.prod(y.shape[:-4]) > MOST_CALLS:
        return f"more than {MOST_CALLS} times two axes of matrices"
    if not compiler().has_fma:
        return "this machine has no fused multiply-adds"
    if any(not x.flags.aligned or any(step % x.itemsize or step < 0 for step in x.strides) for x in (a, b, y)):
        return "operands that are not aligned, or run backwards"
    if np.may_share_memory(a, y) or np.may_share_memory(b, y):
        return "the result lies where an operand is"
    return None if blas_threads.threads() == 1 else _THREADED


def refuses_sum(op: ProductSum, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
    """Why there is no loop that adds a product to something; None if there is one."""
    (y,), (first, *_) = outputs, op.addends(inputs)
    along = -1 if y.strides[-1] == y.itemsize else -2
    if np.broadcast_to(first, y.shape).strides[along] != y.itemsize:
        return f"what is added has strides {first.strides}, the result {y.strides}"
    if np.may_share_memory(first, y) and not same_memory(first, y):
        return "what is added lies partly where the result does"
    return refuses(*factors(op, inputs), y)


@implements(ProductSum, tier="llvm", refuses=refuses_sum)
def sum_in_loops(op: ProductSum, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    (y,), (first, *others) = outputs, op.addends(inputs)
    return [*_product(*factors(op, inputs), y, np.broadcast_to(first, y.shape)), *((np.add, (y, addend, y)) for addend in others)]


def added(a: Array, b: Array, y: Array) -> list[Call]:
    """y += a b, on the last two axes; nothing if there is no loop for it."""
    return _product(a, b, y, y)


def _refuses_triangle(op: LowerMatMul, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
    (a, b), (y,) = inputs, outputs
    if y.strides[-1] != y.itemsize:
        return f"a result with strides {y.strides}"
    return refuses(turned(a, op.transpose_a), turned(b, op.transpose_b), y)


@implements(LowerMatMul, tier="llvm", refuses=_refuses_triangle)
def triangle_in_loops(op: LowerMatMul, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    (a, b), (y,) = inputs, outputs
    return _product(turned(a, op.transpose_a), turned(b, op.transpose_b), y, triangle=UPPER if op.transpose_a else LOWER)


def _product(a: Array, b: Array, y: Array, c: Array | None = None, by: Array | None = None, triangle: int = FULL) -> list[Call]:
    """y = a b, or y = c + a b, or y = c - by a b; nothing if there is no loop for it."""
    if refuses(a, b, y) is not None:
        return []
    if y.strides[-1] != y.itemsize:  # by columns: the same of what is turned
        a, b, y = b.swapaxes(-1, -2), a.swapaxes(-1, -2), y.swapaxes(-1, -2)
        c = None if c is None else c.swapaxes(-1, -2)
    a, b = (np.broadcast_to(x, (*y.shape[:-2], *x.shape[-2:])) for x in (a, b))
    function = _compiled(dtype_of(y.dtype))
    return [(function, (_arguments(a[at], b[at], y[at], None if c is None else c[at], by, triangle),)) for at in np.ndindex(y.shape[:-4])]


def _arguments(a: Array, b: Array, y: Array, c: Array | None, by: Array | None, triangle: int) -> object:
    """For matrices in at most two axes of pairs."""
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
    """For this machine: vectors as wide as it has, tiles that leave registers for what is multiplied, and rows that fill half of the second cache."""
    width = compiler().vector_bytes
    many = width in (16, 64)  # AArch64 and AVX-512 have 32 registers, and such processors a second cache of 1 MB and more
    return ProductForm(dtype, width // dtype.itemsize, (6, 4, 2, 1) if many else (4, 2, 1), 4 if many else 3, 576 if many else 264)


def _compiled(dtype: DType) -> Function:
    return _of_class(dtype, dtype is float32 and machine_class() == "amx")


@cache
def _of_class(dtype: DType, amx: bool) -> Function:
    form, print_form = form_of(dtype), print_amx_product if amx else print_product
    return compiler().printed(f"{print_form.__name__} {form}", lambda: Printed(print_form(form)))[0]
