"""Solutions of linear equations, and factorizations of batches of matrices, with gradients.

Matrices are the last two axes; leading axes are a batch, which layouts may split.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from jobflow.core.errors import ArgumentError, DtypeError, ShapeError, called_function, user_line
from jobflow.core.types import float_info, int64
from jobflow.functional import selecting
from jobflow.functional.argument_checks import checks_arguments
from jobflow.functional.binary_functions import matmul
from jobflow.functional.comparing import eq, gt, where
from jobflow.functional.joining import cat
from jobflow.functional.promotion import cast, constant, together
from jobflow.functional.rearranging import diag_embed
from jobflow.functional.reductions import amax, sum
from jobflow.functional.shapes import common_shape, expand, reshape, squeeze, transpose, unsqueeze
from jobflow.functional.typed import Tensor
from jobflow.functional.unary_functions import abs
from jobflow.ops import matrices as ops
from jobflow.ops.runtime_assertions import RuntimeAssertion, finite_assertion
from jobflow.tensors.run import run, run_several

__all__ = [
    "cholesky", "cholesky_ex", "cholesky_inverse", "cholesky_solve", "eigh", "eigvalsh", "inv", "inv_ex", "lstsq", "matrix_rank", "pinv", "qr",
    "solve", "solve_ex", "solve_triangular", "svd", "svdvals",
]  # fmt: skip


class QR(NamedTuple):
    """Orthonormal columns and upper triangles."""

    Q: Tensor
    R: Tensor


class SVD(NamedTuple):
    """Left singular vectors (columns), singular values, and right singular vectors (rows)."""

    U: Tensor
    S: Tensor
    Vh: Tensor


class Eigh(NamedTuple):
    """Ascending eigenvalues, and eigenvectors (columns)."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class Lstsq(NamedTuple):
    """A solution of a least-squares problem."""

    solution: Tensor
    residuals: Tensor
    rank: Tensor
    singular_values: Tensor


class WithInfo(NamedTuple):
    """Results of a batch of matrices, and `info`: 0 for each matrix that has a result, otherwise 1."""

    result: Tensor
    info: Tensor


def matrices(what: str, a: Tensor, square: bool = False) -> Tensor:
    """Return `a`.

    Raises: ShapeError unless it is a matrix or a batch of matrices, square ones if `square`; DtypeError unless it is float32 or float64.
    """
    if a.ndim < 2 or (square and a.shape[-1] != a.shape[-2]):
        raise ShapeError(f"{what} at {user_line()}: A {a.tensor_type} must be a {'square ' if square else ''}matrix, or a batch of them")
    return _plain_floats(what, a)


def finite_matrices(what: str, a: Tensor, square: bool = False, triangle: str = "") -> Tensor:
    """Return `a` as `matrices` does, with an assertion that all elements, or those of one triangle, are finite."""
    a, called = matrices(what, a, square), called_function()
    return run(finite_assertion(what if what.endswith(called) else called, triangle), a)


def _plain_floats(what: str, a: Tensor) -> Tensor:
    if not a.dtype.is_float or a.dtype.is_half:
        raise DtypeError(f"{what} at {user_line()}: A must be float32 or float64; got {a.tensor_type}; use A.float()")
    return a


def valid_results(what: str, results: Sequence[Tensor], info: Tensor, problem: str) -> Tensor:
    """Return the results of a batch of matrices, with an assertion that info is 0."""
    (y,) = results
    passed = run(RuntimeAssertion(what, "info", high=0, problem=problem), info)
    return where(reshape(eq(passed, 0), (*info.shape, 1, 1)), y, constant(y, math.nan, y.dtype))


# -------------------------------------------------------------------- solutions


def inv(A: Tensor) -> Tensor:
    """Return the inverse of square matrices.  Raises: ArgumentError for a singular matrix."""
    y, info = run_several(ops.Inverse(), matrices("linalg.inv", A, square=True))
    return valid_results("linalg.inv", [y], info, "means that the matrix is singular; use pinv")


@checks_arguments
def inv_ex(A: Tensor, *, check_errors: bool = False) -> WithInfo:
    """Return (inverse, info): the inverse of square matrices, and 1 for singular ones, whose inverse is NaN.

    With `check_errors`, a singular matrix raises ArgumentError.
    """
    y, info = run_several(ops.Inverse(), matrices("linalg.inv_ex", A, square=True))
    return WithInfo(valid_results("linalg.inv_ex", [y], info, "means that the matrix is singular; use pinv") if check_errors else y, info)


