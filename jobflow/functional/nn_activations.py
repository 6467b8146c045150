"""Activation functions, element by element or along an axis.  `inplace=True` overwrites the input with the result."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, cast

from jobflow.core.errors import ArgumentError, DtypeError, ShapeError, user_line
from jobflow.core.types import DType
from jobflow.core.types import Tensor as Value
from jobflow.functional.dispatch import called_as, method
from jobflow.functional.in_place import check_writable, copy_for_gradient, form, in_place, written
from jobflow.functional.nn_base import flag, formula, one_of, real
from jobflow.functional.promotion import as_float
from jobflow.functional.promotion import cast as convert
from jobflow.functional.shapes import axis_of
from jobflow.functional.typed import Tensor
from jobflow.ops import activation as act
from jobflow.ops import elementwise as ew
from jobflow.ops import shape as sh
from jobflow.ops import slices as sl
from jobflow.ops.axes import ExpandDims, Squeeze
from jobflow.ops.pointwise import Negate
from jobflow.ops.scalar import Clip
from jobflow.ops.softmax import LogSoftmax, Softmax
from jobflow.tensors.run import run, run_several

__all__ = [
    "celu", "celu_", "elu", "elu_", "gelu", "glu", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "hardtanh_", "leaky_relu", "leaky_relu_",
    "log_softmax", "logsigmoid", "mish", "prelu", "quick_gelu", "relu", "relu6", "relu6_", "relu_", "selu", "selu_", "sigmoid", "silu", "silu_",
    "softmax", "softmin", "softplus", "softshrink", "softsign", "tanh", "tanhshrink", "threshold", "threshold_",
]  # fmt: skip

P = ParamSpec("P")

_RELU, _SIGMOID, _TANH, _SILU = act.Relu(), act.Sigmoid(), act.Tanh(), act.Silu()
_GELU, _GELU_TANH, _SOFTPLUS = act.Gelu(), act.GeluTanh(), act.Softplus()


def with_inplace(function: Callable[P, Value]) -> Callable[P, Tensor]:
    """Return a formula as a public function whose argument `inplace` overwrites the input with the result."""
    out_of_place, declared, word = formula(function), signature(function), f"{function.__name__}_"
    position = list(declared.parameters).index("inplace")

    @wraps(function)
    def call(*args: P.args, **named: P.kwargs) -> Any:
        if not flag(function.__name__, "inplace", args[position] if len(args) > position else named.get("inplace")):
            return out_of_place(*args, **named)
        others = declared.bind(*args, **named).arguments | {"inplace": False}
        input = others.pop("input")
        check_writable(input, word)
        return written(input, word, cast(Any, out_of_place)(copy_for_gradient(input), **others))

    return call


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """Return max(input, 0), element by element.

    Examples:
        >>> flow.relu(flow.tensor([-1.0, 2.0]))
        tensor([0., 2.], dtype=jobflow.float32)
        >>> nn.ReLU()(flow.tensor([-1.0, 2.0]))
        tensor([0., 2.], dtype=jobflow.float32)
    """
    if inplace:
        return relu_(input)
    return run(_RELU, input) if input.tensor_type.dtype.is_float else run(Clip(0, None), input)


def sigmoid(input: Tensor) -> Tensor:
    """Return 1 / (1 + e^-input), element by element."""
    return run(_SIGMOID, as_float(input))


def tanh(input: Tensor) -> Tensor:
    """Return the hyperbolic tangent of `input`, element by element."""
    return run(_TANH, as_float(input))


def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """Return input * sigmoid(input), element by element (Elfwing et al. 2017)."""
    if inplace:
        return silu_(input)
    return run(_SILU, input)


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """Return input * Phi(input), where Phi is the distribution function of N(0, 1) (Hendrycks and Gimpel 2016).

    `approximate="tanh"` selects the approximation with tanh.  Raises: ConfigError unless `approximate` is "none" or "tanh".
    """
    if one_of("gelu", "approximate", approximate, ("none", "tanh")) == "tanh":
        return run(_GELU_TANH, input)
    return run_several(_GELU, input)[0]


@formula
def quick_gelu(input: Tensor) -> Value:
    """Return input * sigmoid(1.702 * input), an approximation of GELU."""
    return act.swish(input, 1.702)


@with_inplace
def relu6(input: Tensor, inplace: bool = False) -> Value:
    """Return `input` clipped to [0, 6]."""
    return act.relu6(input)


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """Return `input` where input > 0, else negative_slope * input."""
    if inplace:
        return leaky_relu_(input, negative_slope)
    return run(act.LeakyRelu(real("leaky_relu", "negative_slope", negative_slope)), input)


def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """Return `input` where input > 0, else alpha * (e^input - 1) (Clevert et al. 2015)."""
    if inplace:
        return elu_(input, alpha)
    return run(act.Elu(real("elu", "alpha", alpha)), input)


@with_inplace
def selu(input: Tensor, inplace: bool = False) -> Value:
    """Return 1.0507 * elu(input, alpha=1.67326), which preserves mean 0 and variance 1 (Klambauer et al. 2017)."""
    return act.selu(input)


@with_inplace
def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Value:
    """Return `input` where input > 0, else alpha * (e^(input / alpha) - 1) (Barron 2017).  Raises: ArgumentError for alpha = 0."""
    if not alpha:
        raise ArgumentError(f"celu at {user_line()}: alpha must not be 0")
    return ew.scale(act.elu(ew.scale(input, 1.0 / alpha)), alpha)


@formula
def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Value:
    """Return ln(1 + e^(beta * input)) / beta, or `input` itself where beta * input > threshold.  Raises: ArgumentError for beta = 0."""
    if not beta:
        raise ArgumentError(f"softplus at {user_line()}: beta must not be 0")
    x: Value = input
    inner = ew.scale(x, beta) if beta != 1.0 else x
    soft = act.softplus(inner)
    soft = ew.scale(soft, 1.0 / beta) if beta != 1.0 else soft
    return ew.where(ew.greater(inner, ew.fill_like(x, threshold)), x, soft)


@formula
def softsign(input: Tensor) -> Value:
    """Return input / (1 + |input|)."""
    return act.softsign(as_float(input))


@formula
def logsigmoid(input: Tensor) -> Value:
    """Return ln(sigmoid(input)) = -ln(1 + e^-input)."""
    return act.log_sigmoid(input)


@with_inplace
def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Value:
    """Return `input` clipped to [min_val, max_val].  Raises: ArgumentError if min_val > max_val."""
    if min_val > max_val:
        raise ArgumentError(f"hardtanh at {user_line()}: min_val {min_val} must not exceed max_val {max_val}")
    if not input.tensor_type.dtype.is_float:
        return ew.clip(input, int(min_val), int(max_val))
    return act.hard_tanh(input, min_val, max_val)


@with_inplace
def hardsigmoid(input: Tensor, inplace: bool = False) -> Value:
    """Return input / 6 + 1 / 2, clipped to [0, 1]."""
    return act.hard_sigmoid(input)


@with_inplace
def hardswish(input: Tensor, inplace: bool = False) -> Value:
    """Return input * relu6(input + 3) / 6 (Howard et al. 2019)."""
    return act.hard_swish(input)


@with_inplace
def mish(input: Tensor, inplace: bool = False) -> Value:
    """Return input * tanh(ln(1 + e^input)) (Misra 2019)."""
    return act.mish(input)


@with_inplace
def threshold(input: Tensor, threshold: float, value: float, inplace: bool = False) -> Value:
    """Return `input` where input > threshold, else `value`."""
    return ew.where(ew.greater(input, ew.fill_like(input, threshold)), input, ew.fill_like(input, value))


@formula
def hardshrink(input: Tensor, lambd: float = 0.5) -> Value:
    """Return `input` where |input| > lambd, else 0."""
    return ew.where(ew.greater(ew.absolute(input), ew.fill_like(input, lambd)), input, ew.fill_like(input, 0.0))


@formula
def softshrink(input: Tensor, lambd: float = 0.5) -> Value:
    """Return input - lambd where input > lambd, input + lambd where input < -lambd, else 0.  Raises: ArgumentError for a negative lambd."""
    if not lambd >= 0:
        raise ArgumentError(f"softshrink at {user_line()}: lambd {lambd} must not be negative")
    return ew.subtract(input, ew.clip(input, -lambd, lambd))


@formula
def tanhshrink(input: Tensor) -> Value:
    """Return input - tanh(input)."""
    input = as_float(input)
    return ew.subtract(input, act.tanh(input))


@formula
def prelu(input: Tensor, weight: Tensor) -> Value:
    """Return `input` where input > 0, else weight * input (He et al. 2015).

    `weight` has a single element, or one element per channel (axis 1).  Raises: ShapeError for another shape of the weight.
    """
    shape, count = input.tensor_type.shape, weight.tensor_type.size
    factor: Value = sh.reshape(weight, ()) if count == 1 else weight
    if count != 1:
        if len(shape) < 2 or weight.tensor_type.shape != (shape[1],):
            raise ShapeError(
                f"prelu at {user_line()}: weight {weight.tensor_type} must have one element, or one per channel, axis 1 of input {input.tensor_type}"
            )
        factor = sh.reshape(weight, (count,) + (1,) * (len(shape) - 2))
    return act.prelu(input, factor)


@formula
def glu(input: Tensor, dim: int = -1) -> Value:
    """Return a * sigmoid(b), where a and b are the two halves of `input` along `dim` (Dauphin et al. 2016).

    Raises: ShapeError for an axis of odd size.
    """
    axis = axis_of("glu", dim, input.tensor_type.ndim)
    size = input.tensor_type.shape[axis] if input.tensor_type.ndim else 1
    if size % 2:
        raise ShapeError(f"glu at {user_line()}: axis {dim} of input {input.tensor_type} must have an even size")
    first, second = sl.split(input, (size // 2, size // 2), axis)
    return ew.multiply(first, act.sigmoid(second))


def _softmax_axis(what: str, input: Tensor, dim: int | None) -> int:
    ndim = input.tensor_type.ndim
    if dim is None:
        dim = 0 if ndim in (0, 1, 3) else 1
    return axis_of(what, dim, ndim)


def softmax(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: DType | None = None) -> Tensor:
    """Return e^input / sum(e^input) along `dim`; `dtype` converts the input first.

    `dim=None` selects axis 0 for tensors with 0, 1 or 3 axes, else axis 1, as in PyTorch, whose argument `_stacklevel` has no effect here.

    Examples:
        >>> flow.softmax(flow.tensor([0.0, 0.0]), dim=0)
        tensor([0.5000, 0.5000], dtype=jobflow.float32)
    """
    return _along("softmax", Softmax, input, dim, dtype)


def log_softmax(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: DType | None = None) -> Tensor:
    """Return the logarithm of the softmax along `dim`; the arguments are those of `softmax`."""
    return _along("log_softmax", LogSoftmax, input, dim, dtype)


def _softmax_method(input: Tensor, dim: int | None = None, dtype: DType | None = None) -> Tensor:
    """Return e^input / sum(e^input) along `dim`; `dtype` converts the input first."""
    return softmax(input, dim, dtype=dtype)


def _log_softmax_method(input: Tensor, dim: int | None = None, dtype: DType | None = None) -> Tensor:
    """Return the logarithm of the softmax along `dim`; `dtype` converts the input first."""
    return log_softmax(input, dim, dtype=dtype)


def _along(what: str, op: type[Softmax] | type[LogSoftmax], input: Tensor, dim: int | None, dtype: DType | None = None) -> Tensor:
    """Return op(axis) of `input` along axis `dim`; None selects the axis as in `softmax`.

    A tensor without axes is treated as a vector of one element.
    """
    axis = _softmax_axis(what, input, dim)
    if dtype is not None:
        if not isinstance(dtype, DType) or not dtype.is_float:
            raise DtypeError(f"{what} at {user_line()}: dtype must be a floating point type such as jobflow.float32; got {dtype!r}")
        input = convert(input, dtype)
    if input.tensor_type.ndim:
        return run(op(axis), input)
    y = run(Squeeze((0,)), run(op(0), run(ExpandDims(0), input)))
    return y


def softmin(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: DType | None = None) -> Tensor:
    """Return the softmax of -input along `dim`; the arguments are those of `softmax`."""
    return softmax(run(Negate(), input), dim, dtype=dtype)


relu_ = form(relu)
silu_ = form(silu)
relu6_ = form(relu6)
leaky_relu_ = form(leaky_relu)
elu_ = form(elu)
selu_ = form(selu)
celu_ = form(celu)
hardtanh_ = form(hardtanh)
_threshold_in_place = form(threshold)


def threshold_(input: Tensor, threshold: float, value: float) -> Tensor:
    """Overwrite `input` with `value` where input <= threshold, and return it."""
    return _threshold_in_place(input, threshold, value)


class ActivationMethods:
    """Activation functions as methods of tensors."""

    __slots__ = ()

    elu_ = method(elu_)
    gelu = method(gelu)
    leaky_relu_ = method(leaky_relu_)
    log_softmax = method(called_as(cast(Any, _log_softmax_method), "log_softmax"))
    relu = method(relu)
    relu6_ = method(relu6_)
    relu_ = method(relu_)
    selu_ = method(selu_)
    sigmoid = method(sigmoid)
    sigmoid_ = in_place(sigmoid)
    silu = method(silu)
    silu_ = method(silu_)
    softmax = method(called_as(cast(Any, _softmax_method), "softmax"))
    tanh = method(tanh)
    tanh_ = in_place(tanh)
