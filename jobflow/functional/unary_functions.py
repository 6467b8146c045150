"""Elementwise functions of one tensor, such as powers, exponentials, trigonometric functions, rounding and bounds.

Functions with floating point results convert integers to the default element type.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from typing import Any

from jobflow.core.errors import ArgumentError, DtypeError, user_line
from jobflow.core.types import bool_, int64
from jobflow.functional import binary_functions as arithmetic
from jobflow.functional.comparing import eq, where
from jobflow.functional.dispatch import method
from jobflow.functional.in_place import in_place
from jobflow.functional.promotion import Number, Operand, as_float, cast, constant, operand, pair, result_type, rounded_once
from jobflow.functional.typed import Tensor
from jobflow.ops import scalar
from jobflow.ops import transcendental as functions
from jobflow.ops.compare import Equal, Less, NotEqual
from jobflow.ops.op import Op
from jobflow.ops.scalar import Clip, FillLike, Scale
from jobflow.tensors.run import run

__all__ = [
    "abs", "absolute", "acos", "acosh", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh", "asin", "asinh", "atan", "atan2",
    "atanh", "ceil", "clamp", "clamp_max", "clamp_min", "clip", "cos", "cosh", "erf", "erfc", "exp", "exp2", "expm1", "fix", "floor", "frac",
    "isfinite", "isinf", "isnan", "lerp", "log", "log10", "log1p", "log2", "logit", "nan_to_num", "reciprocal", "round", "rsqrt", "sgn", "sign",
    "sin", "sinh", "sqrt", "square", "tan", "trunc",
]  # fmt: skip

Function = Callable[[Tensor], Tensor]


def _of_floats(name: str, op: Op, doc: str) -> Function:
    """Return a function `name` that converts x to floats and applies `op`."""

    def function(x: Tensor) -> Tensor:
        return run(op, as_float(x))

    return _known(name, function, doc)


def _of_numbers(name: str, op: Op, doc: str, *, whole: bool = False) -> Function:
    """Return a function `name` that applies `op` to any element type; with `whole`, the function returns integers unchanged."""

    def function(x: Tensor) -> Tensor:
        if whole and not x.tensor_type.dtype.is_float:
            return x
        return run(op, x)

    return _known(name, function, doc)


def _known(name: str, function: Function, doc: str) -> Function:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


exp = _of_floats("exp", functions.Exp(), "Return e^x, element by element.")
expm1 = _of_floats("expm1", functions.Expm1(), "Return e^x - 1, accurate near 0.")
log = _of_floats("log", functions.Log(), "Return the natural logarithm of x; NaN for negative x.")
log1p = _of_floats("log1p", functions.Log1p(), "Return ln(1 + x), accurate near 0.")
sqrt = _of_floats("sqrt", functions.Sqrt(), "Return the square root of x; NaN for negative x.")
rsqrt = _of_floats("rsqrt", functions.Rsqrt(), "Return 1 / sqrt(x), element by element.")
reciprocal = _of_floats("reciprocal", functions.Reciprocal(), "Return 1 / x, element by element.")
sin = _of_floats("sin", functions.Sin(), "Return the sine of x in radians.")
cos = _of_floats("cos", functions.Cos(), "Return the cosine of x in radians.")
tan = _of_floats("tan", functions.Tan(), "Return the tangent of x in radians.")
asin = arcsin = _of_floats("asin", functions.Asin(), "Return the inverse sine of x in radians; NaN outside [-1, 1].")
acos = arccos = _of_floats("acos", functions.Acos(), "Return the inverse cosine of x in radians; NaN outside [-1, 1].")
atan = arctan = _of_floats("atan", functions.Atan(), "Return the inverse tangent of x in radians.")
sinh = _of_floats("sinh", functions.Sinh(), "Return the hyperbolic sine of x.")
cosh = _of_floats("cosh", functions.Cosh(), "Return the hyperbolic cosine of x.")
asinh = arcsinh = _of_floats("asinh", functions.Asinh(), "Return the inverse hyperbolic sine of x.")
acosh = arccosh = _of_floats("acosh", functions.Acosh(), "Return the inverse hyperbolic cosine of x; NaN for x < 1.")
atanh = arctanh = _of_floats("atanh", functions.Atanh(), "Return the inverse hyperbolic tangent of x; NaN outside [-1, 1].")
erf = _of_floats("erf", functions.Erf(), "Return the error function of x.")
erfc = _of_floats("erfc", functions.Erfc(), "Return 1 - erf(x), accurate for large x.")
abs = absolute = _of_numbers("abs", functions.Absolute(), "Return |x|; the gradient at 0 is 0.")
floor = _of_numbers("floor", scalar.Floor(), "Return x rounded down to an integer.", whole=True)
ceil = _of_numbers("ceil", scalar.Ceil(), "Return x rounded up to an integer.", whole=True)
trunc = fix = _of_numbers("trunc", scalar.Truncate(), "Return x rounded towards 0 to an integer.", whole=True)


def square(x: Tensor) -> Tensor:
    """Return x^2, element by element; the square of bool is int64."""
    return run(functions.Square(), cast(x, int64) if x.tensor_type.dtype is bool_ else x)


def sign(x: Tensor) -> Tensor:
    """Return the sign of x, element by element: -1, 0 or 1; NaN for NaN, and bool unchanged."""
    return x if x.tensor_type.dtype is bool_ else run(scalar.Sign(), x)


sgn = sign


@rounded_once
def log2(x: Tensor) -> Tensor:
    """Return the logarithm to base 2, element by element."""
    return run(Scale(1 / math.log(2)), log(x))


@rounded_once
def log10(x: Tensor) -> Tensor:
    """Return the logarithm to base 10, element by element."""
    return run(Scale(1 / math.log(10)), log(x))


def exp2(x: Tensor) -> Tensor:
    """Return 2^x, element by element."""
    return arithmetic.pow(2.0, x)


@rounded_once
def round(x: Tensor, *, decimals: int = 0) -> Tensor:
    """Return x rounded to `decimals` decimal places; ties are rounded to even."""
    if not x.tensor_type.dtype.is_float:
        return x
    rounded: Tensor = run(scalar.RoundHalfEven(), arithmetic.mul(x, 10.0**decimals) if decimals else x)
    return arithmetic.div(rounded, 10.0**decimals) if decimals else rounded


@rounded_once
def frac(x: Tensor) -> Tensor:
    """Return the fractional part of x, with the sign of x."""
    return arithmetic.sub(x, trunc(x))


def atan2(x: Any, other: Any) -> Tensor:
    """Return the angle of the point (other, x) in radians, in [-pi, pi]."""
    a, b = pair("atan2", x, other)
    return run(functions.Atan2(), as_float(a), as_float(b))


arctan2 = atan2


# -------------------------------------------------------------------- bounds


def clamp(x: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """Return x limited to [min, max]; the bounds are numbers or tensors, and one of them may be None.

    Raises: ArgumentError without bounds, DtypeError for a bound that is neither a number nor a tensor.
    """
    if min is None and max is None:
        raise ArgumentError(f"clamp at {user_line()}: min and max are both None; pass at least one bound")
    if isinstance(min, Tensor) or isinstance(max, Tensor):
        x = x if min is None else arithmetic.maximum(x, min)
        return x if max is None else arithmetic.minimum(x, max)
    bounds = [None if bound is None else _number(bound) for bound in (min, max)]
    x = cast(x, result_type(x, *(bound for bound in bounds if bound is not None)))
    return run(Clip(*scalar.bounds("clamp", x, *bounds)), x)


clip = clamp


def _number(value: Any) -> Number:
    number: Number = value.item() if hasattr(value, "item") else value
    if not isinstance(number, int | float):
        raise DtypeError(f"clamp at {user_line()}: a bound must be a number or a tensor; got {value!r} of type {type(value).__name__}")
    return number


def clamp_min(x: Tensor, min: Any) -> Tensor:
    """Return the larger of x and `min`, element by element."""
    return clamp(x, min=min)


def clamp_max(x: Tensor, max: Any) -> Tensor:
    """Return the smaller of x and `max`, element by element."""
    return clamp(x, max=max)


def logit(x: Tensor, eps: float | None = None) -> Tensor:
    """Return ln(x / (1 - x)), the inverse of the sigmoid; `eps` limits x to [eps, 1 - eps] first."""
    x = as_float(x)
    return run(functions.Logit(), x if eps is None else clamp(x, eps, 1 - eps))


@rounded_once
def lerp(x: Tensor, end: Tensor, weight: Operand) -> Tensor:
    """Return x + weight * (end - x), computed from the nearer end, so that weight 1 gives exactly `end`."""
    distance, weight = arithmetic.sub(end, x), operand("lerp", x, weight)
    if not isinstance(weight, Tensor):
        near = builtins.abs(weight) < 0.5
        return arithmetic.add(x, arithmetic.mul(distance, weight)) if near else arithmetic.sub(end, arithmetic.mul(distance, 1 - weight))
    from_end = arithmetic.sub(end, arithmetic.mul(distance, arithmetic.sub(1.0, weight)))
    return where(run(Less(), *pair("lerp", abs(weight), 0.5)), arithmetic.add(x, arithmetic.mul(distance, weight)), from_end)


def nan_to_num(x: Tensor, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Tensor:
    """Return x with NaN replaced by `nan`, inf by `posinf` and -inf by `neginf`, by default the largest and the smallest finite number."""
    if not x.tensor_type.dtype.is_float:
        return x
    largest = x.tensor_type.dtype.largest
    low, high = -largest if neginf is None else neginf, largest if posinf is None else posinf
    x = where(isnan(x), nan, x)
    return where(eq(x, math.inf), high, where(eq(x, -math.inf), low, x))


# -------------------------------------------------------------------- classification


def isnan(x: Tensor) -> Tensor:
    """Return a bool tensor, True where an element is NaN."""
    return run(NotEqual(), x, x)


def isinf(x: Tensor) -> Tensor:
    """Return a bool tensor, True where an element is infinite."""
    if not x.tensor_type.dtype.is_float:
        return _nowhere(x, 0)
    return run(Equal(), abs(x), constant(x, math.inf, x.tensor_type.dtype))


def isfinite(x: Tensor) -> Tensor:
    """Return a bool tensor, True where an element is neither NaN nor infinite."""
    if not x.tensor_type.dtype.is_float:
        return _nowhere(x, 1)
    return run(Less(), abs(x), constant(x, math.inf, x.tensor_type.dtype))


def _nowhere(x: Tensor, value: int) -> Tensor:
    return run(FillLike(value, bool_), x)


class ElementwiseMethods:
    """Elementwise functions as methods of tensors."""

    __slots__ = ()

    __abs__ = method(abs)
    abs = method(abs)
    abs_ = in_place(abs)
    acos = method(acos)
    acos_ = in_place(acos)
    acosh = method(acosh)
    acosh_ = in_place(acosh)
    asin = method(asin)
    asin_ = in_place(asin)
    asinh = method(asinh)
    asinh_ = in_place(asinh)
    atan = method(atan)
    atan2 = method(atan2)
    atan_ = in_place(atan)
    atanh = method(atanh)
    atanh_ = in_place(atanh)
    ceil = method(ceil)
    ceil_ = in_place(ceil)
    clamp = method(clamp)
    clamp_ = in_place(clamp)
    clamp_max = method(clamp_max)
    clamp_max_ = in_place(clamp_max)
    clamp_min = method(clamp_min)
    clamp_min_ = in_place(clamp_min)
    cos = method(cos)
    cos_ = in_place(cos)
    cosh = method(cosh)
    cosh_ = in_place(cosh)
    erf = method(erf)
    erf_ = in_place(erf)
    erfc = method(erfc)
    erfc_ = in_place(erfc)
    exp = method(exp)
    exp2 = method(exp2)
    exp_ = in_place(exp)
    expm1 = method(expm1)
    expm1_ = in_place(expm1)
    floor = method(floor)
    floor_ = in_place(floor)
    frac = method(frac)
    isfinite = method(isfinite)
    isinf = method(isinf)
    isnan = method(isnan)
    lerp = method(lerp)
    lerp_ = in_place(lerp)
    log = method(log)
    log10 = method(log10)
    log1p = method(log1p)
    log1p_ = in_place(log1p)
    log2 = method(log2)
    log_ = in_place(log)
    logit = method(logit)
    logit_ = in_place(logit)
    nan_to_num = method(nan_to_num)
    reciprocal = method(reciprocal)
    reciprocal_ = in_place(reciprocal)
    round = method(round)
    round_ = in_place(round)
    rsqrt = method(rsqrt)
    rsqrt_ = in_place(rsqrt)
    sign = method(sign)
    sign_ = in_place(sign)
    sin = method(sin)
    sin_ = in_place(sin)
    sinh = method(sinh)
    sinh_ = in_place(sinh)
    sqrt = method(sqrt)
    sqrt_ = in_place(sqrt)
    square = method(square)
    square_ = in_place(square)
    tan = method(tan)
    tan_ = in_place(tan)
    trunc = method(trunc)
    trunc_ = in_place(trunc)
    absolute = method(abs, "absolute")
    absolute_ = abs_
    arccos = method(acos, "arccos")
    arccos_ = acos_
    arccosh = method(acosh, "arccosh")
    arccosh_ = acosh_
    arcsin = method(asin, "arcsin")
    arcsin_ = asin_
    arcsinh = method(asinh, "arcsinh")
    arcsinh_ = asinh_
    arctan = method(atan, "arctan")
    arctan2 = method(atan2, "arctan2")
    arctan_ = atan_
    arctanh = method(atanh, "arctanh")
    arctanh_ = atanh_
    clip = method(clamp, "clip")
    clip_ = in_place(clamp, "clip_")
    fix = method(trunc, "fix")
    fix_ = trunc_
    sgn = method(sign, "sgn")
    sgn_ = sign_
