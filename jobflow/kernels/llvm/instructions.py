"""Primitives of the expression language as LLVM instructions, for one value or for sixteen lanes."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TypeAlias

from jobflow.core.types import DType, bfloat16, bool_, float16, float32, float64, int32
from jobflow.expressions.language import Expression
from jobflow.expressions.on_arrays import LANES

_REGISTER = {
    "bool": "i1",
    "char": "i8",
    "int8": "i8",
    "uint8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "float32": "float",
    "float64": "double",
}
_STORED = {**_REGISTER, "bool": "i8", "float16": "half", "bfloat16": "i16"}


def register(dtype: DType, lanes: int = 1) -> str:
    """Return the LLVM type of a value in registers: a vector for several lanes, with float32 in place of half-precision types."""
    return several(_REGISTER[dtype.arithmetic.name], lanes)


def stored(dtype: DType, lanes: int = 1) -> str:
    """Return the LLVM type of an element in memory, or of a vector of `lanes` elements."""
    return several(_STORED[dtype.name], lanes)


def several(element: str, lanes: int) -> str:
    return element if lanes == 1 else f"<{lanes} x {element}>"


def literal(value: float, dtype: DType, lanes: int = 1) -> str:
    """Return the text of a constant, broadcast to the lanes."""
    if dtype is bool_:
        one = "true" if value else "false"
    elif dtype.is_float:
        exact = float(dtype.numpy.type(value)) if dtype is not float64 else float(value)
        one = f"0x{struct.unpack('>Q', struct.pack('>d', exact))[0]:016X}"
    else:
        one = str(int(value))
    return one if lanes == 1 else f"splat ({register(dtype)} {one})"


class Lines:
    """The text of a function and the declarations of its callees; all values have unique names."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.declared: set[str] = set()
        self._count = 0

    def write(self, line: str) -> None:
        self.lines.append(f"  {line}")

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")

    def value(self, instruction: str) -> str:
        """Write an instruction; return the name of its result."""
        name = f"%v{self._count}"
        self._count += 1
        self.write(f"{name} = {instruction}")
        return name

    def call(self, function: str, result: str, *arguments: str) -> str:
        """Write a call of an intrinsic, whose arguments are types with values; return the name of its result."""
        self.declare(function, result, *arguments)
        return self.value(f"call {result} @{function}({', '.join(arguments)})")

    def effect(self, function: str, *arguments: str) -> None:
        """Write a call of an intrinsic without a result."""
        self.declare(function, "void", *arguments)
        self.write(f"call void @{function}({', '.join(arguments)})")

    def declare(self, function: str, result: str, *arguments: str) -> None:
        types = ", ".join(_type_of(a) for a in arguments)
        self.declared.add(f"declare {result} @{function}({types})")


def _type_of(argument: str) -> str:
    """Return the type of an argument such as "<16 x float> %x" or "ptr align 4 %x"."""
    return argument[: argument.index(">") + 1] if argument.startswith("<") else argument.split()[0]


def suffix(dtype_or_text: str, lanes: int) -> str:
    """Return the type suffix of an intrinsic's name, such as .v16f32."""
    short = {"float": "f32", "double": "f64", "half": "f16"}.get(dtype_or_text, dtype_or_text)
    return f".{short}" if lanes == 1 else f".v{lanes}{short}"


#: prints one expression: lines, expression, operands' texts, lanes -> name of the result
Print: TypeAlias = Callable[[Lines, Expression, Sequence[str], int], str]
_SIGNED = "i"


def _kind(dtype: DType) -> str:
    """Return "f" for a float type, "s" or "u" for a signed or unsigned integer, "b" for bool."""
    return "f" if dtype.is_float else "b" if dtype is bool_ else "s" if dtype.numpy.kind == _SIGNED else "u"


def _binary(**by_kind: str) -> Print:
    def printed(at: Lines, x: Expression, operands: Sequence[str], lanes: int) -> str:
        of = x.arguments[0].dtype
        return at.value(f"{by_kind[_kind(of)]} {register(of, lanes)} {operands[0]}, {operands[1]}")

    return printed


def _intrinsic(name: str) -> Print:
    def printed(at: Lines, x: Expression, operands: Sequence[str], lanes: int) -> str:
        kind = register(x.dtype, lanes)
        return at.call(f"llvm.{name}{suffix(register(x.dtype), lanes)}", kind, *(f"{kind} {o}" for o in operands))

    return printed


