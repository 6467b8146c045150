"""Matrix products by cuBLAS, written where they belong: operands may lie row by row or column by column, in batches of any strides.

CuPy's own `matmul` makes a new array, and copies of operands that are not dense.  Here each product is one call: `gemmStridedBatchedEx` where the
matrices of a batch are equally far apart, else `gemmBatched` with their addresses in device memory.  Sums are made in float32, of float64 in
float64; TF32 is not used.  cuBLAS stores by columns, so y = a b is asked for as y' = b' a'.
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

#: numbers of cuBLAS: types of elements, of arithmetic, and the choice that is left to it
_ELEMENT = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}
_IN_SINGLE, _IN_DOUBLE, _DEFAULT = 68, 70, -1
_LARGEST = 1 << 31


@dataclass(frozen=True)
class Matrices:
    """Matrices of one size: distances in elements, along rows and columns and along the axes of the batch."""

    rows: int
    columns: int
    down: int
    along: int
    batch: tuple[int, ...]
    apart: tuple[int, ...]

    @property
    def turned(self) -> Matrices:
        return Matrices(self.columns, self.rows, self.along, self.down, self.batch, self.apart)

    @property
    def leading(self) -> int | None:
        """How far rows are apart, where the elements of a row lie side by side; else None."""
        if self.columns > 1 and self.along != 1:
            return None
        distance = self.down if self.rows > 1 else max(self.columns, 1)
        return distance if max(self.columns, 1) <= distance < _LARGEST else None


def matrices(array: Array, *, rows: bool = False) -> Matrices | None:
    """The last two axes as matrices; with `rows`, all axes but the last as the rows of one, if they are equally far apart."""
    size = array.dtype.itemsize
    if any(s % size for s in array.strides):
        return None
    shape, strides = tuple(array.shape), tuple(s // size for s in array.strides)
    if rows:
        found = merged(shape[:-1], [strides[:-1]])
        if len(found) > 1:
            return None
        count, (down,) = found[0] if found else (1, (0,))
        return Matrices(count, shape[-1], down, strides[-1], (), ())
    return Matrices(shape[-2], shape[-1], strides[-2], strides[-1], shape[:-2], strides[:-2])


def merged(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> list[tuple[int, tuple[int, ...]]]:
    """Axes with the strides of several arrays, as few as these allow: (size, stride in each array)."""
    found: list[tuple[int, tuple[int, ...]]] = []
    for axis, size in enumerate(shape):
        steps = tuple(s[axis] for s in strides)
        if size == 1:
            continue
        if found and all(before == step * size for before, step in zip(found[-1][1], steps, strict=True)):
            found[-1] = (found[-1][0] * size, steps)
        else:
            found.append((size, steps))
    return found


def operands(op: Op, inputs: Sequence[Array], outputs: Sequence[Array]) -> tuple[Matrices, Matrices, Matrices] | None:
    """a, b and y of y = a b; None where one of them cannot be taken as it lies."""
    (a, b), (y,) = inputs, outputs
    rows = isinstance(op, BroadcastMatMul | RowsMatMul)
    found = (matrices(a, rows=rows), matrices(b, rows=isinstance(op, RowsMatMul)), matrices(y, rows=isinstance(op, BroadcastMatMul)))
    first, second, third = found
    if first is None or second is None or third is None:
        return None
    if isinstance(op, RowsMatMul) or (isinstance(op, MatMul | BatchMatMul) and op.transpose_a):
        first = first.turned
    if not isinstance(op, RowsMatMul) and getattr(op, "transpose_b", False):
        second = second.turned
    # where columns of y lie side by side, its transpose is made
    return (first, second, third) if third.leading is not None else (second.turned, first.turned, third.turned)


@dataclass(frozen=True)
class CublasProduct:
    """One call of cuBLAS."""

    name: str = "cublas"

    def refuses(self, op: Op, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
        dtype = dtype_of(outputs[0].dtype)
        if dtype.name not in _ELEMENT:
            return f"cuBLAS multiplies no {dtype.name}"
        if any(0 in x.shape for x in (*inputs, *outputs)):
            return "there are no elements"
        found = operands(op, inputs, outputs)
        if found is None or any(x.leading is None and x.turned.leading is None for x in found) or found[2].leading is None:
            return "neither the rows nor the columns of an operand lie side by side"
        if dtype.is_half and len(_batch(found)) > 1:
            return f"matrices of {dtype.name} that are not equally far apart"
        return None

    def bind(self, op: Op, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        found = operands(op, inputs, outputs)
        assert found is not None
        (a, b), (y,) = inputs, outputs
        plain = matrices(y, rows=isinstance(op, BroadcastMatMul))
        assert plain is not None
        return [(PreparedProduct(found, (a, b, y) if plain.leading is not None else (b, a, y)), ())]


def _batch(found: Sequence[Matrices]) -> list[tuple[int, tuple[int, ...]]]:
    return merged(found[2].batch, [x.apart for x in found])


class PreparedProduct:
    """A prepared call; what it points to lives as long as it does."""

    def __init__(self, found: tuple[Matrices, Matrices, Matrices], arrays: tuple[Array, Array, Array]) -> None:
        a, b, y = found
        dtype = dtype_of(arrays[2].dtype)
        self._arrays = arrays
        cublas = importlib.import_module("cupy_backends.cuda.libs.cublas")
        self._handle = importlib.import_module("cupy.cuda.device").get_cublas_handle
        self._numbers = np.array([1, 0], dtype.arithmetic.numpy)
        one = self._numbers.ctypes.data
        zero = one + self._numbers.itemsize
        sizes = (y.columns, y.rows, a.columns)
        axes, written = _batch(found), y.leading
        assert written is not None
        (transposed_b, leading_b), (transposed_a, leading_a) = _given(b), _given(a)
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
        self._call(self._handle(), *self._arguments)  # the handle belongs to the thread, and takes its current stream


def _given(x: Matrices) -> tuple[int, int]:
    """How cuBLAS, which stores by columns, is given the transpose of a matrix: as it lies, or to be transposed; and its leading dimension."""
    if x.leading is not None:
        return 0, x.leading
    leading = x.turned.leading
    assert leading is not None
    return 1, leading


def _addresses(first: int, axes: Sequence[tuple[int, tuple[int, ...]]], operand: int, size: int) -> Any:
    """Where the matrices of a batch begin, in device memory."""
    steps = [range(0, count * apart[operand] * size, apart[operand] * size) if apart[operand] else [0] * count for count, apart in axes]
    places = np.array([first + sum(offsets) for offsets in product(*steps)], np.uint64)
    return importlib.import_module("cupy").asarray(places)


for _op in (MatMul, BatchMatMul, BroadcastMatMul, RowsMatMul):
    register(_op, "cuda", "nvrtc", CublasProduct())
