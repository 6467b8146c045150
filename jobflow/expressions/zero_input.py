"""Simplification of expressions for an input known to be zero, such as the update of a row without gradient.

where_zero([w - rate * g], 1)  ->  [w]
"""

from __future__ import annotations

from collections.abc import Sequence

from jobflow.expressions.language import Expression, constant, in_order, make


def where_zero(outputs: Sequence[Expression], position: int) -> list[Expression]:
    """Return simpler forms of the outputs for the case that input `position` is 0; the factors of this input are assumed to be finite."""
    now: dict[Expression, Expression] = {}
    for x in in_order(outputs):
        if x.primitive == "element" and x.attribute == position:
            now[x] = constant(0.0, x.dtype)
        else:
            arguments = tuple(now[y] for y in x.arguments)
            now[x] = _simpler(x, arguments) or make(x.primitive, arguments, x.dtype, x.attribute)
    return [now[x] for x in outputs]


def _simpler(x: Expression, arguments: tuple[Expression, ...]) -> Expression | None:
    """Return a simpler expression that equals the primitive of x on `arguments`, because at least one argument is the constant 0.

    Returns None if no argument is 0 or no rule applies.
    """
    match x.primitive, [_is_zero(y) for y in arguments]:
        case ("multiply", [True, _] | [_, True]) | ("negative", [True]):
            return constant(0.0, x.dtype)
        case "divide", [True, False] if _is_positive(arguments[1]):
            return arguments[0]
        case "add", [True, _]:
            return arguments[1]
        case "add" | "subtract", [_, True]:
            return arguments[0]
        case "weighted_sum", [_, True, _, _]:
            return make("multiply", arguments[2:], x.dtype)
    return None


def _is_zero(x: Expression) -> bool:
    return x.primitive == "constant" and x.attribute == 0


def _is_positive(x: Expression) -> bool:
    """Return True if x is the sum of a square root and a positive constant, which is never 0."""
    return x.primitive == "add" and x.arguments[0].primitive == "sqrt" and x.arguments[1].primitive == "constant" and x.arguments[1].attribute > 0  # type: ignore[operator]