def _library(at: Lines, x: Expression, operands: Sequence[str], lanes: int) -> str:
    """Print an intrinsic that LLVM expands to one library call per lane."""
    if x.attribute == "fmod":
        return at.value(f"frem {register(x.dtype, lanes)} {operands[0]}, {operands[1]}")
    return _intrinsic({"power": "pow"}.get(str(x.attribute), str(x.attribute)))(at, x, operands, lanes)


def _ldexp(at: Lines, x: Expression, operands: Sequence[str], lanes: int) -> str:
    kinds = [register(y.dtype, lanes) for y in x.arguments]
    endings = "".join(suffix(register(y.dtype), lanes) for y in x.arguments)
    return at.call(f"llvm.ldexp{endings}", kinds[0], *(f"{kind} {o}" for kind, o in zip(kinds, operands, strict=True)))


def _negative(at: Lines, x: Expression, operands: Sequence[str], lanes: int) -> str:
    kind = register(x.dtype, lanes)
    return at.value(f"fneg {kind} {operands[0]}" if x.dtype.is_float else f"sub {kind} {literal(0, x.dtype, lanes)}, {operands[0]}")


def _absolute(at: Lines, x: Expression, operands: Sequence[str], lanes: int) -> str:
    kind = register(x.dtype, lanes)
    match _kind(x.dtype):
        case "f":
            return _intrinsic("fabs")(at, x, operands, lanes)
        case "u":
            return operands[0]
    return at.call(f"llvm.abs{suffix(register(x.dtype), lanes)}", kind, f"{kind} {operands[0]}", "i1 false")


def _sign(at: Lines, x: Expression, operands: Sequence[str], lanes: int) -> str:
    kind, truth, zero, one = register(x.dtype, lanes), several("i1", lanes), literal(0, x.dtype, lanes), literal(1, x.dtype, lanes)
    compare, less = {"f": ("fcmp", "olt"), "s": ("icmp", "slt"), "u": ("icmp", "ult")}[_kind(x.dtype)]
    below, above = (at.value(f"{compare} {less} {kind} {a}, {b}") for a, b in ((operands[0], zero), (zero, operands[0])))
    rest = zero
    if x.dtype.is_float:
        nan = at.value(f"fcmp uno {kind} {operands[0]}, {operands[0]}")
        rest = at.value(f"select {truth} {nan}, {kind} {operands[0]}, {kind} {zero}")
    lower = at.value(f"select {truth} {below}, {kind} {literal(-1, x.dtype, lanes)}, {kind} {rest}")
    return at.value(f"select {truth} {above}, {kind} {one}, {kind} {lower}")


def larger(at: Lines, dtype: DType, a: str, b: str, lanes: int, *, more: str = "ogt", never_nan: bool = False) -> str:
    """Return the larger of two floats (the smaller if `more` is "olt"), b if they are equal, and NaN if either is NaN.

    With `never_nan`, b is known not to be NaN, and a is returned if they are equal.
    """
    kind, truth = register(dtype, lanes), several("i1", lanes)
    if never_nan:  # the comparison with a NaN in a fails, so a is selected
        chosen = at.value(f"fcmp {more} {kind} {b}, {a}")
        return at.value(f"select {truth} {chosen}, {kind} {b}, {kind} {a}")
    chosen = at.value(f"fcmp {more} {kind} {a}, {b}")
    value = at.value(f"select {truth} {chosen}, {kind} {a}, {kind} {b}")
    nan = at.value(f"fcmp uno {kind} {a}, {a}")
    return at.value(f"select {truth} {nan}, {kind} {a}, {kind} {value}")


def _extreme(more: str, signed: str, unsigned: str) -> Print:
    def printed(at: Lines, x: Expression, operands: Sequence[str], lanes: int) -> str:
        if not x.dtype.is_float:
            return _intrinsic(signed if _kind(x.dtype) == "s" else unsigned)(at, x, operands, lanes)
        constants = [y.primitive == "constant" and y.attribute == y.attribute for y in x.arguments]
        a, b = operands if constants[1] or not constants[0] else reversed(operands)
        return larger(at, x.dtype, a, b, lanes, more=more, never_nan=any(constants))

    return printed


def _finite(comparison: str) -> Print:
    """Return a printer of a comparison of |x| with infinity."""

    def printed(at: Lines, x: Expression, operands: Sequence[str], lanes: int) -> str:
        (y,) = x.arguments
        size = _intrinsic("fabs")(at, y, operands, lanes)
        return at.value(f"fcmp {comparison} {register(y.dtype, lanes)} {size}, {literal(float('inf'), y.dtype, lanes)}")

    return printed


