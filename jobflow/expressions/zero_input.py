"""Expressions where one input is known to be zero: what an update does to a row that has no gradient.

where_zero([w - rate * g], 1)  ->  [w]
"""

from __future__ import annotations

from collections.abc import Sequence

from jobflow.expressions.language import Expression, constant, in_order, make


def where_zero(outputs: Sequence[Expression], position: int) -> list[Expression]:
    """The outputs where the elements of input `position` are 0; what they are multiplied with is taken to be finite."""
    now: dict[Expression, Expression] = {}
    for x in in_order(outputs):
        if x.primitive == "element" and x.attribute == position:
            now[x] = constant(0.0, x.dtype)
        else:
            given = tuple(now[y] for y in x.arguments)
            now[x] = _simpler(x, given) or make(x.primitive, given, x.dtype, x.attribute)
    return [now[x] for x in outputs]


def _simpler(x: Expression, given: tuple[Expression, ...]) -> Expression | None:
    """What a primitive makes of arguments of which some are zero; None if nothing simpler."""
    match x.primitive, [_is_zero(y) for y in given]:
        case ("multiply", [True, _] | [_, True]) | ("negative", [True]):
            return constant(0.0, x.dtype)
        case "divide", [True, False] if _is_positive(given[1]):
            return given[0]
        case "add", [True, _]:
            return given[1]
        case "add" | "subtract", [_, True]:
            return given[0]
        case "weighted_sum", [_, True, _, _]:
            return make("multiply", given[2:], x.dtype)
    return None


def _is_zero(x: Expression) -> bool:
    return x.primitive == "constant" and x.attribute == 0


def _is_positive(x: Expression) -> bool:
    """True for a root and a number above 0."""
    return x.primitive == "add" and x.arguments[0].primitive == "sqrt" and x.arguments[1].primitive == "constant" and x.arguments[1].attribute > 0  # type: ignore[operator]
