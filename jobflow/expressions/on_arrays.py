"""Expressions on arrays: the reference that every kernel is compared with.

`functions(xp)` has the functions of `language` for arrays of NumPy or CuPy, so a formula runs on arrays as it is written down.
`evaluate` runs expressions that were written down.
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

#: partial sums of a row: what a sum gives depends on how many there are, so it is the same everywhere
LANES = 16
#: rows that are summed before their sum is added to that of those before
BLOCK = 64
#: functions that have one name here and in the array modules
SHARED = (
    *("add", "subtract", "multiply", "negative", "absolute", "sign", "maximum", "minimum", "divide", "sqrt", "reciprocal", "exp", "exp2"),
    *("expm1", "log", "log2", "log10", "log1p", "power", "sin", "cos", "tan", "arcsin", "arccos", "arctan", "arctan2", "sinh", "cosh", "tanh"),
    *("arcsinh", "arccosh", "arctanh", "floor", "ceil", "rint", "trunc", "copysign", "less", "less_equal", "greater", "greater_equal", "equal"),
    *("not_equal", "isnan", "isinf", "isfinite", "logical_and", "logical_or", "logical_xor", "logical_not", "bitwise_and", "bitwise_or"),
    *("bitwise_xor", "invert", "left_shift", "right_shift", "ldexp", "where", "square", "fmod", "remainder", "floor_divide"),
)


@lru_cache
def functions(xp: Xp) -> Any:
    """The functions of `language`, on arrays of this module."""

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
    """x y + z of float64 as if rounded once: with what the product and the sum lose (Dekker, Knuth), where nothing overflows."""
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
    """How large an exponent may be before e^x overflows the element type, with room for a sum."""
    return float(math.floor(math.log(dtype_of(dtype).largest) - 1))


def row_sum(xp: Xp, x: Array) -> Array:
    """The sum of each row, the last axis, as [..., 1]: 16 partial sums, each of every sixteenth element, and those by halves.

    On a GPU it is CuPy's own sum, one launch; so is that of columns.
    """
    return _in_lanes(xp, np.add, 0, x) if xp is np else x.sum(axis=-1, dtype=x.dtype, keepdims=True)


def row_product(xp: Xp, x: Array) -> Array:
    """The product of each row, likewise."""
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
    """The largest of each row, as [..., 1]; -inf, or the smallest whole number, where there is none."""
    return x.max(axis=-1, keepdims=True) if x.shape[-1] else xp.full((*x.shape[:-1], 1), MAX.identity(x.dtype), x.dtype)


def row_min(xp: Xp, x: Array) -> Array:
    return -row_max(xp, -x) if dtype_of(x.dtype).is_float else ~row_max(xp, ~x)


def column_sum(xp: Xp, x: Array) -> Array:
    """The sum of each column over all rows, as [columns]: blocks of 64 rows, each summed one after the other, and those compensated."""
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    if xp is not np:
        return rows.sum(axis=0)
    whole = len(rows) // BLOCK * BLOCK
    blocks = [_one_after_the_other(rows[:whole].reshape(whole // BLOCK, BLOCK, rows.shape[1]).swapaxes(0, 1))] if whole else []
    if whole < len(rows):
        blocks.append(_one_after_the_other(rows[whole:, None]))
    return compensated(xp.concatenate(blocks)) if blocks else xp.zeros(rows.shape[1], x.dtype)


#: functions of `language` that look at whole rows or columns
ROWS = {"row_sum": row_sum, "row_product": row_product, "row_max": row_max, "row_min": row_min, "column_sum": column_sum}


def _one_after_the_other(terms: Array) -> Array:
    """The sum along the first axis in its order; NumPy sums pairs of pairs where that is the only axis."""
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def compensated(terms: Array) -> Array:
    """The sum along the first axis, with what each addition loses in the next term (W. Kahan, 1965): as exact as one addition.  Infinities stay."""
    total = lost = np.full(terms.shape[1:], -0.0, terms.dtype)
    for term in terms:
        taken = term - lost
        after = total + taken
        lost = (after - total) - taken
        lost, total = np.where(lost == lost, lost, terms.dtype.type(0)), after
    return total


def evaluate(outputs: Sequence[Expression], inputs: Sequence[Array], xp: Xp, space: Sequence[int] | None = None) -> list[Array]:
    """The expressions for these inputs, which broadcast to the shape of the index space; rows are along its last axis."""
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
