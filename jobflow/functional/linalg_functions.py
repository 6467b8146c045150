"""Norms, condition numbers, determinants, powers and products of batches of matrices, with gradients; see `matrix_factors`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from jobflow.core.errors import ArgumentError, DtypeError, ShapeError, user_line
from jobflow.core.types import DType
from jobflow.functional import reductions, selecting
from jobflow.functional.argument_checks import check_size, checks_arguments
from jobflow.functional.binary_functions import div, matmul, mul
from jobflow.functional.casting import named
from jobflow.functional.comparing import eq, where
from jobflow.functional.joining import all_tensors, cat
from jobflow.functional.matrix_factors import inv, matrices, solve, svdvals
from jobflow.functional.matrix_products import cross_along
from jobflow.functional.promotion import cast, constant, rounded_once
from jobflow.functional.rearranging import diag_embed
from jobflow.functional.reductions import amax, amin, sum
from jobflow.functional.shapes import axis_of, expand, flatten, movedim, reshape, squeeze, unsqueeze
from jobflow.functional.typed import Tensor
from jobflow.functional.unary_functions import abs
from jobflow.ops import determinants
from jobflow.ops import matrices as ops
from jobflow.tensors.run import run, run_several

__all__ = [
    "cond", "cross", "det", "diagonal", "logdet", "matrix_exp", "matrix_norm", "matrix_power", "multi_dot", "norm", "slogdet", "tensorinv",
    "tensorsolve", "vander", "vecdot", "vector_norm",
]  # fmt: skip


class SlogDet(NamedTuple):
    """Signs of determinants, and logarithms of their absolute values."""

    sign: Tensor
    logabsdet: Tensor


# -------------------------------------------------------------------- norms


@checks_arguments
def vector_norm(x: Tensor, ord: float = 2, dim: int | Sequence[int] | None = None, keepdim: bool = False, *, dtype: DType | None = None) -> Tensor:
    """Return the norm (sum |x|^ord)^(1/ord) over `dim`, by default over all axes; see `flow.norm`."""
    dtype = named("linalg.vector_norm", dtype) if dtype else None
    if dim is None and x.ndim:
        result = reductions.norm(flatten(x), ord, dtype=dtype)
        return reshape(result, (1,) * x.ndim) if keepdim else result
    return reductions.norm(x, ord, dim, keepdim, dtype=dtype)


@checks_arguments
def matrix_norm(A: Tensor, ord: float | str = "fro", dim: Sequence[int] = (-2, -1), keepdim: bool = False, *, dtype: DType | None = None) -> Tensor:
    """Return the norm of matrices, whose axes are `dim`: "fro", "nuc", 1, -1, 2, -2, inf or -inf.

    Raises: ArgumentError for another order, ShapeError unless `dim` are two different axes.
    """
    what = "linalg.matrix_norm"
    A = cast(A, named(what, dtype)) if dtype else A
    if not A.dtype.is_float:
        raise DtypeError(f"{what} at {user_line()}: A must have a floating point type; got {A.tensor_type}; use A.float()")
    axes = [axis_of(what, d, A.ndim) for d in dim]
    if A.ndim < 2 or len(axes) != 2 or axes[0] == axes[1]:
        raise ShapeError(f"{what} at {user_line()}: dim={list(dim)} must be two different axes of A {A.tensor_type}")
    if ord not in ("fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf):
        raise ArgumentError(f'{what} at {user_line()}: ord={ord!r} is not one of "fro", "nuc", 1, -1, 2, -2, inf, -inf')
    x = movedim(A, axes, (-2, -1))
    if ord == "fro":
        result = reductions.norm(x, 2, (-2, -1))
    elif ord in ("nuc", 2, -2):
        values = svdvals(x)
        result = sum(values, -1) if ord == "nuc" else _largest(values) if ord == 2 else amin(values, -1)
    else:
        sums = sum(abs(x), -2 if ord in (1, -1) else -1)
        result = _largest(sums) if ord in (1, math.inf) else amin(sums, -1)
    return reshape(result, tuple(1 if i in axes else n for i, n in enumerate(A.shape))) if keepdim else result


def _largest(norms: Tensor) -> Tensor:
    """Return the largest norms along the last axis; 0 for an empty axis."""
    return amax(norms, -1) if norms.shape[-1] else sum(norms, -1)


@checks_arguments
def norm(
    A: Tensor,
    ord: float | str | None = None,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> Tensor:
    """Return the norm of vectors or matrices: a vector norm for one axis, a matrix norm for two axes.

    Without `ord`, return the 2-norm of all elements.  See `vector_norm` and `matrix_norm`.
    """
    several = [dim] if isinstance(dim, int) else dim
    dtype = named("linalg.norm", dtype) if dtype else None
    if ord is None:
        return vector_norm(A, 2, dim, keepdim, dtype=dtype)
    if several is None and A.ndim not in (1, 2):
        raise ShapeError(f"linalg.norm at {user_line()}: A {A.tensor_type} must have one or two axes for ord={ord!r} without dim; pass dim")
    if isinstance(ord, str) or len(several if several is not None else A.shape) == 2:
        return matrix_norm(A, ord, (0, 1) if several is None else several, keepdim, dtype=dtype)
    return vector_norm(A, ord, dim, keepdim, dtype=dtype)


@checks_arguments
def cond(A: Tensor, p: float | str | None = None) -> Tensor:
    """Return the condition number of matrices in the norm p, by default 2: the norm of A times the norm of its inverse."""
    if p in (None, 2, -2):
        values = svdvals(A)
        if not values.shape[-1]:
            return sum(values, -1)
        largest, smallest = (values.narrow(-1, i, 1).squeeze(-1) for i in (0, values.shape[-1] - 1))
        return div(largest, smallest) if p != -2 else div(smallest, largest)
    inverse, info = run_several(ops.Inverse(), matrices("linalg.cond", A, square=True))
    product = mul(matrix_norm(A, p), matrix_norm(inverse, p))
    return where(eq(info, 0), product, constant(product, math.inf, product.dtype))


# -------------------------------------------------------------------- determinants


def det(A: Tensor) -> Tensor:
    """Return the determinants of square matrices."""
    return run(determinants.Det(), matrices("linalg.det", A, square=True))


def slogdet(A: Tensor) -> SlogDet:
    """Return (sign, logabsdet): the signs of the determinants, and the logarithms of their absolute values."""
    return SlogDet(*run_several(determinants.SlogDet(), matrices("linalg.slogdet", A, square=True)))


def logdet(A: Tensor) -> Tensor:
    """Return the logarithms of the determinants of square matrices; NaN for a negative determinant."""
    sign, logarithm = slogdet(A)
    return where(eq(sign, -1), constant(logarithm, math.nan, logarithm.dtype), logarithm)


# -------------------------------------------------------------------- products


@checks_arguments
def matrix_power(A: Tensor, n: int) -> Tensor:
    """Return the n-th power of square matrices; a negative n is a power of the inverse."""
    A = A if n >= 0 else inv(A)
    if A.ndim < 2 or A.shape[-1] != A.shape[-2]:
        raise ShapeError(f"linalg.matrix_power at {user_line()}: A {A.tensor_type} must be a square matrix, or a batch of them")
    if not n:
        return expand(diag_embed(A[..., 0] * 0 + 1), A.shape) if A.shape[-1] else A.clone()
    result, square, n = None, A, n if n > 0 else -n
    while n:
        if n & 1:
            result = square if result is None else matmul(result, square)
        n >>= 1
        square = matmul(square, square) if n else square
    assert result is not None
    return result.clone() if result is A else result


@rounded_once
def matrix_exp(A: Tensor) -> Tensor:
    """Return the exponentials of square matrices."""
    return run(determinants.MatrixExp(), matrices("linalg.matrix_exp", A, square=True))


def multi_dot(tensors: Sequence[Tensor]) -> Tensor:
    """Return the product of at least two matrices, in the order with the fewest multiplications; the first and the last may be vectors.

    Raises: ShapeError for fewer than two tensors, or for sizes that cannot be multiplied.
    """
    what = "linalg.multi_dot"
    xs = list(all_tensors(what, tensors))
    if len(xs) < 2 or any(x.ndim != 2 for x in xs[1:-1]) or xs[0].ndim not in (1, 2) or xs[-1].ndim not in (1, 2):
        raise ShapeError(f"{what} at {user_line()}: pass two or more matrices, of which the first and the last may be vectors")
    row, column = xs[0].ndim == 1, xs[-1].ndim == 1
    xs[0], xs[-1] = unsqueeze(xs[0], 0) if row else xs[0], unsqueeze(xs[-1], 1) if column else xs[-1]
    if any(a.shape[1] != b.shape[0] for a, b in zip(xs, xs[1:], strict=False)):
        raise ShapeError(
            f"{what} at {user_line()}: each matrix must have as many columns as the next has rows; got {', '.join(str(x.tensor_type) for x in xs)}"
        )
    result = _chain(xs)
    result = squeeze(result, 0) if row else result
    return squeeze(result, -1) if column else result


def _chain(xs: Sequence[Tensor]) -> Tensor:
    """Multiply matrices in the best order, by dynamic programming over intervals."""
    sizes = [xs[0].shape[0], *(x.shape[1] for x in xs)]
    best: dict[tuple[int, int], tuple[int, int]] = {(i, i + 1): (0, i) for i in range(len(xs))}
    for length in range(2, len(xs) + 1):
        for i in range(len(xs) - length + 1):
            j = i + length
            best[i, j] = min((best[i, k][0] + best[k, j][0] + sizes[i] * sizes[k] * sizes[j], k) for k in range(i + 1, j))

    def product(i: int, j: int) -> Tensor:
        return xs[i] if j == i + 1 else matmul(product(i, best[i, j][1]), product(best[i, j][1], j))

    return product(0, len(xs))


@checks_arguments
def cross(input: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    """Return the cross products of vectors of three elements along axis `dim`."""
    return cross_along("linalg.cross", input, other, dim)


@checks_arguments
def vecdot(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    """Return the inner products of vectors along axis `dim`, with broadcasting."""
    if not x.ndim or not y.ndim:
        raise ShapeError(f"linalg.vecdot at {user_line()}: x {x.tensor_type} and y {y.tensor_type} must have at least one axis")
    return sum(mul(x, y), dim, dtype=mul(x, y).dtype)


@checks_arguments
def diagonal(A: Tensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Return the diagonals of matrices; see `flow.diagonal`."""
    return selecting.diagonal(A, offset, dim1, dim2)


