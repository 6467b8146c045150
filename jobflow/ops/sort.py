"""Sorts along an axis, with values and indices.  Sorts are stable; NaN is larger than all numbers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from jobflow.core.errors import ShapeError
from jobflow.core.layout import Rule
from jobflow.core.types import Array, Tensor, TensorType, Xp, int64
from jobflow.ops.index import DimScatterAdd
from jobflow.ops.op import LETTERS, Grads, Op, Sample, apply, normal_axis, sample
from jobflow.ops.pointwise import call, sample_data


class Ordering(Op):
    """Base class of sorts: values and their int64 indices along `axis`. The gradient of the values is scattered to the indices."""

    abstract = True
    precision = "any"
    axis: int

    def rule(self, x: TensorType) -> Rule:
        word = "".join(LETTERS[i].upper() if i == self.axis else LETTERS[i] for i in range(x.ndim))
        return Rule(f"{word}->{word},{word}")

    def grad(self, x: Tensor, values: Tensor, indices: Tensor, dvalues: Tensor | None, dindices: Tensor | None) -> Grads:
        return (None if dvalues is None else call(DimScatterAdd(self.axis, x.tensor_type.shape[self.axis]), dvalues, indices),)


class Sort(Ordering):
    """Values of x in ascending (or descending) order along `axis`, and the index of each value in x."""

    descending: bool = False

    def infer(self, x: TensorType) -> tuple[TensorType, TensorType]:
        normal_axis("sort", self.axis, x.ndim)
        return x, x.with_dtype(int64)

    def kernel(self, xp: Xp, x: Array, values: Array, indices: Array) -> None:
        indices[...] = order(xp, x, self.axis, self.descending)
        values[...] = xp.take_along_axis(x, indices, axis=self.axis)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(1), sample_data(1, 5, 4))
        yield sample(cls(0, True), sample_data(2, 4, 3, 2))
        yield sample(cls(0, True), np.array([[3, 1], [1, 1], [3, 2], [1, 5]]), note=" ties")
        yield sample(cls(1), sample_data(3, 5, 3) > 0)
        yield sample(cls(1, True), np.array([[1.0, 0.0, 2.0], [np.inf, 1.0, -np.inf]]), differentiable=(), note=" infinite")
        yield sample(cls(0), sample_data(4, 0, 3))


class TopK(Ordering):
    """The k largest elements along `axis` (the smallest if `largest` is False), the most extreme first, and their indices in x."""

    k: int
    largest: bool = True

    def infer(self, x: TensorType) -> tuple[TensorType, TensorType]:
        size = x.shape[normal_axis("topk", self.axis, x.ndim)]
        if not 0 <= self.k <= size:
            raise ShapeError(f"topk: k={self.k} is not between 0 and the {size} elements along axis {self.axis} of {x}")
        y = x.with_shape((*x.shape[: self.axis], self.k, *x.shape[self.axis + 1 :]))
        return y, y.with_dtype(int64)

    def kernel(self, xp: Xp, x: Array, values: Array, indices: Array) -> None:
        first = (*(slice(None),) * self.axis, slice(self.k))
        indices[...] = order(xp, x, self.axis, self.largest)[first]
        values[...] = xp.take_along_axis(x, indices, axis=self.axis)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(1, 2), sample_data(1, 5, 4))
        yield sample(cls(0, 3, False), sample_data(2, 4, 3, 2))
        yield sample(cls(1, 2), np.array([[3, 1, 3, 3], [1, 1, 1, 0]]), note=" ties")
        yield sample(cls(1, 3), sample_data(4, 3, 20), note=" few of many")
        yield sample(cls(0, 0), sample_data(3, 4))


def order(xp: Xp, x: Array, axis: int, descending: bool) -> Array:
    """Return the indices of a stable sort of x along `axis`, in ascending order unless `descending` is True."""
    if not descending:
        return xp.argsort(x, axis=axis, kind="stable")
    backwards = xp.flip(xp.argsort(xp.flip(x, axis), axis=axis, kind="stable"), axis)  # flipped twice, so that the sort is stable
    return x.shape[axis] - 1 - backwards


def sort(x: Tensor, axis: int = -1, descending: bool = False, *, name: str | None = None) -> tuple[Tensor, Tensor]:
    """Sort x along `axis`, in ascending order by default; return the values and their int64 indices in x."""
    values, indices = apply(Sort(normal_axis("sort", axis, x.tensor_type.ndim), descending), x, name=name)
    return values, indices


def topk(x: Tensor, k: int, axis: int = -1, largest: bool = True, *, name: str | None = None) -> tuple[Tensor, Tensor]:
    """Return the k largest elements along `axis` (the smallest if `largest` is False), the most extreme first, and their int64 indices in x."""
    values, indices = apply(TopK(normal_axis("topk", axis, x.tensor_type.ndim), k, largest), x, name=name)
    return values, indices
