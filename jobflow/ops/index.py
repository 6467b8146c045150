"""Lookup of rows by index, its gradient, and one-hot rows.

An index out of range reads zeros, and sums of rows ignore it.  Therefore a table may be split along the indexed axis.  Every rank reads from
its shard, and the results of all ranks are summed.  `offset` is the logical index of a rank's first row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from jobflow.core.errors import DtypeError, ShapeError
from jobflow.core.layout import B, Box, P, Rule, S, Signature
from jobflow.core.types import Array, DType, Tensor, TensorType, Xp, float64, int64
from jobflow.expressions import language
from jobflow.expressions.language import Expression
from jobflow.ops.indexed import Indexed
from jobflow.ops.op import LETTERS, Grads, Op, Sample, adds, normal_axis, sample
from jobflow.ops.pointwise import call, sample_data
from jobflow.ops.triangle import tril as tril

_INTEGERS = "iu"


def _check_ids(what: str, ids: TensorType) -> None:
    if not ids.dtype.is_integer:
        raise DtypeError(f"{what}: the indices {ids} are not integers; cast them with cast(ids, int64)")


def _clipped_indices(xp: Xp, ids: Array, offset: int, size: int) -> tuple[Array, Array]:
    """Return `ids` relative to `offset`, clipped to [0, size), and the mask of the ids in range."""
    local = ids.astype(xp.int64) - offset
    return xp.clip(local, 0, max(size - 1, 0)), (local >= 0) & (local < size)


def _sums_in(xp: Xp, dtype: Any) -> Any:
    """Return the type in which rows of `dtype` are summed.

    On a GPU, scatter-add supports only float16, float32, float64, int32, uint32 and uint64.
    """
    if dtype.kind == "f":
        return dtype
    return xp.dtype(xp.float32 if dtype.kind == "V" else xp.uint64)  # integers of either sign are equal modulo 2^64


def _add_at(xp: Xp, total: Array, at: Any, valid: Array, values: Array) -> None:
    """Add `values` to total[at] where `valid`, once per occurrence of an index.

    The values are masked rather than selected, because a GPU would have to wait for the number of selected rows.
    """
    xp.add.at(total, at, xp.where(valid, values, values.dtype.type(0)).astype(total.dtype, copy=False))


def _row_signatures(axis: int) -> tuple[Signature, ...]:
    """Return the signatures with replicated inputs, in which each rank computes either the whole result or its shard of axis `axis`."""
    return Signature((B, B), (B,)), Signature((B, B), (S(axis),))


def _partial_signatures(axis: int, table: TensorType) -> tuple[Signature, ...]:
    """Return the signature in which `table` is split along `axis` and the result is a partial sum; none for tables of bools.

    Each rank reads rows of its shard only; rows of other ranks are zero.
    """
    return (Signature((S(axis), B), (P,)),) if adds(table) else ()


class LookUp(Indexed):
    """Base class of ops that read a table, the first input, at the indices in the second input. An index out of range reads 0."""

    abstract = True
    table = "n"

    def row(self, letters: str) -> str:
        return ""

    def last(self, letters: str) -> str:
        """Return the letters of the output's axes, in order, from the rule `letters`."""
        return letters.partition("->")[2].lower()

    def expression(self, table: TensorType, ids: TensorType) -> tuple[Expression, ...]:  # type: ignore[override]
        size = table.shape[self.rule(table, ids).spec.index("N")]
        zero, at = language.constant(0, table.dtype), language.cast(language.element(1, ids.dtype), int64)
        if not size:
            return (zero,)
        offset: int = vars(self).get("offset", 0)  # only ops with a split table have an offset
        at = at - offset if offset else at
        inside = language.logical_and(language.less_equal(0, at), at < size)
        return (language.where(inside, language.looked_up(0, table.dtype, language.where(inside, at, 0)), zero),)


