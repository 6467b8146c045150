"""The different elements of a vector, numbers for elements in the order in which they are first seen, and where elements are not 0."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from jobflow.core.errors import DtypeError, ShapeError
from jobflow.core.layout import Rule
from jobflow.core.types import Array, DType, Tensor, TensorType, Xp, int32, int64
from jobflow.ops.op import Grads, Op, Sample, apply, sample


class UniqueWithCounts(Op):
    """y = the different elements of x[n] in the order in which they are first seen, then zeros; y[idx[i]] = x[i]; how often each is; how many.

    All are as long as x, but for the last, which is of shape (1,).
    """

    precision = "any"
    dtype: DType = int32

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        if x.ndim != 1 or not self.dtype.is_integer:
            raise ShapeError(f"unique_with_counts: x {x} must be a vector, and the type of positions {self.dtype.name} one of integers")
        return x, x.with_dtype(self.dtype), x.with_dtype(self.dtype), TensorType((1,), self.dtype)

    def rule(self, x: TensorType) -> Rule:
        return Rule("N->N,N,N,1")

    def kernel(self, xp: Xp, x: Array, *outputs: Array) -> None:
        y, idx, count, number = outputs
        if not x.size:  # CuPy's refuses it
            number[...] = 0
            return
        values, first, inverse, counts = xp.unique(x, return_index=True, return_inverse=True, return_counts=True)
        order = xp.argsort(first)
        place = xp.empty(x.shape, order.dtype)  # not as long as order: scripts/cupy_without_gpu computes no values, and CuPy indexes no empty array
        place[order] = xp.arange(len(order))
        for output in (y, count):
            output[...] = 0
        y[: len(order)], count[: len(order)] = values[order], counts[order]
        idx[...] = place[inverse.reshape(-1)]
        number[...] = len(order)

    def grad(self, *tensors: Tensor) -> Grads:
        return (None,)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), np.array([5, 3, 5, -2, 3, 5, 0]))
        yield sample(cls(int64), np.array([0.5, 2.5, 0.5]), differentiable=())
        yield sample(cls(), np.zeros(0, np.int32))


class Argwhere(Op):
    """y[size, axes] = where elements of x are not 0, in order, and -1 behind the last"""

    precision = "any"
    dtype: DType = int32

    def infer(self, x: TensorType) -> TensorType:
        if not x.ndim or not self.dtype.is_integer:
            raise ShapeError(f"argwhere: {x} must have axes, and the type of positions {self.dtype.name} be one of integers")
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
    """The numbers of ids, the table with those that are new, and how many are known then; the arrays are in the host's memory."""
    entries = table.reshape(-1, 2)
    values, first, inverse = np.unique(x, return_index=True, return_inverse=True)
    codes = np.zeros_like(values)
    for i in np.argsort(first):
        place = int(values[i]) % len(entries)
        for _ in range(len(entries)):
            if entries[place, 1] == 0 or entries[place, 0] == values[i]:
                break
            place = (place + 1) % len(entries)
        if entries[place, 1] == 0:
            known += 1
            entries[place] = values[i], known
        elif entries[place, 0] != values[i]:
            known += 1  # there is no place for it
        codes[i] = entries[place, 1]
    return codes[inverse].reshape(x.shape), table, known


class OrdinalCodes(Op):
    """Numbers 1, 2, 3 ... of the ids in x, in the order in which they are first seen; of ids seen in earlier runs, those that they have.

    table[2 capacity] has ids and their numbers by turns: an id is at the first place from id mod capacity on that is its own or free, which is
    where the number is 0.  size[1] is how many there are, more than the capacity if they do not all fit.  Gives numbers, table and size.
    """

    precision = "any"

    def infer(self, table: TensorType, size: TensorType, x: TensorType) -> tuple[TensorType, ...]:
        if not table.dtype.is_integer or size.dtype is not table.dtype or x.dtype is not table.dtype:
            raise DtypeError(f"categorical_ordinal_encode: table {table}, size {size} and ids {x} must be of one type of integers")
        if table.ndim != 1 or table.size % 2 or not table.size or size.shape != (1,):
            raise ShapeError(f"categorical_ordinal_encode: table {table} must be [2 capacity], and size {size} [1]")
        return x, table, size

    def rule(self, table: TensorType, size: TensorType, x: TensorType) -> Rule:
        axes = "ABCDEFGH"[: x.ndim] or "1"
        return Rule(f"T,1,{axes}->{axes},T,1")

    def kernel(self, xp: Xp, table: Array, size: Array, x: Array, *outputs: Array) -> None:
        here = getattr(xp, "asnumpy", np.asarray)
        for output, made in zip(outputs, _entered(here(table).copy(), int(size[0]), here(x)), strict=True):
            output[...] = xp.asarray(made)

    def grad(self, *tensors: Tensor) -> Grads:
        return None, None, None

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        empty = np.zeros(16, np.int64)
        yield sample(cls(), empty, np.array([0]), np.array([[7, 15, -1], [7, 23, 0]]))
        yield sample(cls(), np.array([4, 2, 1, 1], np.int32), np.array([2], np.int32), np.array([1, 4, 1], np.int32))


def unique_with_counts(x: Tensor, dtype: DType = int32, *, name: str | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The different elements of a vector, where each element of x is among them, how often each is, and how many there are."""
    y, idx, count, number = apply(UniqueWithCounts(dtype), x, name=name)
    return y, idx, count, number


def ordinal_codes(table: Tensor, size: Tensor, x: Tensor, *, name: str | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """The numbers of ids, and table and size as they are then."""
    codes, later, known = apply(OrdinalCodes(), table, size, x, name=name)
    return codes, later, known
