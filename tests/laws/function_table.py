"""The table of functions of numbers: names in each API, the reference function of NumPy, and the domain of the arguments.

A new elementwise function, activation, loss or reduction needs one row here. The drivers are in `test_op_laws` (bits, types and errors for unusual
arguments) and in `test_function_table` (values in every API, and in every layout with gradients).

Arguments include both ends of the domain and its sixteenths, which are exact in domains such as (-4, 4). Choose a domain whose sixteenths contain the
points where the function changes: 0 for `relu`, the halves for `round`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Interval = tuple[float, float]


@dataclass(frozen=True)
class Row:
    """One function: `names` in the tensor API, `jobs` in `flow.math` or `flow.nn`, and an interval for each tensor.

    `options` are further positional arguments. An operator has no names: its reference is called with tensors.
    """

    reference: Callable[..., Any]
    domain: tuple[Interval, ...]
    names: tuple[str, ...]
    jobs: tuple[str, ...] = ()
    options: tuple[Any, ...] = ()
    operator: str = ""
    #: arguments without a derivative
    constant: tuple[int, ...] = ()

    def detached(self, tensors: Any) -> list[Any]:
        """Return the tensors of a call; those without a derivative are detached."""
        return [x.detach() if i in self.constant and hasattr(x, "detach") else x for i, x in enumerate(tensors)]

    def arguments(self, uniform: Any) -> list[Any]:
        """Map numbers between 0 and 1, one array or tensor per argument, to the domain."""
        return [u * (high - low) + low for u, (low, high) in zip(uniform, self.domain, strict=True)]


def row(reference: Callable[..., Any], low: float, high: float, names: str, jobs: str = "", options: tuple[Any, ...] = ()) -> Row:
    return Row(reference, ((low, high),), tuple(names.split()), tuple(jobs.split()), options)


def erf(x: Array) -> Array:
    return np.vectorize(math.erf, otypes=[np.float64])(x)


def erfc(x: Array) -> Array:
    return np.vectorize(math.erfc, otypes=[np.float64])(x)


def sigmoid(x: Array) -> Array:
    return np.where(x >= 0, 1 / (1 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x))))


def gelu(x: Array) -> Array:
    return x * (1 + erf(x / math.sqrt(2))) / 2


def relu(x: Array) -> Array:
    return np.where(np.isnan(x), x, np.maximum(x, 0))


def elu(x: Array, alpha: float = 1.0) -> Array:
    return np.where(x > 0, x, alpha * np.expm1(x))


def leaky(slope: float) -> Callable[[Array], Array]:
    return lambda x: np.where(x > 0, x, slope * x)


def reciprocal_no_nan(x: Array) -> Array:
    return np.divide(1, x, out=np.zeros_like(x), where=x != 0)


def softmax(x: Array, axis: int = -1) -> Array:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def erfinv(x: Array) -> Array:
    low, high = np.full_like(x, -8.0), np.full_like(x, 8.0)
    for _ in range(70):
        middle = (low + high) / 2
        low, high = np.where(erf(middle) < x, middle, low), np.where(erf(middle) < x, high, middle)
    return (low + high) / 2


def digamma(x: Array) -> Array:
    w = x + 100
    return np.log(w) - 1 / (2 * w) - 1 / (12 * w**2) + 1 / (120 * w**4) - sum(1 / (x + k) for k in range(100))


def xlogy(x: Array, y: Array) -> Array:
    return x * np.log(np.where(x == 0, 1, y))


def erfcx(x: Array) -> Array:
    large = np.maximum(x, 20)
    return np.where(x > 20, (1 - 1 / (2 * large**2) + 3 / (4 * large**4)) / large / math.sqrt(math.pi), np.exp(x * x) * erfc(x))


def log_ndtr(x: Array) -> Array:
    z = x / math.sqrt(2)
    return np.where(x < 0, np.log(erfcx(np.maximum(-z, 0)) / 2) - z * z, np.log1p(-erfc(z) / 2))


def zeta(s: Array, q: Array) -> Array:
    w = q + 40
    z = sum((q + k) ** -s for k in range(40))
    z = z + w ** (1 - s) / (s - 1) + w**-s / 2 + s * w ** (-s - 1) / 12 - s * (s + 1) * (s + 2) * w ** (-s - 3) / 720
    z = np.where((q < 0) & (s != np.floor(s)), np.nan, z)
    z = np.where((q <= 0) & (q == np.floor(q)), np.inf, z)
    return np.where(s == 1, np.inf, np.where(s < 1, np.nan, z))


UNARY = (
    row(np.abs, -2, 2, "abs absolute", "abs"),
    row(np.negative, -2, 2, "neg negative", "negative"),
    row(np.sign, -2, 2, "sign sgn", "sign"),
    row(np.ceil, -3, 3, "ceil", "ceil"),
    row(np.floor, -3, 3, "floor", "floor"),
    row(np.round, -4, 4, "round", "round rint"),
    row(np.trunc, -3, 3, "trunc fix"),
    row(lambda x: x - np.trunc(x), -2, 2, "frac"),
    row(np.exp, -2, 2, "exp", "exp"),
    row(np.exp2, -2, 2, "exp2"),
    row(np.expm1, -2, 2, "expm1", "expm1"),
    row(np.log, 0.1, 3, "log", "log"),
    row(np.log2, 0.5, 2, "log2"),
    row(np.log10, 0.5, 2, "log10"),
    row(np.log1p, -0.5, 3, "log1p", "log1p"),
    row(lambda x: np.log(x / (1 - x)), 0.1, 0.9, "logit"),
    row(np.sqrt, 0.1, 3, "sqrt", "sqrt"),
    row(lambda x: 1 / np.sqrt(x), 0.1, 3, "rsqrt", "rsqrt"),
    row(np.square, -2, 2, "square", "square"),
    row(lambda x: 1 / x, 0.5, 2, "reciprocal", "reciprocal"),
    row(reciprocal_no_nan, -2, 2, "", "reciprocal_no_nan"),
    row(np.sin, -3, 3, "sin", "sin"),
    row(np.cos, -3, 3, "cos", "cos"),
    row(np.tan, -1, 1, "tan", "tan"),
    row(np.arcsin, -0.9, 0.9, "asin arcsin", "asin"),
    row(np.arccos, -0.9, 0.9, "acos arccos", "acos"),
    row(np.arctan, -2, 2, "atan arctan", "atan"),
    row(np.sinh, -2, 2, "sinh", "sinh"),
    row(np.cosh, -2, 2, "cosh", "cosh"),
    row(np.tanh, -2, 2, "tanh", "tanh tanh_v2"),
    row(np.arcsinh, -2, 2, "asinh arcsinh", "asinh"),
    row(np.arccosh, 1.1, 3, "acosh arccosh", "acosh"),
    row(np.arctanh, -0.9, 0.9, "atanh arctanh", "atanh"),
    row(erf, -2, 2, "erf", "erf"),
    row(erfc, -2, 2, "erfc", "erfc"),
    row(erfinv, -0.5, 0.5, "erfinv special.erfinv"),
    row(np.vectorize(math.lgamma, otypes=[np.float64]), 0.25, 4, "lgamma special.gammaln"),
    row(digamma, 0.25, 4, "digamma special.psi"),
    row(np.i0, -4, 4, "i0 special.i0"),
    row(lambda x: np.i0(x) * np.exp(-np.abs(x)), -12, 12, "special.i0e"),
    row(lambda x: erfc(-x / math.sqrt(2)) / 2, -4, 4, "special.ndtr"),
    row(lambda x: math.sqrt(2) * erfinv(2 * x - 1), 0.25, 0.75, "special.ndtri"),
    row(lambda x: -x * np.log(x), 0.25, 4, "special.entr"),
    row(erfcx, -2, 4, "special.erfcx"),
    row(log_ndtr, -8, 4, "special.log_ndtr"),
    row(np.sinc, -2, 2, "sinc special.sinc"),
    row(np.deg2rad, -90, 90, "deg2rad"),
    row(np.rad2deg, -4, 4, "rad2deg"),
    row(sigmoid, -3, 3, "sigmoid", "sigmoid sigmoid_v2"),
    row(relu, -2, 2, "relu", "relu nn.relu"),
    row(gelu, -8, 8, "gelu", "gelu"),
    row(lambda x: np.logaddexp(x, 0), -8, 8, "softplus", "softplus"),
    row(lambda x: -np.logaddexp(-x, 0), -8, 8, "logsigmoid", "log_sigmoid"),
)

#: activations, with their default arguments
ACTIVATIONS = (
    row(lambda x: x * sigmoid(x), -8, 8, "silu", "nn.swish"),
    row(lambda x: x * sigmoid(1.702 * x), -8, 8, "quick_gelu"),
    row(lambda x: x * np.tanh(np.logaddexp(x, 0)), -8, 8, "mish", "nn.mish"),
    row(lambda x: x / (1 + np.abs(x)), -8, 8, "softsign"),
    row(lambda x: x - np.tanh(x), -8, 8, "tanhshrink"),
    row(elu, -8, 8, "elu celu", "nn.elu"),
    row(lambda x: 1.0507009873554805 * elu(x, 1.6732632423543772), -8, 8, "selu"),
    row(lambda x: np.clip(x / 6 + 0.5, 0, 1), -8, 8, "hardsigmoid", "nn.hardsigmoid"),
    row(lambda x: x * np.clip(x + 3, 0, 6) / 6, -8, 8, "hardswish", "nn.hardswish"),
    row(lambda x: np.clip(x, -1, 1), -8, 8, "hardtanh", "nn.hardtanh"),
    row(lambda x: np.clip(x, 0, 6), -8, 8, "relu6", "nn.relu6"),
    row(lambda x: np.where(np.abs(x) > 0.5, x, 0), -4, 4, "hardshrink"),
    row(lambda x: np.sign(x) * np.maximum(np.abs(x) - 0.5, 0), -4, 4, "softshrink"),
    row(leaky(0.01), -8, 8, "leaky_relu"),
    row(leaky(0.2), -8, 8, "", "nn.leaky_relu"),
    row(softmax, -8, 8, "", "nn.softmax"),
    row(lambda x: np.log(softmax(x)), -8, 8, "", "nn.logsoftmax"),
)

#: functions of one tensor and other arguments
WITH_ARGUMENTS = (
    row(lambda x: x**3, -2, 2, "pow", "pow", options=(3,)),
    row(lambda x: np.clip(x, -1, 0.5), -2, 2, "clamp clip", "clip_by_value clip clamp clip_by_scalar", options=(-1, 0.5)),
    row(leaky(0.5), -8, 8, "leaky_relu", "nn.leaky_relu", options=(0.5,)),
    row(lambda x: elu(x, 2), -8, 8, "elu", "nn.elu", options=(2.0,)),
    row(lambda x: 2 * elu(x / 2), -8, 8, "celu", options=(2.0,)),
    row(lambda x: np.clip(x, -0.5, 2), -4, 4, "hardtanh", "nn.hardtanh", options=(-0.5, 2.0)),
    row(lambda x: np.where(np.abs(x) > 1.5, x, 0), -4, 4, "hardshrink", options=(1.5,)),
    row(lambda x: np.sign(x) * np.maximum(np.abs(x) - 1.5, 0), -4, 4, "softshrink", options=(1.5,)),
    row(lambda x: np.where(x > 0.5, x, -3), -4, 4, "threshold", options=(0.5, -3.0)),
    row(lambda x: np.logaddexp(2 * x, 0) / 2, -8, 8, "softplus", options=(2.0,)),
    row(lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))), -8, 8, "gelu", options=("tanh",)),
    row(lambda x: x * sigmoid(1.5 * x), -8, 8, "", "nn.swish", options=(1.5,)),
    row(softmax, -8, 8, "softmax", "nn.softmax", options=(-1,)),
    row(lambda x: softmax(x, 0), -8, 8, "softmax", "nn.softmax", options=(0,)),
    row(lambda x: np.log(softmax(x, 0)), -8, 8, "log_softmax", "nn.logsoftmax", options=(0,)),
    row(lambda x: softmax(-x, 0), -8, 8, "softmin", options=(0,)),
    *(
        row(lambda x, f=f: f(x, 2), -4, 4, name, job, options=(2,))
        for f, name, job in (
            (np.equal, "eq", "equal"),
            (np.not_equal, "ne", "not_equal"),
            (np.less, "lt", "less"),
            (np.less_equal, "le", "less_equal"),
            (np.greater, "gt", "greater"),
            (np.greater_equal, "ge", "greater_equal"),
        )
    ),
)


def pair(reference: Callable[..., Any], names: str, jobs: str = "", low: float = -3, second: Interval = (0.5, 2)) -> Row:
    """Return the row of a function of two tensors, the second one far from zero."""
    return Row(reference, ((low, 3), second), tuple(names.split()), tuple(jobs.split()))


#: values on both sides of zero, without zero
DIVISORS = (-2, 2.5)
#: for functions that compare their arguments; some arguments are equal
SAME = (-3, 3)


def softmax_grad(y: Array, dy: Array) -> Array:
    return y * (dy - (y * dy).sum(-1, keepdims=True))


def gelu_grad(x: Array, dy: Array) -> Array:
    return dy * (erfc(-x / math.sqrt(2)) / 2 + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi))


BINARY = (
    pair(np.add, "add", "add"),
    pair(np.subtract, "sub subtract", "subtract"),
    pair(np.multiply, "mul multiply", "multiply"),
    pair(np.true_divide, "div divide true_divide", "divide"),
    pair(np.floor_divide, "floor_divide", "floordiv", second=DIVISORS),
    pair(np.remainder, "remainder", "mod floor_mod", second=DIVISORS),
    pair(np.fmod, "fmod", second=DIVISORS),
    pair(np.power, "pow", "pow", low=0.5),
    pair(np.float_power, "float_power", low=0.5),
    pair(np.maximum, "maximum", "maximum", second=SAME),
    pair(np.minimum, "minimum", "minimum", second=SAME),
    pair(np.arctan2, "atan2", "atan2"),
    pair(np.hypot, "hypot"),
    pair(np.logaddexp, "logaddexp"),
    pair(np.logaddexp2, "logaddexp2"),
    pair(np.copysign, "copysign", low=0.5, second=DIVISORS),
    pair(np.fmax, "fmax", second=SAME),
    pair(np.fmin, "fmin", second=SAME),
    pair(lambda x, y: x * 2**y, "ldexp", second=SAME),
    pair(xlogy, "xlogy special.xlogy", low=0, second=(0.5, 2)),
    replace(pair(zeta, "special.zeta", low=1.25, second=(0.5, 2)), constant=(0,)),
    pair(lambda x, y: xlogy(x, 1 + y), "special.xlog1py", low=0, second=(0.5, 2)),
    pair(lambda x, y: (x - y) ** 2, "", "squared_difference"),
    pair(lambda x, y: np.divide(x, y, out=np.zeros_like(x), where=x != 0), "", "xdivy", low=0, second=(0, 2)),
    pair(lambda x, y: x * np.log(y, out=np.zeros_like(x), where=x != 0), "", "xlogy", low=0, second=(0, 2)),
    pair(lambda y, dy: dy * y * (1 - y), "", "sigmoid_grad"),
    pair(gelu_grad, "", "gelu_grad"),
    pair(softmax_grad, "", "nn.softmax_grad"),
    pair(np.equal, "eq", "equal", second=SAME),
    pair(np.not_equal, "ne not_equal", "not_equal", second=SAME),
    pair(np.less, "lt less", "less", second=SAME),
    pair(np.less_equal, "le less_equal", "less_equal", second=SAME),
    pair(np.greater, "gt greater", "greater", second=SAME),
    pair(np.greater_equal, "ge greater_equal", "greater_equal", second=SAME),
)


def operator(text: str, function: Callable[..., Any], second: Interval = (0.5, 2)) -> Row:
    return Row(function, ((-3, 3), second), (), (), (), text)


OPERATORS = (
    operator("x + y", lambda x, y: x + y),
    operator("x - y", lambda x, y: x - y),
    operator("x * y", lambda x, y: x * y),
    operator("x / y", lambda x, y: x / y),
    operator("x % y", lambda x, y: x % y, DIVISORS),
    operator("x // y", lambda x, y: x // y, DIVISORS),
    operator("abs(x) ** y", lambda x, y: abs(x) ** y, (1, 2)),
    operator("x @ y", lambda x, y: x @ y),
    operator("-x", lambda x, y: -x),
    operator("+x", lambda x, y: +x),
    operator("x + 2", lambda x, y: x + 2),
    operator("2 + x", lambda x, y: 2 + x),
    operator("x - 2", lambda x, y: x - 2),
    operator("2 - x", lambda x, y: 2 - x),
    operator("x * 3", lambda x, y: x * 3),
    operator("3 * x", lambda x, y: 3 * x),
    operator("x / 4", lambda x, y: x / 4),
    operator("3 / y", lambda x, y: 3 / y),
    operator("x % 3", lambda x, y: x % 3),
    operator("3 % y", lambda x, y: 3 % y, DIVISORS),
    operator("x // 3", lambda x, y: x // 3),
    operator("3 // y", lambda x, y: 3 // y, DIVISORS),
    operator("x ** 2", lambda x, y: x**2),
    operator("2 ** x", lambda x, y: 2**x),
    operator("np.float32(2) * x", lambda x, y: np.float32(2) * x),
    operator("x * np.int64(2)", lambda x, y: x * np.int64(2)),
    operator("x < y", lambda x, y: x < y, SAME),
    operator("x <= y", lambda x, y: x <= y, SAME),
    operator("x > y", lambda x, y: x > y, SAME),
    operator("x >= y", lambda x, y: x >= y, SAME),
    operator("x == y", lambda x, y: x == y, SAME),
    operator("x != y", lambda x, y: x != y, SAME),
    operator("x <= 0", lambda x, y: x <= 0),
    operator("x >= 0", lambda x, y: x >= 0),
    operator("x < 0", lambda x, y: x < 0),
    operator("x == 0", lambda x, y: x == 0),
    operator("x != 0", lambda x, y: x != 0),
)


#: rows for integers too, by their first name
INTEGERS = {
    *("abs", "neg", "sign", "square", "add", "sub", "mul", "floor_divide", "remainder", "maximum", "minimum"),
    *("eq", "ne", "lt", "le", "gt", "ge"),
}


def loss(reference: Callable[..., Any], domain: tuple[Interval, ...], names: str, jobs: str) -> Row:
    return Row(reference, domain, tuple(names.split()), tuple(jobs.split()))


def triplet(anchor: Array, positive: Array, negative: Array) -> Array:
    far = [np.sqrt(((anchor - other + 1e-6) ** 2).sum(1)) for other in (positive, negative)]
    return np.maximum(far[0] - far[1] + 1, 0)


#: losses of single elements, before their reduction; both APIs accept `reduction`
LOSSES = (
    loss(lambda x, t: np.abs(t - x), ((-2, 2), (-2, 2)), "l1_loss", "nn.L1Loss"),
    loss(lambda x, t: (t - x) ** 2, ((-2, 2), (-2, 2)), "mse_loss", "nn.MSELoss"),
    loss(lambda x, t: np.logaddexp(x, 0) - x * t, ((-8, 8), (0, 1)), "binary_cross_entropy_with_logits", "nn.BCEWithLogitsLoss"),
    loss(lambda x, t: t * (np.log(np.where(t > 0, t, 1)) - x), ((-2, 2), (0, 1)), "kl_div", "nn.KLDivLoss"),
    loss(lambda a, b, t: np.maximum(0, -t * (a - b)), ((-2, 2), (-2, 2), (-1, 1)), "margin_ranking_loss", "nn.MarginRankingLoss"),
    loss(triplet, ((-2, 2), (-2, 2), (-2, 2)), "triplet_margin_loss", "nn.TripletMarginLoss"),
)

#: functions of one tensor and axes; tensors accept `dim` and `keepdim`, jobs `axis` and `keepdims`
REDUCTIONS = (
    row(np.sum, 0.5, 2, "sum", "reduce_sum"),
    row(np.mean, 0.5, 2, "mean", "reduce_mean"),
    row(np.prod, 0.5, 2, "prod", "reduce_prod"),
    row(np.max, 0.5, 2, "max amax", "reduce_max two_stage_reduce_max"),
    row(np.min, 0.5, 2, "min amin", "reduce_min two_stage_reduce_min"),
    row(np.var, 0.5, 2, "", "reduce_variance"),
    row(np.std, 0.5, 2, "", "reduce_std"),
    row(lambda x, **k: np.sqrt(np.sum(x * x, **k)), 0.5, 2, "", "reduce_euclidean_norm"),
    row(lambda x, **k: np.log(np.sum(np.exp(x), **k)), 0.5, 2, "logsumexp", "reduce_logsumexp"),
)


def references(rows: tuple[Row, ...]) -> dict[str, Callable[..., Any]]:
    """Return a mapping from tensor names to references."""
    return {name: row.reference for row in rows for name in row.names}