class Gather(LookUp):
    """Lookup along `axis`: y[a..., i..., b...] = params[a..., ids[i...], b...], where a... are the axes before `axis`.

    An index out of range reads 0.
    """

    precision = "any"
    axis: int
    offset: int = 0

    def infer(self, params: TensorType, ids: TensorType) -> TensorType:
        _check_ids("gather", ids)
        if not 0 <= self.axis < params.ndim:
            raise ShapeError(f"gather: axis {self.axis} is out of range for {params}")
        return params.with_shape((*params.shape[: self.axis], *ids.shape, *params.shape[self.axis + 1 :]))

    def rule(self, params: TensorType, ids: TensorType) -> Rule:
        before, rest = LETTERS[: self.axis], LETTERS[self.axis : params.ndim - 1]
        inner = LETTERS[params.ndim - 1 :][: ids.ndim]
        return Rule(f"{before}N{rest},{inner}->{before}{inner}{rest}", linear=((0,),), also=_partial_signatures(self.axis, params))

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        return replace(self, offset=self.offset + inputs[0].start[self.axis])

    def grad(self, params: Tensor, ids: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return unsorted_segment_sum(dy, ids, params.tensor_type.shape[self.axis], self.axis), None

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(0), sample_data(1, 7, 3), np.array([0, 6, 3, 3, 5]))
        yield sample(cls(1), sample_data(2, 3, 5, 2), np.array([[0, 4, 9], [-1, 2, 2]]))
        yield sample(cls(0), sample_data(3, 4), np.array(2))


class UnsortedSegmentSum(Op):
    """Segment sum: y[a..., k, b...] = sum of data[a..., i..., b...] over all i with ids[i...] == k, for k < size.

    The adjoint of Gather.
    """

    adds_at_indices = True

    axis: int
    size: int
    offset: int = 0
    #: number of entries on this rank; None for all
    local: int | None = None

    def infer(self, data: TensorType, ids: TensorType) -> TensorType:
        _check_ids("unsorted_segment_sum", ids)
        if data.shape[self.axis : self.axis + ids.ndim] != ids.shape:
            raise ShapeError(f"unsorted_segment_sum: {data} must have the axes of the ids {ids}, beginning at axis {self.axis}")
        count = self.size if self.local is None else self.local
        return data.with_shape((*data.shape[: self.axis], count, *data.shape[self.axis + ids.ndim :]))

    def rule(self, data: TensorType, ids: TensorType) -> Rule:
        letters = LETTERS[: data.ndim]
        before, inner, rest = letters[: self.axis], letters[self.axis : self.axis + ids.ndim], letters[self.axis + ids.ndim :]
        return Rule(f"{letters},{inner}->{before}N{rest}", linear=((0,),), also=_row_signatures(self.axis))

    def _flat(self, data: Array, ids: Array) -> tuple[Array, Array]:
        """Return the data with the axes of `ids` merged and moved to the front, and the ids as a vector."""
        first = math.prod(data.shape[: self.axis])
        merged = data.reshape(first, ids.size, math.prod(data.shape[self.axis + ids.ndim :]))
        return merged.swapaxes(0, 1), ids.reshape(-1)

    def kernel(self, xp: Xp, data: Array, ids: Array, y: Array) -> None:
        total = xp.zeros(y.shape, _sums_in(xp, y.dtype))
        if y.shape[self.axis] and data.size:
            rows, flat = self._flat(data, ids)
            at, valid = _clipped_indices(xp, flat, self.offset, y.shape[self.axis])
            _add_at(xp, total.reshape(-1, total.shape[self.axis], rows.shape[2]).swapaxes(0, 1), at, valid[:, None, None], rows)
        y[...] = total

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        start = outputs[0].start[self.axis]
        return replace(self, offset=self.offset + start, local=outputs[0].shape[self.axis])

    def grad(self, data: Tensor, ids: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return gather(dy, ids, self.axis), None

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(0, 7), sample_data(1, 5, 9), np.array([0, 6, 3, 3, 5]))
        yield sample(cls(1, 5), sample_data(2, 3, 2, 3, 2), np.array([[0, 4, 9], [-1, 2, 2]]))
        yield sample(cls(0, 3), sample_data(3, 4), np.array([2, 0, 2, 2]))


