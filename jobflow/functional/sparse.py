"""The namespace `flow.sparse`: products of sparse matrices with dense ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from jobflow.core.errors import DtypeError, ShapeError, user_line
from jobflow.core.types import DType
from jobflow.functional.casting import CLASSES
from jobflow.functional.nn_base import real
from jobflow.functional.sparse_creation import sparse_coo_tensor
from jobflow.functional.sparse_tensors import SparseTensor, spmm
from jobflow.functional.typed import Tensor

__all__ = [
    "BFloat16Tensor", "ByteTensor", "CharTensor", "DoubleTensor", "FloatTensor", "HalfTensor", "IntTensor", "LongTensor", "ShortTensor", "addmm",
    "mm", "sum",
]  # fmt: skip


class _SparseMeta(type):
    """Metaclass of the classes of sparse tensors of one element type, for construction and for isinstance."""

    dtype: DType

    def __call__(cls, *arguments: Any, device: Any = None) -> SparseTensor:
        """Return a sparse tensor of indices, values and optionally a size, or without elements in the sizes (integers or one Size).

        Raises the errors of `sparse_coo_tensor`.
        """
        if len(arguments) in (2, 3) and not isinstance(arguments[0], int):
            return sparse_coo_tensor(*arguments, dtype=cls.dtype, device=device)
        size = arguments[0] if len(arguments) == 1 and not isinstance(arguments[0], int) else arguments or (0,)
        try:
            count = len(size)
        except TypeError:
            raise ShapeError(
                f"sparse.{cls.__name__} at {user_line()}: arguments must be indices, values and a size, or sizes; got {arguments!r}"
            ) from None
        return sparse_coo_tensor(np.zeros((count, 0), np.int64), np.zeros(0, cls.dtype.numpy), size, dtype=cls.dtype, device=device)

    def __instancecheck__(cls, x: object) -> bool:
        return isinstance(x, SparseTensor) and x.dtype is cls.dtype


FloatTensor, DoubleTensor, HalfTensor, BFloat16Tensor, ShortTensor, IntTensor, LongTensor, CharTensor, ByteTensor = (
    _SparseMeta(name, (), {"dtype": dtype, "__doc__": f"Sparse tensors of element type {dtype.name}.", "__module__": __name__})
    for name, dtype in CLASSES.items()
    if name != "BoolTensor"
)


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
