"""Functions of matrices under their names in `flow` and as methods of tensors; `flow.linalg` contains more functions."""

from __future__ import annotations

from typing import Any, NamedTuple

from jobflow.core.errors import ArgumentError, user_line
from jobflow.functional import lu_functions as triangular
from jobflow.functional import matrix_factors as factors
from jobflow.functional.argument_checks import checks_arguments
from jobflow.functional.dispatch import method
from jobflow.functional.joining import narrow
from jobflow.functional.linalg_functions import det, logdet, matrix_exp, matrix_power, slogdet
from jobflow.functional.matrix_factors import QR, cholesky_inverse, cholesky_solve, inv
from jobflow.functional.shapes import reshape, transpose
from jobflow.functional.typed import Tensor

__all__ = [
    "cholesky", "cholesky_inverse", "cholesky_solve", "det", "inverse", "logdet", "lu", "lu_solve", "lu_unpack", "matrix_exp",
    "matrix_power", "pinverse", "qr", "slogdet", "svd",
]  # fmt: skip


class SVD(NamedTuple):
    """Left singular vectors, singular values, and right singular vectors; the vectors are columns."""

    U: Tensor
    S: Tensor
    V: Tensor


inverse = inv


@checks_arguments
def cholesky(x: Tensor, upper: bool = False) -> Tensor:
    """Return the lower triangular L with x = L L^T, or with `upper` its transpose; see `linalg.cholesky`."""
    return factors.cholesky(x, upper=upper)


@checks_arguments
def qr(x: Tensor, some: bool = True) -> QR:
    """Return (Q, R) with x = Q R, with a square Q unless `some`; see `linalg.qr`."""
    return factors.qr(x, "reduced" if some else "complete")


@checks_arguments
def svd(x: Tensor, some: bool = True, compute_uv: bool = True) -> SVD:
    """Return (U, S, V) with x = U diag(S) V^T, with square U and V unless `some`; see `linalg.svd`.

    Raises: ArgumentError without `compute_uv`; use `linalg.svdvals`.
    """
    if not compute_uv:
        raise ArgumentError(f"svd at {user_line()}: compute_uv={compute_uv} is not supported; use linalg.svdvals(x)")
    u, s, vh = factors.svd(x, full_matrices=not some)
    return SVD(u, s, transpose(vh, -2, -1))


@checks_arguments
def pinverse(x: Tensor, rcond: float = 1e-15) -> Tensor:
    """Return the Moore-Penrose inverse; singular values up to `rcond` times the largest one count as 0; see `linalg.pinv`."""
    return factors.pinv(x, rtol=rcond)


@checks_arguments
def lu(A: Tensor, pivot: bool = True, get_infos: bool = False) -> Any:
    """Return (LU, pivots) of matrices, as `linalg.lu_factor`; with `get_infos`, (LU, pivots, info), also of singular matrices."""
    packed, pivots, info = triangular.factored("lu", A, pivot, not get_infos)
    return triangular.FactorsWithInfo(packed, pivots, info) if get_infos else triangular.Factors(packed, pivots)


@checks_arguments
def lu_solve(b: Tensor, LU_data: Tensor, LU_pivots: Tensor) -> Tensor:
    """Return the solution X of A X = b from the results of `lu`; see `linalg.lu_solve`."""
    return triangular.lu_solve(LU_data, LU_pivots, b)


@checks_arguments
def lu_unpack(LU_data: Tensor, LU_pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True) -> triangular.PLU:
    """Return (P, L, U) from the results of `lu`; without `unpack_data` or `unpack_pivots`, the entries are empty tensors."""
    packed = factors.matrices("lu_unpack", LU_data)
    empty = reshape(narrow(packed, -1, 0, 0), 0)
    permutation = triangular.permutation_of("lu_unpack", packed, LU_pivots) if unpack_pivots else empty
    return triangular.PLU(permutation, *(triangular.triangles(packed) if unpack_data else (empty, empty)))


class MatrixMethods:
    """Functions of matrices as methods of tensors."""

    __slots__ = ()

    cholesky = method(cholesky)
    cholesky_inverse = method(cholesky_inverse)
    cholesky_solve = method(cholesky_solve)
    det = method(det)
    inverse = method(inverse, "inverse")
    logdet = method(logdet)
    lu = method(lu)
    lu_solve = method(lu_solve)
    matrix_exp = method(matrix_exp)
    matrix_power = method(matrix_power)
    pinverse = method(pinverse)
    qr = method(qr)
    slogdet = method(slogdet)
    svd = method(svd)
