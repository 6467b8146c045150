"""Activations as modules: the functions of `jobflow.functional.nn_activations`, with their options as attributes."""

from __future__ import annotations

from typing import Any

from jobflow.eager.tensor import Tensor
from jobflow.functional import nn_activations as F
from jobflow.functional.creation import full
from jobflow.nn.modules.module import Module
from jobflow.nn.modules.option_modules import OfOne
from jobflow.nn.parameter import Parameter

__all__ = [
    "CELU", "ELU", "GELU", "GLU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "LeakyReLU", "LogSigmoid", "LogSoftmax", "Mish", "PReLU",
    "QuickGELU", "ReLU", "ReLU6", "SELU", "SiLU", "Sigmoid", "Softmax", "Softmin", "Softplus", "Softshrink", "Softsign", "Tanh", "Tanhshrink",
    "Threshold",
]  # fmt: skip


class _InPlace(OfOne, shared=True):
    inplace: bool = False


class ReLU(_InPlace, function=F.relu):
    """max(x, 0)"""


class ReLU6(_InPlace, function=F.relu6):
    """x limited to [0, 6]"""


class SiLU(_InPlace, function=F.silu):
    """x sigmoid(x)"""


class SELU(_InPlace, function=F.selu):
    """1.0507 elu(x, 1.67326)"""


class LeakyReLU(OfOne, function=F.leaky_relu):
    """x where x > 0, else negative_slope x"""

    negative_slope: float = 0.01
    inplace: bool = False


class ELU(OfOne, function=F.elu):
    """x where x > 0, else alpha (e^x - 1)"""

    alpha: float = 1.0
    inplace: bool = False


class CELU(ELU, function=F.celu):
    """x where x > 0, else alpha (e^(x / alpha) - 1)"""


class GELU(OfOne, function=F.gelu):
    """x Phi(x) with the normal distribution Phi, or the formula by tanh"""

    approximate: str = "none"


class QuickGELU(OfOne, function=F.quick_gelu):
    """x sigmoid(1.702 x)"""


class Sigmoid(OfOne, function=F.sigmoid):
    """1 / (1 + e^-x)"""


class Tanh(OfOne, function=F.tanh):
    """tanh x"""


class Softsign(OfOne, function=F.softsign):
    """x / (1 + |x|)"""


class LogSigmoid(OfOne, function=F.logsigmoid):
    """-ln(1 + e^-x)"""


class Hardsigmoid(_InPlace, function=F.hardsigmoid):
    """x/6 + 1/2 limited to [0, 1]"""


class Hardswish(_InPlace, function=F.hardswish):
    """x/6 times x + 3 limited to [0, 6]"""


class Mish(_InPlace, function=F.mish):
    """x tanh(ln(1 + e^x))"""


class Tanhshrink(OfOne, function=F.tanhshrink):
    """x - tanh x"""


class Softplus(OfOne, function=F.softplus):
    """ln(1 + e^(beta x)) / beta; x itself where beta x > threshold"""

    beta: float = 1.0
    threshold: float = 20.0


class Hardtanh(OfOne, function=F.hardtanh):
    """x limited to [min_val, max_val]"""

    min_val: float = -1.0
    max_val: float = 1.0
    inplace: bool = False


class Threshold(OfOne, function=F.threshold):
    """x where x > threshold, else value"""

    threshold: float
    value: float
    inplace: bool = False


class Hardshrink(OfOne, function=F.hardshrink):
    """x where |x| > lambd, else 0"""

    lambd: float = 0.5


class Softshrink(Hardshrink, function=F.softshrink):
    """x brought nearer to 0 by lambd, and 0 within that"""


class GLU(OfOne, function=F.glu):
    """a sigmoid(b), a and b being the halves of x along `dim`"""

    dim: int = -1


class Softmax(OfOne, function=F.softmax):
    """e^x / sum e^x along `dim`"""

    dim: int | None = None


class LogSoftmax(Softmax, function=F.log_softmax):
    """Logarithm of the softmax along `dim`"""


class Softmin(Softmax, function=F.softmin):
    """softmax of -x along `dim`"""


class PReLU(Module):
    """x where x > 0, else weight x, which is learnt: one weight, or one per channel"""

    def __init__(self, num_parameters: int = 1, init: float = 0.25, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.num_parameters = num_parameters
        self.weight = Parameter(full((num_parameters,), float(init), device=device, dtype=dtype))

    def forward(self, input: Tensor) -> Tensor:
        return F.prelu(input, self.weight)

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}"
