"""Linear algebra of batches of matrices: inverse, solution and factorizations, by LAPACK.

The last two axes are the matrix, which no layout splits; leading axes may be split.  An output `info` is 0 for each matrix that was computed,
and 1 for a singular or an indefinite one, whose result is NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from jobflow.core.errors import ShapeError
from jobflow.core.layout import Rule
from jobflow.core.types import Array, Tensor, TensorType, Xp, int32
from jobflow.ops.arithmetic import add, divide, multiply, subtract
from jobflow.ops.axes import expand_dims, transpose
from jobflow.ops.matmul import BatchMatMul, matmul
from jobflow.ops.op import LETTERS, Grads, Op, Sample, apply, sample
from jobflow.ops.pointwise import FLOATS, Negate, call, check_dtypes, sample_data
from jobflow.ops.scalar import fill_like, scale
from jobflow.ops.slices import slice_
from jobflow.ops.triangle import tril, triu

# Helpers ----------------------------------------------------------------------------------------------------------------


def product(a: Tensor, b: Tensor) -> Tensor:
    """Return the matrix products of two batches with the same leading axes."""
    return matmul(a, b) if a.tensor_type.ndim == 2 else call(BatchMatMul(), a, b)


def turned(x: Tensor) -> Tensor:
    """Return the transposed matrices."""
    n = x.tensor_type.ndim
    return transpose(x, (*range(n - 2), n - 1, n - 2))


def _row(x: Tensor) -> Tensor:
    """Return vectors as matrices of one row."""
    return expand_dims(x, x.tensor_type.ndim - 1)


def column(x: Tensor) -> Tensor:
    """Return vectors as matrices of one column."""
    return expand_dims(x, x.tensor_type.ndim)


def _minus(x: Tensor) -> Tensor:
    return call(Negate(), x)


def identity(x: Tensor) -> Tensor:
    """Return identity matrices in the shape of x."""
    return tril(triu(fill_like(x, 1.0)))


def _off_diagonal(x: Tensor) -> Tensor:
    """Return x with ones in place of its diagonal."""
    return add(add(tril(x, -1), triu(x, 1)), identity(x))


def _skew(x: Tensor) -> Tensor:
    return subtract(x, turned(x))


def _columns(x: Tensor, count: int) -> Tensor:
    """Return the first `count` columns of matrices."""
    lead = (None,) * (x.tensor_type.ndim - 1)
    return slice_(x, (*lead, 0), (*lead, count)) if x.tensor_type.shape[-1] != count else x


def _rows(x: Tensor, count: int) -> Tensor:
    """Return the first `count` rows of matrices."""
    return turned(_columns(turned(x), count))


def _or_zeros(dy: Tensor | None, y: Tensor) -> Tensor:
    """Return dy, the gradient of the output y, or zeros if it is None."""
    return fill_like(y, 0.0) if dy is None else dy


def _by_matrix(xp: Xp, function: Callable[..., Any], inputs: Sequence[Array], outputs: Sequence[Array], info: Array) -> None:
    """Write function(*inputs), for batches of matrices, to the outputs, and 0 to `info`.

    If the function fails, apply it to each matrix separately; matrices for which it fails have the output NaN and `info` 1.
    """
    info[...] = 0
    try:
        write(function(*inputs), outputs)
    except np.linalg.LinAlgError:
        for at in np.ndindex(*info.shape):
            try:
                write(function(*(x[at] for x in inputs)), [y[at] for y in outputs])
            except np.linalg.LinAlgError:
                info[at] = 1
                for y in outputs:
                    y[at] = xp.nan


def write(results: Any, outputs: Sequence[Array]) -> None:
    """Copy each array of the tuple `results`, or `results` as the only array, to the output at the same position."""
    for y, result in zip(outputs, results if isinstance(results, tuple) else (results,), strict=True):
        y[...] = result


def matrix_sample(seed: int, *shape: int) -> Array:
    """Return well-conditioned random matrices."""
    x = sample_data(seed, *shape)
    return x + 3 * np.eye(shape[-2], shape[-1])


class OfMatrices(Op):
    """Base class of ops on batches of matrices."""

    abstract = True
    square = True

    def sizes_of(self, *types: TensorType) -> tuple[tuple[int, ...], int, int]:
        """Return the leading axes, and the rows and columns of the first matrix.

        Raises: ShapeError unless all operands are matrices with equal leading axes, and later ones have a row per column of the first.
        """
        check_dtypes(self.word(), FLOATS, *types)
        a = types[0]
        if a.ndim < 2 or (self.square and a.shape[-1] != a.shape[-2]):
            raise ShapeError(f"{self.word()}: {a} must be {'a square matrix' if self.square else 'a matrix'}, or a batch of them")
        for other in types[1:]:
            if other.ndim != a.ndim or other.shape[:-2] != a.shape[:-2] or other.shape[-2] != a.shape[-1]:
                raise ShapeError(f"{self.word()}: {a} and {other} must have equal leading axes, and the second must have {a.shape[-1]} rows")
        return a.shape[:-2], a.shape[-2], a.shape[-1]

    def batch_rule(self, a: TensorType, inputs: str, outputs: str) -> Rule:
        """Return the rule that splits the leading axes, from the letters of the other axes."""
        lead = LETTERS[: a.ndim - 2]
        words = [",".join(lead + word for word in side.split(",")) for side in (inputs, outputs)]
        return Rule("->".join(words))


# Solutions --------------------------------------------------------------------------------------------------------------


class Inverse(OfMatrices):
    """Inverse of matrices, and info."""

    def infer(self, a: TensorType) -> tuple[TensorType, TensorType]:
        lead, _, _ = self.sizes_of(a)
        return a, TensorType(lead, int32)

    def rule(self, a: TensorType) -> Rule:
        return self.batch_rule(a, "YZ", "YZ,")

    def kernel(self, xp: Xp, a: Array, y: Array, info: Array) -> None:
        _by_matrix(xp, xp.linalg.inv, [a], [y], info)

    def grad(self, a: Tensor, y: Tensor, info: Tensor, dy: Tensor | None, d_info: Tensor) -> Grads:
        if dy is None:
            return (None,)
        return (_minus(product(product(turned(y), dy), turned(y))),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), matrix_sample(1, 3, 3))
        yield sample(cls(), matrix_sample(2, 4, 2, 2))


class Solve(OfMatrices):
    """Solution x of a x = b for matrices b, and info."""

    def infer(self, a: TensorType, b: TensorType) -> tuple[TensorType, TensorType]:
        lead, _, _ = self.sizes_of(a, b)
        return b, TensorType(lead, int32)

    def rule(self, a: TensorType, b: TensorType) -> Rule:
        lead = LETTERS[: a.ndim - 2]
        return Rule(f"{lead}YZ,{lead}Zk->{lead}Yk,{lead}")

    def kernel(self, xp: Xp, a: Array, b: Array, x: Array, info: Array) -> None:
        _by_matrix(xp, xp.linalg.solve, [a, b], [x], info)

    def grad(self, a: Tensor, b: Tensor, x: Tensor, info: Tensor, dx: Tensor | None, d_info: Tensor) -> Grads:
        if dx is None:
            return None, None
        db = apply(Solve(), turned(a), dx)[0]
        return _minus(product(db, turned(x))), db

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), matrix_sample(1, 3, 3), sample_data(2, 3, 2))
        yield sample(cls(), matrix_sample(3, 4, 2, 2), sample_data(4, 4, 2, 3))


class PseudoInverse(OfMatrices):
    """Moore-Penrose inverse; singular values up to the larger of `atol` and `rtol` times the largest one count as 0."""

    square = False
    atol: float
    rtol: float
    hermitian: bool = False

    def infer(self, a: TensorType) -> TensorType:
        lead, rows, columns = self.sizes_of(a)
        return a.with_shape((*lead, columns, rows))

    def rule(self, a: TensorType) -> Rule:
        return self.batch_rule(a, "YZ", "ZY")

    def kernel(self, xp: Xp, a: Array, y: Array) -> None:
        if not a.size:
            y[...] = 0
            return
        if self.hermitian:
            lower = xp.tril(a)
            a = lower + xp.tril(a, -1).swapaxes(-1, -2)
        u, s, vh = xp.linalg.svd(a, full_matrices=False)
        large = s > xp.maximum(self.atol, self.rtol * s.max(-1, keepdims=True))
        inverse = xp.where(large, 1 / xp.where(large, s, 1), 0).astype(s.dtype)
        y[...] = xp.matmul(vh.swapaxes(-1, -2) * inverse[..., None, :], u.swapaxes(-1, -2))

    def grad(self, a: Tensor, y: Tensor, dy: Tensor) -> Grads:
        """Differentiate by the formula of Golub and Pereyra."""
        yt, g = turned(y), turned(dy)
        if a.tensor_type.shape[-2] <= a.tensor_type.shape[-1]:
            k = product(g, y)
            kt = product(k, yt)
            inside = subtract(kt, product(product(a, y), kt))
            outside = product(product(yt, y), subtract(g, product(k, a)))
            return (add(subtract(inside, turned(product(y, k))), outside),)
        k = product(y, g)
        kt = product(yt, k)
        inside = subtract(kt, product(product(kt, y), a))
        outside = product(product(subtract(g, product(a, k)), y), yt)
        return (add(subtract(inside, turned(product(k, y))), outside),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(0.0, 1e-12), matrix_sample(1, 3, 4))
        yield sample(cls(0.0, 1e-12), matrix_sample(2, 4, 3, 2))


# Factorizations ---------------------------------------------------------------------------------------------------------


class Cholesky(OfMatrices):
    """Lower triangular factor l of a = l l^T, from the lower triangle of a, and info."""

    def infer(self, a: TensorType) -> tuple[TensorType, TensorType]:
        lead, _, _ = self.sizes_of(a)
        return a, TensorType(lead, int32)

    def rule(self, a: TensorType) -> Rule:
        return self.batch_rule(a, "YZ", "YZ,")

    def kernel(self, xp: Xp, a: Array, y: Array, info: Array) -> None:
        _by_matrix(xp, xp.linalg.cholesky, [a], [y], info)

    def grad(self, a: Tensor, y: Tensor, info: Tensor, dy: Tensor | None, d_info: Tensor) -> Grads:
        if dy is None:
            return (None,)
        lower = tril(product(turned(y), dy))
        phi = add(tril(lower, -1), scale(multiply(lower, identity(lower)), 0.5))
        left = apply(Solve(), turned(y), phi)[0]
        s = turned(apply(Solve(), turned(y), turned(left))[0])
        return (scale(add(s, turned(s)), 0.5),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for seed, shape in ((1, (3, 3)), (2, (4, 2, 2))):
            x = sample_data(seed, *shape)
            yield sample(cls(), x @ x.swapaxes(-1, -2) + 3 * np.eye(shape[-1]), differentiable=())  # the upper triangle is not read


class QR(OfMatrices):
    """Factors q r of matrices with at least as many rows as columns: orthonormal columns, and an upper triangle; square q with `complete`."""

    square = False
    complete: bool = False

    def infer(self, a: TensorType) -> tuple[TensorType, TensorType]:
        lead, rows, columns = self.sizes_of(a)
        if rows < columns:
            raise ShapeError(f"qr: {a} must have at least as many rows as columns")
        inner = rows if self.complete else columns
        return a.with_shape((*lead, rows, inner)), a.with_shape((*lead, inner, columns))

    def rule(self, a: TensorType) -> Rule:
        return self.batch_rule(a, "YZ", "YX,XZ")

    def kernel(self, xp: Xp, a: Array, q: Array, r: Array) -> None:
        write(tuple(xp.linalg.qr(a, "complete" if self.complete else "reduced")), [q, r])

    def grad(self, a: Tensor, q: Tensor, r: Tensor, dq: Tensor | None, dr: Tensor | None) -> Grads:
        if q.tensor_type.shape[-1] != a.tensor_type.shape[-1]:
            return super().grad()
        dq, dr = _or_zeros(dq, q), _or_zeros(dr, r)
        m = subtract(product(r, turned(dr)), product(turned(dq), q))
        lower = tril(m)
        symmetric = add(lower, turned(tril(m, -1)))
        left = add(dq, product(q, symmetric))
        return (turned(apply(Solve(), r, turned(left))[0]),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), matrix_sample(1, 3, 3))
        yield sample(cls(), matrix_sample(2, 4, 3, 2))
        yield sample(cls(True), matrix_sample(3, 3, 2), differentiable=())


class SVD(OfMatrices):
    """Singular value decomposition u diag(s) vh, with square u and vh for `full` and else as many columns and rows as singular values."""

    square = False
    full: bool = False

    def infer(self, a: TensorType) -> tuple[TensorType, ...]:
        lead, rows, columns = self.sizes_of(a)
        k = min(rows, columns)
        sizes = (rows, rows if self.full else k), (k,), (columns if self.full else k, columns)
        return tuple(a.with_shape((*lead, *size)) for size in sizes)

    def rule(self, a: TensorType) -> Rule:
        return self.batch_rule(a, "YZ", "YU,X,VZ")

    def kernel(self, xp: Xp, a: Array, u: Array, s: Array, vh: Array) -> None:
        if a.size:
            write(tuple(xp.linalg.svd(a, full_matrices=self.full)), [u, s, vh])
            return
        for y in (u, vh):
            y[...] = xp.eye(*y.shape[-2:])

    def grad(self, a: Tensor, u: Tensor, s: Tensor, vh: Tensor, du: Tensor | None, ds: Tensor | None, dvh: Tensor | None) -> Grads:
        if du is None and dvh is None:
            return (None if ds is None else product(multiply(_columns(u, s.tensor_type.shape[-1]), _row(ds)), _rows(vh, s.tensor_type.shape[-1])),)
        du, ds, dvh = _or_zeros(du, u), _or_zeros(ds, s), _or_zeros(dvh, vh)
        k = s.tensor_type.shape[-1]
        u, du, v, dv = (_columns(x, k) for x in (u, du, turned(vh), turned(dvh)))
        square = multiply(s, s)
        gaps = _off_diagonal(subtract(_row(square), column(square)))
        of_u, of_v = (divide(_skew(product(turned(x), dx)), gaps) for x, dx in ((u, du), (v, dv)))
        middle = add(multiply(of_u, _row(s)), multiply(column(s), of_v))
        inner = product(product(u, add(middle, multiply(identity(middle), _row(ds)))), turned(v))
        if a.tensor_type.shape[-2] > k:
            rest = divide(subtract(du, product(u, product(turned(u), du))), _row(s))
            inner = add(inner, product(rest, turned(v)))
        if a.tensor_type.shape[-1] > k:
            rest = divide(subtract(dv, product(v, product(turned(v), dv))), _row(s))
            inner = add(inner, product(u, turned(rest)))
        return (inner,)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), matrix_sample(1, 3, 4), tolerance=1e-5)
        yield sample(cls(), matrix_sample(2, 4, 3, 2), tolerance=1e-5)
        yield sample(cls(True), matrix_sample(3, 3, 3), tolerance=1e-5)


class Eigh(OfMatrices):
    """Ascending eigenvalues w and eigenvectors v (columns) of symmetric matrices, from their lower or `upper` triangle."""

    upper: bool = False

    def infer(self, a: TensorType) -> tuple[TensorType, TensorType]:
        lead, rows, _ = self.sizes_of(a)
        return a.with_shape((*lead, rows)), a

    def rule(self, a: TensorType) -> Rule:
        return self.batch_rule(a, "YZ", "X,YX")

    def kernel(self, xp: Xp, a: Array, w: Array, v: Array) -> None:
        write(tuple(xp.linalg.eigh(a, "U" if self.upper else "L")), [w, v])

    def grad(self, a: Tensor, w: Tensor, v: Tensor, dw: Tensor | None, dv: Tensor | None) -> Grads:
        if dv is None:
            return (None if dw is None else product(multiply(v, _row(dw)), turned(v)),)
        dw = _or_zeros(dw, w)
        gaps = _off_diagonal(subtract(_row(w), column(w)))
        middle = scale(_skew(product(turned(v), dv)), 0.5)  # vectors rotate, so that only the skew part counts
        inside = divide(middle, gaps)
        return (product(product(v, add(inside, multiply(identity(middle), _row(dw)))), turned(v)),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for seed, shape, upper in ((1, (3, 3), False), (2, (4, 2, 2), True)):
            x = matrix_sample(seed, *shape)
            yield sample(cls(upper), x + x.swapaxes(-1, -2), differentiable=())  # one triangle is not read
