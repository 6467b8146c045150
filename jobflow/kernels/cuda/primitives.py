"""Primitives of the expression language as expressions of CUDA C.

Half-precision values are stored in variables of type float, and rounded where the language rounds.  Products and sums are not contracted
(`--fmad=false`), so only `fma` is a fused multiply-add.  Subnormal numbers are not flushed to zero (`--ftz=false`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from jobflow.core.types import DType, bool_, float16, float32, int32
from jobflow.expressions.language import Expression
from jobflow.kernels.row_phases import COLUMNS, REDUCTIONS

_VALUE = {
    "bool": "bool",
    "char": "signed char",
    "int8": "signed char",
    "uint8": "unsigned char",
    "int16": "short",
    "int32": "int",
    "int64": "long long",
    "float32": "float",
    "float64": "double",
}
_STORED = {**_VALUE, "bool": "unsigned char", "float16": "unsigned short", "bfloat16": "unsigned short"}
#: wrapping arithmetic uses unsigned types
_UNSIGNED = {"int": "unsigned int", "long long": "unsigned long long"}

#: CUDA math functions with the same name in `language`, and those with another name
_SAME = (
    *("sqrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "sinh", "cosh", "tanh", "erf", "erfc"),
    *("floor", "ceil", "rint", "trunc", "copysign", "fmod", "ldexp", "fma", "nextafter"),
)
_NAMED = {
    **{name: name for name in _SAME},
    "arcsin": "asin",
    "arccos": "acos",
    "arctan": "atan",
    "arctan2": "atan2",
    "arcsinh": "asinh",
    "arccosh": "acosh",
    "arctanh": "atanh",
}

#: C functions that texts call
FUNCTIONS: dict[str, str] = {
    "from_half": """static __device__ float from_half(unsigned short bits) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
}""",
    "to_half": """static __device__ unsigned short to_half(float x) {
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}""",
    "from_bfloat": """static __device__ float from_bfloat(unsigned short bits) {
  return __int_as_float((int)((unsigned int)bits << 16));
}""",
    "to_bfloat": """static __device__ unsigned short to_bfloat(float x) {  // the nearest, to even where two are
#if __CUDA_ARCH__ >= 800
  unsigned short bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
#else
  unsigned int bits = (unsigned int)__float_as_int(x);
  return x != x ? 0x7fc0 : (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
#endif
}""",
    "divided": """static __device__ int divided(int i, unsigned int factor, int shift) {  // multiply and shift
  return (int)((__umulhi((unsigned int)i, factor) + (unsigned int)i) >> shift);
}""",
    "Vector": """template <typename T, int N> struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Vector {
  T at[N];
};""",
    "copied": """template <int BYTES> static __device__ void copied(void *to, const void *from) {  // by the widest accesses
  if constexpr (BYTES % 16 == 0) {
#pragma unroll
    for (int k = 0; k < BYTES / 16; ++k) ((uint4 *)to)[k] = ((const uint4 *)from)[k];
  } else if constexpr (BYTES == 8) {
    *(uint2 *)to = *(const uint2 *)from;
  } else if constexpr (BYTES == 4) {
    *(unsigned int *)to = *(const unsigned int *)from;
  } else {
    static_assert(BYTES == 2, "a vector of two to eight bytes, or of whole words of sixteen");
    *(unsigned short *)to = *(const unsigned short *)from;
  }
}""",
    "loaded": """template <int N, typename T> static __device__ Vector<T, N> loaded(const T *from) {
  Vector<T, N> values;
  copied<N * sizeof(T)>(&values, from);
  return values;
}""",
    "stored": """template <int N, typename T> static __device__ void stored(T *to, const Vector<T, N> &values) {
  copied<N * sizeof(T)>(to, &values);
}""",
    "larger": """template <typename T> static __device__ T larger(T a, T b) {  // NaN if one is
  return a > b || a != a ? a : b;
}""",
    "smaller": """template <typename T> static __device__ T smaller(T a, T b) {
  return a < b || a != a ? a : b;
}""",
    "sign": """template <typename T> static __device__ T sign(T a) {
  return a > T(0) ? T(1) : a < T(0) ? T(-1) : a != a ? a : T(0);
}""",
    "power_of": """template <typename T> static __device__ T power_of(T base, T exponent) {  // by squaring; 1 / base^-n is rounded to zero
  if (exponent < T(0)) return base == T(1) ? T(1) : base == T(-1) ? (exponent % 2 ? T(-1) : T(1)) : T(0);
  unsigned long long result = 1, square = (unsigned long long)base;
  for (unsigned long long n = (unsigned long long)exponent; n; n >>= 1, square *= square)
    if (n & 1) result *= square;
  return (T)result;
}""",
    "gcd_of": """template <typename T> static __device__ T gcd_of(T a, T b) {  // by Euclid; wraps around for the smallest integer
  unsigned long long x = a < T(0) ? 0ULL - (unsigned long long)a : (unsigned long long)a;
  unsigned long long y = b < T(0) ? 0ULL - (unsigned long long)b : (unsigned long long)b;
  while (y) {
    const unsigned long long rest = x % y;
    x = y;
    y = rest;
  }
  return (T)x;
}""",
    "whole": """template <typename T, typename X> static __device__ T whole(X x, X low, X beyond, T least) {  // that for NaN
  return x >= low && x < beyond ? (T)x : least;
}""",
}


def value_type(dtype: DType) -> str:
    """Return the C type of a variable for values of this type; values of half-precision types are float."""
    return _VALUE[dtype.arithmetic.name]


def stored_type(dtype: DType) -> str:
    """Return the C type of an element of this type in memory."""
    return _STORED[dtype.name]


def from_memory(text: str, dtype: DType) -> str:
    """Return the C expression that converts `text`, an element in memory, to the value used in computations."""
    if dtype is bool_:
        return f"{text} != 0"
    if dtype.is_half:
        return f"{'from_half' if dtype is float16 else 'from_bfloat'}({text})"
    return text


def to_memory(text: str, dtype: DType) -> str:
    """Return the C expression that converts `text`, a value used in computations, to an element in memory."""
    if dtype.is_half:
        return f"{'to_half' if dtype is float16 else 'to_bfloat'}({text})"
    return text


def literal(value: float, dtype: DType) -> str:
    """Return the text of a constant of this type."""
    if dtype is bool_:
        return "true" if value else "false"
    if dtype.is_float:
        return _float_literal(float(dtype.numpy.type(value)), dtype.arithmetic)
    ending = "LL" if dtype.itemsize == 8 else ""
    whole = int(value)
    if whole == -(1 << 8 * dtype.itemsize - 1) and dtype.itemsize >= 4:  # its magnitude does not fit the type
        return f"({whole + 1}{ending} - 1)"
    return f"{whole}{ending}" if whole >= 0 else f"({whole}{ending})"


def bits(value: float, dtype: DType) -> int:
    """Return the bits of a value of this type as a variable of a kernel has them, in a signed integer."""
    if not dtype.is_float:
        return int(value)
    rounded_value = dtype.arithmetic.numpy.type(dtype.numpy.type(value))
    return int(rounded_value.view(np.int32 if dtype.arithmetic is float32 else np.int64))


def _float_literal(value: float, dtype: DType) -> str:
    single = dtype is float32
    if not math.isfinite(value):
        bits = int(np.array(value, dtype.numpy).view(np.int32 if single else np.int64)) & ((1 << 8 * dtype.itemsize) - 1)
        return f"__int_as_float(0x{bits:08x})" if single else f"__longlong_as_double(0x{bits:016x}LL)"
    text = str(np.float32(value)) if single else repr(value)
    text += "" if any(c in text for c in ".e") else ".0"
    text += "f" if single else ""
    return text if math.copysign(1, value) > 0 else f"({text})"


#: prints one expression: expression, operands' texts -> text
Print: TypeAlias = Callable[[Expression, Sequence[str]], str]


def function_name(name: str, dtype: DType) -> str:
    """Return the C name of a function for this type: expf for float32, exp for float64."""
    return f"{name}f" if dtype.arithmetic is float32 else name


def _function(name: str) -> Print:
    return lambda x, operands: f"{function_name(name, x.dtype)}({', '.join(operands)})"


def _infix(sign: str) -> Print:
    def printed(x: Expression, operands: Sequence[str]) -> str:
        kind = value_type(x.dtype)
        if x.dtype.is_float or x.dtype is bool_:
            return f" {sign} ".join(operands)
        unsigned = _UNSIGNED.get(kind)
        parts = [f"({unsigned}){o}" for o in operands] if unsigned else operands
        return f"({kind})({f' {sign} '.join(parts)})"

    return printed


def _compared(sign: str) -> Print:
    return lambda x, operands: f"{operands[0]} {sign} {operands[1]}"


def _absolute(x: Expression, operands: Sequence[str]) -> str:
    if x.dtype.is_float:
        return f"{function_name('fabs', x.dtype)}({operands[0]})"
    return operands[0] if x.dtype.numpy.kind == "u" else f"{operands[0]} < 0 ? {_negative(x, operands)} : {operands[0]}"


def _negative(x: Expression, operands: Sequence[str]) -> str:
    if x.dtype.is_float:
        return f"-{operands[0]}"
    return f"({value_type(x.dtype)})(0U - ({_UNSIGNED.get(value_type(x.dtype), 'unsigned int')}){operands[0]})"


def _template(name: str) -> Print:
    """Return a printer of calls of a template in FUNCTIONS whose operands have one type."""
    return lambda x, operands: f"{name}<{value_type(x.dtype)}>({', '.join(operands)})"


def _one_over(x: Expression, operands: Sequence[str]) -> str:
    return f"{literal(1, x.dtype)} / {operands[0]}"


def _power(x: Expression, operands: Sequence[str]) -> str:
    return _function("pow")(x, operands) if x.dtype.is_float else _template("power_of")(x, operands)


def _finite(sign: str) -> Print:
    def printed(x: Expression, operands: Sequence[str]) -> str:
        (of,) = (y.dtype for y in x.arguments)
        return f"{function_name('fabs', of)}({operands[0]}) {sign} {literal(math.inf, of.arithmetic)}"

    return printed


def _invert(x: Expression, operands: Sequence[str]) -> str:
    return f"!{operands[0]}" if x.dtype is bool_ else f"({value_type(x.dtype)})~{operands[0]}"


def _reinterpret(x: Expression, operands: Sequence[str]) -> str:
    before, after = x.arguments[0].dtype, x.dtype
    if before.is_float == after.is_float:
        return f"({value_type(after)}){operands[0]}"
    names = {4: ("__float_as_int", "__int_as_float"), 8: ("__double_as_longlong", "__longlong_as_double")}[after.itemsize]
    return f"{names[after.is_float]}({operands[0]})"


def _cast(x: Expression, operands: Sequence[str]) -> str:
    before, after = x.arguments[0].dtype, x.dtype
    if after is bool_:
        return f"{operands[0]} != {literal(0, before.arithmetic)}"
    if before.is_float and after.is_integer:
        of, wide = before.arithmetic, int32 if after.itemsize < int32.itemsize else after
        least, most = (int(end) for end in wide.span)
        whole = f"whole<{value_type(wide)}>({operands[0]}, {literal(float(least), of)}, {literal(float(most + 1), of)}, {literal(least, wide)})"
        return whole if wide is after else f"({value_type(after)}){whole}"
    value = operands[0] if value_type(before) == value_type(after) else f"({value_type(after)}){operands[0]}"
    return rounded(value, after)


def rounded(text: str, dtype: DType) -> str:
    """Round a float to a half-precision type; for other types, return `text` unchanged."""
    return from_memory(to_memory(text, dtype), dtype) if dtype.is_half else text


PRINTED: dict[str, Print] = {
    **{name: _function(function) for name, function in _NAMED.items()},
    **{name: _infix(sign) for name, sign in {"add": "+", "subtract": "-", "multiply": "*", "divide": "/"}.items()},
    **{name: _infix(sign) for name, sign in {"bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^", "left_shift": "<<"}.items()},
    **{name: _compared(sign) for name, sign in {"less": "<", "less_equal": "<=", "equal": "==", "not_equal": "!="}.items()},
    **{name: _compared(sign) for name, sign in {"logical_and": "&&", "logical_or": "||", "logical_xor": "!="}.items()},
    "right_shift": lambda x, operands: f"({value_type(x.dtype)})({operands[0]} >> {operands[1]})",
    "maximum": _template("larger"),
    "minimum": _template("smaller"),
    "sign": _template("sign"),
    "gcd": _template("gcd_of"),
    "quotient": lambda x, operands: f"({value_type(x.dtype)})({operands[0]} / {operands[1]})",
    "power": _power,
    "negative": _negative,
    "absolute": _absolute,
    "reciprocal": _one_over,
    "rsqrt": lambda x, operands: _one_over(x, [_function("sqrt")(x, operands)]),
    "weighted_sum": lambda x, operands: f"{operands[0]} * {operands[1]} + {operands[2]} * {operands[3]}",
    "isnan": lambda x, operands: f"{operands[0]} != {operands[0]}",
    "isinf": _finite("=="),
    "isfinite": _finite("<"),
    "logical_not": _invert,
    "invert": _invert,
    "where": lambda x, operands: f"{operands[0]} ? {operands[1]} : {operands[2]}",
    "reinterpret": _reinterpret,
    "cast": _cast,
}
#: functions of the language that CUDA has, so that they are not decomposed
NATIVE = frozenset(_NAMED) | {"power"}


#: primitives that are not computed per element: reads, indices and reductions
ARGUMENT = frozenset({"element", "looked_up", "number", "constant", "columns", "index", *REDUCTIONS, COLUMNS})
#: types with values that a float cannot represent
_WIDER = {"int32", "int64", "float64"}


def refused_primitive(x: Expression) -> str:
    """Return the reason this primitive cannot be printed as CUDA C, apart from its arguments, or "" if it can."""
    if x.primitive in ("cast", "reinterpret"):
        before, after = x.arguments[0].dtype, x.dtype
        if x.primitive == "reinterpret" and (before.is_half or after.is_half):
            return f"a reinterpretation of {before.name} as {after.name} cannot be printed as CUDA C"
        if after.is_half and before.name in _WIDER:
            return f"cast from {before.name} to {after.name} would be rounded twice"
    return "" if x.primitive in PRINTED or x.primitive in ARGUMENT else f"{x.primitive} cannot be printed as CUDA C"
