"""Functions of the factorization of matrices into a permutation and two triangles (LU)."""

from __future__ import annotations

from typing import NamedTuple

from jobflow.core.errors import ArgumentError, DtypeError, ShapeError, user_line
from jobflow.functional.argument_checks import checks_arguments
from jobflow.functional.binary_functions import add, matmul
from jobflow.functional.joining import narrow
from jobflow.functional.matrix_factors import matrices, solve_triangular, valid_results
from jobflow.functional.selecting import tril, triu
from jobflow.functional.shapes import transpose
from jobflow.functional.typed import Tensor
from jobflow.ops.runtime_assertions import RuntimeAssertion
from jobflow.ops.scalar import FillLike
from jobflow.ops.triangular_factors import Lu, PivotMatrix
from jobflow.tensors.run import run, run_several

__all__ = ["lu", "lu_factor", "lu_factor_ex", "lu_solve"]


class PLU(NamedTuple):
    """Permutation matrices, lower triangles with ones on the diagonal, and upper triangles."""

    P: Tensor
    L: Tensor
    U: Tensor


class Factors(NamedTuple):
    """Both triangles in one matrix, and the exchanged rows, counted from 1."""

    LU: Tensor
    pivots: Tensor


class FactorsWithInfo(NamedTuple):
    """Factors, and `info`: 0, or the number of the first zero on the diagonal of the upper triangle."""

    LU: Tensor
    pivots: Tensor
    info: Tensor


@checks_arguments
def lu_factor_ex(A: Tensor, *, pivot: bool = True, check_errors: bool = False) -> FactorsWithInfo:
    """Return (LU, pivots, info) of matrices A = P L U; with `check_errors`, a singular matrix raises ArgumentError."""
    return factored("linalg.lu_factor_ex", A, pivot, check_errors)


def factored(what: str, A: Tensor, pivot: bool, check: bool) -> FactorsWithInfo:
    if not pivot:
        raise ArgumentError(f"{what} at {user_line()}: pivot=False is not supported; omit it")
    packed, pivots, info = run_several(Lu(), matrices(what, A))
    if check:
        packed = valid_results(what, [packed], info, "means that the matrix is singular; use lu, or lu_factor_ex")
    return FactorsWithInfo(packed, pivots, info)


@checks_arguments
def lu_factor(A: Tensor, *, pivot: bool = True) -> Factors:
    """Return (LU, pivots) of matrices A = P L U, for `lu_solve`.  Raises: ArgumentError for a singular matrix."""
    return Factors(*factored("linalg.lu_factor", A, pivot, True)[:2])


@checks_arguments
def lu(A: Tensor, *, pivot: bool = True) -> PLU:
    """Return (P, L, U) of matrices A = P L U: a permutation, a lower triangle with ones on the diagonal, and an upper triangle."""
    packed, pivots, _ = factored("linalg.lu", A, pivot, False)
    return PLU(run(PivotMatrix(A.shape[-2], A.dtype), pivots), *triangles(packed))


def triangles(packed: Tensor) -> tuple[Tensor, Tensor]:
    inner = min(packed.shape[-2:])
    left = narrow(packed, -1, 0, inner)
    return add(tril(left, -1), tril(triu(run(FillLike(1.0), left)))), triu(narrow(packed, -2, 0, inner))


def permutation_of(what: str, packed: Tensor, pivots: Tensor) -> Tensor:
    """Return the permutation matrices of `pivots`.

    Raises: ShapeError, DtypeError and ArgumentError for others than the exchanged rows of `packed`.
    """
    rows = packed.shape[-2]
    if pivots.dtype.is_float or not pivots.dtype.is_integer:
        raise DtypeError(f"{what} at {user_line()}: pivots must be integers; got {pivots.tensor_type}")
    if tuple(pivots.shape) != (*packed.shape[:-2], min(packed.shape[-2:])):
        raise ShapeError(f"{what} at {user_line()}: pivots {pivots.tensor_type} must be the pivots of LU {packed.tensor_type}")
    return run(PivotMatrix(rows, packed.dtype), run(RuntimeAssertion(what, "pivot", low=1, high=rows), pivots))


@checks_arguments
def lu_solve(LU: Tensor, pivots: Tensor, B: Tensor, *, left: bool = True, adjoint: bool = False) -> Tensor:
    """Return X with A X = B, or X A = B unless `left`, from the results of `lu_factor`; with `adjoint`, A is transposed."""
    what = "linalg.lu_solve"
    permutation = permutation_of(what, matrices(what, LU, square=True), pivots)
    if not left:
        return transpose(lu_solve(LU, pivots, transpose(B, -2, -1), adjoint=not adjoint), -2, -1)
    if not adjoint:
        y = solve_triangular(LU, matmul(transpose(permutation, -2, -1), B), upper=False, unitriangular=True)
        return solve_triangular(LU, y, upper=True)
    turned = transpose(LU, -2, -1)
    y = solve_triangular(turned, B, upper=False)
    return matmul(permutation, solve_triangular(turned, y, upper=True, unitriangular=True))
