"""The namespace `flow.sparse`: products of sparse matrices with dense ones."""

from __future__ import annotations

from typing import Any

from jobflow.core.errors import DtypeError, user_line
from jobflow.functional.nn_base import real
from jobflow.functional.sparse_tensors import SparseTensor, spmm
from jobflow.functional.typed import Tensor

__all__ = ["addmm", "mm", "sum"]


def mm(mat1: Any, mat2: Any) -> Tensor:
    """Return the product of a sparse matrix and a dense one; see `spmm`."""
    return spmm(mat1, mat2)


def addmm(mat: Tensor, mat1: Any, mat2: Any, *, beta: float = 1.0, alpha: float = 1.0) -> Tensor:
    """Return beta * mat + alpha * (mat1 @ mat2) with a sparse matrix `mat1` or `mat2`; see `spmm`."""
    if not isinstance(mat, Tensor):
        raise DtypeError(f"sparse.addmm at {user_line()}: mat must be a dense tensor, not {type(mat).__name__}; call to_dense()")
    return mat * real("sparse.addmm", "beta", beta) + spmm(mat1, mat2) * real("sparse.addmm", "alpha", alpha)


def sum(input: Any) -> Tensor:
    """Return the sum of all elements of a sparse tensor.  Raises: DtypeError for other arguments."""
    if not isinstance(input, SparseTensor):
        raise DtypeError(f"sparse.sum at {user_line()}: input must be a sparse tensor, not {type(input).__name__}")
    return input.sum()
