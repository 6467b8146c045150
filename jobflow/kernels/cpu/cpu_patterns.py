"""Patterns and formats of CPUs: operations that BLAS merges into one call, and the memory orders that are fastest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from jobflow.core.types import Array, TensorType, float32, float64
from jobflow.kernels.cpu.product_ops import LowerMatMul, ProductSum, SgdProduct
from jobflow.kernels.patterns import Fold, FoldSample, Formats, Patterns, SkipZeros
from jobflow.ops.activation import Gelu
from jobflow.ops.arithmetic import Add
from jobflow.ops.conv import Conv, ConvGradInput, ConvGradWeight
from jobflow.ops.layout_ops import PackColumns
from jobflow.ops.matmul import AxisSum, BatchMatMul, BiasAdd, MatMul, Product, product_shape
from jobflow.ops.op import Op
from jobflow.ops.optimizer_updates import SgdUpdate
from jobflow.ops.pointwise import Elementwise, ElementwiseGrad
from jobflow.ops.pool import AvgPool, AvgPoolGrad, MaxPool, MaxPoolGrad, MaxPoolPick
from jobflow.ops.softmax import CausalSoftmax, SoftmaxGrad

#: fewest rows and elements of a product with addends; fewer rows are computed in column-major order, fewer elements stay in the cache anyway
ROWS, ELEMENTS = 256, 1 << 16
#: fewest elements of a variable for a merged product and descent
UPDATED = 64 * 1024
#: products with fewer rows than this and than columns are computed in column-major order, in 5 % (128 rows) to 40 % (8 rows) less time
FEW_ROWS = 256


def _sum(reader: Op, index: int, producer: Op, *types: TensorType) -> Op | None:
    """Return the sum of a product and the other inputs of the reader as one operation; the product is the reader's input `index`.

    The result is None if the product is small, is not a matrix, or has another type than float32 or float64.  It is also None if an addend has
    neither the shape of the product nor the shape of its rows.
    """
    y = types[index]
    large = y.ndim == 2 and y.shape[0] >= ROWS and y.size >= ELEMENTS and y.dtype in (float32, float64)
    if not large or any(t.shape not in (y.shape, y.shape[1:]) for t in types):
        return None
    if isinstance(producer, ProductSum):
        return replace(producer, at=producer.at + index)
    assert isinstance(producer, MatMul)
    return ProductSum(producer.transpose_a, producer.transpose_b, index)


def _biased(reader: BiasAdd, index: int, producer: Op, *types: TensorType) -> Op | None:
    return _sum(reader, index, producer, *types) if index == 0 and reader.axis == 1 else None


def _descent(reader: SgdUpdate, index: int, producer: MatMul, *types: TensorType) -> Op | None:
    plain = index == 1 and not reader.weight_decay and not reader.maximize
    gains = plain and types[0].size >= UPDATED and types[0].dtype in (float32, float64)
    return SgdProduct(producer.transpose_a, producer.transpose_b) if gains else None


def _few_rows(op: MatMul, *types: TensorType) -> bool:
    a, b = types
    rows, columns = product_shape(a, b, op.transpose_a, op.transpose_b)
    return rows < min(FEW_ROWS, columns)


def _arrays(*shapes: tuple[int, ...]) -> Callable[[], Sequence[Array]]:
    return lambda: [np.random.default_rng(i).uniform(-1, 1, shape).astype(np.float32) for i, shape in enumerate(shapes)]


_A, _B, _Y, _ROW = (256, 8), (8, 256), (256, 256), (256,)

FOLDS = (
    Fold("bias into product", BiasAdd, MatMul, _biased, (FoldSample(BiasAdd(1), 0, MatMul(), 2, _arrays(_A, _B, _ROW)),)),
    Fold("bias into sum with product", BiasAdd, ProductSum, _biased, (FoldSample(BiasAdd(1), 0, ProductSum(at=1), 3, _arrays(_Y, _A, _B, _ROW)),)),
    Fold("sum into product", Add, MatMul, _sum, (FoldSample(Add(), 1, MatMul(False, True), 2, _arrays(_Y, _A, _A)),)),
    Fold("sum into sum with product", Add, ProductSum, _sum, (FoldSample(Add(), 0, ProductSum(True), 3, _arrays(_B, _B, _ROW, _Y)),)),
    Fold("descent along product", SgdUpdate, MatMul, _descent, (FoldSample(SgdUpdate(), 1, MatMul(True), 2, _arrays(_Y, _B, _B, (1,))),)),
)
TRIANGLES = (SkipZeros("product with triangle", BatchMatMul, 0, lambda op: LowerMatMul(op.transpose_a, op.transpose_b), BatchMatMul(True)),)
PATTERNS = Patterns(
    FOLDS,
    TRIANGLES,
    lower={CausalSoftmax: lambda op, *known: op.diagonal <= 0, SoftmaxGrad: lambda op, *known: known[0]},
    formats=Formats(
        strided=(Elementwise, ElementwiseGrad, Gelu, Product, BiasAdd, ProductSum),
        any_order=(Elementwise, ElementwiseGrad, Gelu, MatMul, BiasAdd, AxisSum, ProductSum, SgdProduct, PackColumns),
        columns={MatMul: _few_rows},
        images=(Conv, ConvGradInput, ConvGradWeight, MaxPool, MaxPoolGrad, MaxPoolPick, AvgPool, AvgPoolGrad),
        fewest_samples=8,
    ),
)
