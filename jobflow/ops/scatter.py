"""Scattered writes: replacement of elements at indices, or addition to them.

Indices out of range are ignored, so a rank with a shard of the axis ignores the indices of other ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from jobflow.core.errors import DtypeError, ShapeError
from jobflow.core.layout import B, Box, Rule, S, Signature
from jobflow.core.types import Array, Tensor, TensorType, Xp
from jobflow.ops.arithmetic import add
from jobflow.ops.index import DimScatterAdd, dim_gather, unsorted_segment_sum
from jobflow.ops.op import LETTERS, OVER_FIRST, Grads, Op, Sample, adds, normal_axis, sample
from jobflow.ops.pointwise import call, sample_data
from jobflow.ops.scalar import fill_like


class Scatter(Op):
    """Copy of x with y[..., ids[..., j, ...], ...] = v[..., j, ...] along `axis`; x, ids and v have equal sizes along other axes.

    If an index occurs several times, the last value is written.  The gradient of v assumes that no index repeats.
    """

    precision = "any"
    in_place = OVER_FIRST
    axis: int
    offset: int = 0

    def infer(self, x: TensorType, ids: TensorType, v: TensorType) -> TensorType:
        check_operands("scatter", self.axis, x, ids, v)
        return x

    def rule(self, x: TensorType, ids: TensorType, v: TensorType) -> Rule:
        table, entries = rule_letters(x.ndim, self.axis)
        linear = ((0, 2),) if adds(x) else ()
        return Rule(f"{table},{entries},{entries}->{table}", linear=linear, also=(Signature((S(self.axis), B, B), (S(self.axis),)),))

    def kernel(self, xp: Xp, x: Array, ids: Array, v: Array, y: Array) -> None:
        y[...] = x
        if not v.size or not y.size:
            return
        at = ids.astype(xp.int64) - self.offset
        inside = (at >= 0) & (at < y.shape[self.axis])
        # concurrent writes to one element would leave a random value: find the last index of each element, and gather
        size = y.shape[self.axis]
        places = list(xp.indices(at.shape))
        order = places[self.axis]
        places[self.axis] = xp.where(inside, at, size)  # one more element, for ignored indices
        last = xp.full((*y.shape[: self.axis], size + 1, *y.shape[self.axis + 1 :]), -1, xp.int64)
        xp.maximum.at(last, tuple(places), order)
        last = last[(slice(None),) * self.axis + (slice(0, size),)]
        y[...] = xp.where(last >= 0, xp.take_along_axis(v, xp.maximum(last, 0), axis=self.axis), y)

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        return replace(self, offset=self.offset + inputs[0].start[self.axis])

    def grad(self, x: Tensor, ids: Tensor, v: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return scatter(dy, self.axis, ids, fill_like(v, 0.0)), None, dim_gather(dy, ids, self.axis)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(1), sample_data(1, 5, 4), np.array([[0, 3], [1, 2], [7, 2], [-1, 0], [2, 3]]), sample_data(2, 5, 2))
        yield sample(cls(0), sample_data(3, 5, 2, 3), np.arange(12).reshape(2, 2, 3) % 5, sample_data(4, 2, 2, 3))
        yield sample(cls(0), sample_data(5, 6) > 0, np.array([4, 0, 5]), np.array([True, False, True]))
        yield sample(cls(0), np.arange(4), np.array([2, 2, 2]), np.array([7, 8, 9]), note=" the last is written")


def rule_letters(ndim: int, axis: int) -> tuple[str, str]:
    """Return the rule letters of x and of its indices, which differ along `axis`."""
    letters = LETTERS[:ndim]
    return f"{letters[:axis]}N{letters[axis + 1 :]}", f"{letters[:axis]}M{letters[axis + 1 :]}"


def check_operands(what: str, axis: int, x: TensorType, ids: TensorType, v: TensorType) -> None:
    if not ids.dtype.is_integer:
        raise DtypeError(f"{what}: the indices {ids} are not integers; cast them with cast(ids, int64)")
    if x.dtype is not v.dtype:
        raise DtypeError(f"{what}: {x} and the new values {v} differ in element type; cast one of them with cast(x, dtype)")
    normal_axis(what, axis, x.ndim)
    if v.shape != ids.shape:
        raise ShapeError(f"{what}: the new values {v} and the indices {ids} differ in shape; pass one value per index")
    if x.ndim != ids.ndim or any(m != n for i, (m, n) in enumerate(zip(x.shape, ids.shape, strict=True)) if i != axis):
        raise ShapeError(f"{what}: {x} and the indices {ids} must have equal sizes along all axes but axis {axis}")


def scatter(x: Tensor, axis: int, ids: Tensor, v: Tensor, *, name: str | None = None) -> Tensor:
    """Return a copy y of x with y[..., ids[..., j, ...], ...] = v[..., j, ...] along `axis`; indices out of range are ignored.

    v has the shape of `ids`, whose other axes have the sizes of x. If an index occurs several times, the last value is written.
    """
    return call(Scatter(normal_axis("scatter", axis, x.tensor_type.ndim)), x, ids, v, name=name)


def scatter_add(x: Tensor, axis: int, ids: Tensor, v: Tensor, *, name: str | None = None) -> Tensor:
    """Return x with v[..., j, ...] added to element [..., ids[..., j, ...], ...] along `axis`, once per occurrence of an index.

    v has the shape of `ids`, whose other axes have the sizes of x. Indices out of range are ignored.
    """
    at = normal_axis("scatter_add", axis, x.tensor_type.ndim)
    check_operands("scatter_add", at, x.tensor_type, ids.tensor_type, v.tensor_type)
    return add(x, call(DimScatterAdd(at, x.tensor_type.shape[at]), v, ids), name=name)


def index_add(x: Tensor, axis: int, ids: Tensor, v: Tensor, *, name: str | None = None) -> Tensor:
    """Return x with slice i of v along `axis` added to slice ids[i] of x, for each i; `ids` is a vector. Indices out of range are ignored."""
    at = normal_axis("index_add", axis, x.tensor_type.ndim)
    return add(x, unsorted_segment_sum(v, ids, x.tensor_type.shape[at], at), name=name)
