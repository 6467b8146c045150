"""Activation functions and their gradients.

Frequently used gradients are separate ops, which are linear in dy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

from jobflow.core.layout import Rule
from jobflow.core.types import Tensor, TensorType
from jobflow.ops.arithmetic import add, divide, multiply
from jobflow.ops.op import LETTERS, OVER_FIRST, Grads, Sample, apply, sample
from jobflow.ops.pointwise import FLOATS, Binary, Pointwise, Unary, binary_function, call, check_dtypes, sample_data
from jobflow.ops.scalar import Inside, bounds, clip, negate, scale, shift
from jobflow.ops.transcendental import absolute, exp

ROOT_HALF = math.sqrt(0.5)
BELL = 1.0 / math.sqrt(2.0 * math.pi)
#: gelu_tanh(x) = x/2 (1 + tanh(_C1 x + _C3 x^3))
_C1 = math.sqrt(2.0 / math.pi)
_C3 = 0.044715 * _C1


class Relu(Unary):
    """Rectified linear unit: y = max(x, 0)."""

    precision = "any"
    in_place = OVER_FIRST

    def formula(self, f: Any, x: Any) -> Any:
        return f.maximum(f.constant(0.0, x.dtype), x)


class LeakyRelu(Unary):
    """Leaky rectified linear unit: y = x where x > 0, else alpha x."""

    precision = "any"
    alpha: float = 0.2

    def formula(self, f: Any, x: Any) -> Any:
        return x * f.where(x > 0, f.constant(1.0, x.dtype), self.alpha)


class PRelu(Binary):
    """Parametric rectified linear unit with a tensor alpha: z = x where x > 0, else alpha x."""

    precision = "any"
    kinds = FLOATS

    def formula(self, f: Any, x: Any, alpha: Any) -> Any:
        return x * f.where(x > 0, f.constant(1.0, x.dtype), alpha)

    def gradient(self, f: Any, x: Any, alpha: Any, z: Any, dz: Any) -> Any:
        return dz * f.where(x > 0, f.constant(1.0, x.dtype), alpha), dz * f.where(x > 0, f.constant(0.0, x.dtype), x)


class Sigmoid(Unary):
    """Logistic function: y = 1 / (1 + e^-x)."""

    precision = "follows"

    def formula(self, f: Any, *elements: Any) -> Any:
        return f.sigmoid(*elements)


#: Below this number x * sigmoid(x) rounds to zero.  Kernels of the sigmoid return at least the smallest normal number.
LEAST = -1000.0


class Silu(Unary):
    """Sigmoid linear unit: y = x / (1 + e^-x)."""

    precision = "follows"

    def formula(self, f: Any, x: Any) -> Any:
        return f.maximum(x, LEAST) * f.sigmoid(x)

    def gradient(self, f: Any, x: Any, y: Any, dy: Any) -> Any:
        s = f.sigmoid(x)
        return s * (1.0 + f.maximum(x, LEAST) * (1.0 - s)) * dy


class Tanh(Unary):
    """Hyperbolic tangent: y = tanh x."""

    precision = "follows"
    ufunc = "tanh"


class Gelu(Pointwise):
    """Gaussian error linear unit and its derivative: y = x Phi(x), slope = Phi(x) + x phi(x).

    Phi(x) = (1 + erf(x / sqrt 2)) / 2 is the normal distribution, and phi(x) = exp(-x^2 / 2) / sqrt(2 pi) its density.
    The gradient needs only the slope, which is cheap to compute together with y.
    """

    precision = "follows"
    results = 2
    in_place = MappingProxyType({1: (0,)})

    def infer(self, x: TensorType) -> tuple[TensorType, TensorType]:
        check_dtypes("gelu", FLOATS, x)
        return x, x

    def rule(self, x: TensorType) -> Rule:
        letters = LETTERS[: x.ndim]
        return Rule(f"{letters or '1'}->{letters},{letters}")

    def formula(self, f: Any, x: Any) -> Any:
        share = 0.5 * (1.0 + f.erf(x * ROOT_HALF))
        return x * share, share + x * (BELL * f.exp(-0.5 * (x * x)))

    def grad(self, x: Tensor, y: Tensor, slope: Tensor, dy: Tensor | None, dslope: Tensor | None) -> Grads:
        dx = None if dy is None else multiply(slope, dy)
        if dslope is None:
            return (dx,)
        square = multiply(x, x)
        through = multiply(dslope, multiply(scale(exp(scale(square, -0.5)), BELL), shift(negate(square), 2.0)))
        return (through if dx is None else add(dx, through),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), sample_data(1, 5, 3))
        yield sample(cls(), sample_data(2))


class GeluTanh(Unary):
    """Tanh approximation of Gelu: y = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))."""

    precision = "follows"

    def formula(self, f: Any, x: Any) -> Any:
        return x * (0.5 + 0.5 * f.tanh(x * (_C1 + _C3 * (x * x))))

    def gradient(self, f: Any, x: Any, y: Any, dy: Any) -> Any:
        square = x * x
        t = f.tanh(x * (_C1 + _C3 * square))
        return (1.0 + t + x * (1.0 - t * t) * (_C1 + 3 * _C3 * square)) * 0.5 * dy


class Elu(Unary):
    """Exponential linear unit: y = x where x > 0, else alpha (e^x - 1)."""

    precision = "follows"
    alpha: float = 1.0

    def formula(self, f: Any, x: Any) -> Any:
        return f.maximum(x, 0.0) + self.alpha * f.expm1(f.minimum(x, 0.0))

    def gradient(self, f: Any, x: Any, y: Any, dy: Any) -> Any:
        return dy * f.where(x > 0, 1.0, y + self.alpha)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), sample_data(1, 5, 3))
        yield sample(cls(1.7), sample_data(2, 4))


class Softplus(Unary):
    """Smooth approximation of Relu: y = ln(1 + e^x)."""

    def formula(self, f: Any, *elements: Any) -> Any:
        return f.softplus(*elements)


class HardSwish(Unary):
    """Piecewise approximation of Silu: y = x/6 min(max(x + 3, 0), 6).

    The gradient is 0 for x <= -3 and 1 for x >= 3.
    """

    precision = "follows"

    def formula(self, f: Any, x: Any) -> Any:
        return x * (f.clip(x + 3.0, 0.0, 6.0) * (1.0 / 6.0))

    def gradient(self, f: Any, x: Any, y: Any, dy: Any) -> Any:
        return dy * f.where(x >= 3.0, 1.0, f.where(x > -3.0, x * (1.0 / 3.0) + 0.5, 0.0))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), 4.0 * sample_data(1, 5, 3))
        yield sample(cls(), sample_data(2, 7))


def relu(x: Tensor, *, name: str | None = None) -> Tensor:
    """Return max(x, 0)."""
    return call(Relu(), x, name=name)


def leaky_relu(x: Tensor, alpha: float = 0.2, *, name: str | None = None) -> Tensor:
    """Return x where x > 0, else alpha x."""
    return call(LeakyRelu(alpha), x, name=name)


def relu6(x: Tensor, *, name: str | None = None) -> Tensor:
    """Clip x to [0, 6]; the gradient at 0 and at 6 is 0."""
    return hard_tanh(x, 0.0, 6.0, name=name)


def sigmoid(x: Tensor, *, name: str | None = None) -> Tensor:
    """Return 1 / (1 + e^-x)."""
    return call(Sigmoid(), x, name=name)


def silu(x: Tensor, *, name: str | None = None) -> Tensor:
    """Return x / (1 + e^-x)."""
    return call(Silu(), x, name=name)


def tanh(x: Tensor, *, name: str | None = None) -> Tensor:
    return call(Tanh(), x, name=name)


def gelu(x: Tensor, *, name: str | None = None) -> Tensor:
    """Return x Phi(x), where Phi is the normal distribution function."""
    y: Tensor = apply(Gelu(), x, name=name)[0]
    return y


def gelu_tanh(x: Tensor, *, name: str | None = None) -> Tensor:
    """Return x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), an approximation of `gelu`."""
    return call(GeluTanh(), x, name=name)


prelu = binary_function(PRelu)


def elu(x: Tensor, alpha: float = 1.0, *, name: str | None = None) -> Tensor:
    """Return x where x > 0, else alpha (e^x - 1)."""
    return call(Elu(alpha), x, name=name)


def selu(x: Tensor, *, name: str | None = None) -> Tensor:
    """Return elu(x, 1.6733) times 1.0507, which preserves mean 0 and variance 1 of activations (Klambauer et al. 2017)."""
    return scale(elu(x, 1.6732632423543772), 1.0507009873554805, name=name)


def softplus(x: Tensor, *, name: str | None = None) -> Tensor:
    """Return ln(1 + e^x)."""
    return call(Softplus(), x, name=name)


def softsign(x: Tensor, *, name: str | None = None) -> Tensor:
    """Return x / (1 + |x|)."""
    return divide(x, shift(absolute(x), 1.0), name=name)


def hard_sigmoid(x: Tensor, *, name: str | None = None) -> Tensor:
    """Return x/6 + 1/2, clipped to [0, 1]; the gradient at -3 and 3 is 0."""
    return shift(scale(hard_tanh(x, -3.0, 3.0), 1.0 / 6.0), 0.5, name=name)


def hard_swish(x: Tensor, *, name: str | None = None) -> Tensor:
    """Return x/6 min(max(x + 3, 0), 6)."""
    return call(HardSwish(), x, name=name)


def hard_tanh(x: Tensor, minimum: float = -1.0, maximum: float = 1.0, *, name: str | None = None) -> Tensor:
    """Clip x to [minimum, maximum]; the gradient at a bound is 0."""
    return call(Inside(*bounds("hard_tanh", x, minimum, maximum)), x, name=name)


def mish(x: Tensor, *, name: str | None = None) -> Tensor:
    """Return x tanh(softplus(x))."""
    return multiply(x, tanh(softplus(x)), name=name)


def swish(x: Tensor, beta: float = 1.0, *, name: str | None = None) -> Tensor:
    """Return x sigmoid(beta x)."""
    if beta == 1.0:
        return silu(x, name=name)
    bounded = clip(x, minimum=LEAST / beta) if beta > 0 else clip(x, maximum=LEAST / beta) if beta < 0 else x
    return multiply(bounded, sigmoid(scale(x, beta)), name=name)


def log_sigmoid(x: Tensor, *, name: str | None = None) -> Tensor:
    """Return -ln(1 + e^-x)."""
    return negate(softplus(negate(x)), name=name)
