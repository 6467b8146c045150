"""The factorization of batches of matrices into a permutation and two triangles (LU), by Gaussian elimination with row exchanges."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from jobflow.core.layout import Rule
from jobflow.core.types import Array, DType, Tensor, TensorType, Xp, float64, int32
from jobflow.ops.arithmetic import add, subtract
from jobflow.ops.matrices import Inverse, OfMatrices, identity, matrix_sample, product, turned
from jobflow.ops.op import LETTERS, Grads, Op, Sample, apply, sample
from jobflow.ops.pointwise import call
from jobflow.ops.slices import Concat, slice_
from jobflow.ops.triangle import tril, triu


class Lu(OfMatrices):
    """Both triangles in one matrix, the exchanged rows counted from 1, and info: 0, or the number of the first zero on the diagonal.

    The lower triangle has ones on its diagonal, which are not stored.
    """

    square = False

    def infer(self, a: TensorType) -> tuple[TensorType, TensorType, TensorType]:
        lead, rows, columns = self.sizes_of(a)
        return a, TensorType((*lead, min(rows, columns)), int32), TensorType(lead, int32)

    def rule(self, a: TensorType) -> Rule:
        return self.batch_rule(a, "YZ", "YZ,X,")

    def kernel(self, xp: Xp, a: Array, packed: Array, pivots: Array, info: Array) -> None:
        rows, columns = a.shape[-2:]
        count, steps = math.prod(a.shape[:-2]), min(rows, columns)
        work = xp.array(a).reshape(count, rows, columns)
        each, singular = xp.arange(count), xp.zeros(count, xp.int32)
        exchanged = xp.zeros((count, steps), xp.int32)
        for j in range(steps):
            best = j + xp.argmax(xp.abs(work[:, j:, j]), axis=1)
            exchanged[:, j] = best + 1
            upper = work[each, j].copy()
            work[each, j] = work[each, best]
            work[each, best] = upper
            zero = work[:, j, j] == 0
            singular = xp.where((singular == 0) & zero, j + 1, singular)
            work[:, j + 1 :, j] /= xp.where(zero, 1, work[:, j, j])[:, None]
            work[:, j + 1 :, j + 1 :] -= work[:, j + 1 :, j, None] * work[:, j, None, j + 1 :]
        packed[...] = work.reshape(a.shape)
        pivots[...] = exchanged.reshape(pivots.shape)
        info[...] = singular.reshape(info.shape)

    def grad(self, *tensors: Tensor | None) -> Grads:
        a, packed, pivots, _, dpacked, *_ = tensors
        assert a is not None and packed is not None and pivots is not None
        if dpacked is None:
            return (None,)
        rows, columns = a.tensor_type.shape[-2:]
        inner = min(rows, columns)
        block, slope = (_part(x, (0, 0), (inner, inner)) for x in (packed, dpacked))
        lower, upper = add(tril(block, -1), identity(block)), triu(block)
        left, right = (turned(apply(Inverse(), x)[0]) for x in (lower, upper))
        outside = None
        dlower, dupper = tril(slope, -1), triu(slope)
        if rows < columns:
            outside = product(left, _part(dpacked, (0, inner), (rows, columns)))
            dlower = subtract(dlower, tril(product(outside, turned(_part(packed, (0, inner), (rows, columns)))), -1))
        elif rows > columns:
            outside = product(_part(dpacked, (inner, 0), (rows, columns)), right)
            dupper = subtract(dupper, triu(product(turned(_part(packed, (inner, 0), (rows, columns))), outside)))
        middle = add(tril(product(turned(lower), dlower), -1), triu(product(dupper, turned(upper))))
        result = product(product(left, middle), right)
        if outside is not None:
            result = call(Concat(a.tensor_type.ndim - (1 if rows < columns else 2)), result, outside)
        return (product(call(PivotMatrix(rows, a.tensor_type.dtype), pivots), result),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for shape in ((3, 3), (4, 2, 2), (2, 3), (3, 2)):
            yield sample(cls(), matrix_sample(len(shape), *shape)[..., ::-1, :].copy(), differentiable=())


class PivotMatrix(Op):
    """Permutation matrices p with a = p l u, from the exchanged rows of `Lu`."""

    rows: int
    dtype: DType

    def infer(self, pivots: TensorType) -> TensorType:
        return TensorType((*pivots.shape[:-1], self.rows, self.rows), self.dtype)

    def rule(self, pivots: TensorType) -> Rule:
        lead = LETTERS[: pivots.ndim - 1]
        return Rule(f"{lead}Z->{lead}XY")

    def kernel(self, xp: Xp, pivots: Array, p: Array) -> None:
        count = math.prod(pivots.shape[:-1])
        exchanged, each = pivots.reshape(count, pivots.shape[-1]) - 1, xp.arange(count)
        order = xp.broadcast_to(xp.arange(self.rows), (count, self.rows)).copy()
        for j in range(pivots.shape[-1]):
            upper = order[:, j].copy()
            order[:, j] = order[each, exchanged[:, j]]
            order[each, exchanged[:, j]] = upper
        result = xp.zeros((count, self.rows, self.rows), p.dtype)
        result[each[:, None], order, xp.arange(self.rows)] = 1
        p[...] = result.reshape(p.shape)

    def grad(self, *tensors: Tensor | None) -> Grads:
        return (None,)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(3, float64), np.array([[3, 2, 3], [1, 3, 3]], np.int32), differentiable=())


def _part(x: Tensor, starts: tuple[int, int], stops: tuple[int, int]) -> Tensor:
    """Return a block of matrices."""
    lead = (None,) * (x.tensor_type.ndim - 2)
    return slice_(x, (*lead, *starts), (*lead, *stops))
