"""Activations as modules: the functions of `jobflow.functional.nn_activations`, with their options as attributes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from jobflow.eager.tensor import Tensor
from jobflow.functional import nn_activations as F
from jobflow.functional.creation import full
from jobflow.nn.modules.module import Module
from jobflow.nn.parameter import Parameter


class _Activation(Module):
    """function(x, *options); a subclass names the function, and the options that are shown."""

    function: ClassVar[Callable[..., Tensor]]
    options: ClassVar[tuple[str, ...]] = ()

    def forward(self, input: Tensor) -> Tensor:
        return type(self).function(input, **{name: getattr(self, name) for name in self.options})

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in self.options)


class _InPlace(_Activation):
    """One that can write over its input."""

    options: ClassVar[tuple[str, ...]] = ("inplace",)

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def extra_repr(self) -> str:
        own = [f"{name}={getattr(self, name)!r}" for name in self.options if name != "inplace"]
        return ", ".join([*own, *(["inplace=True"] if self.inplace else [])])


class ReLU(_InPlace):
    """max(x, 0)"""

    function = staticmethod(F.relu)


class ReLU6(_InPlace):
    """x limited to [0, 6]"""

    function = staticmethod(F.relu6)


class SiLU(_InPlace):
    """x sigmoid(x)"""

    function = staticmethod(F.silu)


class SELU(_InPlace):
    """1.0507 elu(x, 1.67326)"""

    function = staticmethod(F.selu)


class LeakyReLU(_InPlace):
    """x where x > 0, else negative_slope x"""

    function = staticmethod(F.leaky_relu)
    options = ("negative_slope", "inplace")

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.negative_slope = negative_slope


class ELU(_InPlace):
    """x where x > 0, else alpha (e^x - 1)"""

    function = staticmethod(F.elu)
    options = ("alpha", "inplace")

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.alpha = alpha


class CELU(ELU):
    """x where x > 0, else alpha (e^(x / alpha) - 1)"""

    function = staticmethod(F.celu)


class GELU(_Activation):
    """x Phi(x) with the normal distribution Phi, or the formula by tanh"""

    function = staticmethod(F.gelu)
    options = ("approximate",)

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate


class QuickGELU(_Activation):
    """x sigmoid(1.702 x)"""

    function = staticmethod(F.quick_gelu)


class Sigmoid(_Activation):
    """1 / (1 + e^-x)"""

    function = staticmethod(F.sigmoid)


class Tanh(_Activation):
    """tanh x"""

    function = staticmethod(F.tanh)


class Softsign(_Activation):
    """x / (1 + |x|)"""

    function = staticmethod(F.softsign)


class LogSigmoid(_Activation):
    """-ln(1 + e^-x)"""

    function = staticmethod(F.logsigmoid)


class Hardsigmoid(_InPlace):
    """x/6 + 1/2 limited to [0, 1]"""

    function = staticmethod(F.hardsigmoid)


class Hardswish(_InPlace):
    """x/6 times x + 3 limited to [0, 6]"""

    function = staticmethod(F.hardswish)


class Mish(_InPlace):
    """x tanh(ln(1 + e^x))"""

    function = staticmethod(F.mish)


class Tanhshrink(_Activation):
    """x - tanh x"""

    function = staticmethod(F.tanhshrink)


class Softplus(_Activation):
    """ln(1 + e^(beta x)) / beta; x itself where beta x > threshold"""

    function = staticmethod(F.softplus)
    options = ("beta", "threshold")

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        super().__init__()
        self.beta, self.threshold = beta, threshold


class Hardtanh(_InPlace):
    """x limited to [min_val, max_val]"""

    function = staticmethod(F.hardtanh)
    options = ("min_val", "max_val", "inplace")

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.min_val, self.max_val = min_val, max_val


class Threshold(_InPlace):
    """x where x > threshold, else value"""

    function = staticmethod(F.threshold)
    options = ("threshold", "value", "inplace")

    def __init__(self, threshold: float, value: float, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.threshold, self.value = threshold, value


class Hardshrink(_Activation):
    """x where |x| > lambd, else 0"""

    function = staticmethod(F.hardshrink)
    options = ("lambd",)

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        self.lambd = lambd


class Softshrink(Hardshrink):
    """x brought nearer to 0 by lambd, and 0 within that"""

    function = staticmethod(F.softshrink)


class GLU(_Activation):
    """a sigmoid(b), a and b being the halves of x along `dim`"""

    function = staticmethod(F.glu)
    options = ("dim",)

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim


class Softmax(_Activation):
    """e^x / sum e^x along `dim`"""

    function = staticmethod(F.softmax)
    options = ("dim",)

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim


class LogSoftmax(Softmax):
    """Logarithm of the softmax along `dim`"""

    function = staticmethod(F.log_softmax)


class Softmin(Softmax):
    """softmax of -x along `dim`"""

    function = staticmethod(F.softmin)


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
