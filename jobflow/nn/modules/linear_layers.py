"""Linear maps, dropout, and modules that change shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from jobflow.core.errors import ArgumentError, ShapeError, user_line
from jobflow.functional import nn_linear as F
from jobflow.functional import nn_noise as noise
from jobflow.functional.creation import empty
from jobflow.functional.nn_base import real
from jobflow.functional.shapes import flatten, reshape
from jobflow.functional.tensor_class import Tensor
from jobflow.nn import init
from jobflow.nn.modules.checked_layers import check_layers
from jobflow.nn.modules.module import Module
from jobflow.nn.modules.option_modules import OfOne, WithOptions
from jobflow.nn.parameter import Parameter

__all__ = [
    "AlphaDropout", "Bilinear", "CosineSimilarity", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "FeatureAlphaDropout", "Flatten", "Identity",
    "Linear", "PairwiseDistance", "Unflatten",
]  # fmt: skip


class Identity(Module):
    """A module that returns its input; constructor arguments are ignored."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__()

    def forward(self, input: Any) -> Any:
        return input


class Linear(Module):
    """A linear map y = x weight^T + bias; weight is [out_features, in_features].

    Examples:
        >>> layer = nn.Linear(20, 30)
        >>> layer(flow.randn(128, 20)).shape
        jobflow.Size([128, 30])
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = Parameter(empty(out_features, in_features, device=device, dtype=dtype))
        self.register_parameter("bias", Parameter(empty(out_features, device=device, dtype=dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize weight and bias with samples of U[-b, b), b = 1 / sqrt(in_features)."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            bound = 1 / math.sqrt(self.in_features) if self.in_features else 0.0
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class Bilinear(Module):
    """A bilinear map y = x1^T weight x2 + bias; weight is [out_features, in1_features, in2_features]."""

    def __init__(self, in1_features: int, in2_features: int, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.in1_features, self.in2_features, self.out_features = in1_features, in2_features, out_features
        self.weight = Parameter(empty(out_features, in1_features, in2_features, device=device, dtype=dtype))
        self.register_parameter("bias", Parameter(empty(out_features, device=device, dtype=dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize weight and bias with samples of U[-b, b), b = 1 / sqrt(in1_features)."""
        bound = 1 / math.sqrt(self.in1_features) if self.in1_features else 0.0
        init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input1: Tensor, input2: Tensor) -> Tensor:
        return F.bilinear(input1, input2, self.weight, self.bias)

    def extra_repr(self) -> str:
        sizes = f"in1_features={self.in1_features}, in2_features={self.in2_features}, out_features={self.out_features}"
        return f"{sizes}, bias={self.bias is not None}"


class Dropout(WithOptions, function=F.dropout):
    """Dropout in training: each element is set to 0 with probability p, and the other elements are divided by 1 - p.

    In evaluation mode, the input is unchanged. The mask is the same in every layout.  Raises: ArgumentError for p outside [0, 1].

    Examples:
        >>> layer = nn.Dropout(0.5).eval()  # in evaluation, the input
        >>> layer(flow.ones(3))
        tensor([1., 1., 1.], dtype=jobflow.float32)
    """

    p: float = 0.5
    inplace: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= real(type(self).__name__, "p", self.p) <= 1.0:
            raise ArgumentError(f"{type(self).__name__} at {user_line()}: p must be in [0, 1]; got {self.p}")

    def forward(self, input: Tensor) -> Tensor:
        return type(self).function(input, self.p, self.training, self.inplace)

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}"


class Dropout1d(Dropout, function=F.dropout1d): ...


class Dropout2d(Dropout, function=F.dropout2d): ...


class Dropout3d(Dropout, function=F.dropout3d): ...


class AlphaDropout(Dropout, function=noise.alpha_dropout): ...


class FeatureAlphaDropout(Dropout, function=noise.feature_alpha_dropout): ...


class Flatten(OfOne, function=flatten):
    """A module that merges the axes from `start_dim` to `end_dim`, both included; by default, all axes after the first.

    Examples:
        >>> nn.Flatten()(flow.randn(8, 16, 4, 4)).shape
        jobflow.Size([8, 256])
    """

    start_dim: int = 1
    end_dim: int = -1


class Unflatten(Module):
    """A module that splits axis `dim` into axes of the sizes `unflattened_size`; one size may be -1."""

    def __init__(self, dim: int, unflattened_size: Sequence[int]) -> None:
        super().__init__()
        if isinstance(dim, str):
            raise ArgumentError(f"Unflatten at {user_line()}: dim {dim!r} is a name, and axes have no names here; pass the number of the axis")
        self.dim, self.unflattened_size = dim, tuple(unflattened_size)

    def forward(self, input: Tensor) -> Tensor:
        if not -input.ndim <= self.dim < input.ndim:
            raise ShapeError(f"Unflatten at {user_line()}: dim {self.dim} is out of range for {input.tensor_type}")
        axis, shape = self.dim % input.ndim, tuple(input.shape)
        known = math.prod(n for n in self.unflattened_size if n != -1)
        sizes = tuple(shape[axis] // max(known, 1) if n == -1 else n for n in self.unflattened_size)
        if math.prod(sizes) != shape[axis]:
            raise ShapeError(f"Unflatten at {user_line()}: axis {axis} of {input.tensor_type} cannot be divided into {list(self.unflattened_size)}")
        return reshape(input, (*shape[:axis], *sizes, *shape[axis + 1 :]))

    def extra_repr(self) -> str:
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"


class CosineSimilarity(WithOptions, function=F.cosine_similarity):
    """The cosine of the angle between x1 and x2 along the axis `dim`; a norm below `eps` is replaced by `eps`."""

    dim: int = 1
    eps: float = 1e-8

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return F.cosine_similarity(x1, x2, self.dim, self.eps)


class PairwiseDistance(Module):
    """The distance of x1 and x2 along the last axis: the p-norm of x1 - x2 + eps."""

    def __init__(self, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> None:
        super().__init__()
        self.norm, self.eps, self.keepdim = p, eps, keepdim

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return F.pairwise_distance(x1, x2, self.norm, self.eps, self.keepdim)


check_layers(globals())
