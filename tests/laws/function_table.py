"""The table of functions of numbers: names in each API, the reference function of NumPy, and the domain of the arguments.

A new elementwise function or reduction needs one row here. The drivers are in `test_op_laws` (bits, types and errors for unusual arguments) and in
`test_function_table` (values in every API, and in every layout with gradients).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Interval = tuple[float, float]


@dataclass(frozen=True)
class Row:
    """One function: `names` in the tensor API, `jobs` in `flow.math`, and an interval for each argument."""

    reference: Callable[..., Any]
    domain: tuple[Interval, ...]
    names: tuple[str, ...]
    jobs: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return (*self.names, *self.jobs)[0]

    def arguments(self, uniform: Any) -> list[Any]:
        """Map numbers between 0 and 1, one array or tensor per argument, to the domain."""
        return [u * (high - low) + low for u, (low, high) in zip(uniform, self.domain, strict=True)]


def row(reference: Callable[..., Any], low: float, high: float, names: str, jobs: str = "") -> Row:
    return Row(reference, ((low, high),), tuple(names.split()), tuple(jobs.split()))


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


UNARY = (
    row(np.abs, -2, 2, "abs absolute", "abs"),
    row(np.negative, -2, 2, "neg negative", "negative"),
    row(np.sign, -2, 2, "sign sgn", "sign"),
    row(np.ceil, -3, 3, "ceil", "ceil"),
    row(np.floor, -3, 3, "floor", "floor"),
    row(np.round, -3, 3, "round", "round rint"),
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
    row(sigmoid, -3, 3, "sigmoid", "sigmoid sigmoid_v2"),
    row(relu, -2, 2, "relu", "relu"),
    row(gelu, -3, 3, "gelu", "gelu"),
    row(lambda x: np.logaddexp(x, 0), -3, 3, "softplus", "softplus"),
    row(lambda x: -np.logaddexp(-x, 0), -3, 3, "logsigmoid", "log_sigmoid"),
)


def pair(reference: Callable[..., Any], names: str, jobs: str = "", low: float = -3) -> Row:
    """Return the row of a function of two tensors, the second one far from zero."""
    return Row(reference, ((low, 3), (0.5, 2)), tuple(names.split()), tuple(jobs.split()))


BINARY = (
    pair(np.add, "add", "add"),
    pair(np.subtract, "sub subtract", "subtract"),
    pair(np.multiply, "mul multiply", "multiply"),
    pair(np.true_divide, "div divide true_divide", "divide"),
    pair(np.floor_divide, "floor_divide", "floordiv"),
    pair(np.remainder, "remainder", "mod"),
    pair(np.fmod, "fmod"),
    pair(np.power, "pow", "pow", low=0.5),
    pair(np.float_power, "float_power", low=0.5),
    pair(np.maximum, "maximum", "maximum"),
    pair(np.minimum, "minimum", "minimum"),
    pair(np.arctan2, "atan2", "atan2"),
    pair(lambda x, y: (x - y) ** 2, "", "squared_difference"),
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
