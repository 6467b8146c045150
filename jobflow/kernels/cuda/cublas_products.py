"""Matrix products by cuBLAS, written directly to their output; operands may be row-major or column-major, in batches of any strides.

CuPy's `matmul` allocates the result, and copies operands that are not dense.  Here each product is one call: `gemmStridedBatchedEx` for batches
with one stride, else `gemmBatched` with the addresses of the matrices in device memory.  Sums are computed in float32, or in float64 for float64.
TF32 is not used.  cuBLAS is column-major, so y = a b is computed as y' = b' a'.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.types import Array, dtype_of
from jobflow.kernels.registry import register
from jobflow.ops.matmul import BatchMatMul, BroadcastMatMul, MatMul, RowsMatMul
from jobflow.ops.op import Binder, Call, Op

#: constants of cuBLAS: types of elements, types of arithmetic, and the default algorithm
_ELEMENT = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}
_IN_SINGLE, _IN_DOUBLE, _DEFAULT = 68, 70, -1
_LARGEST = 1 << 31


@dataclass(frozen=True)
class Matrices:
    """The sizes and strides of a batch of matrices, with strides in elements: `down` to the next row, `along` to the next column."""

    rows: int
    columns: int
    down: int
    along: int
    batch: tuple[int, ...]
    batch_strides: tuple[int, ...]

    @property
    def transposed(self) -> Matrices:
        return Matrices(self.columns, self.rows, self.along, self.down, self.batch, self.batch_strides)

    @property
    def leading(self) -> int | None:
        """The leading dimension of row-major matrices; None if the elements of a row are not contiguous, or if rows overlap or are too far apart."""
        if self.columns > 1 and self.along != 1:
            return None
        distance = self.down if self.rows > 1 else max(self.columns, 1)
        return distance if max(self.columns, 1) <= distance < _LARGEST else None

    @property
    def span(self) -> int:
        """The number of elements from the first element of the batch to the last."""
        sizes, strides = (*self.batch, self.rows, self.columns), (*self.batch_strides, self.down, self.along)
        return 1 + sum((n - 1) * abs(step) for n, step in zip(sizes, strides, strict=True))


def matrices(array: Array, *, rows: bool = False) -> Matrices | None:
    """View the last two axes as matrices; return None if the strides do not allow it.

    With `rows`, all axes but the last are the rows of one matrix.
    """
    size = array.dtype.itemsize
    if any(s % size for s in array.strides):
        return None
    shape, strides = tuple(array.shape), tuple(s // size for s in array.strides)
    if rows:
        axes = merged(shape[:-1], [strides[:-1]])
        if len(axes) > 1:
            return None
        count, (down,) = axes[0] if axes else (1, (0,))
        return Matrices(count, shape[-1], down, strides[-1], (), ())
    return Matrices(shape[-2], shape[-1], strides[-2], strides[-1], shape[:-2], strides[:-2])


def merged(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> list[tuple[int, tuple[int, ...]]]:
    """Merge axes that are contiguous in all arrays; return (size, stride in each array) per merged axis."""
    result: list[tuple[int, tuple[int, ...]]] = []
    for axis, size in enumerate(shape):
        steps = tuple(s[axis] for s in strides)
        if size == 1:
            continue
        if result and all(before == step * size for before, step in zip(result[-1][1], steps, strict=True)):
            result[-1] = (result[-1][0] * size, steps)
        else:
            result.append((size, steps))
    return result


def operands(op: Op, inputs: Sequence[Array], outputs: Sequence[Array]) -> tuple[Matrices, Matrices, Matrices] | None:
    """Return a, b and y of y = a b, or None if the layout of one of these operands needs a copy."""
    (a, b), (y,) = inputs, outputs
    rows = isinstance(op, BroadcastMatMul | RowsMatMul)
    layouts = (matrices(a, rows=rows), matrices(b, rows=isinstance(op, RowsMatMul)), matrices(y, rows=isinstance(op, BroadcastMatMul)))
    first, second, third = layouts
    if first is None or second is None or third is None:
        return None
    if isinstance(op, RowsMatMul) or (isinstance(op, MatMul | BatchMatMul) and op.transpose_a):
        first = first.transposed
    if not isinstance(op, RowsMatMul) and getattr(op, "transpose_b", False):
        second = second.transposed
    # if the columns of y are contiguous, compute its transpose
    return (first, second, third) if third.leading is not None else (second.transposed, first.transposed, third.transposed)


@dataclass(frozen=True)
class CublasProduct:
    """An implementation of matrix products by one call of cuBLAS."""

    name: str = "cublas"

    def refuses(self, op: Op, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
        dtype = dtype_of(outputs[0].dtype)
        if dtype.name not in _ELEMENT:
            return f"cuBLAS has no products of {dtype.name}"
        if any(0 in x.shape for x in (*inputs, *outputs)):
            return "an operand has no elements"
        layouts = operands(op, inputs, outputs)
        if layouts is None or any(x.leading is None and x.transposed.leading is None for x in layouts) or layouts[2].leading is None:
            return "neither the rows nor the columns of an operand are contiguous"
        if dtype.is_half and len(batch_axes(layouts)) > 1:
            return f"a batch of {dtype.name} matrices has more than one stride"
        return None

    def bind(self, op: Op, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        layouts = operands(op, inputs, outputs)
        assert layouts is not None
        (a, b), (y,) = inputs, outputs
        plain = matrices(y, rows=isinstance(op, BroadcastMatMul))
        assert plain is not None
        return [(PreparedProduct(layouts, (a, b, y) if plain.leading is not None else (b, a, y)), ())]


def batch_axes(layouts: Sequence[Matrices]) -> list[tuple[int, tuple[int, ...]]]:
    return merged(layouts[2].batch, [x.batch_strides for x in layouts])


class PreparedProduct:
    """A prepared call of cuBLAS, which keeps its arrays alive."""

    def __init__(self, layouts: tuple[Matrices, Matrices, Matrices], arrays: tuple[Array, Array, Array]) -> None:
        a, b, y = layouts
        dtype = dtype_of(arrays[2].dtype)
        self._arrays = arrays
        cublas = importlib.import_module("cupy_backends.cuda.libs.cublas")
        self._handle = importlib.import_module("cupy.cuda.device").get_cublas_handle
        self._scalars = np.array([1, 0], dtype.arithmetic.numpy)
        one = self._scalars.ctypes.data
        zero = one + self._scalars.itemsize
        sizes = (y.columns, y.rows, a.columns)
        axes, written = batch_axes(layouts), y.leading
        assert written is not None
        (transposed_b, leading_b), (transposed_a, leading_a) = transposition(b), transposition(a)
        pointers = [x.data.ptr for x in arrays]
        if len(axes) > 1:
            self._addresses = [_addresses(p, axes, k, dtype.itemsize) for k, p in enumerate(pointers)]
            in_a, in_b, in_y = (x.data.ptr for x in self._addresses)
            self._call = cublas.sgemmBatched if dtype.name == "float32" else cublas.dgemmBatched
            batch = self._addresses[0].size
            self._arguments: tuple[int, ...] = (
                transposed_b,
                transposed_a,
                *sizes,
                one,
                in_b,
                leading_b,
                in_a,
                leading_a,
                zero,
                in_y,
                written,
                batch,
            )
            return
        count, (step_a, step_b, step_y) = axes[0] if axes else (1, (0, 0, 0))
        kind = _ELEMENT[dtype.name]
        self._call = cublas.gemmStridedBatchedEx
        self._arguments = (
            *(transposed_b, transposed_a, *sizes, one),
            *(pointers[1], kind, leading_b, step_b),
            *(pointers[0], kind, leading_a, step_a, zero),
            *(pointers[2], kind, written, step_y),
            *(count, _IN_DOUBLE if dtype.name == "float64" else _IN_SINGLE, _DEFAULT),
        )

    def __call__(self) -> None:
        self._call(self._handle(), *self._arguments)  # the handle of this thread uses its current stream


def transposition(x: Matrices) -> tuple[int, int]:
    """Return the transposition flag and the leading dimension with which column-major cuBLAS reads the transpose of a matrix."""
    if x.leading is not None:
        return 0, x.leading
    leading = x.transposed.leading
    assert leading is not None
    return 1, leading


def _addresses(first: int, axes: Sequence[tuple[int, tuple[int, ...]]], operand: int, size: int) -> Any:
    """Return the addresses of one operand's matrices in a batch, as a uint64 array in device memory.

    `first` is the address of the first matrix, and `size` the bytes of an element.  `axes` has the size of each batch axis, and each operand's
    stride along it in elements.
    """
    steps = [range(0, count * strides[operand] * size, strides[operand] * size) if strides[operand] else [0] * count for count, strides in axes]
    addresses = np.array([first + sum(offsets) for offsets in product(*steps)], np.uint64)
    return importlib.import_module("cupy").asarray(addresses)


for _op in (MatMul, BatchMatMul, BroadcastMatMul, RowsMatMul):
    register(_op, "cuda", "nvrtc", CublasProduct())
