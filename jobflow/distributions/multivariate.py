"""The normal distribution of vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jobflow.core.errors import ArgumentError, ShapeError, user_line
from jobflow.distributions.distribution import Distribution, checked_shape, gaussian
from jobflow.distributions.divergence import register_kl
from jobflow.functional.matrix_factors import cholesky, inv, solve_triangular
from jobflow.functional.promotion import as_float
from jobflow.functional.tensor_class import Tensor


def _square(factor: Tensor, x: Tensor) -> Tensor:
    """Return the squared norm of factor^-1 x for vectors x along the last axis."""
    batch = np.broadcast_shapes(tuple(factor.shape)[:-2], tuple(x.shape)[:-1])
    size = x.shape[-1]
    solved = solve_triangular(factor.expand(*batch, size, size), x.expand(*batch, size).unsqueeze(-1), upper=False)
    return (solved**2).sum((-2, -1))


class MultivariateNormal(Distribution):
    """The normal distribution of vectors with mean `loc`, and exactly one of `covariance_matrix`, `precision_matrix` and `scale_tril`.

    `precision_matrix` is the inverse of the covariance matrix, and `scale_tril` its Cholesky factor.
    """

    has_rsample = True
    PARAMETERS = ("loc", "scale_tril")

    def __init__(
        self, loc: Any, covariance_matrix: Any = None, precision_matrix: Any = None, scale_tril: Any = None, validate_args: bool | None = None
    ) -> None:
        what = self._what()
        matrices = {"covariance_matrix": covariance_matrix, "precision_matrix": precision_matrix, "scale_tril": scale_tril}
        passed = [name for name, x in matrices.items() if x is not None]
        if len(passed) != 1:
            raise ArgumentError(f"{what} at {user_line()}: pass one of {', '.join(matrices)}; got {', '.join(passed) or 'none'}")
        matrix = matrices[passed[0]]
        if not isinstance(loc, Tensor) or not isinstance(matrix, Tensor):
            raise ArgumentError(f"{what} at {user_line()}: loc and {passed[0]} must be tensors; convert them with flow.tensor")
        size = tuple(loc.shape)[-1:]
        if not size or matrix.ndim < 2 or tuple(matrix.shape)[-2:] != (*size, *size):
            raise ShapeError(f"{what} at {user_line()}: {passed[0]} {matrix.tensor_type} must be [..., n, n] for loc {loc.tensor_type} [..., n]")
        try:
            batch = np.broadcast_shapes(tuple(loc.shape)[:-1], tuple(matrix.shape)[:-2])
        except ValueError:
            raise ShapeError(
                f"{what} at {user_line()}: the leading axes of loc {loc.tensor_type} and {passed[0]} {matrix.tensor_type} must broadcast"
            ) from None
        super().__init__(batch, size, validate_args)
        matrix = as_float(matrix)
        factor = matrix if passed[0] == "scale_tril" else cholesky(inv(matrix) if passed[0] == "precision_matrix" else matrix)
        self.loc, self.scale_tril = self._asserted("loc", as_float(loc).expand(*batch, *size)), factor.expand(*batch, *size, *size)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> MultivariateNormal:
        shape = checked_shape(self._what("expand"), batch_shape)
        factor = self.scale_tril.expand(*shape, *self.event_shape, *self.event_shape)
        return MultivariateNormal(self.loc.expand(*shape, *self.event_shape), scale_tril=factor, validate_args=self._validate_args)

    @property
    def covariance_matrix(self) -> Tensor:
        """The covariance matrix."""
        return self.scale_tril @ self.scale_tril.transpose(-2, -1)

    @property
    def precision_matrix(self) -> Tensor:
        """The inverse of the covariance matrix."""
        return inv(self.covariance_matrix)

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        return (self.scale_tril**2).sum(-1)

    @property
    def half_log_determinant(self) -> Tensor:
        """Half of the logarithm of the determinant of the covariance matrix."""
        return self.scale_tril.diagonal(0, -2, -1).log().sum(-1)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        noise = gaussian(self.loc, self._extended_shape(sample_shape))
        return self.loc + (self.scale_tril @ noise.unsqueeze(-1)).squeeze(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        distance = _square(self.scale_tril, self._value("log_prob", value) - self.loc)
        return -0.5 * (self.event_shape[0] * math.log(2 * math.pi) + distance) - self.half_log_determinant

    def entropy(self) -> Tensor:
        return self.half_log_determinant + 0.5 * self.event_shape[0] * (1.0 + math.log(2 * math.pi))


@register_kl(MultivariateNormal, MultivariateNormal)
def _multivariate(p: MultivariateNormal, q: MultivariateNormal) -> Tensor:
    if p.event_shape != q.event_shape:
        raise ShapeError(f"kl_divergence at {user_line()}: event shapes {list(p.event_shape)} and {list(q.event_shape)} must be equal")
    batch, size = np.broadcast_shapes(tuple(p.batch_shape), tuple(q.batch_shape)), p.event_shape[0]
    factors = [x.scale_tril.expand(*batch, size, size) for x in (q, p)]
    trace = (solve_triangular(*factors, upper=False) ** 2).sum((-2, -1))
    return q.half_log_determinant - p.half_log_determinant + 0.5 * (trace + _square(q.scale_tril, q.loc - p.loc) - size)
