"""Formulas of functions from primitives that are one NumPy call each, vectorized where possible.

A function that NumPy does not vectorize on this CPU takes about 20 ns per element.  NumPy vectorizes exponentials, logarithms, sines and cosines on
more CPUs.  A formula of these functions takes a quarter of the time.  Its error is at most 6 units in the last place.
The formula causes the same floating point warnings as the function of NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np

from jobflow.core.types import DType, bool_, float32
from jobflow.expressions import language as f
from jobflow.expressions.error_function import ERFC_END, ERFC_SINGLE
from jobflow.expressions.language import Expression, make
from jobflow.expressions.on_arrays import exponent_limit
from jobflow.kernels.decompositions import DECOMPOSITIONS

#: erf(x) = tanh(x p(x^2)) to 6e-8 on the whole line: a fit of p, the lowest power first.  NumPy's tanh is vectorized, so
#: this is cheaper than a ratio of polynomials; p grows, so large arguments need no clamp.
FAST_ERF = (
    1.1283797054704658,
    0.10276548144477653,
    -0.00018438366299052705,
    -0.0006257195988527302,
    8.971259676385994e-05,
    -5.985692204680512e-06,
    1.5896031178586674e-07,
)


def _sigmoid(x: Expression) -> Expression:
    return f.reciprocal(f.exp(f.minimum(-x, exponent_limit(x.dtype))) + 1.0)


def _softplus(x: Expression) -> Expression:
    return f.maximum(x, 0.0) + f.log1p(f.exp(-f.absolute(x)))


def _rsqrt(x: Expression) -> Expression:
    return f.reciprocal(f.sqrt(x))


def _erf(x: Expression) -> Expression:
    if x.dtype is not float32:
        return make("erf", (x,), x.dtype)
    square = x * x
    value = square * FAST_ERF[-1]
    for c in FAST_ERF[-2:0:-1]:
        value = (value + c) * square
    return f.tanh((value + FAST_ERF[0]) * x)


def _erfc(x: Expression) -> Expression:
    """Return erfc(x) as exp(-x^2) times a polynomial over 1 + 2 x; x^2 is split into two parts, so that exp loses no digits."""
    if x.dtype is not float32:
        return make("erfc", (x,), x.dtype)
    size = f.minimum(f.absolute(x), ERFC_END)
    ratio = (size - 2.0) / (size + 2.0)
    value = ratio * ERFC_SINGLE[0]
    for c in ERFC_SINGLE[1:-1]:
        value = (value + c) * ratio
    near = f.trunc(size * 16.0) * (1 / 16)
    power = f.exp(-(near * near)) * f.exp((near - size) * (near + size))
    tail = power * ((value + (1.0 + ERFC_SINGLE[-1])) / (size + size + 1.0))
    return _where(x < 0.0, 2.0 - tail, tail)


def _power(x: Expression, y: Expression) -> Expression:
    """Return x^y; cubes are products, because NumPy's power computes a logarithm and an exponential."""
    if x.dtype.is_float and y.primitive == "constant" and y.attribute == 3.0:
        return x * x * x
    return make("power", (x, y), x.dtype)


def cast(x: Expression, dtype: DType) -> Expression:
    """Convert to another type; booleans other than inputs are integers here."""
    if x.dtype is bool_ and x.primitive != "element":
        return _where(x, f.constant(1, dtype), f.constant(0, dtype))
    return make("cast", (x,), dtype)


def _not(x: Expression) -> Expression:
    return f.logical_xor(x, f.constant(True, bool_))


def _minimum_of(x: Expression, y: Expression) -> Expression:
    if x.primitive == "maximum" and y.primitive == x.arguments[1].primitive == "constant":
        return make("clip", (*x.arguments, y), x.dtype)
    return f.minimum(x, y)


def _where(condition: Expression, x: Expression, y: Expression) -> Expression:
    constants = [_pattern(each) for each in (x, y)]
    if None not in constants:
        difference = make("bits", (), x.dtype, constants[0] ^ constants[1])  # type: ignore[operator]
        chosen = _bits("multiply", difference, condition)
        return _bits("bitwise_xor", chosen, y) if constants[1] else chosen
    if constants[1] == 0:
        return _bits("multiply", x, condition)
    if constants[0] == 0:
        return _bits("subtract", y, _bits("multiply", y, condition))
    return _bits("bitwise_xor", _bits("multiply", _bits("bitwise_xor", x, y), condition), y)


