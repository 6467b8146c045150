"""Normalization of weights: by their norms (Salimans and Kingma 2016), and by their largest singular value (Miyato et al. 2018)."""

from __future__ import annotations

import math

from jobflow.core.types import Tensor as Value
from jobflow.functional.nn_base import composed, formula
from jobflow.functional.nn_linear import length
from jobflow.functional.typed import Tensor
from jobflow.ops import elementwise as ew
from jobflow.ops import reduce as rd
from jobflow.ops import shape as sh
from jobflow.ops.matmul import matmul


@formula
def norm_except(v: Tensor, dim: int | None) -> Value:
    """Return the 2-norms of v over all axes but `dim`, which have size 1 in the result; for `dim` None, the 2-norm of v."""
    ndim = v.tensor_type.ndim
    if dim is None:
        return length(v, tuple(range(ndim)), 2.0, False)
    return length(v, tuple(i for i in range(ndim) if i != dim % ndim), 2.0, True)


@formula
def scaled_to(v: Tensor, g: Tensor, dim: int | None) -> Value:
    """Return g * v / |v|, with the norms of `norm_except`."""
    return ew.multiply(v, ew.divide(g, norm_except(v, dim)))


@composed
def as_matrix(weight: Tensor, dim: int) -> Value:
    """Return the weight as a matrix with one row per index of axis `dim`."""
    ndim = weight.tensor_type.ndim
    moved = sh.transpose(weight, (dim, *(i for i in range(ndim) if i != dim)))
    rows = weight.tensor_type.shape[dim]
    return sh.reshape(moved, (rows, math.prod(weight.tensor_type.shape) // max(rows, 1)))


@formula
def power_step(matrix: Tensor, vector: Tensor, transposed: bool, eps: float) -> Value:
    """Return the product of the matrix, or its transpose, and a vector, divided by its 2-norm or by `eps` if that is larger."""
    column = sh.reshape(vector, (vector.tensor_type.size, 1))
    y = sh.reshape(matmul(matrix, column, transpose_a=transposed), (-1,))
    norm = ew.sqrt(ew.clip(rd.reduce_sum(ew.square(y)), eps * eps, None))
    return ew.divide(y, norm)


@formula
def over_singular_value(weight: Tensor, matrix: Tensor, u: Tensor, v: Tensor) -> Value:
    """Return the weight divided by u^T matrix v, its largest singular value for the singular vectors u and v."""
    y = matmul(matrix, sh.reshape(v, (v.tensor_type.size, 1)))
    return ew.divide(weight, rd.reduce_sum(ew.multiply(sh.reshape(y, (-1,)), u)))


@formula
def over_norm(v: Tensor, eps: float) -> Value:
    """Return a vector divided by its 2-norm, or by `eps` if that is larger."""
    return ew.divide(v, ew.clip(length(v, (0,), 2.0, False), eps, None))
