"""Unique elements of a vector, ordinal codes of ids in order of first occurrence, and indices of nonzero elements."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from jobflow.core.errors import DtypeError, ShapeError
from jobflow.core.layout import Rule
from jobflow.core.types import Array, DType, Tensor, TensorType, Xp, int32, int64
from jobflow.ops.op import Grads, Op, Sample, apply, sample


class UniqueWithCounts(Op):
    """Unique elements y of x[n] in order of first occurrence, indices with y[idx[i]] = x[i], counts, and the number of unique elements.

    The number has shape (1,).  The other outputs have the length of x and are padded with zeros.
    """

    precision = "any"
    dtype: DType = int32

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        if x.ndim != 1 or not self.dtype.is_integer:
            raise ShapeError(f"unique_with_counts: x {x} must be a vector, and the type {self.dtype.name} of indices must be an integer type")
        return x, x.with_dtype(self.dtype), x.with_dtype(self.dtype), TensorType((1,), self.dtype)

    def rule(self, x: TensorType) -> Rule:
        return Rule("N->N,N,N,1")

    def kernel(self, xp: Xp, x: Array, *outputs: Array) -> None:
        y, idx, count, number = outputs
        if not x.size:  # CuPy rejects an empty x
            number[...] = 0
            return
        values, first, inverse, counts = xp.unique(x, return_index=True, return_inverse=True, return_counts=True)
        order = xp.argsort(first)
        rank = xp.empty(x.shape, order.dtype)  # of the length of x: scripts/cupy_without_gpu computes no values, and CuPy cannot index an empty array
        rank[order] = xp.arange(len(order))
        for output in (y, count):
            output[...] = 0
        y[: len(order)], count[: len(order)] = values[order], counts[order]
        idx[...] = rank[inverse.reshape(-1)]
        number[...] = len(order)

    def grad(self, *tensors: Tensor) -> Grads:
        return (None,)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), np.array([5, 3, 5, -2, 3, 5, 0]))
        yield sample(cls(int64), np.array([0.5, 2.5, 0.5]), differentiable=())
        yield sample(cls(), np.zeros(0, np.int32))


class Argwhere(Op):
    """Indices of the nonzero elements of x in order, as rows of an array [size, axes] that is padded with -1."""

    precision = "any"
    dtype: DType = int32

    def infer(self, x: TensorType) -> TensorType:
        if not x.ndim or not self.dtype.is_integer:
            raise ShapeError(f"argwhere: {x} must have at least one axis, and the type {self.dtype.name} of indices must be an integer type")
        return TensorType((x.size, x.ndim), self.dtype)

    def rule(self, x: TensorType) -> Rule:
        return Rule(f"{'ABCDEFGHIJKLMNOP'[: x.ndim]}->YZ")

    def kernel(self, xp: Xp, x: Array, y: Array) -> None:
        places = xp.argwhere(x)
        y[...] = -1
        y[: len(places)] = places

    def grad(self, *tensors: Tensor) -> Grads:
        return (None,)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), np.array([[0.0, 2.0, np.inf], [0.0, -1.0, 0.0]]), differentiable=())
        yield sample(cls(int64), np.zeros((3, 2), bool))


def _entered(table: Array, known: int, x: Array) -> tuple[Array, Array, int]:
    """Insert the ids in x into the hash table of `OrdinalCodes`, in place; `known` is the number of ids in the table.

    Returns the codes of x, the table, and the new number of ids.
    """
    entries = table.reshape(-1, 2)
    values, first, inverse = np.unique(x, return_index=True, return_inverse=True)
    codes = np.zeros_like(values)
    for i in np.argsort(first):
        slot = int(values[i]) % len(entries)
        for _ in range(len(entries)):
            if entries[slot, 1] == 0 or entries[slot, 0] == values[i]:
                break
            slot = (slot + 1) % len(entries)
        if entries[slot, 1] == 0:
            known += 1
            entries[slot] = values[i], known
        elif entries[slot, 0] != values[i]:
            known += 1  # the table is full
        codes[i] = entries[slot, 1]
    return codes[inverse].reshape(x.shape), table, known


class OrdinalCodes(Op):
    """Codes 1, 2, 3 ... of the ids in x in order of first occurrence; ids of earlier runs retain their codes.

    table[2 capacity] is a hash table of pairs (id, code) with linear probing from slot id mod capacity on.  A free slot has the code 0.
    size[1] is the number of ids, which exceeds the capacity if the table is full.  Outputs: codes, table and size.
    """

    precision = "any"

    def infer(self, table: TensorType, size: TensorType, x: TensorType) -> tuple[TensorType, ...]:
        if not table.dtype.is_integer or size.dtype is not table.dtype or x.dtype is not table.dtype:
            raise DtypeError(f"categorical_ordinal_encode: table {table}, size {size} and ids {x} must have the same integer type")
        if table.ndim != 1 or table.size % 2 or not table.size or size.shape != (1,):
            raise ShapeError(f"categorical_ordinal_encode: table {table} must have the shape [2 * capacity], and size {size} the shape [1]")
        return x, table, size

    def rule(self, table: TensorType, size: TensorType, x: TensorType) -> Rule:
        axes = "ABCDEFGH"[: x.ndim] or "1"
        return Rule(f"T,1,{axes}->{axes},T,1")

    def kernel(self, xp: Xp, table: Array, size: Array, x: Array, *outputs: Array) -> None:
        here = getattr(xp, "asnumpy", np.asarray)
        for output, result in zip(outputs, _entered(here(table).copy(), int(size[0]), here(x)), strict=True):
            output[...] = xp.asarray(result)

    def grad(self, *tensors: Tensor) -> Grads:
        return None, None, None

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        empty = np.zeros(16, np.int64)
        yield sample(cls(), empty, np.array([0]), np.array([[7, 15, -1], [7, 23, 0]]))
        yield sample(cls(), np.array([4, 2, 1, 1], np.int32), np.array([2], np.int32), np.array([1, 4, 1], np.int32))


def unique_with_counts(x: Tensor, dtype: DType = int32, *, name: str | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return (y, idx, counts, number): the unique elements y of the vector x in order of first occurrence, with x[i] = y[idx[i]].

    y and counts are padded with zeros to the length of x.  number has shape (1,).  All outputs but y have the integer type `dtype`.
    """
    y, idx, count, number = apply(UniqueWithCounts(dtype), x, name=name)
    return y, idx, count, number


def ordinal_codes(table: Tensor, size: Tensor, x: Tensor, *, name: str | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Return the codes of the ids in x, and the updated hash table and number of ids; see `OrdinalCodes`."""
    codes, later, known = apply(OrdinalCodes(), table, size, x, name=name)
    return codes, later, known
