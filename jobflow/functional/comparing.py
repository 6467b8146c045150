"""Elementwise comparison, logic and selection.  Comparisons return bool tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jobflow.core.errors import ArgumentError, DtypeError, user_line
from jobflow.core.types import bool_
from jobflow.functional.binary_functions import both, sides
from jobflow.functional.dispatch import method, operator
from jobflow.functional.promotion import Number, constant, operand, pair, result_type, rounded_once
from jobflow.functional.promotion import cast as as_dtype
from jobflow.functional.typed import Tensor
from jobflow.ops import compare
from jobflow.ops.arithmetic import Subtract, Where
from jobflow.ops.compare import NotEqual
from jobflow.ops.op import Op
from jobflow.ops.scalar import FillLike
from jobflow.ops.transcendental import Absolute
from jobflow.tensors.run import run

__all__ = [
    "allclose", "eq", "equal", "equals", "ge", "greater", "greater_equal", "gt", "isclose", "le", "less", "less_equal", "logical_and", "logical_not",
    "logical_or", "logical_xor", "lt", "ne", "not_equal",
]  # fmt: skip

Comparison = Callable[[Any, Any], Tensor]


def _comparison(name: str, op: compare.Comparison, sign: str) -> Comparison:
    """Return a comparison function `name` for the operator `sign`."""

    def function(x: Any, other: Any) -> Tensor:
        x, other = sides(name, x, other)
        if isinstance(x, Tensor) and isinstance(other, Tensor):
            return both(name, op, x, other)
        return _with_number(op, x, other) if isinstance(x, Tensor) else _with_number(op.exchanged(), other, x)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Return a bool tensor of x {sign} other, with broadcasting."
    return function


def _with_number(op: compare.Comparison, x: Tensor, number: Number) -> Tensor:
    dtype = x.tensor_type.dtype
    exact = compare.with_number(op, dtype, number)
    return run(FillLike(exact, bool_), x) if isinstance(exact, bool) else run(exact[0], x, constant(x, exact[1], dtype))


eq = equals = _comparison("eq", compare.Equal(), "==")
ne = not_equal = _comparison("ne", compare.NotEqual(), "!=")
lt = less = _comparison("lt", compare.Less(), "<")
le = less_equal = _comparison("le", compare.LessEqual(), "<=")
gt = greater = _comparison("gt", compare.Greater(), ">")
ge = greater_equal = _comparison("ge", compare.GreaterEqual(), ">=")


def equal(x: Tensor, other: Tensor) -> bool:
    """Return True if both tensors have the same shape and equal elements.

    All ranks must call `equal` for global tensors.
    """
    return x.shape == other.shape and bool(eq(x, other).all().item())


@rounded_once
def isclose(x: Tensor, other: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Tensor:
    """Return a bool tensor of |x - other| <= atol + rtol * |other|.

    Equal infinities are close.  NaN is close to NaN only with `equal_nan`.
    Raises: ArgumentError for a negative tolerance.
    """
    if not (rtol >= 0 and atol >= 0):
        raise ArgumentError(f"isclose at {user_line()}: tolerances must not be negative; got rtol={rtol} and atol={atol}")
    a, b = pair("isclose", x, other)
    a, b = (as_dtype(each, result_type(each, 1.0)) for each in (a, b))
    distance, size = run(Absolute(), run(Subtract(), a, b)), run(Absolute(), b)
    near = logical_and(le(distance, size * rtol + atol), lt(size, math.inf))
    near = logical_or(near, eq(a, b))
    return logical_or(near, logical_and(ne(a, a), ne(b, b))) if equal_nan else near


def allclose(x: Tensor, other: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
    """Return True if all elements are close in the sense of `isclose`.  All ranks must call `allclose` for global tensors."""
    return bool(isclose(x, other, rtol, atol, equal_nan).all().item())


# -------------------------------------------------------------------- logic


def truth(x: Any) -> Any:
    """Return a bool tensor of x != 0; return Python numbers unchanged."""
    if not isinstance(x, Tensor):
        return x
    return x if x.tensor_type.dtype is bool_ else run(NotEqual(), x, constant(x, 0, x.tensor_type.dtype))


def _logic(what: str, op: Op, x: Any, other: Any) -> Tensor:
    a = x if isinstance(x, Tensor) else other
    if not isinstance(a, Tensor):
        raise DtypeError(f"{what} at {user_line()}: one of the operands must be a tensor; got {x!r} and {other!r}")
    sides = [truth(operand(what, a, side)) for side in (x, other)]
    return both(what, op, *(side if isinstance(side, Tensor) else bool(side) for side in sides))


def logical_and(x: Any, other: Any) -> Tensor:
    """Return a bool tensor, True where both operands are nonzero."""
    return _logic("logical_and", compare.LogicalAnd(), x, other)


def logical_or(x: Any, other: Any) -> Tensor:
    """Return a bool tensor, True where at least one operand is nonzero."""
    return _logic("logical_or", compare.LogicalOr(), x, other)


def logical_xor(x: Any, other: Any) -> Tensor:
    """Return a bool tensor, True where exactly one operand is nonzero."""
    return _logic("logical_xor", compare.LogicalXor(), x, other)


def logical_not(x: Tensor) -> Tensor:
    """Return a bool tensor, True where x is zero."""
    return run(compare.LogicalNot(), truth(x))


# -------------------------------------------------------------------- selection


def where(condition: Tensor, x: Any, y: Any) -> Tensor:
    """Return x where the condition is nonzero, else y, with broadcasting of all three arguments; x and y are tensors or numbers.

    Raises: DtypeError unless the condition is a tensor.
    """
    if not isinstance(condition, Tensor):
        raise DtypeError(f"where at {user_line()}: condition must be a tensor; got {condition!r}")
    if not isinstance(x, Tensor) and not isinstance(y, Tensor):
        x, y = operand("where", condition, x), operand("where", condition, y)
        if not isinstance(x, Tensor) and not isinstance(y, Tensor):
            x = constant(condition, x, result_type(x, y))
    return run(Where(), truth(condition), *pair("where", x, y))


def _chosen(x: Tensor, condition: Tensor, other: Any) -> Tensor:
    """Return x where the condition is nonzero, else `other`."""
    return where(condition, x, other)


class ComparisonMethods:
    """Methods of tensors for comparison and logic."""

    __slots__ = ()

    __ge__ = operator(ge)
    __gt__ = operator(gt)
    __le__ = operator(le)
    __lt__ = operator(lt)
    allclose = method(allclose)
    eq = method(eq)
    equal = method(equal)
    ge = method(ge)
    gt = method(gt)
    isclose = method(isclose)
    le = method(le)
    logical_and = method(logical_and)
    logical_not = method(logical_not)
    logical_or = method(logical_or)
    logical_xor = method(logical_xor)
    lt = method(lt)
    ne = method(ne)
    where = method(_chosen, "where")
    greater = method(gt, "greater")
    greater_equal = method(ge, "greater_equal")
    less = method(lt, "less")
    less_equal = method(le, "less_equal")
    not_equal = method(ne, "not_equal")

    if TYPE_CHECKING:  # the return type differs from that of object.__eq__

        def __eq__(self, other: Any) -> Tensor: ...  # type: ignore[override]
        def __ne__(self, other: Any) -> Tensor: ...  # type: ignore[override]

    else:
        __eq__ = operator(eq)
        __ne__ = operator(ne)
