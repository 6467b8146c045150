"""Activation modules, which call functions of `jobflow.functional.nn_activations` with their attributes as options."""

from __future__ import annotations

from typing import Any

from jobflow.core.errors import ShapeError, user_line
from jobflow.functional import nn_activations as F
from jobflow.functional import nn_noise as noise
from jobflow.functional.creation import full
from jobflow.functional.tensor_class import Tensor
from jobflow.nn.modules.checked_layers import check_layers
from jobflow.nn.modules.module import Module
from jobflow.nn.modules.option_modules import OfOne, WithOptions
from jobflow.nn.parameter import Parameter

__all__ = [
    "CELU", "ELU", "GELU", "GLU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "LeakyReLU", "LogSigmoid", "LogSoftmax", "Mish", "PReLU",
    "QuickGELU", "RReLU", "ReLU", "ReLU6", "SELU", "SiLU", "Sigmoid", "Softmax", "Softmax2d", "Softmin", "Softplus", "Softshrink", "Softsign",
    "Tanh", "Tanhshrink", "Threshold",
]  # fmt: skip


class _InPlace(OfOne, shared=True):
    inplace: bool = False


class ReLU(_InPlace, function=F.relu): ...


class ReLU6(_InPlace, function=F.relu6): ...


class SiLU(_InPlace, function=F.silu): ...


class SELU(_InPlace, function=F.selu): ...


class LeakyReLU(OfOne, function=F.leaky_relu):
    negative_slope: float = 0.01
    inplace: bool = False


class ELU(OfOne, function=F.elu):
    alpha: float = 1.0
    inplace: bool = False


class CELU(ELU, function=F.celu): ...


class GELU(OfOne, function=F.gelu):
    approximate: str = "none"


class QuickGELU(OfOne, function=F.quick_gelu): ...


class Sigmoid(OfOne, function=F.sigmoid): ...


class Tanh(OfOne, function=F.tanh):
    """The hyperbolic tangent, tanh x."""


class Softsign(OfOne, function=F.softsign): ...


class LogSigmoid(OfOne, function=F.logsigmoid): ...


class Hardsigmoid(_InPlace, function=F.hardsigmoid): ...


class Hardswish(_InPlace, function=F.hardswish): ...


class Mish(_InPlace, function=F.mish): ...


class Tanhshrink(OfOne, function=F.tanhshrink): ...


class Softplus(OfOne, function=F.softplus):
    beta: float = 1.0
    threshold: float = 20.0


class Hardtanh(OfOne, function=F.hardtanh):
    min_val: float = -1.0
    max_val: float = 1.0
    inplace: bool = False


class Threshold(OfOne, function=F.threshold):
    threshold: float
    value: float
    inplace: bool = False


class Hardshrink(OfOne, function=F.hardshrink):
    lambd: float = 0.5


class Softshrink(Hardshrink, function=F.softshrink): ...


class GLU(OfOne, function=F.glu):
    dim: int = -1


class Softmax(OfOne, function=F.softmax):
    dim: int | None = None


class LogSoftmax(Softmax, function=F.log_softmax): ...


class Softmin(Softmax, function=F.softmin): ...


class Softmax2d(Module):
    """The softmax over the channels of images [n, c, h, w] or [c, h, w]."""

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim not in (3, 4):
            raise ShapeError(f"Softmax2d at {user_line()}: input {input.tensor_type} must be [n, channels, h, w] or [channels, h, w]")
        return F.softmax(input, input.ndim - 3)


class RReLU(WithOptions, function=noise.rrelu):
    """Leaky ReLU with a random slope from U[lower, upper) per element in training, and their mean in evaluation (Xu et al. 2015)."""

    lower: float = 1.0 / 8
    upper: float = 1.0 / 3
    inplace: bool = False

    def forward(self, input: Tensor) -> Tensor:
        return type(self).function(input, self.lower, self.upper, self.training, self.inplace)


class PReLU(Module):
    """Parametric ReLU, y = x for x > 0, else weight * x (He et al. 2015).

    `num_parameters` is 1 for a single learned weight, or the number of channels; `init` is the initial weight.
    """

    def __init__(self, num_parameters: int = 1, init: float = 0.25, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.num_parameters = num_parameters
        self.weight = Parameter(full((num_parameters,), float(init), device=device, dtype=dtype))

    def forward(self, input: Tensor) -> Tensor:
        return F.prelu(input, self.weight)

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}"


check_layers(globals())