def _sides(what: str, A: Tensor, B: Tensor) -> tuple[Tensor, Tensor, bool]:
    """Return both sides of an equation as matrices with equal leading axes, and True if B is a vector, or a batch of vectors."""
    A, B = together(what, matrices(what, A, square=True), B)
    vector = B.ndim == 1 or (A.ndim - 1 == B.ndim and tuple(B.shape) == tuple(A.shape[:-1]))
    if B.ndim == 0:
        raise ShapeError(f"{what} at {user_line()}: B {B.tensor_type} must be a vector, a matrix, or a batch of them")
    right = unsqueeze(B, -1) if vector else B
    lead = common_shape(what, A.shape[:-2], right.shape[:-2])
    A, right = (x if tuple(x.shape[:-2]) == lead else expand(x, (*lead, *x.shape[-2:])) for x in (A, right))
    return A, right, vector


def _solved(what: str, A: Tensor, B: Tensor, left: bool) -> tuple[Tensor, Tensor, bool]:
    A, right, vector = _sides(what, A, B)
    if not left:
        A, right = transpose(A, -2, -1), transpose(right, -2, -1)
    if A.shape[-1] != right.shape[-2]:
        raise ShapeError(
            f"{what} at {user_line()}: A {A.tensor_type} requires a B with {A.shape[-1]} {'rows' if left else 'columns'}; got {B.tensor_type}"
        )
    x, info = run_several(ops.Solve(), A, right)
    return x, info, vector


@checks_arguments
def solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:
    """Return X with A X = B, or X A = B unless `left`; B is a vector, a matrix, or a batch of them.  Raises: ArgumentError for a singular A."""
    x, info, vector = _solved("linalg.solve", A, B, left)
    x = valid_results("linalg.solve", [x], info, "means that the matrix is singular; use lstsq")
    x = x if left else transpose(x, -2, -1)
    return squeeze(x, -1) if vector else x


@checks_arguments
def solve_ex(A: Tensor, B: Tensor, *, left: bool = True, check_errors: bool = False) -> WithInfo:
    """Return (X, info) with A X = B, or X A = B unless `left`; info is 1 for singular matrices, whose X is NaN.

    With `check_errors`, a singular matrix raises ArgumentError.
    """
    x, info, vector = _solved("linalg.solve_ex", A, B, left)
    x = valid_results("linalg.solve_ex", [x], info, "means that the matrix is singular; use lstsq") if check_errors else x
    x = x if left else transpose(x, -2, -1)
    return WithInfo(squeeze(x, -1) if vector else x, info)