@checks_arguments
def vander(x: Tensor, N: int | None = None) -> Tensor:
    """Return the powers 0 to N - 1 of the elements of x, along a new last axis; N is by default the size of the last axis."""
    check_size("linalg.vander", "N", N or 0)
    if not x.ndim and N is not None:
        return vander(reshape(x, 1), N)
    if not x.ndim or (N is not None and N < 1):
        raise ShapeError(f"linalg.vander at {user_line()}: x {x.tensor_type} must have at least one axis, and N={N} be at least 1")
    count = x.shape[-1] if N is None else int(N)
    ones = unsqueeze(x, -1) * 0 + 1
    if count == 1:
        return ones
    powers = expand(unsqueeze(x, -1), (*x.shape, count - 1)).cumprod(-1)
    return cat([cast(ones, powers.dtype), powers], -1)


@checks_arguments
def tensorinv(A: Tensor, ind: int = 2) -> Tensor:
    """Return the inverse of `tensordot` with A over its last axes; the first `ind` axes have as many elements as the others."""
    shape = tuple(A.shape)
    first = math.prod(shape[: max(ind, 0)])
    if ind < 1 or first != math.prod(shape[ind:]):
        raise ShapeError(f"linalg.tensorinv at {user_line()}: the first {ind} axes of A {A.tensor_type} must have as many elements as the others")
    return reshape(inv(reshape(A, (first, first))), (*shape[ind:], *shape[:ind]))


@checks_arguments
def tensorsolve(A: Tensor, B: Tensor, dims: Sequence[int] | None = None) -> Tensor:
    """Return X with tensordot(A, X, X.ndim) = B; the axes `dims` of A are moved to the end first."""
    if dims is not None:
        A = movedim(A, dims, tuple(range(A.ndim - len(dims), A.ndim)))
    rest = tuple(A.shape[B.ndim :])
    size = B.tensor_type.size
    if math.prod(rest) != size or A.tensor_type.size != size * size:
        raise ShapeError(
            f"linalg.tensorsolve at {user_line()}: A {A.tensor_type} must have the axes of B {B.tensor_type}, and as many elements again"
        )
    return reshape(solve(reshape(A, (size, size)), flatten(B)), rest)
