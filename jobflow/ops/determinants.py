"""Determinants and exponentials of batches of square matrices; see `matrices`."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from jobflow.core.layout import Rule
from jobflow.core.types import Array, Tensor, TensorType, Xp
from jobflow.ops.arithmetic import multiply, subtract
from jobflow.ops.matrices import Inverse, OfMatrices, column, identity, matrix_sample, product, turned, write
from jobflow.ops.op import Grads, Sample, apply, sample
from jobflow.ops.pointwise import call, sample_data
from jobflow.ops.reduce import reduce_sum
from jobflow.ops.scalar import fill_like
from jobflow.ops.slices import concat, slice_

# Determinants -----------------------------------------------------------------------------------------------------------


class Det(OfMatrices):
    """Determinants of square matrices."""

    def infer(self, a: TensorType) -> TensorType:
        return a.with_shape(self.sizes_of(a)[0])

    def rule(self, a: TensorType) -> Rule:
        return self.batch_rule(a, "YZ", "")

    def kernel(self, xp: Xp, a: Array, y: Array) -> None:
        y[...] = xp.linalg.det(a)

    def grad(self, a: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (multiply(call(Cofactor(), a), column(column(dy))),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), sample_data(1, 3, 3))
        yield sample(cls(), sample_data(2, 4, 2, 2))


class Cofactor(OfMatrices):
    """Matrices of cofactors, which are the derivative of the determinant, also for singular matrices.

    Only cofactors of regular matrices are differentiable.
    """

    def infer(self, a: TensorType) -> TensorType:
        self.sizes_of(a)
        return a

    def rule(self, a: TensorType) -> Rule:
        return self.batch_rule(a, "YZ", "YZ")

    def kernel(self, xp: Xp, a: Array, y: Array) -> None:
        if not a.size:
            return
        u, s, vh = xp.linalg.svd(a)
        sign = xp.linalg.det(u) * xp.linalg.det(vh)
        n = s.shape[-1]
        others = xp.where(xp.eye(n, dtype=bool), 1, s[..., None, :]).prod(-1)
        y[...] = sign[..., None, None] * xp.matmul(u * others[..., None, :], vh)

    def grad(self, a: Tensor, y: Tensor, dy: Tensor) -> Grads:
        """Differentiate the formula det(a) a^-T of the cofactors of regular matrices."""
        inverse = apply(Inverse(), a)[0]
        back = turned(inverse)
        ratio = _trace(product(turned(dy), back))
        inner = product(product(y, turned(dy)), back)
        return (subtract(multiply(y, ratio), inner),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), matrix_sample(1, 3, 3), tolerance=1e-5)
        yield sample(cls(), matrix_sample(2, 4, 2, 2), tolerance=1e-5)
        yield sample(cls(), np.outer(np.arange(1.0, 4), np.arange(2.0, 5)), differentiable=(), note=" singular")


def _trace(x: Tensor) -> Tensor:
    """Return the traces of matrices, with two axes of size 1."""
    n = x.tensor_type.ndim
    return reduce_sum(multiply(x, identity(x)), (n - 2, n - 1), True)


class SlogDet(OfMatrices):
    """Signs of determinants, and logarithms of their absolute values."""

    def infer(self, a: TensorType) -> tuple[TensorType, TensorType]:
        y = a.with_shape(self.sizes_of(a)[0])
        return y, y

    def rule(self, a: TensorType) -> Rule:
        return self.batch_rule(a, "YZ", ",")

    def kernel(self, xp: Xp, a: Array, sign: Array, logarithm: Array) -> None:
        write(tuple(xp.linalg.slogdet(a)), [sign, logarithm])

    def grad(self, a: Tensor, sign: Tensor, logarithm: Tensor, d_sign: Tensor, dy: Tensor | None) -> Grads:
        if dy is None:
            return (None,)
        return (multiply(turned(apply(Inverse(), a)[0]), column(column(dy))),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), sample_data(1, 3, 3))
        yield sample(cls(), sample_data(2, 4, 2, 2))


# Exponentials -----------------------------------------------------------------------------------------------------------

#: coefficients of the Pade approximation of order 13 (Higham 2005), and the largest 1-norm for which it is exact in float64
_PADE = (
    64764752532480000.0, 32382376266240000.0, 7771770303897600.0, 1187353796428800.0, 129060195264000.0, 10559470521600.0, 670442572800.0,
    33522128640.0, 1323241920.0, 40840800.0, 960960.0, 16380.0, 182.0, 1.0,
)  # fmt: skip
_LARGEST = 5.371920351148152


class MatrixExp(OfMatrices):
    """Exponentials of square matrices, by scaling and squaring."""

    def infer(self, a: TensorType) -> TensorType:
        self.sizes_of(a)
        return a

    def rule(self, a: TensorType) -> Rule:
        return self.batch_rule(a, "YZ", "YZ")

    def kernel(self, xp: Xp, a: Array, y: Array) -> None:
        if not a.size:
            return
        a = a.astype(xp.float64)
        norm = float(xp.abs(a).sum(-2).max())
        squarings = max(0, math.ceil(math.log2(norm / _LARGEST))) if 0 < norm < math.inf else 0
        x = a / 2.0**squarings
        one, b = xp.eye(a.shape[-1]), _PADE
        x2 = xp.matmul(x, x)
        x4 = xp.matmul(x2, x2)
        x6 = xp.matmul(x2, x4)
        high_u, high_v = (xp.matmul(x6, b[i] * x6 + b[i - 2] * x4 + b[i - 4] * x2) for i in (13, 12))
        u = xp.matmul(x, high_u + b[7] * x6 + b[5] * x4 + b[3] * x2 + b[1] * one)
        v = high_v + b[6] * x6 + b[4] * x4 + b[2] * x2 + b[0] * one
        result = xp.linalg.solve(v - u, v + u)
        for _ in range(squarings):
            result = xp.matmul(result, result)
        y[...] = result

    def grad(self, a: Tensor, y: Tensor, dy: Tensor) -> Grads:
        """Return the upper right block of exp([[a^T, dy], [0, a^T]])."""
        n, axis = a.tensor_type.shape[-1], a.tensor_type.ndim
        back = turned(a)
        top, bottom = concat([back, dy], axis - 1), concat([fill_like(back, 0.0), back], axis - 1)
        full = call(MatrixExp(), concat([top, bottom], axis - 2))
        lead = (None,) * (axis - 2)
        return (slice_(full, (*lead, 0, n), (*lead, n, 2 * n)),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), sample_data(1, 3, 3))
        yield sample(cls(), 5 * sample_data(2, 4, 2, 2))
