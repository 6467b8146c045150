"""Attention over a cache of keys and values, and the write of new rows into the cache.

    y = softmax(scale q [K[:p], k]^T) [V[:p], v];  K[p : p + new] = k

K and V contain the rows of earlier tokens, [batch, heads, length, size], and p is the number of valid rows per sample. The rows of new tokens are
operands, so attention does not depend on the write. A run writes the cache at its end, in place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from jobflow.core.errors import DtypeError, ShapeError
from jobflow.core.layout import Rule
from jobflow.core.types import Array, TensorType, Xp, int64
from jobflow.expressions import language as f
from jobflow.expressions.index_space import LOOKED_UP, IndexSpace
from jobflow.expressions.language import Expression
from jobflow.expressions.moved_elements import element_at
from jobflow.ops.op import Op, Sample, sample
from jobflow.ops.pointwise import sample_data


class CachedAttention(Op):
    """Attention of new tokens to valid rows of a cache and to themselves, without a gradient.

    Inputs are q [batch, heads, groups * new, size], and k and v [batch, heads, new, size]. Then follow the caches of keys and values,
    [batch, heads, length, size], and the number of their valid rows [batch].
    Row i of q belongs to the new token i % new, which sees the new tokens up to itself.
    """

    scale: float

    def infer(self, q: TensorType, k: TensorType, v: TensorType, keys: TensorType, values: TensorType, rows: TensorType) -> TensorType:
        check_rows("cached_attention", keys, k, rows)
        check_rows("cached_attention", values, v, rows)
        if q.ndim != 4:
            raise ShapeError(f"cached_attention: queries are {q}; pass [batch, heads, groups * tokens, size]")
        axes = {
            "batch": q.shape[0] == k.shape[0] == v.shape[0],
            "heads": q.shape[1] == k.shape[1] == v.shape[1],
            "tokens": k.shape[2] == v.shape[2] and q.shape[2] % max(k.shape[2], 1) == 0,
            "size": q.shape[3] == k.shape[3],
        }
        if differing := [name for name, fits in axes.items() if not fits]:
            what = f"queries {q}, keys {k} and values {v} differ in {' and '.join(differing)}"
            raise ShapeError(f"cached_attention: {what}; pass equal axes, and queries of a multiple of the tokens")
        if not q.dtype.is_float or len({q.dtype, k.dtype, v.dtype}) > 1:
            raise DtypeError(f"cached_attention: queries {q}, keys {k} and values {v} are not of one floating point type; cast them")
        return TensorType((*q.shape[:3], v.shape[3]), q.dtype)

    def rule(self, *types: TensorType) -> Rule:
        return Rule("abMD,abTD,abTd,abLD,abLd,a->abMd")

    def kernel(self, xp: Xp, q: Array, k: Array, v: Array, keys: Array, values: Array, rows: Array, y: Array) -> None:
        if not y.size:
            return
        new, old = k.shape[2], min(max(int(rows.max()), 0), keys.shape[2])
        scores = xp.empty((*q.shape[:3], old + new), y.dtype)
        if old:
            xp.matmul(q, keys[:, :, :old].swapaxes(-1, -2), out=scores[..., :old])
        xp.matmul(q, k.swapaxes(-1, -2), out=scores[..., old:])
        scores *= y.dtype.type(self.scale)
        if new > 1:
            at = xp.arange(q.shape[2])[:, None] % new
            scores[..., old:][..., xp.arange(new) > at] = -math.inf
        if int(rows.min()) < old:
            xp.copyto(scores[..., :old], -math.inf, where=(xp.arange(old) >= rows[:, None])[:, None, None])
        scores -= scores.max(axis=-1, keepdims=True)
        xp.exp(scores, out=scores)
        scores /= scores.sum(axis=-1, keepdims=True)
        xp.matmul(scores[..., old:], v, out=y)
        if old:
            y += xp.matmul(scores[..., :old], values[:, :, :old])

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        def case(new: int, groups: int, rows: list[int]) -> Sample:
            n, size = len(rows), 3
            arrays = [sample_data(i, n, 2, count, size) for i, count in enumerate((groups * new, new, new, 5, 5))]
            return sample(cls(0.5), *arrays, np.array(rows), differentiable=())

        yield case(1, 2, [3, 0])
        yield case(2, 1, [2, 3, 1])


class WriteRows(Op):
    """In-place write of new rows [batch, heads, new, size] after the first `rows` rows of a cache [batch, heads, length, size]."""

    alias: ClassVar[Mapping[int, int]] = MappingProxyType({0: 0})
    pure = False
    precision = "any"
    loops_on = ("cuda",)

    def infer(self, cache: TensorType, new: TensorType, rows: TensorType) -> TensorType:
        check_rows("write_rows", cache, new, rows)
        return cache

    def rule(self, cache: TensorType, new: TensorType, rows: TensorType) -> Rule:
        return Rule("abLd,abTd,a->abLd")

    def kernel(self, xp: Xp, cache: Array, new: Array, rows: Array, y: Array) -> None:
        if y is not cache:
            y[...] = cache
        count, first = new.shape[2], rows.tolist()
        if len(set(first)) == 1:
            y[:, :, first[0] : first[0] + count] = new
            return
        for i, start in enumerate(first):
            y[i, :, start : start + count] = new[i]

    def index_space(self, *types: TensorType) -> IndexSpace:
        cache = (0, 1, 2, 3)
        return IndexSpace(types[0].shape, (cache, (0, 1, LOOKED_UP, 3), (0,), cache))

    def expression(self, cache: TensorType, new: TensorType, rows: TensorType) -> tuple[Expression, ...] | None:  # type: ignore[override]
        if not new.size:
            return None
        offset = f.index(-2) - f.cast(f.element(2, rows.dtype), int64)
        at = f.clip(offset, 0, new.shape[2] - 1)
        return (f.where(f.equal(at, offset), element_at(1, new, {2: at}), f.element(0, cache.dtype)),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), sample_data(0, 2, 3, 5, 2), sample_data(1, 2, 3, 2, 2), np.array([3, 0]), differentiable=())
        yield sample(cls(), sample_data(2, 2, 1, 4, 2), sample_data(3, 2, 1, 1, 2), np.array([1, 1]), differentiable=())


def check_rows(what: str, cache: TensorType, new: TensorType, rows: TensorType) -> None:
    """Raise ShapeError or DtypeError unless `new` are rows of `cache`, and `rows` has a number of rows per sample."""
    fits = cache.ndim == new.ndim == 4 and cache.shape[:2] == new.shape[:2] and cache.shape[3] == new.shape[3]
    if not fits or new.shape[2] > cache.shape[2] or rows.shape != cache.shape[:1]:
        raise ShapeError(
            f"{what}: new rows {new} and their numbers {rows} do not fit the cache {cache}; pass rows [batch, heads, new, size] with its batch, "
            f"heads and size, at most its length, and one number per sample"
        )
    if cache.dtype is not new.dtype or not rows.dtype.is_integer:
        raise DtypeError(
            f"{what}: new rows {new} and their numbers {rows} do not fit the type of the cache {cache}; cast the rows to it, and the numbers to int64"
        )