def _isnan(at: Lines, x: Expression, operands: Sequence[str], lanes: int) -> str:
    return at.value(f"fcmp uno {register(x.arguments[0].dtype, lanes)} {operands[0]}, {operands[0]}")


def _invert(at: Lines, x: Expression, operands: Sequence[str], lanes: int) -> str:
    return at.value(f"xor {register(x.dtype, lanes)} {operands[0]}, {literal(1 if x.dtype is bool_ else -1, x.dtype, lanes)}")


def _where(at: Lines, x: Expression, operands: Sequence[str], lanes: int) -> str:
    kind = register(x.dtype, lanes)
    return at.value(f"select {several('i1', lanes)} {operands[0]}, {kind} {operands[1]}, {kind} {operands[2]}")


def _weighted_sum(at: Lines, x: Expression, operands: Sequence[str], lanes: int) -> str:
    """Print a weighted sum without fused multiply-adds, so that its bits equal the reference on every machine."""
    kind = register(x.dtype, lanes)
    first, second = (at.value(f"fmul {kind} {operands[k]}, {operands[k + 1]}") for k in (0, 2))
    return at.value(f"fadd {kind} {first}, {second}")


def _one_over(at: Lines, x: Expression, operands: Sequence[str], lanes: int) -> str:
    return at.value(f"fdiv {register(x.dtype, lanes)} {literal(1, x.dtype, lanes)}, {operands[0]}")


def _rsqrt(at: Lines, x: Expression, operands: Sequence[str], lanes: int) -> str:
    return _one_over(at, x, [_intrinsic("sqrt")(at, x, operands, lanes)], lanes)


def _reinterpret(at: Lines, x: Expression, operands: Sequence[str], lanes: int) -> str:
    return at.value(f"bitcast {register(x.arguments[0].dtype, lanes)} {operands[0]} to {register(x.dtype, lanes)}")


def _cast(at: Lines, x: Expression, operands: Sequence[str], lanes: int) -> str:
    source, target = x.arguments[0].dtype, x.dtype
    a, b = _kind(source), _kind(target)
    if b == "b":
        compare, zero = ("fcmp une", 0.0) if a == "f" else ("icmp ne", 0)
        return at.value(f"{compare} {register(source, lanes)} {operands[0]}, {literal(zero, source.arithmetic, lanes)}")
    value = _converted(at, operands[0], source.arithmetic, target.arithmetic, lanes)
    return rounded(at, value, target, lanes) if target.is_half else value


def _converted(at: Lines, value: str, source: DType, target: DType, lanes: int) -> str:
    a, b, before, after = _kind(source), _kind(target), register(source, lanes), register(target, lanes)
    if before == after:
        return value
    if a == b == "f":
        return at.value(f"{'fpext' if target is float64 else 'fptrunc'} {before} {value} to {after}")
    if b == "f":
        return at.value(f"{'sitofp' if a == 's' else 'uitofp'} {before} {value} to {after}")
    if a == "f":
        return _limited(at, value, source, target, lanes)
    if target.itemsize < source.itemsize and a != "b":
        return at.value(f"trunc {before} {value} to {after}")
    return at.value(f"{'sext' if a == 's' else 'zext'} {before} {value} to {after}")


def _limited(at: Lines, value: str, source: DType, target: DType, lanes: int) -> str:
    """Convert a float to an integer; NaN and values out of range become the smallest integer of the target type.

    For a one-byte target, this rule applies to a conversion to int32, which is then truncated.
    """
    wide = int32 if target.itemsize < int32.itemsize else target
    before, after, truth, (low, high) = register(source, lanes), register(wide, lanes), several("i1", lanes), wide.span
    least, beyond = literal(low, source, lanes), literal(high + 1, source, lanes)
    inside = [at.value(f"fcmp {how} {before} {value}, {limit}") for how, limit in (("oge", least), ("olt", beyond))]
    fits = at.value(f"select {truth} {at.value(f'and {truth} {inside[0]}, {inside[1]}')}, {before} {value}, {before} {least}")
    whole = at.value(f"fptosi {before} {fits} to {after}")
    return whole if wide is target else at.value(f"trunc {after} {whole} to {register(target, lanes)}")


