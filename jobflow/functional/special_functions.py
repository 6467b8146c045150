"""Special functions of one or two tensors: gamma and error functions, entropies, logarithms of sums, signs and integers.

`flow.special` lists the functions by the names of PyTorch's module.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from jobflow.core.errors import ArgumentError, DtypeError, JobError, user_line
from jobflow.core.types import bool_
from jobflow.functional.argument_checks import checks_arguments
from jobflow.functional.binary_functions import add, div, maximum, minimum, mul, pow, sub
from jobflow.functional.comparing import eq, ge, gt, le, logical_and, logical_or, lt, where
from jobflow.functional.dispatch import method, operator, reflected
from jobflow.functional.in_place import in_place
from jobflow.functional.promotion import Operand, as_float, cast, constant, kind, pair, rounded_once
from jobflow.functional.typed import Tensor
from jobflow.functional.unary_functions import abs, erfc, exp, isnan, log, log1p, sin
from jobflow.ops import unary_special_functions as special
from jobflow.ops.binary_special_functions import CopySign, Gcd, Hypot, Lcm, LeftShift, LogAddExp, NextAfter, RightShift, Zeta
from jobflow.ops.gamma_functions import Digamma, Lgamma
from jobflow.ops.op import Op
from jobflow.ops.scalar import FillLike
from jobflow.tensors.run import run
from jobflow.tensors.state import state

__all__ = [
    "bitwise_left_shift", "bitwise_right_shift", "copysign", "deg2rad", "digamma", "erfinv", "fmax", "fmin", "gcd", "heaviside", "hypot", "i0",
    "isneginf", "isposinf", "lcm", "ldexp", "lgamma", "logaddexp", "logaddexp2", "mvlgamma", "nextafter", "polygamma", "rad2deg", "signbit", "sinc",
    "xlogy",
]  # fmt: skip


def _of_floats(name: str, op: Op, doc: str) -> Callable[[Tensor], Tensor]:
    """Return a function `name` that converts x to floats and applies `op`."""

    def function(x: Tensor) -> Tensor:
        return run(op, as_float(x))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


lgamma = _of_floats("lgamma", Lgamma(), "Return ln |gamma(x)|, element by element.")
digamma = _of_floats("digamma", Digamma(), "Return the derivative of ln gamma(x).")
erfinv = _of_floats("erfinv", special.Erfinv(), "Return the inverse of the error function; NaN outside of [-1, 1].")
ndtri = _of_floats("ndtri", special.Ndtri(), "Return the inverse of `ndtr`; NaN outside of [0, 1].")
erfcx = _of_floats("erfcx", special.Erfcx(), "Return exp(x^2) erfc(x), which does not underflow for large x.")
i0e = _of_floats("i0e", special.I0e(), "Return exp(-|x|) I0(x), the scaled modified Bessel function of order 0.")
i1e = _of_floats("i1e", special.I1e(), "Return exp(-|x|) I1(x), the scaled modified Bessel function of order 1.")


@rounded_once
def i0(x: Tensor) -> Tensor:
    """Return the modified Bessel function of order 0."""
    return mul(i0e(x), exp(abs(as_float(x))))


@rounded_once
def i1(x: Tensor) -> Tensor:
    """Return the modified Bessel function of order 1."""
    return mul(i1e(x), exp(abs(as_float(x))))


@checks_arguments
def polygamma(n: int, input: Tensor) -> Tensor:
    """Return the derivative of order n of the digamma function, for input > -15.  Raises: ArgumentError for a negative n."""
    if n < 0 or n > 100:
        raise ArgumentError(f"polygamma at {user_line()}: n must be from 0 to 100; got {n}")
    return digamma(input) if n == 0 else run(special.Polygamma(int(n)), as_float(input))


def _polygamma(x: Tensor, n: int) -> Tensor:
    """Return the derivative of order n of the digamma function; see `flow.polygamma`."""
    return polygamma(n, x)


@checks_arguments
@rounded_once
def mvlgamma(x: Tensor, p: int) -> Tensor:
    """Return the logarithm of the multivariate gamma function of dimension p.  Raises: ArgumentError for p < 1."""
    if not 1 <= p <= 1000:
        raise ArgumentError(f"mvlgamma at {user_line()}: p must be from 1 to 1000; got {p}")
    x = as_float(x)
    total = lgamma(x)
    for i in range(1, p):
        total = add(total, lgamma(sub(x, i / 2)))
    return add(total, p * (p - 1) / 4 * math.log(math.pi))


@rounded_once
def deg2rad(x: Tensor) -> Tensor:
    """Convert angles from degrees to radians."""
    return mul(x, math.pi / 180)


@rounded_once
def rad2deg(x: Tensor) -> Tensor:
    """Convert angles from radians to degrees."""
    return mul(x, 180 / math.pi)


@rounded_once
def sinc(x: Tensor) -> Tensor:
    """Return sin(pi x) / (pi x), and 1 at 0."""
    x = as_float(x)
    zero = eq(x, 0)
    angle = mul(where(zero, 1.0, x), math.pi)
    return where(zero, 1.0, div(sin(angle), angle))


@rounded_once
def entr(x: Tensor) -> Tensor:
    """Return -x ln x for positive x, 0 for 0, and -inf for negative x."""
    x = as_float(x)
    positive = logical_or(gt(x, 0), isnan(x))
    safe = where(positive, x, 1.0)
    return where(positive, mul(-safe, log(safe)), where(eq(x, 0), 0.0, constant(x, -math.inf, x.dtype)))


@rounded_once
def ndtr(x: Tensor) -> Tensor:
    """Return the probability that a standard normal number is at most x."""
    return mul(erfc(mul(as_float(x), -math.sqrt(0.5))), 0.5)


@rounded_once
def log_ndtr(x: Tensor) -> Tensor:
    """Return the logarithm of `ndtr`, accurate for negative x, too."""
    x = mul(as_float(x), math.sqrt(0.5))
    low = lt(x, -0.5)
    tail = sub(log(mul(erfcx(-where(low, x, -1.0)), 0.5)), mul(x, x))
    return where(low, tail, log1p(mul(erfc(where(low, 0.0, x)), -0.5)))


# -------------------------------------------------------------------- two tensors


def _floats(what: str, x: Any, other: Any) -> tuple[Tensor, Tensor]:
    a, b = pair(what, x, other)
    return as_float(a), as_float(b)


def _x_times(what: str, x: Any, other: Any, logarithm: Callable[[Tensor], Tensor], bound: float) -> Tensor:
    """Return x * logarithm(other), and 0 where x is 0 and `other` is not NaN; the logarithm is not finite for arguments up to `bound`."""
    a, b = _floats(what, x, other)
    unused = logical_and(eq(a, 0), logical_or(le(b, bound), eq(b, math.inf)))
    return mul(a, logarithm(where(unused, 1.0, b)))


@rounded_once
def xlogy(x: Operand, other: Operand) -> Tensor:
    """Return x ln(other), and 0 where x is 0 and `other` is not NaN."""
    return _x_times("xlogy", x, other, log, 0.0)


@rounded_once
def xlog1py(x: Operand, other: Operand) -> Tensor:
    """Return x ln(1 + other), and 0 where x is 0 and `other` is not NaN."""
    return _x_times("xlog1py", x, other, log1p, -1.0)


@rounded_once
def zeta(x: Operand, other: Operand) -> Tensor:
    """Return the Hurwitz zeta function, the sum of (other + k)^-x over k = 0, 1, ..., for other > -15.

    Raises: JobError for an x that requires gradients, because the derivative with respect to x is not implemented.
    """
    if isinstance(x, Tensor) and x._needs_gradient and state().grad_enabled:
        raise JobError(f"zeta at {user_line()}: the derivative with respect to x is not implemented; pass x.detach()")
    a, b = _floats("zeta", x, other)
    return run(Zeta(), a, b)


@rounded_once
def logaddexp(x: Tensor, other: Tensor) -> Tensor:
    """Return ln(e^x + e^other), computed without overflow."""
    return run(LogAddExp(), *_floats("logaddexp", x, other))


@rounded_once
def logaddexp2(x: Tensor, other: Tensor) -> Tensor:
    """Return log2(2^x + 2^other), computed without overflow."""
    a, b = _floats("logaddexp2", x, other)
    return mul(run(LogAddExp(), mul(a, math.log(2)), mul(b, math.log(2))), 1 / math.log(2))


@rounded_once
def hypot(x: Tensor, other: Tensor) -> Tensor:
    """Return sqrt(x^2 + other^2), computed without overflow."""
    return run(Hypot(), *_floats("hypot", x, other))


def copysign(x: Tensor, other: Operand) -> Tensor:
    """Return |x| with the sign of `other`, a tensor or a number."""
    return run(CopySign(), *_floats("copysign", x, other))


def nextafter(x: Tensor, other: Tensor) -> Tensor:
    """Return the next number of the element type after x in the direction of `other`.  Raises: DtypeError for integers."""
    return run(NextAfter(), *pair("nextafter", x, other))


def fmax(x: Tensor, other: Tensor) -> Tensor:
    """Return the larger of x and `other`; if one of them is NaN, the other one."""
    a, b = pair("fmax", x, other)
    return where(logical_or(ge(a, b), isnan(b)), a, b) if a.dtype.is_float else maximum(a, b)


def fmin(x: Tensor, other: Tensor) -> Tensor:
    """Return the smaller of x and `other`; if one of them is NaN, the other one."""
    a, b = pair("fmin", x, other)
    return where(logical_or(le(a, b), isnan(b)), a, b) if a.dtype.is_float else minimum(a, b)


def heaviside(x: Tensor, values: Tensor) -> Tensor:
    """Return 0 for negative x, 1 for positive x, and `values` where x is 0.  Raises: DtypeError for different element types."""
    if x.dtype is not values.dtype:
        raise DtypeError(f"heaviside at {user_line()}: x {x.tensor_type} and values {values.tensor_type} differ in element type; cast one of them")
    return where(eq(x, 0), values, cast(gt(x, 0), x.dtype))


@rounded_once
def ldexp(x: Tensor, other: Tensor) -> Tensor:
    """Return x * 2^other; for a floating point x and an integer `other`, in the type of x."""
    if x.dtype.is_float and not other.dtype.is_float:
        if other.dtype is bool_:
            raise DtypeError(f"ldexp at {user_line()}: other must contain numbers; got {other.tensor_type}")
        other = cast(other, x.dtype)
    return mul(x, pow(2.0, other))


def isneginf(x: Tensor) -> Tensor:
    """Return a bool tensor, True where an element is -inf."""
    return _equals(x, -math.inf)


def isposinf(x: Tensor) -> Tensor:
    """Return a bool tensor, True where an element is inf."""
    return _equals(x, math.inf)


def _equals(x: Tensor, value: float) -> Tensor:
    return eq(x, constant(x, value, x.dtype)) if x.dtype.is_float else run(FillLike(False, bool_), x)


def signbit(x: Tensor) -> Tensor:
    """Return a bool tensor, True where the sign of an element is negative, as for -0.0."""
    if x.dtype.is_float:
        return lt(run(CopySign(), run(FillLike(1), x), x), 0)
    return lt(x, 0)


# -------------------------------------------------------------------- integers


def _integers(what: str, x: Any, other: Any) -> tuple[Tensor, Tensor]:
    a, b = pair(what, x, other)
    if kind(a.dtype) != 1:
        raise DtypeError(f"{what} at {user_line()}: the operands must be integers; got {a.tensor_type} and {b.tensor_type}; cast them")
    return a, b


def gcd(x: Tensor, other: Tensor) -> Tensor:
    """Return the greatest common divisor of integers.  Raises: DtypeError for other element types."""
    return run(Gcd(), *_integers("gcd", x, other))


def lcm(x: Tensor, other: Tensor) -> Tensor:
    """Return the least common multiple of integers.  Raises: DtypeError for other element types."""
    return run(Lcm(), *_integers("lcm", x, other))


def bitwise_left_shift(x: Operand, other: Operand) -> Tensor:
    """Return the bits of x shifted to the left by `other`.  Raises: DtypeError for types other than integers."""
    return run(LeftShift(), *_integers("bitwise_left_shift", x, other))


def bitwise_right_shift(x: Operand, other: Operand) -> Tensor:
    """Return the bits of x shifted to the right by `other`, filled with the sign.  Raises: DtypeError for types other than integers."""
    return run(RightShift(), *_integers("bitwise_right_shift", x, other))


class SpecialMethods:
    """Special functions as methods of tensors."""

    __slots__ = ()

    __ilshift__ = in_place(bitwise_left_shift, "__ilshift__")
    __irshift__ = in_place(bitwise_right_shift, "__irshift__")
    __lshift__ = operator(bitwise_left_shift)
    __rlshift__ = reflected(bitwise_left_shift)
    __rrshift__ = reflected(bitwise_right_shift)
    __rshift__ = operator(bitwise_right_shift)
    bitwise_left_shift = method(bitwise_left_shift)
    bitwise_left_shift_ = in_place(bitwise_left_shift)
    bitwise_right_shift = method(bitwise_right_shift)
    bitwise_right_shift_ = in_place(bitwise_right_shift)
    copysign = method(copysign)
    copysign_ = in_place(copysign)
    deg2rad = method(deg2rad)
    deg2rad_ = in_place(deg2rad)
    digamma = method(digamma)
    digamma_ = in_place(digamma)
    erfinv = method(erfinv)
    erfinv_ = in_place(erfinv)
    fmax = method(fmax)
    fmin = method(fmin)
    gcd = method(gcd)
    gcd_ = in_place(gcd)
    heaviside = method(heaviside)
    heaviside_ = in_place(heaviside)
    hypot = method(hypot)
    hypot_ = in_place(hypot)
    i0 = method(i0)
    i0_ = in_place(i0)
    lcm = method(lcm)
    lcm_ = in_place(lcm)
    isneginf = method(isneginf)
    isposinf = method(isposinf)
    ldexp = method(ldexp)
    ldexp_ = in_place(ldexp)
    lgamma = method(lgamma)
    lgamma_ = in_place(lgamma)
    logaddexp = method(logaddexp)
    logaddexp2 = method(logaddexp2)
    mvlgamma = method(mvlgamma)
    mvlgamma_ = in_place(mvlgamma)
    nextafter = method(nextafter)
    nextafter_ = in_place(nextafter)
    polygamma = method(_polygamma, "polygamma")
    polygamma_ = in_place(_polygamma, "polygamma_")
    rad2deg = method(rad2deg)
    rad2deg_ = in_place(rad2deg)
    signbit = method(signbit)
    sinc = method(sinc)
    sinc_ = in_place(sinc)
    xlogy = method(xlogy)
    xlogy_ = in_place(xlogy)