class DimGather(LookUp):
    """Elementwise lookup along `axis`: y[..., j, ...] = x[..., ids[..., j, ...], ...]. An index out of range reads 0.

    x and ids have equal sizes along all other axes.
    """

    precision = "any"
    axis: int
    offset: int = 0

    def infer(self, x: TensorType, ids: TensorType) -> TensorType:
        _check_ids("dim_gather", ids)
        if x.ndim != ids.ndim or any(m != n for i, (m, n) in enumerate(zip(x.shape, ids.shape, strict=True)) if i != self.axis):
            raise ShapeError(f"dim_gather: {x} and the indices {ids} must have equal sizes along all axes but axis {self.axis}")
        return x.with_shape(ids.shape)

    def rule(self, x: TensorType, ids: TensorType) -> Rule:
        letters = LETTERS[: x.ndim]
        table = letters[: self.axis] + "N" + letters[self.axis + 1 :]
        return Rule(f"{table},{letters}->{letters}", linear=((0,),), also=_partial_signatures(self.axis, x))

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        return replace(self, offset=self.offset + inputs[0].start[self.axis])

    def grad(self, x: Tensor, ids: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return call(DimScatterAdd(self.axis, x.tensor_type.shape[self.axis]), dy, ids), None

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(1), sample_data(1, 5, 4), np.array([[0, 3], [1, 1], [7, 2], [-1, 0], [2, 2]]))
        yield sample(cls(0), sample_data(2, 3, 2, 2), np.arange(8).reshape(2, 2, 2) % 3)


class DimScatterAdd(Op):
    """Scatter-add along `axis`: y[..., k, ...] = sum of data[..., j, ...] over all j with ids[..., j, ...] == k.

    The adjoint of DimGather.
    """

    adds_at_indices = True

    axis: int
    size: int
    offset: int = 0
    local: int | None = None

    def infer(self, data: TensorType, ids: TensorType) -> TensorType:
        _check_ids("dim_scatter_add", ids)
        if data.shape != ids.shape:
            raise ShapeError(f"dim_scatter_add: {data} and the indices {ids} differ in shape; pass one index per element")
        count = self.size if self.local is None else self.local
        return data.with_shape((*data.shape[: self.axis], count, *data.shape[self.axis + 1 :]))

    def rule(self, data: TensorType, ids: TensorType) -> Rule:
        letters = LETTERS[: data.ndim]
        out = letters[: self.axis] + "N" + letters[self.axis + 1 :]
        return Rule(f"{letters},{letters}->{out}", linear=((0,),), also=_row_signatures(self.axis))

    def kernel(self, xp: Xp, data: Array, ids: Array, y: Array) -> None:
        total = xp.zeros(y.shape, _sums_in(xp, y.dtype))
        if y.shape[self.axis] and data.size:
            at, valid = _clipped_indices(xp, ids, self.offset, y.shape[self.axis])
            places = list(xp.indices(ids.shape))
            places[self.axis] = at
            _add_at(xp, total, tuple(places), valid, data)
        y[...] = total

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        start = outputs[0].start[self.axis]
        return replace(self, offset=self.offset + start, local=outputs[0].shape[self.axis])

    def grad(self, data: Tensor, ids: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return dim_gather(dy, ids, self.axis), None

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(1, 4), sample_data(1, 5, 2), np.array([[0, 3], [1, 1], [7, 2], [-1, 0], [2, 2]]))
        yield sample(cls(0, 3), sample_data(2, 2, 2, 2), np.arange(8).reshape(2, 2, 2) % 3)


