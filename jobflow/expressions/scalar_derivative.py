"""Derivatives of expressions, as expressions.

`derivative(y, wrt, dy)` returns the gradients of `wrt` for a gradient dy of y.  The rule of a primitive may reuse the primitive's result.
At a kink, a rule in `DERIVATIVES` selects one of the one-sided derivatives, or 0 for |x|.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from jobflow.core.errors import JobError
from jobflow.expressions import language as f
from jobflow.expressions.language import Expression, in_order

#: (gradient of the result, result, arguments) -> gradients of the arguments, or None
Rule: TypeAlias = Callable[..., Sequence[Expression | None]]

_TWO_OVER_ROOT_PI = 2 / math.sqrt(math.pi)


def _step(g: Expression, y: Expression, *x: Expression) -> Sequence[None]:
    """Return None for each argument, because a piecewise constant function has no gradient."""
    return (None,) * len(x)


def _maximum(g: Expression, y: Expression, a: Expression, b: Expression) -> Sequence[Expression | None]:
    """Return the gradients of y = max(a, b) for a gradient g of y; if a equals b, a gets the whole gradient.

    For a constant a, the gradient of b compares y with a, so that b need not be saved.
    """
    if a.primitive == "constant":
        return None, f.where(y > a, g, 0.0)
    return f.where(b > a, 0.0, g), f.where(b > a, g, 0.0)


def _minimum(g: Expression, y: Expression, a: Expression, b: Expression) -> Sequence[Expression | None]:
    if a.primitive == "constant":
        return None, f.where(y < a, g, 0.0)
    return f.where(b < a, 0.0, g), f.where(b < a, g, 0.0)


def _power(g: Expression, y: Expression, x: Expression, n: Expression) -> Sequence[Expression | None]:
    """Return the gradients of the base x and of the exponent n of y = x^n, for a gradient g of y.

    The gradient of x, n x^(n - 1) g, is 0 for n = 0 even at x = 0.  The gradient of n is 0 where x <= 0, and None if n is constant.
    """
    if n.primitive == "constant":
        exponent = float(str(n.attribute))
        return (g * (n * f.power(x, exponent - 1.0)) if exponent else None), None
    lower = f.where(f.equal(n, 0.0), 1.0, n - 1.0)
    return g * (n * f.power(x, lower)), g * (y * f.log(f.where(x > 0, x, 1.0)))


def _where(g: Expression, y: Expression, condition: Expression, a: Expression, b: Expression) -> Sequence[Expression | None]:
    return None, f.where(condition, g, 0.0), f.where(condition, 0.0, g)


def _arctan2(g: Expression, y: Expression, a: Expression, b: Expression) -> Sequence[Expression]:
    square = a * a + b * b
    slope = f.where(f.equal(square, 0.0), 0.0, g / square)  # no direction at the origin
    return slope * b, -(slope * a)


def _cast(g: Expression, y: Expression, x: Expression) -> Sequence[Expression | None]:
    return (f.cast(g, x.dtype) if x.dtype.is_float and y.dtype.is_float else None,)


DERIVATIVES: dict[str, Rule] = {
    "add": lambda g, y, a, b: (g, g),
    "subtract": lambda g, y, a, b: (g, -g),
    "multiply": lambda g, y, a, b: (g * b, g * a),
    "divide": lambda g, y, a, b: (g / b, -(g * y / b)),
    "weighted_sum": lambda g, y, alpha, a, beta, b: (g * a, g * alpha, g * b, g * beta),
    "negative": lambda g, y, x: (-g,),
    "absolute": lambda g, y, x: (g * f.sign(x),),
    "maximum": _maximum,
    "minimum": _minimum,
    "where": _where,
    "cast": _cast,
    "power": _power,
    "sqrt": lambda g, y, x: (g * 0.5 / y,),
    "rsqrt": lambda g, y, x: (g * -0.5 * y / x,),
    "reciprocal": lambda g, y, x: (-(g * y * y),),
    "exp": lambda g, y, x: (g * y,),
    "exp2": lambda g, y, x: (g * (y * math.log(2)),),
    "expm1": lambda g, y, x: (g * f.exp(x),),
    "log": lambda g, y, x: (g / x,),
    "log2": lambda g, y, x: (g / (x * math.log(2)),),
    "log10": lambda g, y, x: (g / (x * math.log(10)),),
    "log1p": lambda g, y, x: (g / (x + 1.0),),
    "sin": lambda g, y, x: (g * f.cos(x),),
    "cos": lambda g, y, x: (-(g * f.sin(x)),),
    "tan": lambda g, y, x: (g * (1.0 + y * y),),
    "arcsin": lambda g, y, x: (g / f.sqrt(1.0 - x * x),),
    "arccos": lambda g, y, x: (-(g / f.sqrt(1.0 - x * x)),),
    "arctan": lambda g, y, x: (g / (1.0 + x * x),),
    "arctan2": _arctan2,
    "sinh": lambda g, y, x: (g * f.cosh(x),),
    "cosh": lambda g, y, x: (g * f.sinh(x),),
    "tanh": lambda g, y, x: (g * (1.0 - y * y),),
    "arcsinh": lambda g, y, x: (g / f.sqrt(x * x + 1.0),),
    "arccosh": lambda g, y, x: (g / f.sqrt(x * x - 1.0),),
    "arctanh": lambda g, y, x: (g / (1.0 - x * x),),
    "erf": lambda g, y, x: (g * (f.exp(-(x * x)) * _TWO_OVER_ROOT_PI),),
    "erfc": lambda g, y, x: (g * (f.exp(-(x * x)) * -_TWO_OVER_ROOT_PI),),
    "sigmoid": lambda g, y, x: (g * (y * (1.0 - y)),),
    "softplus": lambda g, y, x: (g * f.sigmoid(x),),
    "copysign": lambda g, y, a, b: (g * f.copysign(f.sign(a), b) * f.sign(a), None),
    "row_sum": lambda g, y, x: (g,),
    "column_sum": lambda g, y, x: (g,),
    **dict.fromkeys(("sign", "floor", "ceil", "rint", "trunc"), _step),
}


def derivative(y: Expression, wrt: Sequence[Expression], dy: Expression) -> list[Expression | None]:
    """Return the gradients of the subexpressions `wrt` of y; None for a subexpression without influence on y, or not of a float type.

    Raises JobError if y contains a primitive without a rule in `DERIVATIVES`.
    """
    gradients: dict[Expression, Expression] = {y: dy}
    for x in reversed(in_order([y])):
        g = gradients.get(x)
        if g is None or not x.arguments or not x.dtype.is_float:
            continue
        rule = DERIVATIVES.get(x.primitive)
        if rule is None:
            raise JobError(f"derivative: the primitive {x.primitive} has no derivative")
        for argument, share in zip(x.arguments, rule(g, x, *x.arguments), strict=True):
            if share is not None and argument.primitive != "constant":
                gradients[argument] = _sum(gradients[argument], share) if argument in gradients else share
    return [gradients.get(x) for x in wrt]


def _sum(a: Expression, b: Expression) -> Expression:
    return a * 2.0 if a is b else a + b
