"""Maps of matrices to matrices with orthonormal columns, or rows if there are fewer rows than columns."""

from __future__ import annotations

from typing import Any

import numpy as np

from jobflow.core.types import Array
from jobflow.functional.creation import cut, zeros_like
from jobflow.functional.creation import tensor as from_array
from jobflow.functional.global_tensors import value_of
from jobflow.functional.joining import cat
from jobflow.functional.linalg_functions import matrix_exp
from jobflow.functional.matrix_factors import solve
from jobflow.functional.tensor_class import Tensor
from jobflow.nn.modules.module import Module


def _tall(x: Any) -> Any:
    """Return the matrices, transposed if they have fewer rows than columns."""
    return x.transpose(-2, -1) if x.shape[-2] < x.shape[-1] else x


def _tall_values(x: Tensor) -> Array:
    """Return the values of all matrices as an array, transposed if they have fewer rows than columns."""
    values = value_of(x, "orthogonal")
    return np.swapaxes(values, -2, -1) if values.shape[-2] < values.shape[-1] else values


def _write(tensor: Tensor, values: Array) -> None:
    """Overwrite the tensor with the values, in its layout."""
    whole = np.ascontiguousarray(values, tensor.tensor_type.dtype.numpy)
    layout = tensor.layout
    tensor.copy_(from_array(whole) if layout is None else cut("orthogonal", whole, layout))


def _like(x: Tensor, values: Array) -> Tensor:
    """Return the values, of tall matrices, as a tensor with the shape and the placement of x."""
    result = zeros_like(x.detach())
    _write(result, values if values.shape == tuple(x.shape) else np.swapaxes(values, -2, -1))
    return result


def _unit(x: Tensor) -> Tensor:
    """Return identity matrices with the shape of x."""
    lower = x.detach() * 0 + 1
    return lower.tril() * lower.triu()


def _base(values: Array) -> Array:
    """Return square orthogonal matrices that begin with the orthonormalized columns; matrices that are orthogonal already are unchanged."""
    rows, columns = values.shape[-2:]
    gram = np.swapaxes(values, -2, -1) @ values
    if rows == columns and np.allclose(gram, np.eye(columns), atol=10 * rows * np.finfo(values.dtype).eps):
        return values
    more = np.random.default_rng(0).standard_normal((*values.shape[:-2], rows, rows - columns)).astype(values.dtype)
    q, r = np.linalg.qr(np.concatenate([values, more], -1))
    result: Array = q * np.sign(np.diagonal(r, axis1=-2, axis2=-1))[..., None, :]
    return result


def _exponential(x: Any, kind: str) -> Any:
    """Return the first columns of the exponential, or of the Cayley transform, of the skew-symmetric matrices with the lower triangles of x."""
    rows, columns = x.shape[-2:]
    lower = x.tril()
    if columns < rows:
        lower = cat([lower, zeros_like(lower[..., :1]).expand((*lower.shape[:-1], rows - columns))], -1)
    skew = lower - lower.transpose(-2, -1)
    if kind == "matrix_exp":
        return matrix_exp(skew)[..., :columns]
    unit = _unit(skew)
    return solve(unit - skew * 0.5, unit + skew * 0.5)[..., :columns]


def _reflections(x: Any) -> Any:
    """Return the first columns of the products of the Householder reflections whose vectors are below the diagonal of x.

    The diagonal has the signs of the columns.  The product is I - v f^-1 v^T.  Above its diagonal, f has the inner products of the vectors, and on
    the diagonal half of their squares.
    """
    columns, unit = x.shape[-1], _unit(x)
    v, square = x.tril(-1) + unit, unit[..., :columns, :]
    products = v.transpose(-2, -1) @ v
    factor = products.triu(1) + products * square * 0.5
    q = unit - v @ solve(factor, v[..., :columns, :].transpose(-2, -1))
    signs = x.detach()[..., :columns, :] * square
    return q * signs.sum(-2, keepdim=True).trunc()


class OrthogonalMap(Module):
    """The map of matrices to orthonormal columns or rows: "matrix_exp", "cayley" or "householder"."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def _columns(self, x: Any) -> Any:
        return _reflections(x) if self.kind == "householder" else _exponential(x, self.kind)

    def forward(self, weight: Tensor) -> Tensor:
        q = self._columns(_tall(weight))
        return q.transpose(-2, -1) if weight.shape[-2] < weight.shape[-1] else q


class Householder(OrthogonalMap):
    """The map "householder", which has an inverse."""

    def right_inverse(self, weight: Tensor) -> Tensor:
        h, tau = np.linalg.qr(_tall_values(weight), mode="raw")
        vectors = np.swapaxes(h, -2, -1).copy()
        diagonal = np.einsum("...ii->...i", vectors[..., : vectors.shape[-1], :])
        diagonal[...] = np.where(tau == 0, -1.0, 1.0) * np.sign(diagonal)
        return _like(weight, vectors)


class Trivialized(OrthogonalMap):
    """The product of a fixed orthogonal matrix, the buffer `base`, and the map of the parameter.

    `right_inverse` sets the buffer, and the parameter to a matrix that is mapped to the identity.
    """

    def __init__(self, kind: str, weight: Tensor) -> None:
        super().__init__(kind)
        first: Any = _tall(weight.detach())[..., :1]
        self.register_buffer("base", zeros_like(first).expand((*first.shape[:-1], first.shape[-2])).clone())

    def _columns(self, x: Any) -> Any:
        return self.base @ super()._columns(x)

    def right_inverse(self, weight: Tensor) -> Tensor:
        _write(self.base, _base(_tall_values(weight)))
        return _unit(weight) * -1.0
