"""Scattered products, maxima and minima: values combined with the elements of a tensor at indices along an axis."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

import numpy as np

from jobflow.core.layout import Box, Rule
from jobflow.core.types import Array, Tensor, TensorType, Xp
from jobflow.ops.arithmetic import add, divide, multiply, where
from jobflow.ops.compare import equal
from jobflow.ops.index import DimScatterAdd, dim_gather
from jobflow.ops.op import Grads, Op, Sample, sample
from jobflow.ops.pointwise import call, sample_data
from jobflow.ops.scalar import cast, fill_like
from jobflow.ops.scatter import check_operands, rule_letters


class ScatterReduce(Op):
    """Copy of x in which element [..., ids[..., j, ...], ...] along `axis` is combined with v[..., j, ...].

    x, ids and v have equal sizes along other axes.  Indices out of range are ignored.
    """

    abstract = True
    precision = "any"
    axis: int
    offset: int = 0
    ufunc: ClassVar[str]

    def infer(self, x: TensorType, ids: TensorType, v: TensorType) -> TensorType:
        check_operands(self.word(), self.axis, x, ids, v)
        return x

    def rule(self, x: TensorType, ids: TensorType, v: TensorType) -> Rule:
        table, entries = rule_letters(x.ndim, self.axis)
        return Rule(f"{table},{entries},{entries}->{table}")

    def kernel(self, xp: Xp, x: Array, ids: Array, v: Array, y: Array) -> None:
        y[...] = x
        if not v.size or not y.size:
            return
        function = getattr(xp, self.ufunc)
        at = ids.astype(xp.int64) - self.offset
        places = list(xp.indices(at.shape))
        inside = (at >= 0) & (at < y.shape[self.axis])
        places[self.axis] = xp.where(inside, at, 0)
        flat = xp.where(inside, xp.ravel_multi_index(places, y.shape), -1).reshape(-1)
        order = xp.argsort(flat, kind="stable")
        keys, values = flat[order], v.reshape(-1)[order]
        # a segmented scan: the last element of each segment of equal keys is the result of the segment
        step = 1
        while step < len(keys):
            same = keys[step:] == keys[:-step]
            values[step:] = xp.where(same, function(values[:-step], values[step:]), values[step:])
            step *= 2
        last = xp.concatenate([keys[1:] != keys[:-1], xp.ones(1, bool)]) & (keys >= 0)
        result = y.copy().reshape(-1)
        result[keys[last]] = function(result[keys[last]], values[last])
        y[...] = result.reshape(y.shape)

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        return replace(self, offset=self.offset + inputs[0].start[self.axis])

    def added(self, x: Tensor, ids: Tensor, of_x: Tensor, of_v: Tensor) -> Tensor:
        """Return `of_x` with the elements of `of_v` added at their indices."""
        return add(of_x, call(DimScatterAdd(self.axis, x.tensor_type.shape[self.axis]), of_v, ids))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(1), sample_data(1, 5, 4), np.array([[0, 3], [1, 1], [3, 2], [2, 0], [2, 2]]), sample_data(2, 5, 2))
        yield sample(cls(0), sample_data(3, 4, 2, 3), np.arange(12).reshape(2, 2, 3) % 4, sample_data(4, 2, 2, 3))
        yield sample(cls(0), np.arange(1, 5), np.array([2, 2, 2, 0]), np.array([7, 8, 9, 2]))


class ScatterProd(ScatterReduce):
    """Products of the elements of x and the values at each index; the gradient is exact for zeros too."""

    ufunc = "multiply"

    def grad(self, x: Tensor, ids: Tensor, v: Tensor, y: Tensor, dy: Tensor) -> Grads:
        one_x, one_v = fill_like(x, 1.0), fill_like(v, 1.0)
        zero_x, zero_v = equal(x, fill_like(x, 0.0)), equal(v, fill_like(v, 0.0))
        factor_x, factor_v = where(zero_x, one_x, x), where(zero_v, one_v, v)
        product = multiply(dy, call(self, factor_x, ids, factor_v))
        zeros = self.added(x, ids, cast(zero_x, x.tensor_type.dtype), cast(zero_v, x.tensor_type.dtype))
        return (
            self._others(product, zeros, factor_x, zero_x),
            None,
            self._others(dim_gather(product, ids, self.axis), dim_gather(zeros, ids, self.axis), factor_v, zero_v),
        )

    def _others(self, product: Tensor, zeros: Tensor, factor: Tensor, zero: Tensor) -> Tensor:
        """Return the product of the other factors, from the product of all factors but zeros, and the number of zeros."""
        others = _less_one(zeros, zero)
        return where(equal(others, fill_like(others, 0.0)), divide(product, factor), fill_like(product, 0.0))


def _less_one(x: Tensor, condition: Tensor) -> Tensor:
    """Return x - 1 where the condition is True, else x."""
    return add(x, multiply(cast(condition, x.tensor_type.dtype), fill_like(x, -1.0)))


class ScatterExtreme(ScatterReduce):
    """Base class of scattered maxima and minima; equal elements share the gradient."""

    abstract = True

    def grad(self, x: Tensor, ids: Tensor, v: Tensor, y: Tensor, dy: Tensor) -> Grads:
        dtype = x.tensor_type.dtype
        hit_x, hit_v = cast(equal(x, y), dtype), cast(equal(v, dim_gather(y, ids, self.axis)), dtype)
        count = self.added(x, ids, hit_x, hit_v)
        share = divide(dy, where(equal(count, fill_like(count, 0.0)), fill_like(count, 1.0), count))
        return multiply(hit_x, share), None, multiply(hit_v, dim_gather(share, ids, self.axis))


class ScatterMax(ScatterExtreme):
    """Maxima of the elements of x and the values at each index."""

    ufunc = "maximum"


class ScatterMin(ScatterExtreme):
    """Minima of the elements of x and the values at each index."""

    ufunc = "minimum"
