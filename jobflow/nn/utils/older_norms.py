"""Weight and spectral normalization under PyTorch's older names, with the parameters `weight_g`, `weight_v` or `weight_orig` of the module itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jobflow.core.errors import ArgumentError, ShapeError, user_line
from jobflow.functional import nn_weights as weights
from jobflow.functional.nn_base import real, whole
from jobflow.functional.shapes import axis_of
from jobflow.functional.tensor_class import Tensor
from jobflow.nn.modules.computed_attributes import compute, parameter_of, release, rule_of
from jobflow.nn.modules.module import Module
from jobflow.nn.parameter import Parameter
from jobflow.nn.utils.parametrizations import initial_vectors, norm_axis, spectral_axis
from jobflow.tensors.state import gradients


class _Fixed:
    """A rule whose attribute cannot be assigned."""

    def assign(self, module: Module, name: str, value: Tensor) -> None:
        raise ArgumentError(
            f"{type(module).__name__}.{name} at {user_line()}: the attribute is computed from other parameters; assign those, or remove the "
            f"normalization first"
        )


@dataclass(frozen=True)
class _WeightNorm(_Fixed):
    """The rule that computes g * v / |v| from the parameters `<name>_g` and `<name>_v`."""

    dim: int | None

    def value(self, module: Module, name: str) -> Tensor:
        return weights.scaled_to(getattr(module, f"{name}_v"), getattr(module, f"{name}_g"), self.dim)


@dataclass(frozen=True)
class _SpectralNorm(_Fixed):
    """The rule that divides the parameter `<name>_orig` by its largest singular value, with the singular vectors `<name>_u` and `<name>_v`."""

    dim: int
    steps: int
    eps: float

    def value(self, module: Module, name: str) -> Tensor:
        weight: Tensor = getattr(module, f"{name}_orig")
        u, v = getattr(module, f"{name}_u"), getattr(module, f"{name}_v")
        matrix = weights.as_matrix(weight, self.dim)
        if module.training:
            with gradients(False):
                fixed = matrix.detach()
                for _ in range(self.steps):
                    v = weights.power_step(fixed, u, True, self.eps)
                    u = weights.power_step(fixed, v, False, self.eps)
                getattr(module, f"{name}_u").copy_(u)
                getattr(module, f"{name}_v").copy_(v)
        return weights.over_singular_value(weight, matrix, u, v)


def _part(module: Module, name: str, weight: Tensor, value: Tensor) -> None:
    """Register `value` as a parameter of the module if `weight` is one, else as a buffer."""
    if isinstance(weight, Parameter):
        module.register_parameter(name, Parameter(value.detach().clone(), bool(weight.requires_grad)))
    else:
        module.register_buffer(name, value.detach().clone())


def weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    """Replace a weight by g * v / |v| with parameters `<name>_g` and `<name>_v`, and return the module (Salimans and Kingma 2016).

    There is one norm per index of axis `dim`, or a single one for None.
    Raises: ArgumentError unless the module has the parameter, AxisError for a `dim` out of range.
    """
    what = "weight_norm"
    weight = parameter_of(what, module, name)
    axis = norm_axis(what, weight, dim)
    with gradients(False):
        norm = weights.norm_except(weight.detach(), axis)
    compute(module, name, _WeightNorm(axis))
    _part(module, f"{name}_g", weight, norm)
    _part(module, f"{name}_v", weight, weight)
    return module


def spectral_norm(module: Module, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12, dim: int | None = None) -> Module:
    """Divide a weight by its largest singular value at each access, and return the module (Miyato et al. 2018).

    The weight becomes the parameter `<name>_orig`.  The singular vectors are the buffers `<name>_u` and `<name>_v`, which `n_power_iterations` steps
    per access update in training.
    Raises: ArgumentError unless the module has the parameter, or for n_power_iterations < 1; AxisError for a `dim` out of range.
    """
    what = "spectral_norm"
    weight = parameter_of(what, module, name)
    if whole(what, "n_power_iterations", n_power_iterations) < 1:
        raise ArgumentError(f"{what} at {user_line()}: n_power_iterations must be at least 1; got {n_power_iterations}")
    if not weight.ndim:
        raise ShapeError(f"{what} at {user_line()}: the weight {weight.tensor_type} must have at least one axis")
    rule = _SpectralNorm(axis_of(what, spectral_axis(module, dim), weight.ndim), n_power_iterations, real(what, "eps", eps))
    with gradients(False):
        u, v = initial_vectors(weight, weights.as_matrix(weight.detach(), rule.dim), rule.eps)
    compute(module, name, rule)
    _part(module, f"{name}_orig", weight, weight)
    module.register_buffer(f"{name}_u", u)
    module.register_buffer(f"{name}_v", v)
    return module


def _removed(what: str, module: Module, name: str, kind: type[Any], *parts: str) -> Module:
    if not isinstance(rule_of(module, name), kind):
        raise ArgumentError(f"{what} at {user_line()}: {type(module).__name__} has no {what.removeprefix('remove_')} of {name!r}")
    first = getattr(module, f"{name}{parts[0]}")
    training = module.training
    try:
        object.__setattr__(module, "training", False)  # the last singular vectors
        with gradients(False):
            value = getattr(module, name).detach().clone()
    finally:
        object.__setattr__(module, "training", training)
    for part in parts:
        delattr(module, f"{name}{part}")
    release(module, name, Parameter(value, bool(first.requires_grad)) if isinstance(first, Parameter) else value)
    return module


def remove_weight_norm(module: Module, name: str = "weight") -> Module:
    """Make a normalized weight an ordinary parameter with its value, and return the module.  Raises: ArgumentError without `weight_norm`."""
    return _removed("remove_weight_norm", module, name, _WeightNorm, "_g", "_v")


def remove_spectral_norm(module: Module, name: str = "weight") -> Module:
    """Make a normalized weight an ordinary parameter with its value, and return the module.  Raises: ArgumentError without `spectral_norm`."""
    return _removed("remove_spectral_norm", module, name, _SpectralNorm, "_orig", "_u", "_v")
