"""Binary search: insertion indices of values in sorted rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from jobflow.core.errors import DtypeError, ShapeError
from jobflow.core.layout import Rule
from jobflow.core.types import Array, DType, TensorType, Xp, int64
from jobflow.expressions import language as f
from jobflow.expressions.index_space import LOOKED_UP, IndexSpace
from jobflow.expressions.language import Expression
from jobflow.ops.op import LETTERS, Grads, Op, Sample, sample
from jobflow.ops.pointwise import sample_data


class SearchSorted(Op):
    """Indices at which values would be inserted into ascending rows: before equal elements, or with `right` after them.

    `rows` is one vector for all values, or has the leading axes of the values.  NaN counts as the largest number.
    """

    precision = "any"
    loops_on = ("cuda",)
    right: bool = False
    dtype: DType = int64

    def infer(self, rows: TensorType, values: TensorType) -> TensorType:
        if rows.dtype is not values.dtype:
            raise DtypeError(f"searchsorted: {rows} and the values {values} differ in element type; cast one of them with cast(x, dtype)")
        if not rows.ndim or (rows.ndim > 1 and rows.shape[:-1] != values.shape[:-1]):
            raise ShapeError(f"searchsorted: the sorted {rows} must be a vector, or have the leading axes of the values {values}")
        return TensorType(values.shape, self.dtype)

    def rule(self, rows: TensorType, values: TensorType) -> Rule:
        word = LETTERS[: values.ndim] or "1"
        return Rule(f"{word[:-1] if rows.ndim > 1 else ''}N,{word}->{word if values.ndim else ''}")

    def kernel(self, xp: Xp, rows: Array, values: Array, y: Array) -> None:
        if rows.ndim == 1:
            y[...] = xp.searchsorted(rows, values, "right" if self.right else "left")
            return
        n, m = rows.shape[-1], values.shape[-1]
        if not rows.size or not values.size:
            y[...] = 0
            return
        # merge each row with its values by a stable sort, and count the elements of the row before each value
        table, targets = rows.reshape(-1, n), values.reshape(-1, m)
        first, second = (table, targets) if self.right else (targets, table)
        order = xp.argsort(xp.concatenate([first, second], axis=1), axis=1, kind="stable")
        of_row = (order < n) if self.right else (order >= m)
        counts = xp.cumsum(of_row, axis=1)
        merged = xp.zeros(order.shape, xp.int64)
        merged[xp.arange(len(order))[:, None], order] = counts
        y[...] = (merged[:, n:] if self.right else merged[:, :m]).reshape(values.shape)

    def index_space(self, *types: TensorType) -> IndexSpace:
        rows, values = types
        axes = tuple(range(values.ndim))
        return IndexSpace(values.shape or (1,), ((*axes[: rows.ndim - 1], LOOKED_UP), axes, axes))

    def expression(self, rows: TensorType, values: TensorType) -> tuple[Expression, ...] | None:  # type: ignore[override]
        """Return the number of elements before the insertion index, found from its highest bit to its lowest."""
        size, value = rows.shape[-1], f.element(1, values.dtype)
        if not size:
            return None
        count: Expression = f.constant(0, int64)
        for bit in reversed(range(size.bit_length())):
            more = count + (1 << bit)
            row = f.looked_up(0, rows.dtype, f.minimum(more, size) - 1)
            count = f.where(f.logical_and(f.less_equal(more, size), self._precedes(row, value)), more, count)
        return (f.cast(count, self.dtype),)

    def _precedes(self, row: Expression, value: Expression) -> Expression:
        """Return True if an element of a row is before the insertion index of a value."""
        before = f.less_equal(row, value) if self.right else f.less(row, value)
        if not value.dtype.is_float:
            return before
        is_nan = f.isnan(value)
        return f.logical_or(before, is_nan if self.right else f.logical_and(is_nan, f.logical_not(f.isnan(row))))

    def grad(self, *tensors: Any) -> Grads:
        return None, None

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), np.sort(sample_data(1, 7)), sample_data(2, 5, 4), differentiable=())
        yield sample(cls(True), np.array([1, 2, 2, 5]), np.array([[2, 0, 5], [6, 1, 3]]))
        yield sample(cls(), np.array([1, 2, 2, 5]), np.array(2))
        yield sample(cls(True), np.array([[1, 2, 2, 5], [0, 0, 2, 3], [2, 2, 2, 2]]), np.array([[2, 0], [6, 0], [2, 3]]))
        yield sample(cls(False), np.array([[1, 2, 2, 5], [0, 0, 2, 3]]), np.array([[2, 0, 1], [6, 0, -1]]))
