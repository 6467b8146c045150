"""Evaluation of expressions on NumPy or CuPy arrays, which defines the correct result of every kernel.

`functions(xp)` has the functions of `language` for arrays of NumPy or CuPy, so that a formula runs directly on arrays.
`evaluate` computes expressions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from jobflow.core.layout import MAX
from jobflow.core.types import Array, Xp, dtype_of
from jobflow.expressions import philox
from jobflow.expressions.error_function import erf, erfc
from jobflow.expressions.language import Expression, dtype_value, in_order

#: partial sums of a row; the rounding of a sum depends on this number, so all kernels use it
LANES = 16
#: rows per partial sum of a column
BLOCK = 64
#: functions with the same name in `language` and in the array modules
SHARED = (
    *("add", "subtract", "multiply", "negative", "absolute", "sign", "maximum", "minimum", "divide", "sqrt", "reciprocal", "exp", "exp2"),
    *("expm1", "log", "log2", "log10", "log1p", "power", "sin", "cos", "tan", "arcsin", "arccos", "arctan", "arctan2", "sinh", "cosh", "tanh"),
    *("arcsinh", "arccosh", "arctanh", "floor", "ceil", "rint", "trunc", "copysign", "less", "less_equal", "greater", "greater_equal", "equal"),
    *("not_equal", "isnan", "isinf", "isfinite", "logical_and", "logical_or", "logical_xor", "logical_not", "bitwise_and", "bitwise_or"),
    *("bitwise_xor", "invert", "left_shift", "right_shift", "ldexp", "where", "square", "fmod", "remainder", "floor_divide"),
    *("gcd", "nextafter"),
)


@lru_cache
def functions(xp: Xp) -> Any:
    """Return a namespace with the functions of `language` for arrays of the module `xp`."""

    def rsqrt(x: Array) -> Array:
        return 1 / xp.sqrt(x)

    def sigmoid(x: Array) -> Array:
        return 1 / (1 + xp.exp(xp.minimum(-x, exponent_limit(x.dtype))))

    def softplus(x: Array) -> Array:
        return xp.maximum(x, 0) + xp.log1p(xp.exp(-xp.absolute(x)))

    def cast(x: Array, dtype: Any) -> Array:
        return x.astype(dtype_of(dtype).numpy)

    def weighted_sum(alpha: Any, x: Array, beta: Any, y: Array) -> Array:
        return alpha * x + beta * y

    def constant(value: float, dtype: Any) -> Any:
        kind = dtype_of(dtype)
        return kind.numpy.type(dtype_value(value, kind))

    def clip(x: Array, low: Any, high: Any) -> Array:
        return xp.clip(x, low, high)

    def fma(x: Array, y: Array, z: Array) -> Array:
        dtype = xp.result_type(x, y, z)
        wide = [xp.asarray(a, dtype=xp.float64) for a in (x, y, z)]
        return (exact_fma(xp, *wide) if dtype == xp.float64 else wide[0] * wide[1] + wide[2]).astype(dtype)

    def quotient(x: Array, y: Array) -> Array:
        down = xp.floor_divide(x, y)
        return down + ((down * y != x) & ((x < 0) != (y < 0)))

    def reinterpret(x: Array, dtype: Any) -> Array:
        return xp.asarray(x).view(dtype_of(dtype).numpy)

    own = (constant, clip, rsqrt, sigmoid, softplus, cast, weighted_sum, fma, quotient, reinterpret)
    errors = {"erf": lambda x: erf(xp, x), "erfc": lambda x: erfc(xp, x)}
    rows = {name: partial(function, xp) for name, function in ROWS.items()}
    return SimpleNamespace(**{name: getattr(xp, name) for name in SHARED}, **{f.__name__: f for f in own}, **errors, **rows)


def exact_fma(xp: Xp, x: Array, y: Array, z: Array) -> Array:
    """Return x y + z of float64 as if rounded once, from the rounding errors of product and sum (Dekker, Knuth).

    Where the computation of these errors overflows, the result is rounded twice.
    """
    product, total = x * y, x * y + z
    halves = []
    for a in (x, y):
        high = a * 134217729.0
        high = high - (high - a)
        halves += [high, a - high]
    lost = ((halves[0] * halves[2] - product) + halves[0] * halves[3] + halves[1] * halves[2]) + halves[1] * halves[3]
    back = total - product
    lost = lost + ((product - (total - back)) + (z - back))
    return xp.where(xp.isfinite(lost), total + lost, total)


def exponent_limit(dtype: Any) -> float:
    """Return the largest integer x for which e^(x + 1) does not overflow the element type; the factor e is a margin for sums."""
    return float(math.floor(math.log(dtype_of(dtype).largest) - 1))


def row_sum(xp: Xp, x: Array) -> Array:
    """Return the sum of each row (the last axis), of shape [..., 1].

    On a CPU, partial sum i of 16 contains elements i, i + 16, ..., and a tree reduction adds the partial sums.  On a GPU, CuPy computes row and
    column sums with one launch each.
    """
    return _in_lanes(xp, np.add, 0, x) if xp is np else x.sum(axis=-1, dtype=x.dtype, keepdims=True)


def row_product(xp: Xp, x: Array) -> Array:
    """Return the product of each row (the last axis), of shape [..., 1]; the factors are combined in the order of `row_sum`."""
    return _in_lanes(xp, np.multiply, 1, x) if xp is np else x.prod(axis=-1, dtype=x.dtype, keepdims=True)


def _in_lanes(xp: Xp, together: np.ufunc, nothing: int, x: Array) -> Array:
    width = x.shape[-1]
    padded = max(-(-width // LANES), 1) * LANES
    if padded != width:
        x = xp.concatenate([x, xp.full((*x.shape[:-1], padded - width), nothing, x.dtype)], axis=-1)
    lanes = together.reduce(x.reshape((*x.shape[:-1], padded // LANES, LANES)), axis=-2, dtype=x.dtype)
    length = LANES
    while length > 1:
        length //= 2
        lanes = together(lanes[..., :length], lanes[..., length : 2 * length])
    return lanes


def row_max(xp: Xp, x: Array) -> Array:
    """Return the largest element of each row, of shape [..., 1]; for empty rows -inf, or the smallest integer."""
    return x.max(axis=-1, keepdims=True) if x.shape[-1] else xp.full((*x.shape[:-1], 1), MAX.identity(x.dtype), x.dtype)


def row_min(xp: Xp, x: Array) -> Array:
    return -row_max(xp, -x) if dtype_of(x.dtype).is_float else ~row_max(xp, ~x)


def column_sum(xp: Xp, x: Array) -> Array:
    """Return the vector of the sums over all axes of x but the last.

    On a CPU, blocks of 64 rows are summed sequentially, and the sums of the blocks are added with compensation.
    """
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    if xp is not np:
        return rows.sum(axis=0)
    whole = len(rows) // BLOCK * BLOCK
    blocks = [_one_after_the_other(rows[:whole].reshape(whole // BLOCK, BLOCK, rows.shape[1]).swapaxes(0, 1))] if whole else []
    if whole < len(rows):
        blocks.append(_one_after_the_other(rows[whole:, None]))
    return compensated(xp.concatenate(blocks)) if blocks else xp.zeros(rows.shape[1], x.dtype)


#: functions of `language` that reduce rows or columns
ROWS = {"row_sum": row_sum, "row_product": row_product, "row_max": row_max, "row_min": row_min, "column_sum": column_sum}


def _one_after_the_other(terms: Array) -> Array:
    """Return the sequential sum of `terms` along the first axis; NumPy would sum a vector pairwise."""
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def compensated(terms: Array) -> Array:
    """Return the compensated sum along the first axis (W. Kahan, 1965), as accurate as one addition.

    The rounding error of each addition is subtracted from the next term.  Infinities are preserved.
    """
    total = lost = np.full(terms.shape[1:], -0.0, terms.dtype)
    for term in terms:
        corrected = term - lost
        after = total + corrected
        lost = (after - total) - corrected
        lost, total = np.where(lost == lost, lost, terms.dtype.type(0)), after
    return total


def evaluate(outputs: Sequence[Expression], inputs: Sequence[Array], xp: Xp, space: Sequence[int] | None = None) -> list[Array]:
    """Return the values of the expressions for these inputs; each value broadcasts to the shape of the index space.

    `space` is this shape, by default the broadcast shape of the inputs.  Its last axis is the row.
    """
    known: dict[Expression, Any] = {}
    shape = tuple(np.broadcast_shapes(*(a.shape for a in inputs)) if space is None else space)
    run: dict[str, Callable[..., Array]] = vars(functions(xp))
    for x in in_order(outputs):
        match x.primitive:
            case "element":
                known[x] = inputs[x.attribute]  # type: ignore[call-overload]
            case "number":
                known[x] = inputs[x.attribute].reshape(())  # type: ignore[call-overload]
            case "constant":
                known[x] = x.dtype.numpy.type(x.attribute)
            case "looked_up":
                table, places = inputs[x.attribute], xp.asarray(known[x.arguments[0]])  # type: ignore[call-overload]
                places = xp.broadcast_to(places, np.broadcast_shapes(places.shape, table.shape[:-1]))[..., None]
                known[x] = xp.take_along_axis(xp.broadcast_to(table, (*places.shape[:-1], table.shape[-1])), places, axis=-1)[..., 0]
            case "columns":
                known[x] = x.dtype.numpy.type(shape[-1] if shape else 1)
            case "index":
                axis = int(str(x.attribute))
                known[x] = xp.arange(shape[axis], dtype=np.int64).reshape((-1,) + (1,) * (-axis - 1))
            case "philox":
                key: Any = x.attribute
                number, stream = (known[y] for y in x.arguments)
                flat = xp.asarray(number, np.uint64).reshape(-1)
                known[x] = philox.Stream(xp, key[:2], int(stream)).bits_at(flat, key[2]).astype(np.int64).reshape(number.shape)
            case "cast" | "reinterpret" as name:
                known[x] = run[name](xp.asarray(known[x.arguments[0]]), x.dtype)
            case "library":
                known[x] = run[str(x.attribute)](*(known[y] for y in x.arguments))
            case name if name in ROWS:
                known[x] = run[name](xp.broadcast_to(known[x.arguments[0]], shape or (1,)))
            case name:
                known[x] = run["where" if name == "rare_where" else name](*(known[y] for y in x.arguments))
    return [known[x] for x in outputs]
