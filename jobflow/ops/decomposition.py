"""Decompositions of row-wise ops for layouts that split the axis of the rows (`Op.decompose`), from their formulas.

Each rank computes on its shard. The ranks exchange one value per row, a maximum or a sum. These values
are partial tensors, which are reduced before the next read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from jobflow.core.errors import PlanError
from jobflow.core.types import Tensor
from jobflow.expressions.language import Expression, in_order
from jobflow.ops.arithmetic import add, divide, multiply, subtract
from jobflow.ops.axes import reshape
from jobflow.ops.op import types_tuple
from jobflow.ops.pointwise import Pointwise
from jobflow.ops.reduce import reduce_max, reduce_sum
from jobflow.ops.scalar import cast, clip, negate, scale, shift
from jobflow.ops.transcendental import exp, log, rsqrt, sqrt, square

_UNARY: dict[str, Callable[..., Tensor]] = {"negative": negate, "exp": exp, "log": log, "sqrt": sqrt, "rsqrt": rsqrt}
_BINARY: dict[str, Callable[..., Tensor]] = {"add": add, "subtract": subtract, "multiply": multiply, "divide": divide}
#: operations with a number as the second operand
_WITH_NUMBER: dict[str, Callable[..., Tensor]] = {
    "add": shift, "multiply": scale, "divide": lambda x, number: scale(x, 1.0 / number), "maximum": clip,
}  # fmt: skip


def decomposed(op: Pointwise, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the outputs of an op with a formula over rows, computed by one operation per primitive of the formula.

    The upper-case letters of the op's rule are the axes of a row. At least one input must have all axes.
    """
    types = [x.tensor_type for x in inputs]
    words = op.rule(*types).spec.partition("->")[0].split(",")
    axes, shape = max(zip(words, (type.shape for type in types), strict=True), key=lambda pair: len(pair[0]))
    row = tuple(i for i, name in enumerate(axes) if name.isupper())
    rest = tuple(i for i in range(len(axes)) if i not in row)
    operands = [_aligned(cast(x, x.tensor_type.dtype.arithmetic), word, axes) for x, word in zip(inputs, words, strict=True)]
    values: dict[Expression, Any] = {}
    outputs = op.output_expressions(*op.read(*types))
    for x in in_order(outputs):
        first, second = (*(values[y] for y in x.arguments), None, None)[:2]
        match x.primitive:
            case "element":
                values[x] = operands[int(str(x.attribute))]
            case "constant":
                values[x] = x.attribute
            case "columns":
                values[x] = math.prod(shape[i] for i in row)
            case "row_sum" | "row_max":
                values[x] = (reduce_sum if x.primitive == "row_sum" else reduce_max)(first, row, keepdims=True)
            case "column_sum":
                values[x] = reduce_sum(first, rest)
            case "reciprocal":
                values[x] = None  # a multiplication reads it, and divides
            case "multiply" if x.arguments[1].primitive == "reciprocal":
                values[x] = divide(first, values[x.arguments[1].arguments[0]])
            case _:
                values[x] = _elementwise(op, x.primitive, first, second)
    results = zip((values[y] for y in outputs), types_tuple(op.infer(*types)), strict=True)
    return tuple(cast(y if y.tensor_type.shape == type.shape else reshape(y, type.shape), type.dtype) for y, type in results)


def _aligned(x: Tensor, word: str, axes: str) -> Tensor:
    """Append an axis of size 1 to x for each of the last letters of `axes` that `word`, the letters of x, lacks."""
    missing = len(axes) - len(axes.rstrip("".join({*axes} - {*word})))
    return reshape(x, (*x.tensor_type.shape, *[1] * missing)) if missing else x


def _elementwise(op: Pointwise, primitive: str, first: Any, second: Any) -> Any:
    """Return the result of an elementwise primitive for the operands `first` and `second` (None for one operand).

    The result is a number if the operands are numbers, else a tensor. Raises PlanError for a primitive without an operation.
    """
    if primitive in ("cast", "maximum") and isinstance(first, int | float):
        return float(first if second is None else max(first, second))
    if primitive == "multiply" and first is second:
        return square(first)
    table = _UNARY if second is None else _WITH_NUMBER if isinstance(second, int | float) else _BINARY
    if primitive not in table:
        raise PlanError(f"{op}: the primitive {primitive} has no operation that decomposes it; write Op.decompose")
    return table[primitive](first) if second is None else table[primitive](first, second)