class OneHot(Indexed):
    """One-hot encoding along the new axis `axis` of size `depth`: y[..., k, ...] = on where ids[...] == k, else off."""

    depth: int
    axis: int
    on: float
    off: float
    dtype: DType
    offset: int = 0
    local: int | None = None

    def infer(self, ids: TensorType) -> TensorType:
        _check_ids("one_hot", ids)
        if not 0 <= self.axis <= ids.ndim:
            raise ShapeError(f"one_hot: axis {self.axis} is out of range for {ids}; pass an axis from 0 to {ids.ndim}")
        count = self.depth if self.local is None else self.local
        return TensorType((*ids.shape[: self.axis], count, *ids.shape[self.axis :]), self.dtype)

    def rule(self, ids: TensorType) -> Rule:
        letters = LETTERS[: ids.ndim]
        return Rule(f"{letters or '1'}->{letters[: self.axis]}N{letters[self.axis :]}", also=(Signature((B,), (S(self.axis),)),))

    def row(self, letters: str) -> str:
        return ""

    def last(self, letters: str) -> str:
        """Return the letters of the output's axes, in order, from the rule `letters`."""
        return letters.partition("->")[2].lower()

    def expression(self, ids: TensorType) -> tuple[Expression, ...]:  # type: ignore[override]
        number = language.cast(language.element(0, ids.dtype), int64)
        hit = language.equal(language.index(self.axis - ids.ndim - 1), number - self.offset if self.offset else number)
        on, off = (language.constant(value, self.dtype) for value in (self.on, self.off))
        return (language.where(hit, on, off),)

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        start = outputs[0].start[self.axis]
        return replace(self, offset=self.offset + start, local=outputs[0].shape[self.axis])

    def grad(self, ids: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (None,)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(5, 1, 1.0, 0.0, float64), np.array([0, 4, 2, 7]))
        yield sample(cls(3, 1, 2.0, -1.0, float64), np.array([[0, 2], [1, 1], [-1, 0]]))


class BatchGather(LookUp):
    """Lookup with separate indices per batch: y[a..., j, b...] = params[a..., ids[a..., j], b...], with `batch` axes a.

    An index out of range reads 0.
    """

    precision = "any"
    batch: int

    def infer(self, params: TensorType, ids: TensorType) -> TensorType:
        _check_ids("batch_gather", ids)
        if ids.ndim != self.batch + 1 or params.ndim <= self.batch or params.shape[: self.batch] != ids.shape[: self.batch]:
            raise ShapeError(f"batch_gather: {params} and indices {ids} must share {self.batch} leading axes, and indices must have one more axis")
        return params.with_shape((*ids.shape, *params.shape[self.batch + 1 :]))

    def rule(self, params: TensorType, ids: TensorType) -> Rule:
        lead, rest = LETTERS[: self.batch], LETTERS[self.batch : params.ndim - 1]
        return Rule(f"{lead}N{rest},{lead}z->{lead}z{rest}", linear=((0,),))

    def grad(self, params: Tensor, ids: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return call(BatchSegmentSum(self.batch, params.tensor_type.shape[self.batch]), dy, ids), None

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(1), sample_data(1, 5, 4, 2), np.arange(15).reshape(5, 3) % 6 - 1)
        yield sample(cls(2), sample_data(2, 3, 2, 4), np.arange(12).reshape(3, 2, 2) % 4)


