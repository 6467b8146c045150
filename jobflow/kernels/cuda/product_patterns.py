"""Patterns of GPUs with cublasLt: the operations that it computes in one call with a product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jobflow.core.types import DType, TensorType, float32
from jobflow.kernels.cuda.cublaslt_products import AUX_ELEMENTS
from jobflow.kernels.cuda.epilogue_product import GELU_GRADIENT, PRODUCTS, EpilogueProduct, Summed
from jobflow.kernels.cuda.image_patterns import IMAGES, STRIDED
from jobflow.kernels.patterns import Epilogues, Formats, Patterns
from jobflow.ops.activation import GeluTanh
from jobflow.ops.arithmetic import Add
from jobflow.ops.broadcast import SumTo
from jobflow.ops.matmul import AxisSum, BatchMatMul, BiasAdd, BroadcastMatMul, Product, RowsMatMul
from jobflow.ops.op import Op
from jobflow.ops.scalar import Cast


def after(product: Op, reader: Op, index: int, types: Sequence[TensorType], keeps: bool) -> Op | None:
    """Return the product with the reader of its result; see `Epilogues`."""
    begun = _begun(product)
    if begun is None or begun.sums or begun.gelu:
        return None
    y = types[index]
    if isinstance(reader, GeluTanh):
        return replace(begun, gelu="forward", keeps=keeps) if not begun.addend and _matrix_is_readable(y) else None
    if keeps:
        return None
    match reader:
        case Cast(dtype=dtype):
            return replace(begun, result=float32) if _widens(begun, y.dtype, dtype) else None
        case BiasAdd(axis=axis):
            vector = index == 0 and axis == y.ndim - 1 and _has_no_addends(begun)
            return replace(begun, bias=True) if vector else None
        case Add():
            return _sum(begun, y, types[1 - index])
    if reader == GELU_GRADIENT and index == 1:
        plain = _has_no_addends(begun) and types[0] == y and _matrix_is_readable(y)
        return replace(begun, gelu="gradient") if plain else None
    return None


def sums(product: Op, index: int, reader: Op, summed: TensorType) -> Op | None:
    """Return the product with a sum of a factor or of its result; see `Epilogues`."""
    begun = _begun(product)
    if begun is None or begun.sums or begun.bias or begun.addend or isinstance(begun.product, BatchMatMul):
        return None
    if begun.gelu != ("gradient" if index < 0 else "") or (index >= 0 and isinstance(begun.product, BroadcastMatMul)):
        return None
    matrices: tuple[Summed, ...] = ("a", "b", "y")  # index -1 is y
    merged = replace(begun, sums=matrices[index])
    remaining = merged.remaining_axis(summed.ndim)
    match reader:
        case AxisSum(axis=axis):
            return merged if axis == remaining else None
        case SumTo(shape=shape):
            return merged if shape == summed.shape[remaining:] == summed.shape[remaining : remaining + 1] else None
    return None


def _begun(product: Op) -> EpilogueProduct | None:
    if isinstance(product, EpilogueProduct):
        return product
    return EpilogueProduct(product) if type(product) in PRODUCTS else None


def _has_no_addends(op: EpilogueProduct) -> bool:
    return not (op.bias or op.addend or isinstance(op.product, BatchMatMul))


def _matrix_is_readable(y: TensorType) -> bool:
    return y.shape[-1] % AUX_ELEMENTS == 0


def _widens(op: EpilogueProduct, result: DType, dtype: DType) -> bool:
    """Return True if a cast of the result is the result of the same product in float32."""
    return op.result is None and not op.addend and result.is_half and dtype is float32


def _sum(op: EpilogueProduct, y: TensorType, other: TensorType) -> Op | None:
    if op.addend:
        return None
    if other.shape == y.shape:
        return replace(op, addend=True)
    return replace(op, bias=True) if other.shape == y.shape[-1:] and _has_no_addends(op) else None


#: rows of 16-bit floats that start at a multiple of 16 bytes are read by the fastest algorithms; for vocabularies, tiles of 64 are full
ROWS = ((4096, 64), (32, 8))
PATTERNS = Patterns(
    formats=Formats(
        strided=(*STRIDED, Product, BroadcastMatMul, RowsMatMul, BiasAdd, EpilogueProduct),
        products=(*PRODUCTS, EpilogueProduct),
        rows=ROWS,
        images=IMAGES,
        channels_last=True,
    ),
    epilogues=Epilogues(after, sums),
)
