"""Ready-made parametrizations: weights normalized by their norms or their largest singular value, and orthogonal weights."""

from __future__ import annotations

from jobflow.core.errors import ArgumentError, ShapeError, user_line
from jobflow.functional import nn_weights as weights
from jobflow.functional.nn_base import flag, one_of, real, whole
from jobflow.functional.sampling import randn
from jobflow.functional.shapes import axis_of
from jobflow.functional.tensor_class import Tensor
from jobflow.nn.modules.computed_attributes import parameter_of
from jobflow.nn.modules.conv_layers import ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from jobflow.nn.modules.module import Module
from jobflow.nn.utils.orthogonal_maps import Householder, OrthogonalMap, Trivialized
from jobflow.nn.utils.parametrize import is_parametrized, register_parametrization
from jobflow.tensors.state import gradients

__all__ = ["orthogonal", "spectral_norm", "weight_norm"]


class _WeightNorm(Module):
    """The map of a norm g and a direction v to g * v / |v|."""

    def __init__(self, dim: int | None) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, weight_g: Tensor, weight_v: Tensor) -> Tensor:
        return weights.scaled_to(weight_v, weight_g, self.dim)

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        return weights.norm_except(weight, self.dim), weight


def norm_axis(what: str, weight: Tensor, dim: int | None) -> int | None:
    """Return the axis of `weight_norm`; None and -1 select a single norm of the whole weight, as in PyTorch."""
    return None if dim is None or whole(what, "dim", dim) == -1 else axis_of(what, dim, weight.ndim)


def weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    """Parametrize a weight as g * v / |v|, with one norm per index of axis `dim`, and return the module (Salimans and Kingma 2016).

    The originals are the norms, `parametrizations.weight.original0`, and the directions, `original1`.  `dim=None` selects one norm for all.
    Raises: ArgumentError unless the module has the parameter, AxisError for a `dim` out of range.
    """
    axis = norm_axis("weight_norm", _weight("weight_norm", module, name), dim)
    return register_parametrization(module, name, _WeightNorm(axis), unsafe=True)


def _weight(what: str, module: Module, name: str) -> Tensor:
    if isinstance(module, Module) and is_parametrized(module, name):
        result: Tensor = getattr(module, name)
        return result
    return parameter_of(what, module, name)


def initial_vectors(weight: Tensor, matrix: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return random vectors of length 1 for the rows and the columns of the matrix, on the device or placement of the weight."""
    u, v = (weights.over_norm(randn(size, dtype=weight.dtype, device=weight.device), eps) for size in matrix.shape)
    return u, v


class SpectralNorm(Module):
    """The map of a weight to the weight divided by its largest singular value, estimated by power iteration (Miyato et al. 2018).

    Each call in training makes `n_power_iterations` steps, and updates the singular vectors in the buffers `_u` and `_v`.
    """

    def __init__(self, weight: Tensor, n_power_iterations: int = 1, dim: int = 0, eps: float = 1e-12) -> None:
        super().__init__()
        what = "spectral_norm"
        if whole(what, "n_power_iterations", n_power_iterations) < 1:
            raise ArgumentError(f"{what} at {user_line()}: n_power_iterations must be at least 1; got {n_power_iterations}")
        if not weight.ndim:
            raise ShapeError(f"{what} at {user_line()}: the weight {weight.tensor_type} must have at least one axis")
        self.dim, self.eps, self.n_power_iterations = axis_of(what, dim, weight.ndim), real(what, "eps", eps), n_power_iterations
        if weight.ndim > 1:
            with gradients(False):
                matrix = weights.as_matrix(weight.detach(), self.dim)
                u, v = initial_vectors(weight, matrix, self.eps)
                for _ in range(15):
                    u, v = self._step(matrix, v)
            self.register_buffer("_u", u)
            self.register_buffer("_v", v)

    def _step(self, matrix: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        u = weights.power_step(matrix, v, False, self.eps)
        return u, weights.power_step(matrix, u, True, self.eps)

    def forward(self, weight: Tensor) -> Tensor:
        if weight.ndim == 1:
            return weights.over_norm(weight, self.eps)
        matrix = weights.as_matrix(weight, self.dim)
        u, v = self._u, self._v
        if self.training:
            with gradients(False):
                fixed = matrix.detach()
                for _ in range(self.n_power_iterations):
                    u, v = self._step(fixed, v)
                self._u.copy_(u)
                self._v.copy_(v)
        return weights.over_singular_value(weight, matrix, u, v)

    def right_inverse(self, value: Tensor) -> Tensor:
        return value


def spectral_axis(module: Module, dim: int | None) -> int:
    """Return `dim`, by default the axis of the outputs: 1 for transposed convolutions, else 0."""
    return (1 if isinstance(module, ConvTranspose1d | ConvTranspose2d | ConvTranspose3d) else 0) if dim is None else dim


def spectral_norm(module: Module, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12, dim: int | None = None) -> Module:
    """Parametrize a weight as itself divided by its largest singular value, and return the module (Miyato et al. 2018).

    The singular vectors are estimated by `n_power_iterations` steps of power iteration per access in training.  `dim` is the axis of outputs.
    Raises: ArgumentError unless the module has the parameter, or for n_power_iterations < 1; AxisError for a `dim` out of range.
    """
    weight = _weight("spectral_norm", module, name)
    return register_parametrization(module, name, SpectralNorm(weight, n_power_iterations, spectral_axis(module, dim), eps))


def orthogonal(module: Module, name: str = "weight", orthogonal_map: str | None = None, *, use_trivialization: bool = True) -> Module:
    """Parametrize a matrix as one with orthonormal rows, or columns if it has more rows than columns, and return the module.

    `orthogonal_map` is "matrix_exp", "cayley" or "householder"; by default "matrix_exp" for square matrices, else "householder".
    With `use_trivialization`, a fixed orthogonal matrix is multiplied by the map.  Without it, only "householder" permits assignments.
    Raises: ArgumentError unless the module has the parameter; ShapeError unless it has at least two axes; ConfigError for an unknown map.
    """
    what = "orthogonal"
    weight = _weight(what, module, name)
    if weight.ndim < 2:
        raise ShapeError(f"{what} at {user_line()}: {name} {weight.tensor_type} must be a matrix, or several; it needs at least two axes")
    usual = "matrix_exp" if weight.shape[-2] == weight.shape[-1] else "householder"
    kind = one_of(what, "orthogonal_map", usual if orthogonal_map is None else orthogonal_map, ("matrix_exp", "cayley", "householder"))
    map: Module
    if flag(what, "use_trivialization", use_trivialization):
        map = Trivialized(kind, weight)
    else:
        map = Householder(kind) if kind == "householder" else OrthogonalMap(kind)
    return register_parametrization(module, name, map, unsafe=True)