def rounded(at: Lines, value: str, dtype: DType, lanes: int) -> str:
    """Round a float32 to a half-precision type, to nearest even, and return it as float32."""
    single = register(float32, lanes)
    if dtype is float16:
        half = several("half", lanes)
        return at.value(f"fpext {half} {at.value(f'fptrunc {single} {value} to {half}')} to {single}")
    whole, truth = several("i32", lanes), several("i1", lanes)

    def of(number: int) -> str:
        return str(number) if lanes == 1 else f"splat (i32 {number})"

    bits = at.value(f"bitcast {single} {value} to {whole}")
    odd = at.value(f"and {whole} {at.value(f'lshr {whole} {bits}, {of(16)}')}, {of(1)}")
    up = at.value(f"add {whole} {at.value(f'add {whole} {bits}, {of(0x7FFF)}')}, {odd}")
    near = at.value(f"bitcast {whole} {at.value(f'and {whole} {up}, {of(-65536)}')} to {single}")
    nan = at.value(f"fcmp uno {single} {value}, {value}")
    return at.value(f"select {truth} {nan}, {single} {literal(float('nan'), float32, lanes)}, {single} {near}")


def from_memory(at: Lines, value: str, dtype: DType, lanes: int) -> str:
    """Print the conversion of loaded elements, one per lane, to the type used in computations; return the name of the result."""
    before = stored(dtype, lanes)
    if dtype is bool_:
        return at.value(f"icmp ne {before} {value}, {'0' if lanes == 1 else 'zeroinitializer'}")
    if dtype is float16:
        return at.value(f"fpext {before} {value} to {register(float32, lanes)}")
    if dtype is bfloat16:
        whole = several("i32", lanes)
        high = at.value(f"shl {whole} {at.value(f'zext {before} {value} to {whole}')}, {'16' if lanes == 1 else 'splat (i32 16)'}")
        return at.value(f"bitcast {whole} {high} to {register(float32, lanes)}")
    return value


def to_memory(at: Lines, value: str, dtype: DType, lanes: int) -> str:
    """Print the conversion of values, one per lane, to their type in memory; return the name of the result."""
    after = stored(dtype, lanes)
    if dtype is bool_:
        return at.value(f"zext {several('i1', lanes)} {value} to {after}")
    if dtype is float16:
        return at.value(f"fptrunc {register(float32, lanes)} {value} to {after}")
    if dtype is bfloat16:
        whole = several("i32", lanes)
        bits = at.value(f"bitcast {register(float32, lanes)} {value} to {whole}")
        return at.value(f"trunc {whole} {at.value(f'lshr {whole} {bits}, ' + ('16' if lanes == 1 else 'splat (i32 16)'))} to {after}")
    return value


INSTRUCTIONS: dict[str, Print] = {
    "add": _binary(f="fadd", s="add", u="add"),
    "subtract": _binary(f="fsub", s="sub", u="sub"),
    "multiply": _binary(f="fmul", s="mul", u="mul"),
    "divide": _binary(f="fdiv"),
    "negative": _negative,
    "absolute": _absolute,
    "sign": _sign,
    "maximum": _extreme("ogt", "smax", "umax"),
    "minimum": _extreme("olt", "smin", "umin"),
    "sqrt": _intrinsic("sqrt"),
    "rsqrt": _rsqrt,
    "reciprocal": _one_over,
    "floor": _intrinsic("floor"),
    "ceil": _intrinsic("ceil"),
    "rint": _intrinsic("roundeven"),
    "trunc": _intrinsic("trunc"),
    "copysign": _intrinsic("copysign"),
    "fma": _intrinsic("fma"),
    "weighted_sum": _weighted_sum,
    "less": _binary(f="fcmp olt", s="icmp slt", u="icmp ult", b="icmp ult"),
    "less_equal": _binary(f="fcmp ole", s="icmp sle", u="icmp ule", b="icmp ule"),
    "equal": _binary(f="fcmp oeq", s="icmp eq", u="icmp eq", b="icmp eq"),
    "not_equal": _binary(f="fcmp une", s="icmp ne", u="icmp ne", b="icmp ne"),
    "isnan": _isnan,
    "isinf": _finite("oeq"),
    "isfinite": _finite("one"),
    "logical_and": _binary(b="and"),
    "logical_or": _binary(b="or"),
    "logical_xor": _binary(b="xor"),
    "logical_not": _invert,
    "bitwise_and": _binary(b="and", s="and", u="and"),
    "bitwise_or": _binary(b="or", s="or", u="or"),
    "bitwise_xor": _binary(b="xor", s="xor", u="xor"),
    "invert": _invert,
    "left_shift": _binary(s="shl", u="shl"),
    "right_shift": _binary(s="ashr", u="lshr"),
    "quotient": _binary(s="sdiv", u="udiv"),
    "where": _where,
    "rare_where": _where,
    "library": _library,
    "cast": _cast,
    "reinterpret": _reinterpret,
    "ldexp": _ldexp,
}
#: lanes of a vector, the number of partial sums of a row
WIDTH = LANES
