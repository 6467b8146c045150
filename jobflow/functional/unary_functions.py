"""Functions of one tensor, element by element: powers, exponentials, angles, rounding, limits.  Where they make floats, integers become float32."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from jobflow.core.errors import ArgumentError, DtypeError, user_line
from jobflow.core.types import bool_
from jobflow.eager.run import run
from jobflow.functional import binary_functions as arithmetic
from jobflow.functional.comparing import eq, where
from jobflow.functional.dispatch import method
from jobflow.functional.in_place import in_place
from jobflow.functional.promotion import Number, as_float, cast, constant, pair, result_type, rounded_once
from jobflow.functional.typed import Tensor
from jobflow.ops import scalar
from jobflow.ops import transcendental as functions
from jobflow.ops.compare import Equal, Less, NotEqual
from jobflow.ops.op import Op
from jobflow.ops.scalar import Clip, FillLike, Scale

__all__ = [
    "abs", "absolute", "acos", "acosh", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh", "asin", "asinh", "atan", "atan2",
    "atanh", "ceil", "clamp", "clamp_max", "clamp_min", "clip", "cos", "cosh", "erf", "erfc", "exp", "exp2", "expm1", "fix", "floor", "frac",
    "isfinite", "isinf", "isnan", "log", "log10", "log1p", "log2", "logit", "nan_to_num", "reciprocal", "round", "rsqrt", "sgn", "sign", "sin",
    "sinh", "sqrt", "square", "tan", "trunc",
]  # fmt: skip

Function = Callable[[Tensor], Tensor]


def _of_floats(name: str, op: Op, doc: str) -> Function:
    """A function of floats, also as a method and in place."""

    def function(x: Tensor) -> Tensor:
        return run(op, as_float(x))

    return _known(name, function, doc)


def _of_numbers(name: str, op: Op, doc: str, *, whole: bool = False) -> Function:
    """A function of numbers of any kind; `whole`: integers are what they are."""

    def function(x: Tensor) -> Tensor:
        if whole and not x.tensor_type.dtype.is_float:
            return x
        return run(op, x)

    return _known(name, function, doc)


def _known(name: str, function: Function, doc: str) -> Function:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


exp = _of_floats("exp", functions.Exp(), "e^x")
expm1 = _of_floats("expm1", functions.Expm1(), "e^x - 1, exact near 0")
log = _of_floats("log", functions.Log(), "ln x")
log1p = _of_floats("log1p", functions.Log1p(), "ln(1 + x), exact near 0")
sqrt = _of_floats("sqrt", functions.Sqrt(), "x^(1/2)")
rsqrt = _of_floats("rsqrt", functions.Rsqrt(), "x^(-1/2)")
reciprocal = _of_floats("reciprocal", functions.Reciprocal(), "1 / x")
sin = _of_floats("sin", functions.Sin(), "sin x")
cos = _of_floats("cos", functions.Cos(), "cos x")
tan = _of_floats("tan", functions.Tan(), "tan x")
asin = arcsin = _of_floats("asin", functions.Asin(), "the angle whose sine is x")
acos = arccos = _of_floats("acos", functions.Acos(), "the angle whose cosine is x")
atan = arctan = _of_floats("atan", functions.Atan(), "the angle whose tangent is x")
sinh = _of_floats("sinh", functions.Sinh(), "sinh x")
cosh = _of_floats("cosh", functions.Cosh(), "cosh x")
asinh = arcsinh = _of_floats("asinh", functions.Asinh(), "the x of which this is the sinh")
acosh = arccosh = _of_floats("acosh", functions.Acosh(), "the x of which this is the cosh")
atanh = arctanh = _of_floats("atanh", functions.Atanh(), "the x of which this is the tanh")
erf = _of_floats("erf", functions.Erf(), "the error function")
erfc = _of_floats("erfc", functions.Erfc(), "1 - erf(x), exact far out")
abs = absolute = _of_numbers("abs", functions.Absolute(), "|x|; its gradient at 0 is 0")
square = _of_numbers("square", functions.Square(), "x^2")
sign = sgn = _of_numbers("sign", scalar.Sign(), "-1, 0 or 1")
floor = _of_numbers("floor", scalar.Floor(), "the largest integer not above x", whole=True)
ceil = _of_numbers("ceil", scalar.Ceil(), "the smallest integer not below x", whole=True)
trunc = fix = _of_numbers("trunc", scalar.Truncate(), "x without its fraction", whole=True)


@rounded_once
def log2(x: Tensor) -> Tensor:
    """The logarithm to the base 2"""
    return run(Scale(1 / math.log(2)), log(x))


@rounded_once
def log10(x: Tensor) -> Tensor:
    """The logarithm to the base 10"""
    return run(Scale(1 / math.log(10)), log(x))


def exp2(x: Tensor) -> Tensor:
    """2^x"""
    return arithmetic.pow(2.0, x)


@rounded_once
def round(x: Tensor, *, decimals: int = 0) -> Tensor:
    """The nearest integer, the even one of two; with `decimals` so many places behind the point."""
    if not x.tensor_type.dtype.is_float:
        return x
    made: Tensor = run(scalar.RoundHalfEven(), arithmetic.mul(x, 10.0**decimals) if decimals else x)
    return arithmetic.div(made, 10.0**decimals) if decimals else made


@rounded_once
def frac(x: Tensor) -> Tensor:
    """x without its integer part"""
    return arithmetic.sub(x, trunc(x))


def atan2(x: Any, other: Any) -> Tensor:
    """The angle of the point (other, x)"""
    a, b = pair("atan2", x, other)
    return run(functions.Atan2(), as_float(a), as_float(b))


arctan2 = atan2


# -------------------------------------------------------------------- limits


def clamp(x: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """x limited to [min, max], numbers or tensors; one of them may be left out."""
    if min is None and max is None:
        raise ArgumentError(f"clamp at {user_line()}: it needs min, max, or both")
    if isinstance(min, Tensor) or isinstance(max, Tensor):
        x = x if min is None else arithmetic.maximum(x, min)
        return x if max is None else arithmetic.minimum(x, max)
    limits = [None if bound is None else _number(bound) for bound in (min, max)]
    x = cast(x, result_type(x, *(bound for bound in limits if bound is not None)))
    return run(Clip(*scalar.bounds("clamp", x, *limits)), x)


clip = clamp


def _number(value: Any) -> Number:
    found: Number = value.item() if hasattr(value, "item") else value
    if not isinstance(found, int | float):
        raise DtypeError(f"clamp at {user_line()}: a bound is a number or a tensor; got {value!r} of type {type(value).__name__}")
    return found


def clamp_min(x: Tensor, min: Any) -> Tensor:
    """x, or `min` where that is larger"""
    return clamp(x, min=min)


def clamp_max(x: Tensor, max: Any) -> Tensor:
    """x, or `max` where that is smaller"""
    return clamp(x, max=max)


def logit(x: Tensor, eps: float | None = None) -> Tensor:
    """Return ln(x / (1 - x)), the inverse of the sigmoid; `eps` limits x to [eps, 1 - eps] first."""
    x = as_float(x)
    return run(functions.Logit(), x if eps is None else clamp(x, eps, 1 - eps))


def nan_to_num(x: Tensor, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Tensor:
    """x with numbers in the place of NaN and of infinities, which become the largest numbers of the type."""
    if not x.tensor_type.dtype.is_float:
        return x
    largest = x.tensor_type.dtype.largest
    low, high = -largest if neginf is None else neginf, largest if posinf is None else posinf
    x = where(isnan(x), nan, x)
    return where(eq(x, math.inf), high, where(eq(x, -math.inf), low, x))


# -------------------------------------------------------------------- what kind of number


def isnan(x: Tensor) -> Tensor:
    """Whether an element is not a number"""
    return run(NotEqual(), x, x)


def isinf(x: Tensor) -> Tensor:
    """Whether an element is infinite"""
    if not x.tensor_type.dtype.is_float:
        return _nowhere(x, 0)
    return run(Equal(), abs(x), constant(x, math.inf, x.tensor_type.dtype))


def isfinite(x: Tensor) -> Tensor:
    """Whether an element is a number and not infinite"""
    if not x.tensor_type.dtype.is_float:
        return _nowhere(x, 1)
    return run(Less(), abs(x), constant(x, math.inf, x.tensor_type.dtype))


def _nowhere(x: Tensor, value: int) -> Tensor:
    return run(FillLike(value, bool_), x)


class ElementwiseMethods:
    """Methods of tensors: elementwise functions."""

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