@checks_arguments
def solve_triangular(A: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    """Return X with A X = B, or X A = B unless `left`, for triangular matrices A.

    Only the `upper` or lower triangle of A is read, and with `unitriangular` not its diagonal.
    """
    what = "linalg.solve_triangular"
    A = matrices(what, A, square=True)
    triangle = selecting.triu(A, int(unitriangular)) if upper else selecting.tril(A, -int(unitriangular))
    if unitriangular:
        triangle = triangle + diag_embed(sum(A, -1) * 0 + 1)
    if B.ndim < 2:
        raise ShapeError(f"{what} at {user_line()}: B {B.tensor_type} must be a matrix, or a batch of them")
    lead = common_shape(what, triangle.shape[:-2], B.shape[:-2])
    triangle, right = (expand(x, (*lead, *x.shape[-2:])) for x in together(what, triangle, B))
    x, _, _ = _solved(what, triangle, right, left)
    return x if left else transpose(x, -2, -1)


@checks_arguments
def pinv(A: Tensor, rcond: Any = None, hermitian: bool = False, *, atol: float | None = None, rtol: float | None = None) -> Tensor:
    """Return the Moore-Penrose inverse; singular values up to max(atol, rtol * the largest one) count as 0.

    By default, `atol` is 0, and `rtol` is the machine epsilon times the larger size of the matrix, or 0 if `atol` is passed.  `rcond` is an older
    name of `rtol`.  With `hermitian`, only the lower triangle of a symmetric matrix A is read.
    """
    A = finite_matrices("linalg.pinv", A, square=bool(hermitian), triangle="lower" if hermitian else "")
    relative = rcond if rtol is None else rtol
    low, share = _tolerances("linalg.pinv", A, atol, relative)
    return run(ops.PseudoInverse(low, share, bool(hermitian)), A)


def _tolerances(what: str, A: Tensor, atol: Any, rtol: Any) -> tuple[float, float]:
    for name, value in (("atol", atol), ("rtol", rtol)):
        if value is not None and not isinstance(value, int | float):
            raise ArgumentError(f"{what} at {user_line()}: {name}={value!r} must be a number or None")
    default = float(float_info(A.dtype).eps) * max(A.shape[-2:]) if not atol else 0.0
    return float(atol or 0.0), default if rtol is None else float(rtol)


@checks_arguments
def lstsq(A: Tensor, B: Tensor, rcond: float | None = None, *, driver: str | None = None) -> Lstsq:
    """Return (solution, residuals, rank, singular_values): the X of smallest norm that minimizes |A X - B|.

    The residuals are empty for the default driver, "gelsy", and unless A has more rows than columns.
    The singular values are empty unless `driver` is "gelsd" or "gelss".
    Raises: ShapeError for other shapes, ArgumentError for another driver.
    """
    what = "linalg.lstsq"
    if driver not in (None, "gels", "gelsy", "gelsd", "gelss"):
        raise ArgumentError(f'{what} at {user_line()}: driver={driver!r} is not one of "gels", "gelsy", "gelsd", "gelss"')
    A, B = together(what, matrices(what, A), B)
    vector = A.ndim == B.ndim + 1 and tuple(A.shape[:-1]) == tuple(B.shape)
    right = unsqueeze(B, -1) if vector else B
    if right.ndim < 2 or A.shape[-2] != right.shape[-2]:
        raise ShapeError(f"{what} at {user_line()}: A {A.tensor_type} and B {B.tensor_type} must have the same number of rows")
    x = matmul(pinv(A, rtol=rcond), right)
    values = svdvals(A).detach()
    rank = matrix_rank(A, rtol=rcond)
    overdetermined = A.shape[-2] > A.shape[-1] and driver not in (None, "gelsy")
    residuals = sum((matmul(A, x) - right).square(), -2) if overdetermined else values.new_empty(0)
    known = driver in ("gelsd", "gelss")
    counted = driver not in ("gels",)
    return Lstsq(
        squeeze(x, -1) if vector else x, residuals, rank if counted else values.new_empty(0, dtype=int64), values if known else values.new_empty(0)
    )


# -------------------------------------------------------------------- factorizations


@checks_arguments
def cholesky(A: Tensor, *, upper: bool = False) -> Tensor:
    """Return the lower triangular L with A = L L^T, or with `upper` its transpose.

    Only the lower triangle of A is read, or with `upper` the upper one.  Raises: ArgumentError unless A is positive definite.
    """
    L, info = _cholesky("linalg.cholesky", A, upper)
    L = valid_results("linalg.cholesky", [L], info, "means that the matrix is not positive definite")
    return transpose(L, -2, -1) if upper else L


def _cholesky(what: str, A: Tensor, upper: bool) -> tuple[Tensor, Tensor]:
    A = matrices(what, A, square=True)
    L, info = run_several(ops.Cholesky(), transpose(A, -2, -1) if upper else A)
    return L, info


@checks_arguments
def cholesky_ex(A: Tensor, *, upper: bool = False, check_errors: bool = False) -> WithInfo:
    """Return (L, info): the factor of `cholesky`, and 1 for matrices that are not positive definite, whose factor is NaN.

    With `check_errors`, such a matrix raises ArgumentError.
    """
    L, info = _cholesky("linalg.cholesky_ex", A, upper)
    L = valid_results("linalg.cholesky_ex", [L], info, "means that the matrix is not positive definite") if check_errors else L
    return WithInfo(transpose(L, -2, -1) if upper else L, info)


@checks_arguments
def cholesky_solve(B: Tensor, L: Tensor, upper: bool = False) -> Tensor:
    """Return X with A X = B, where L is the Cholesky factor of A, the upper one with `upper`."""
    factor = transpose(L, -2, -1) if upper else L
    return solve_triangular(transpose(factor, -2, -1), solve_triangular(factor, B, upper=False), upper=True)


@checks_arguments
def cholesky_inverse(L: Tensor, upper: bool = False) -> Tensor:
    """Return the inverse of A, where L is the Cholesky factor of A, the upper one with `upper`."""
    L = matrices("cholesky_inverse", L, square=True)
    return cholesky_solve(diag_embed(sum(L, -1) * 0 + 1), L, upper)


@checks_arguments
def qr(A: Tensor, mode: str = "reduced") -> QR:
    """Return (Q, R) with A = Q R: orthonormal columns and an upper triangle.

    `mode` is "reduced", "complete" (square Q) or "r" (empty Q).  Raises: ArgumentError for another mode.
    """
    what = "linalg.qr"
    if mode not in ("reduced", "complete", "r"):
        raise ArgumentError(f'{what} at {user_line()}: mode={mode!r} is not one of "reduced", "complete", "r"')
    rows, columns = matrices(what, A).shape[-2:]
    if rows < columns:
        q, square = run_several(ops.QR(), A.narrow(-1, 0, rows))
        r = cat([square, matmul(transpose(q, -2, -1), A.narrow(-1, rows, columns - rows))], -1)
    else:
        q, r = run_several(ops.QR(mode == "complete" and rows > columns), A)
    return QR(A.new_empty(0) if mode == "r" else q, r)


@checks_arguments
def svd(A: Tensor, full_matrices: bool = True, *, driver: str | None = None) -> SVD:
    """Return (U, S, Vh) with A = U diag(S) Vh, and descending singular values.

    U and Vh are square with `full_matrices`, and else have as many columns and rows as there are singular values.  `driver` has no effect.
    """
    square = A.ndim > 1 and A.shape[-1] == A.shape[-2]
    return SVD(*run_several(ops.SVD(bool(full_matrices) and not square), finite_matrices("linalg.svd", A)))


@checks_arguments
def svdvals(A: Tensor, *, driver: str | None = None) -> Tensor:
    """Return the singular values of matrices in descending order.  `driver` has no effect."""
    return run_several(ops.SVD(), finite_matrices("linalg.svdvals", A))[1]


@checks_arguments
def eigh(A: Tensor, UPLO: str = "L") -> Eigh:
    """Return (eigenvalues, eigenvectors) of symmetric matrices, in ascending order; the eigenvectors are columns.

    Only the lower triangle of A is read, or the upper one for UPLO="U".  Raises: ArgumentError for another UPLO.
    """
    if UPLO.upper() not in ("L", "U"):
        raise ArgumentError(f'linalg.eigh at {user_line()}: UPLO={UPLO!r} must be "L" or "U"')
    upper = UPLO.upper() == "U"
    A = finite_matrices("linalg.eigh", A, square=True, triangle="upper" if upper else "lower")
    return Eigh(*run_several(ops.Eigh(upper), A))


@checks_arguments
def eigvalsh(A: Tensor, UPLO: str = "L") -> Tensor:
    """Return the eigenvalues of symmetric matrices in ascending order; see `eigh`."""
    return eigh(A, UPLO).eigenvalues


@checks_arguments
def matrix_rank(A: Tensor, tol: Any = None, hermitian: bool = False, *, atol: Any = None, rtol: Any = None) -> Tensor:
    """Return the number of singular values above max(atol, rtol * the largest one), as int64; see `pinv` for the defaults."""
    what = "linalg.matrix_rank"
    A = matrices(what, A, square=bool(hermitian)).detach()
    values = abs(eigvalsh(A)) if hermitian else svdvals(A)
    if not A.tensor_type.size:
        return sum(gt(values, 0), -1)
    low, share = (_of_rows(each, values) for each in (tol if atol is None else atol, rtol))
    plain = [None if isinstance(each, Tensor) else each for each in (low, share)]
    defaults = _tolerances(what, A, *plain)
    low, share = (each if isinstance(each, Tensor) else number for each, number in zip((low, share), defaults, strict=True))
    bound = amax(values, -1, True) * share
    return sum(gt(values, where(gt(bound, low), bound, low)), -1)


def _of_rows(tolerance: Any, values: Tensor) -> Any:
    """Return a tolerance for the rows of `values`: a tensor of tolerances with a last axis of size 1, or a number."""
    return unsqueeze(cast(tolerance, values.dtype), -1) if isinstance(tolerance, Tensor) else tolerance
