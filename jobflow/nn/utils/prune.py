"""Pruning: masks of parameters, which replace elements by zero."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from jobflow.core.errors import ArgumentError, ShapeError, user_line
from jobflow.functional.creation import ones_like
from jobflow.functional.nn_base import whole
from jobflow.functional.sampling import rand_like
from jobflow.functional.shapes import axis_of, reshape
from jobflow.functional.sorting import argsort
from jobflow.functional.tensor_class import Tensor
from jobflow.nn.modules.computed_attributes import compute, parameter_of, release, rule_of, rules_of
from jobflow.nn.modules.module import Module
from jobflow.nn.parameter import Parameter
from jobflow.tensors.state import gradients

__all__ = [
    "custom_from_mask", "identity", "is_pruned", "l1_unstructured", "ln_structured", "random_structured", "random_unstructured", "remove",
]  # fmt: skip


@dataclass(frozen=True)
class _Pruned:
    """The rule that computes a pruned parameter as the product of `<name>_orig` and `<name>_mask`."""

    def value(self, module: Module, name: str) -> Tensor:
        original: Tensor = getattr(module, f"{name}_orig")
        return original * getattr(module, f"{name}_mask")

    def assign(self, module: Module, name: str, value: Tensor) -> None:
        raise ArgumentError(
            f"{type(module).__name__}.{name} at {user_line()}: a pruned parameter cannot be assigned; change {name}_orig or {name}_mask"
        )


def _current(what: str, module: Any, name: Any) -> tuple[Tensor, Tensor]:
    """Return the parameter without its mask, and the mask, which is ones for a parameter that is not pruned."""
    if isinstance(rule_of(module, name), _Pruned):
        return getattr(module, f"{name}_orig"), getattr(module, f"{name}_mask")
    parameter = parameter_of(what, module, name)
    return parameter, ones_like(parameter.detach())


def _apply(module: Module, name: str, parameter: Tensor, mask: Tensor) -> Module:
    """Multiply the parameter `name` by `mask` at each access, and return the module; `parameter` becomes `<name>_orig`."""
    if isinstance(rule_of(module, name), _Pruned):
        with gradients(False):
            getattr(module, f"{name}_mask").copy_(mask)
        return module
    compute(module, name, _Pruned())
    if isinstance(parameter, Parameter):
        module.register_parameter(f"{name}_orig", parameter)
    else:
        module.register_buffer(f"{name}_orig", parameter)
    module.register_buffer(f"{name}_mask", mask.detach().clone())
    return module


def _check_shape(what: str, name: str, x: Any, parameter: Tensor) -> None:
    if not isinstance(x, Tensor) or x.tensor_type.shape != parameter.tensor_type.shape:
        shown = x.tensor_type if isinstance(x, Tensor) else repr(x)
        raise ShapeError(f"{what} at {user_line()}: {name} {shown} must be a tensor with the shape of the parameter {parameter.tensor_type}")


def _count(what: str, amount: Any, size: int) -> int:
    """Return the number of elements to prune: the int `amount`, or a fraction of `size` rounded to the nearest int."""
    if isinstance(amount, bool) or not isinstance(amount, int | float | np.number) or not amount >= 0 or not math.isfinite(amount):
        raise ArgumentError(f"{what} at {user_line()}: amount must be a fraction from 0 to 1, or a number of elements; got {amount!r}")
    if isinstance(amount, float | np.floating):
        if amount > 1:
            raise ArgumentError(f"{what} at {user_line()}: a fraction must be at most 1; got amount {amount}; pass an int for a number of elements")
        return round(float(amount) * size)
    if amount > size:
        raise ArgumentError(f"{what} at {user_line()}: amount {amount} exceeds the number of elements, {size}; pass a smaller amount")
    return int(amount)


def _lowest(scores: Tensor, mask: Tensor, count: int) -> Tensor:
    """Return the mask with 0 also at the `count` unmasked elements with the lowest scores; scores and mask are vectors."""
    order = argsort(argsort(scores.masked_fill(mask == 0, math.inf), 0), 0)
    return mask * (order >= count).to(mask.dtype)


def _unstructured(what: str, module: Module, name: str, amount: Any, scores: Any) -> Module:
    with gradients(False):
        parameter, mask = _current(what, module, name)
        flat = reshape(mask, (-1,))
        remaining = round(float(flat.sum().item()))
        count = _count(what, amount, remaining)
        pruned = _lowest(reshape(scores(parameter.detach()), (-1,)), flat, count)
        mask = reshape(pruned, tuple(parameter.shape))
    return _apply(module, name, parameter, mask)


def l1_unstructured(module: Module, name: str, amount: int | float, importance_scores: Tensor | None = None) -> Module:
    """Mask the elements of the parameter `name` with the smallest absolute values, or scores, and return the module.

    `amount` is a fraction of the elements that are not masked yet, or their number.  The original becomes the parameter `<name>_orig`, and the
    mask the buffer `<name>_mask`.
    Raises: ArgumentError unless the module has the parameter, or for an invalid amount.
    """
    return _unstructured("l1_unstructured", module, name, amount, _scores("l1_unstructured", importance_scores))


def _scores(what: str, importance: Tensor | None) -> Any:
    def scores(parameter: Tensor) -> Tensor:
        if importance is None:
            return parameter.abs()
        _check_shape(what, "importance_scores", importance, parameter)
        return importance.detach().to(parameter.dtype)

    return scores


def random_unstructured(module: Module, name: str, amount: int | float) -> Module:
    """Mask random elements of the parameter `name`, and return the module; see `l1_unstructured`."""
    return _unstructured("random_unstructured", module, name, amount, rand_like)


def _structured(what: str, module: Module, name: str, amount: Any, dim: int, scores: Any) -> Module:
    with gradients(False):
        parameter, mask = _current(what, module, name)
        axis = axis_of(what, dim, parameter.ndim)
        others = tuple(i for i in range(parameter.ndim) if i != axis)
        channels = mask.amax(others) if others else mask
        count = _count(what, amount, parameter.shape[axis])
        values = scores(parameter.detach())
        remaining = _lowest(scores_of_channels(values, others), channels, count)
        shape = [1] * parameter.ndim
        shape[axis] = -1
        mask = mask * reshape(remaining, tuple(shape))
    return _apply(module, name, parameter, mask)


def scores_of_channels(values: Tensor, others: tuple[int, ...]) -> Tensor:
    """Return the sums of the scores over the axes `others`."""
    return values.sum(others) if others else values


def ln_structured(module: Module, name: str, amount: int | float, n: float, dim: int, importance_scores: Tensor | None = None) -> Module:
    """Mask the slices of the parameter `name` along axis `dim` with the smallest n-norms, and return the module; see `l1_unstructured`."""
    what = "ln_structured"
    if isinstance(n, bool) or not isinstance(n, int | float) or not (n > 0 and math.isfinite(n)):
        raise ArgumentError(f"{what} at {user_line()}: n must be a positive number; got {n!r}")
    inner = _scores(what, importance_scores)
    return _structured(what, module, name, amount, dim, lambda parameter: inner(parameter).abs() ** n)


def random_structured(module: Module, name: str, amount: int | float, dim: int) -> Module:
    """Mask random slices of the parameter `name` along axis `dim`, and return the module; see `l1_unstructured`."""
    what = "random_structured"

    def scores(parameter: Tensor) -> Tensor:
        others = tuple(i for i in range(parameter.ndim) if i != axis_of(what, dim, parameter.ndim))
        means = rand_like(parameter).mean(others, keepdim=True) if others else rand_like(parameter)
        return means.expand(tuple(parameter.shape))

    return _structured(what, module, name, amount, whole(what, "dim", dim), scores)


def identity(module: Module, name: str) -> Module:
    """Prune no element of the parameter `name`, but register a mask of ones, and return the module."""
    return _apply(module, name, *_current("identity", module, name))


def custom_from_mask(module: Module, name: str, mask: Tensor) -> Module:
    """Mask the elements of the parameter `name` where `mask` is 0, in addition to an earlier mask, and return the module.

    Raises: ShapeError unless the mask has the shape of the parameter.
    """
    what = "custom_from_mask"
    parameter, before = _current(what, module, name)
    _check_shape(what, "mask", mask, parameter)
    with gradients(False):
        return _apply(module, name, parameter, before * mask.to(before.dtype))


def remove(module: Module, name: str) -> Module:
    """Make a pruned parameter an ordinary one, with zeros where it is masked, and return the module.  Raises: ArgumentError if it is not pruned."""
    if not isinstance(rule_of(module, name), _Pruned):
        raise ArgumentError(f"remove at {user_line()}: {type(module).__name__} has no pruned parameter {name!r}")
    original = getattr(module, f"{name}_orig")
    with gradients(False):
        value = getattr(module, name).detach()
        original.copy_(value)
    delattr(module, f"{name}_orig")
    delattr(module, f"{name}_mask")
    release(module, name, original)
    return module


def is_pruned(module: Module) -> bool:
    """Return True if a parameter of the module, or of a submodule, is pruned."""
    if not isinstance(module, Module):
        raise ArgumentError(f"is_pruned at {user_line()}: module must be an nn.Module; got {module!r}")
    return any(isinstance(rule, _Pruned) for each in module.modules() for rule in rules_of(each).values())
