"""The layers of einops for jobflow: `Rearrange`, `Reduce` and `EinMix`, as `einops.layers.torch` has them for PyTorch."""

from __future__ import annotations

from typing import Any

from jobflow.core.extras import optional
from jobflow.functional.sampling import rand
from jobflow.functional.sorting import einsum
from jobflow.functional.tensor_class import Tensor
from jobflow.nn.modules.module import Module
from jobflow.nn.parameter import Parameter

__all__ = ["EinMix", "Rearrange", "Reduce"]

_layers = optional("einops.layers", "jobflow.utils.einops_layers")
_einmix = optional("einops.layers._einmix", "jobflow.utils.einops_layers")


class Rearrange(_layers.RearrangeMixin, Module):  # type: ignore[misc, name-defined]
    """`einops.rearrange` with a fixed pattern, as a module."""

    def forward(self, input: Tensor) -> Tensor:
        return self._apply_recipe(input)


class Reduce(_layers.ReduceMixin, Module):  # type: ignore[misc, name-defined]
    """`einops.reduce` with a fixed pattern, as a module."""

    def forward(self, input: Tensor) -> Tensor:
        return self._apply_recipe(input)


class EinMix(_einmix._EinmixMixin, Module):  # type: ignore[misc, name-defined]
    """A sum of products of the input and a weight over named axes, with an optional bias, as a module."""

    weight: Parameter
    bias: Parameter | None

    def _create_parameters(self, weight_shape: list[int], weight_bound: float, bias_shape: list[int] | None, bias_bound: float) -> None:
        self.weight = _uniform(weight_shape, weight_bound)
        self.bias = None if bias_shape is None else _uniform(bias_shape, bias_bound)

    def _create_rearrange_layers(
        self, pre_reshape_pattern: str | None, pre_reshape_lengths: Any, post_reshape_pattern: str | None, post_reshape_lengths: Any
    ) -> None:
        layer: Any = Rearrange
        self.pre_rearrange = None if pre_reshape_pattern is None else layer(pre_reshape_pattern, **pre_reshape_lengths)
        self.post_rearrange = None if post_reshape_pattern is None else layer(post_reshape_pattern, **post_reshape_lengths)

    def forward(self, input: Tensor) -> Tensor:
        x = input if self.pre_rearrange is None else self.pre_rearrange(input)
        y = einsum(self.einsum_pattern, x, self.weight)
        y = y if self.bias is None else y + self.bias
        return y if self.post_rearrange is None else self.post_rearrange(y)


def _uniform(shape: list[int], bound: float) -> Parameter:
    """Return a parameter with elements between -bound and bound."""
    return Parameter((2 * rand(*shape) - 1) * bound)
