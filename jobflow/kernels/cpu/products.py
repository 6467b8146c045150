"""Matrix products on CPUs, all through `gemm`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from jobflow.core.types import Array
from jobflow.kernels.cpu.gemm import RANKS, gemm, refuses_to_add
from jobflow.kernels.cpu.product_ops import LowerMatMul, ProductSum, SgdProduct
from jobflow.kernels.registry import implements
from jobflow.ops.matmul import BroadcastMatMul, Product, RowsMatMul, turned
from jobflow.ops.op import Binder, Call

#: number of blocks of a product with a triangle, and fewest rows of a block; a block does not read the zeros
LOWER_BLOCKS, LOWER_ROWS = 4, 32


@implements(Product, rank=RANKS["product", "numpy"])
def product(op: Product, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    a, b = inputs
    return gemm(device, a.swapaxes(-1, -2) if op.transpose_a else a, b.swapaxes(-1, -2) if op.transpose_b else b, outputs[0])


@implements(BroadcastMatMul)
def product_of_rows(op: BroadcastMatMul, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    """Prepare one product of all rows if a and y can be viewed as matrices [rows, columns], or else a batch of products."""
    (a, b), (y,) = inputs, outputs
    rows, result = _as_rows(a), _as_rows(y)
    if rows is None or result is None:
        return gemm(device, a, turned(b, op.transpose_b), y)
    return gemm(device, rows, turned(b, op.transpose_b), result)


def _not_rows(op: RowsMatMul, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
    strides = next((x.strides for x in inputs if _as_rows(x) is None), None)
    return None if strides is None else f"an input with strides {strides} has no view as a matrix of rows"


@implements(RowsMatMul, refuses=_not_rows)
def product_over_rows(op: RowsMatMul, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    a, b = (_as_rows(x) for x in inputs)
    assert a is not None and b is not None
    return gemm(device, a.T, b, outputs[0])


def _as_rows(x: Array) -> Array | None:
    """View [..., k] as [rows, k]; return None if there is no such view."""
    try:
        return x.reshape((math.prod(x.shape[:-1]), x.shape[-1]), copy=False)
    except ValueError:
        return None


@implements(LowerMatMul)
def product_with_triangle(op: LowerMatMul, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    (a, b), (y,) = inputs, outputs
    a, b = turned(a, op.transpose_a), turned(b, op.transpose_b)
    rows, depth = a.shape[-2:]
    height = max(LOWER_ROWS, -(-rows // LOWER_BLOCKS))
    calls: list[Call] = []
    for first in range(0, rows, height):
        nonzero = slice(first, depth) if op.transpose_a else slice(0, min(first + height, depth))
        block = y[..., first : first + height, :]
        if nonzero.start >= nonzero.stop:
            calls.append((block.fill, (0,)))
        else:
            calls += gemm(device, a[..., first : first + height, nonzero], b[..., nonzero, :], block)
    return calls


def factors(op: ProductSum | SgdProduct, inputs: Sequence[Array]) -> tuple[Array, Array]:
    return turned(inputs[op.at], op.transpose_a), turned(inputs[op.at + 1], op.transpose_b)


def _openblas_cannot(op: ProductSum | SgdProduct, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
    return refuses_to_add(*factors(op, inputs), outputs[0])


@implements(ProductSum, rank=RANKS["sum", "openblas"], refuses=_openblas_cannot)
def openblas_sum_and_product(op: ProductSum, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    return gemm(device, *factors(op, inputs), outputs[0], op.addends(inputs), provider="openblas")


@implements(ProductSum, rank=RANKS["sum", "numpy"])
def product_and_sum(op: ProductSum, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    return gemm(device, *factors(op, inputs), outputs[0], op.addends(inputs))


@implements(SgdProduct, rank=RANKS["sum", "openblas"], refuses=_openblas_cannot)
def openblas_descent(op: SgdProduct, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    return gemm(device, *factors(op, inputs), outputs[0], outputs, -1.0, inputs[3], "openblas")


@implements(SgdProduct, rank=RANKS["sum", "numpy"])
def product_and_descent(op: SgdProduct, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    return gemm(device, *factors(op, inputs), outputs[0], inputs[:1], -1.0, inputs[3])
