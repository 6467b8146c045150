"""Activations, element by element or along an axis."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, cast

from jobflow.core.errors import ArgumentError, ShapeError, user_line
from jobflow.core.types import Tensor as Value
from jobflow.eager.run import run, run_several
from jobflow.functional.dispatch import method
from jobflow.functional.in_place import check_writable, copy_for_gradient, form, in_place, written
from jobflow.functional.nn_base import formula, one_of, real
from jobflow.functional.promotion import as_float
from jobflow.functional.shapes import axis_of
from jobflow.functional.typed import Tensor
from jobflow.ops import activation as act
from jobflow.ops import elementwise as ew
from jobflow.ops import shape as sh
from jobflow.ops import slices as sl
from jobflow.ops.axes import ExpandDims, Squeeze
from jobflow.ops.pointwise import Negate
from jobflow.ops.softmax import LogSoftmax, Softmax

__all__ = [
    "celu", "elu", "elu_", "gelu", "glu", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "leaky_relu_", "log_softmax",
    "logsigmoid", "mish", "prelu", "quick_gelu", "relu", "relu6", "relu6_", "relu_", "selu", "selu_", "sigmoid", "silu", "silu_", "softmax",
    "softmin", "softplus", "softshrink", "softsign", "tanh", "tanhshrink", "threshold",
]  # fmt: skip

P = ParamSpec("P")

_RELU, _SIGMOID, _TANH, _SILU = act.Relu(), act.Sigmoid(), act.Tanh(), act.Silu()
_GELU, _GELU_TANH, _SOFTPLUS = act.Gelu(), act.GeluTanh(), act.Softplus()


def or_over(function: Callable[P, Value]) -> Callable[P, Tensor]:
    """A formula whose last parameter `inplace`, which it does not look at, has it written over its input."""
    made, declared, word = formula(function), signature(function), f"{function.__name__}_"
    place = list(declared.parameters).index("inplace")

    @wraps(function)
    def call(*args: P.args, **named: P.kwargs) -> Any:
        if not (args[place] if len(args) > place else named.get("inplace")):
            return made(*args, **named)
        others = declared.bind(*args, **named).arguments | {"inplace": False}
        input, out_of_place = others.pop("input"), cast(Any, made)
        check_writable(input, word)
        return written(input, word, out_of_place(copy_for_gradient(input), **others))

    return call


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """max(x, 0)"""
    if inplace:
        return relu_(input)
    return run(_RELU, input)


def sigmoid(input: Tensor) -> Tensor:
    """1 / (1 + e^-x)"""
    return run(_SIGMOID, as_float(input))


def tanh(input: Tensor) -> Tensor:
    return run(_TANH, as_float(input))


def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """x sigmoid(x)"""
    if inplace:
        return silu_(input)
    return run(_SILU, input)


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """x Phi(x) with the normal distribution Phi; `approximate="tanh"` for the formula by tanh."""
    if one_of("gelu", "approximate", approximate, ("none", "tanh")) == "tanh":
        return run(_GELU_TANH, input)
    return run_several(_GELU, input)[0]


@formula
def quick_gelu(input: Tensor) -> Value:
    """x sigmoid(1.702 x)"""
    return act.swish(input, 1.702)


@or_over
def relu6(input: Tensor, inplace: bool = False) -> Value:
    """x limited to [0, 6]"""
    return act.relu6(input)


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """x where x > 0, else negative_slope x"""
    if inplace:
        return leaky_relu_(input, negative_slope)
    return run(act.LeakyRelu(real("leaky_relu", "negative_slope", negative_slope)), input)


def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """x where x > 0, else alpha (e^x - 1)"""
    if inplace:
        return elu_(input, alpha)
    return run(act.Elu(real("elu", "alpha", alpha)), input)


@or_over
def selu(input: Tensor, inplace: bool = False) -> Value:
    """1.0507 elu(x, 1.67326): activations keep mean 0 and variance 1 (Klambauer et al. 2017)"""
    return act.selu(input)


@or_over
def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Value:
    """x where x > 0, else alpha (e^(x / alpha) - 1)"""
    if not alpha:
        raise ArgumentError(f"celu at {user_line()}: alpha must not be 0")
    return ew.scale(act.elu(ew.scale(input, 1.0 / alpha)), alpha)


@formula
def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Value:
    """ln(1 + e^(beta x)) / beta; x itself where beta x > threshold"""
    if not beta:
        raise ArgumentError(f"softplus at {user_line()}: beta must not be 0")
    x: Value = input
    inner = ew.scale(x, beta) if beta != 1.0 else x
    soft = act.softplus(inner)
    soft = ew.scale(soft, 1.0 / beta) if beta != 1.0 else soft
    return ew.where(ew.greater(inner, ew.fill_like(x, threshold)), x, soft)


@formula
def softsign(input: Tensor) -> Value:
    """x / (1 + |x|)"""
    return act.softsign(input)


@formula
def logsigmoid(input: Tensor) -> Value:
    """-ln(1 + e^-x)"""
    return act.log_sigmoid(input)


@or_over
def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Value:
    """x limited to [min_val, max_val]"""
    if min_val > max_val:
        raise ArgumentError(f"hardtanh at {user_line()}: min_val {min_val} is above max_val {max_val}")
    return act.hard_tanh(input, min_val, max_val)


@or_over
def hardsigmoid(input: Tensor, inplace: bool = False) -> Value:
    """x/6 + 1/2 limited to [0, 1]"""
    return act.hard_sigmoid(input)


@or_over
def hardswish(input: Tensor, inplace: bool = False) -> Value:
    """x/6 times x + 3 limited to [0, 6]"""
    return act.hard_swish(input)


@or_over
def mish(input: Tensor, inplace: bool = False) -> Value:
    """x tanh(ln(1 + e^x))"""
    return act.mish(input)


@or_over
def threshold(input: Tensor, threshold: float, value: float, inplace: bool = False) -> Value:
    """x where x > threshold, else value"""
    return ew.where(ew.greater(input, ew.fill_like(input, threshold)), input, ew.fill_like(input, value))


@formula
def hardshrink(input: Tensor, lambd: float = 0.5) -> Value:
    """x where |x| > lambd, else 0"""
    return ew.where(ew.greater(ew.absolute(input), ew.fill_like(input, lambd)), input, ew.fill_like(input, 0.0))


@formula
def softshrink(input: Tensor, lambd: float = 0.5) -> Value:
    """x brought nearer to 0 by lambd, and 0 within that"""
    if not lambd >= 0:
        raise ArgumentError(f"softshrink at {user_line()}: lambd {lambd} must not be negative")
    return ew.subtract(input, ew.clip(input, -lambd, lambd))


@formula
def tanhshrink(input: Tensor) -> Value:
    """x - tanh x"""
    return ew.subtract(input, act.tanh(input))


@formula
def prelu(input: Tensor, weight: Tensor) -> Value:
    """x where x > 0, else weight x; one weight, or one per channel, axis 1"""
    shape, count = input.tensor_type.shape, weight.tensor_type.size
    factor: Value = sh.reshape(weight, ()) if count == 1 else weight
    if count != 1:
        if len(shape) < 2 or weight.tensor_type.shape != (shape[1],):
            raise ShapeError(
                f"prelu at {user_line()}: weight {weight.tensor_type} is neither one number nor one for each channel, axis 1 of input "
                f"{input.tensor_type}"
            )
        factor = sh.reshape(weight, (count,) + (1,) * (len(shape) - 2))
    return act.prelu(input, factor)


@formula
def glu(input: Tensor, dim: int = -1) -> Value:
    """a sigmoid(b), a and b being the halves of x along `dim`"""
    axis = axis_of("glu", dim, input.tensor_type.ndim)
    size = input.tensor_type.shape[axis] if input.tensor_type.ndim else 1
    if size % 2:
        raise ShapeError(f"glu at {user_line()}: axis {dim} of input {input.tensor_type} cannot be divided into halves")
    first, second = sl.split(input, (size // 2, size // 2), axis)
    return ew.multiply(first, act.sigmoid(second))


def _softmax_axis(what: str, input: Tensor, dim: int | None) -> int:
    ndim = input.tensor_type.ndim
    if dim is None:
        dim = 0 if ndim in (0, 1, 3) else 1
    return axis_of(what, dim, ndim)


def softmax(input: Tensor, dim: int | None = None) -> Tensor:
    """e^x / sum e^x along `dim`; None is axis 0 of tensors of 1 or 3 axes, else axis 1"""
    return _along("softmax", Softmax, input, dim)


def log_softmax(input: Tensor, dim: int | None = None) -> Tensor:
    """Logarithm of the softmax along `dim`; None as in softmax."""
    return _along("log_softmax", LogSoftmax, input, dim)


def _along(what: str, op: type[Softmax] | type[LogSoftmax], input: Tensor, dim: int | None) -> Tensor:
    """An op of rows; a tensor without axes is a row of one element."""
    axis = _softmax_axis(what, input, dim)
    if input.tensor_type.ndim:
        return run(op(axis), input)
    y = run(Squeeze((0,)), run(op(0), run(ExpandDims(0), input)))
    return y


def softmin(input: Tensor, dim: int | None = None) -> Tensor:
    """softmax of -x along `dim`"""
    return softmax(run(Negate(), input), dim)


relu_ = form(relu)
silu_ = form(silu)
relu6_ = form(relu6)
leaky_relu_ = form(leaky_relu)
elu_ = form(elu)
selu_ = form(selu)


class ActivationMethods:
    """Methods of tensors: activation."""

    __slots__ = ()

    elu_ = method(elu_)
    gelu = method(gelu)
    leaky_relu_ = method(leaky_relu_)
    log_softmax = method(log_softmax)
    relu = method(relu)
    relu6_ = method(relu6_)
    relu_ = method(relu_)
    selu_ = method(selu_)
    sigmoid = method(sigmoid)
    sigmoid_ = in_place(sigmoid)
    silu = method(silu)
    silu_ = method(silu_)
    softmax = method(softmax)
    tanh = method(tanh)
    tanh_ = in_place(tanh)