class BatchSegmentSum(Op):
    """Segment sum per batch: y[a..., k, b...] = sum of data[a..., j, b...] over all j with ids[a..., j] == k.

    The adjoint of BatchGather.
    """

    adds_at_indices = True

    batch: int
    size: int

    def infer(self, data: TensorType, ids: TensorType) -> TensorType:
        _check_ids("batch_segment_sum", ids)
        if ids.ndim != self.batch + 1 or data.shape[: self.batch + 1] != ids.shape:
            raise ShapeError(f"batch_segment_sum: {data} must begin with the axes of the ids {ids}, which must have {self.batch + 1} axes")
        return data.with_shape((*data.shape[: self.batch], self.size, *data.shape[self.batch + 1 :]))

    def rule(self, data: TensorType, ids: TensorType) -> Rule:
        lead, rest = LETTERS[: self.batch], LETTERS[self.batch : data.ndim - 1]
        return Rule(f"{lead}z{rest},{lead}z->{lead}N{rest}", linear=((0,),))

    def kernel(self, xp: Xp, data: Array, ids: Array, y: Array) -> None:
        total = xp.zeros(y.shape, _sums_in(xp, y.dtype))
        if y.size and data.size:
            at, valid = _clipped_indices(xp, ids, 0, self.size)
            places = list(xp.indices(ids.shape))
            places[self.batch] = at
            _add_at(xp, total, tuple(places), valid.reshape(ids.shape + (1,) * (data.ndim - ids.ndim)), data)
        y[...] = total

    def grad(self, data: Tensor, ids: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return batch_gather(dy, ids, self.batch), None

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(1, 4), sample_data(1, 5, 3, 2), np.arange(15).reshape(5, 3) % 6 - 1)


def gather(params: Tensor, ids: Tensor, axis: int = 0, *, name: str | None = None) -> Tensor:
    """Return the entries of `params` along `axis` at the indices `ids`, or zeros for indices out of range.

    In the shape of the result, the sizes of `ids` replace the size of axis `axis`.
    """
    at = normal_axis("gather", axis, params.tensor_type.ndim)
    return call(Gather(at), params, ids, name=name)


def unsorted_segment_sum(data: Tensor, ids: Tensor, size: int, axis: int = 0, *, name: str | None = None) -> Tensor:
    """Sum the entries of `data` with equal ids into `size` segments; ignore ids out of range.

    `data` has the axes of `ids`, beginning at `axis`. In the result, one axis of segments replaces these axes.
    """
    at = normal_axis("unsorted_segment_sum", axis, data.tensor_type.ndim - ids.tensor_type.ndim + 1)
    return call(UnsortedSegmentSum(at, size), data, ids, name=name)


def dim_gather(x: Tensor, ids: Tensor, axis: int, *, name: str | None = None) -> Tensor:
    """Return y[..., j, ...] = x[..., ids[..., j, ...], ...] along `axis`, with the shape of `ids`; 0 for indices out of range.

    x and `ids` must have equal sizes along all other axes.
    """
    at = normal_axis("dim_gather", axis, x.tensor_type.ndim)
    return call(DimGather(at), x, ids, name=name)


def batch_gather(params: Tensor, ids: Tensor, batch: int = 1, *, name: str | None = None) -> Tensor:
    """Return the entries of `params` along axis `batch` at the indices `ids`, separately for each index of the first `batch` axes.

    `params` and `ids` share these axes, and `ids` has one more. Indices out of range read 0.
    """
    return call(BatchGather(batch), params, ids, name=name)


def batch_segment_sum(data: Tensor, ids: Tensor, size: int, *, name: str | None = None) -> Tensor:
    """Sum the entries of `data` with equal ids into `size` segments, separately for each index of all axes of `ids` but the last.

    `data` begins with the axes of `ids`. Ids out of range are ignored.
    """
    return call(BatchSegmentSum(ids.tensor_type.ndim - 1, size), data, ids, name=name)


def one_hot(ids: Tensor, depth: int, *, dtype: DType, axis: int = -1, on: float = 1.0, off: float = 0.0, name: str | None = None) -> Tensor:
    """Return the one-hot encoding of `ids` along the new axis `axis` of size `depth`: `on` at the index, else `off`.

    Indices out of range are encoded as `off` only.
    """
    return call(OneHot(depth, normal_axis("one_hot", axis, ids.tensor_type.ndim + 1), on, off, dtype), ids, name=name)
