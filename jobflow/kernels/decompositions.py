"""Decompositions of mathematical functions into operations that the machine has.

`MAXIMAL_ERROR` bounds the distance of a result from the true value, in units in the last place, over all arguments.  The tests use arguments
of every exponent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

from jobflow.expressions import language as f
from jobflow.expressions.language import Expression, in_order, make
from jobflow.kernels import elementary_functions as e
from jobflow.kernels import integer_functions
from jobflow.kernels import trigonometric_functions as c

Formula: TypeAlias = Callable[..., Expression]
_FORMULAS = (
    *(e.exp, e.exp2, e.expm1, e.log, e.log2, e.log10, e.log1p, e.tanh, e.sigmoid, e.softplus, e.sinh, e.cosh, e.arcsinh, e.arccosh, e.arctanh),
    *(e.erf, e.erfc, e.fmod, e.power, e.ldexp, c.sin, c.cos, c.tan, c.arcsin, c.arccos, c.arctan, c.arctan2),
)
DECOMPOSITIONS: dict[str, Formula] = {formula.__name__: formula for formula in _FORMULAS} | {
    "floor_divide": integer_functions.floor_divide,
    "remainder": integer_functions.remainder,
    "philox": integer_functions.random_word,
}
#: function -> largest error for float32 and float64, in units in the last place; ldexp is not listed
MAXIMAL_ERROR: dict[str, tuple[float, float]] = {
    "exp": (0.9, 0.9),
    "exp2": (1.0, 1.0),
    "expm1": (1.0, 1.4),
    "log": (0.9, 0.9),
    "log2": (1.7, 1.8),
    "log10": (3.4, 2.0),
    "log1p": (0.9, 1.5),
    "tanh": (1.4, 3.0),
    "sigmoid": (2.5, 2.5),
    "softplus": (1.6, 2.0),
    "sinh": (2.1, 3.0),
    "cosh": (2.9, 2.8),
    "erf": (1.0, 5.5),
    "erfc": (3.5, 7.5),
    "fmod": (0.0, 0.0),
    "power": (0.6, 1.3),
    "arcsinh": (1.9, 1.9),
    "arccosh": (2.2, 2.2),
    "arctanh": (2.1, 2.1),
    "sin": (1.6, 1.6),
    "cos": (1.6, 1.6),
    "tan": (3.6, 3.6),
    "arcsin": (2.5, 2.5),
    "arccos": (1.2, 1.2),
    "arctan": (2.3, 2.3),
    "arctan2": (3.0, 3.0),
}


#: primitives that accept half-precision values; all others compute in float32 and round the result
KEEPS_HALF = {"element", "looked_up", "number", "constant", "cast", "where", "reinterpret"}


def lowered(outputs: Sequence[Expression], machine: Collection[str] = ()) -> tuple[list[Expression], set[Expression]]:
    """Replace functions that the machine lacks by their decompositions; return the outputs and the expressions that are expensive to recompute."""
    known: dict[Expression, Expression] = {}
    expensive: set[Expression] = set()
    for x in in_order(outputs):
        arguments = tuple(known[y] for y in x.arguments)
        if x.primitive not in KEEPS_HALF:
            arguments = tuple(f.cast(y, y.dtype.arithmetic) for y in arguments)
        formula = None if x.primitive in machine else DECOMPOSITIONS.get(x.primitive)
        if formula is not None:
            more = x.attribute if isinstance(x.attribute, tuple) else ()
            result = lowered([formula(*arguments, *more)], machine)[0][0]
        elif x.primitive in KEEPS_HALF:
            result = make(x.primitive, arguments, x.dtype, x.attribute)
        else:
            result = make(x.primitive, arguments, x.dtype.arithmetic, x.attribute)
        known[x] = f.cast(result, x.dtype)
        if formula is not None:
            expensive.add(known[x])
    return [known[x] for x in outputs], expensive