def _bits(name: str, x: Expression, y: Expression) -> Expression:
    """Apply a NumPy function to bit patterns; for `multiply`, the second operand is a boolean."""
    return make(f"bits {name}", (x, y), x.dtype)


def _pattern(x: Expression) -> int | None:
    """Return the bits of a constant, or None for other expressions."""
    return int(np.asarray(x.attribute, x.dtype.numpy).view(f"i{x.dtype.itemsize}")) if x.primitive == "constant" else None


#: formulas used on all CPUs
SIMPLER: dict[str, Callable[..., Expression]] = {
    "sigmoid": _sigmoid,
    "softplus": _softplus,
    "rsqrt": _rsqrt,
    "erf": _erf,
    "erfc": _erfc,
    "power": _power,
    "where": _where,
    "logical_not": _not,
    "minimum": _minimum_of,
    "fma": lambda x, y, z: x * y + z,
}


# Functions that NumPy computes element by element ---------------------------------------------------------------------


_LARGEST = float(np.finfo(np.float32).max)


@cache
def is_vectorized(name: str) -> bool:
    """Return True if NumPy has a vectorized loop of this function for float32 on this CPU."""
    info = np.lib.introspect.opt_func_info(func_name=f"^{name}$", signature="float32")
    return any(not loop["current"].startswith("baseline") for loops in info.values() for loop in loops.values())


@cache
def fastest_exponential() -> tuple[np.ufunc, float]:
    """Return a NumPy function f and a factor c with exp(x) = f(c x): exp2 if NumPy vectorizes exp2, which takes half the time of exp."""
    return (np.exp2, math.log2(math.e)) if is_vectorized("exp2") else (np.exp, 1.0)


#: makes a quotient of zeros 1, and is lost to rounding in any other quotient
_TINY = 1e-30


def _expm1(x: Expression) -> Expression:
    """Return e^x - 1; dividing by log(e^x) cancels the rounding error of e^x.

    Source: W. Kahan, in N. Higham, "Accuracy and Stability of Numerical Algorithms", 1.14.1.
    """
    power = f.exp(x)
    less = power - 1.0
    near = x * ((less + _TINY) / (f.log(f.minimum(f.maximum(power, 0.25), 4.0)) + _TINY))
    return _where(f.absolute(x) < 1.0, near, less)


def _log1p(x: Expression) -> Expression:
    """Return log(1 + x) as log(s) x / (s - 1), where s is the rounded sum 1 + x; the factor corrects the rounding error of s."""
    more = x + 1.0
    share = x / ((f.minimum(more, _LARGEST) - 1.0) + _TINY)
    return _where(f.equal(more, 1.0), x, f.log(more) * share)


def _tan(x: Expression) -> Expression:
    return f.sin(x) / f.cos(x)


#: functions that the formulas need; without vectorized loops of these, formulas save nothing
_NEEDED = ("exp", "log", "sin", "cos")
_SCALAR: dict[str, Callable[..., Expression]] = {
    "expm1": _expm1,
    "log1p": _log1p,
    "tan": _tan,
    **{name: DECOMPOSITIONS[name] for name in ("sinh", "cosh", "arcsin", "arccos", "arctan", "arctan2", "arcsinh", "arccosh", "arctanh")},
}


def lacks_vector_loop(name: str, dtype: DType) -> bool:
    """Return True if `_SCALAR` has a faster formula of a float32 function: NumPy vectorizes exp, log, sin and cos, but not this function."""
    return dtype is float32 and name in _SCALAR and not is_vectorized(name) and all(map(is_vectorized, _NEEDED))


def formula_of(primitive: str, dtype: DType) -> Callable[..., Expression] | None:
    """Return the formula that replaces a primitive which is slow or missing in NumPy, or None; functions in the formula may have formulas too."""
    return _SCALAR[primitive] if lacks_vector_loop(primitive, dtype) else SIMPLER.get(primitive)
