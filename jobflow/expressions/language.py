"""Expressions: the formula of one element of an operation's result, as data.

    x, y = element(0, float32), element(1, float32)
    z = where(x > 0, x * y, 0.5 * exp(x))

An expression has an element type and arguments, which are expressions.  Equal expressions are one object, so common subexpressions are computed
once.  Nothing is promoted or broadcast: operands have equal types, and a Python number is converted to the type of the other operand.

Elements are read at the index of the result; a `number` is the same for all indices.  A row is the last axis of the index space.
`row_sum`, `row_product` and `row_max` compute one value per row, which is read at every element of the row.  `index` returns the index along an axis.
`philox` computes random bits from an index, so that masks need no memory.

The same formula runs on arrays: `jobflow.expressions.on_arrays.functions(xp)` has the functions of this module, for NumPy or CuPy.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import DtypeError, JobError
from jobflow.core.types import DType, bool_, float64, int32, int64, plain

#: an expression or a Python number
Operand: TypeAlias = "Expression | float"


@dataclass(frozen=True, eq=False, repr=False)
class Expression:
    """A node of a formula: a primitive function with its arguments.  Equal expressions are one object and are compared by identity."""

    primitive: str
    arguments: tuple[Expression, ...]
    dtype: DType
    #: the value of a constant, the position of an input
    attribute: Hashable = None

    #: makes NumPy's scalars defer to the operators of this class
    __array_ufunc__ = None

    def __add__(self, other: Operand) -> Expression:
        return add(self, other)

    def __radd__(self, other: Operand) -> Expression:
        return add(other, self)

    def __sub__(self, other: Operand) -> Expression:
        return subtract(self, other)

    def __rsub__(self, other: Operand) -> Expression:
        return subtract(other, self)

    def __mul__(self, other: Operand) -> Expression:
        return multiply(self, other)

    def __rmul__(self, other: Operand) -> Expression:
        return multiply(other, self)

    def __truediv__(self, other: Operand) -> Expression:
        return divide(self, other)

    def __rtruediv__(self, other: Operand) -> Expression:
        return divide(other, self)

    def __pow__(self, other: Operand) -> Expression:
        return power(self, other)

    def __rpow__(self, other: Operand) -> Expression:
        return power(other, self)

    def __neg__(self) -> Expression:
        return negative(self)

    def __lt__(self, other: Operand) -> Expression:
        return less(self, other)

    def __le__(self, other: Operand) -> Expression:
        return less_equal(self, other)

    def __gt__(self, other: Operand) -> Expression:
        return less(other, self)

    def __ge__(self, other: Operand) -> Expression:
        return less_equal(other, self)

    def __repr__(self) -> str:
        return _text(self, outermost=True)


_interned: WeakValueDictionary[tuple[Any, ...], Expression] = WeakValueDictionary()
_lock = threading.Lock()


def make(primitive: str, arguments: tuple[Expression, ...], dtype: DType, attribute: Hashable = None) -> Expression:
    """Return the expression with this primitive, arguments, element type and attribute; calls with equal arguments return the same object."""
    # 0.0 and -0.0 are equal, and so are 1 and 1.0
    key = (primitive, *map(id, arguments), dtype.name, type(attribute), attribute.hex() if isinstance(attribute, float) else attribute)
    with _lock:
        expression = _interned.get(key)
        if expression is None:
            _interned[key] = expression = Expression(primitive, arguments, dtype, attribute)
    return expression


def element(position: int, dtype: DType) -> Expression:
    """Return the element of input `position` at the index of the result."""
    return make("element", (), dtype, position)


def number(position: int, dtype: DType) -> Expression:
    """Return input `position` as a scalar that is passed at run time, such as a learning rate."""
    return make("number", (), dtype, position)


def constant(value: float, dtype: DType) -> Expression:
    """Return a compile-time constant, converted to `dtype`."""
    return make("constant", (), dtype, dtype_value(value, dtype))


def dtype_value(value: float, dtype: DType) -> float:
    """Convert `value` to a Python bool, int or float, as `dtype` requires.

    Floats are not rounded to `dtype`.  Integers wrap around as in two's complement: -1 is 255 in uint8.
    """
    value = plain(value)
    if not dtype.is_integer:
        return bool(value) if dtype is bool_ else float(value)
    low, values = int(dtype.span[0]), 1 << 8 * dtype.numpy.itemsize
    return (int(value) - low) % values + low


def _typed(name: str, operands: Sequence[Operand]) -> tuple[Expression, ...]:
    """Return the operands as expressions of one type; Python numbers become constants.

    Raises DtypeError if the types of expressions differ, or if no operand is an expression.
    """
    types = {x.dtype for x in operands if isinstance(x, Expression)}
    if len(types) != 1:
        listed = " and ".join(x.dtype.name if isinstance(x, Expression) else str(x) for x in operands)
        raise DtypeError(f"{name}: the operands {listed} must have one element type, and at least one must be an expression; use cast")
    (dtype,) = types
    return tuple(x if isinstance(x, Expression) else constant(x, dtype) for x in operands)


def _same(name: str, kinds: str = "fViu") -> Callable[..., Expression]:
    """Return the constructor of the primitive `name`, whose operands and result have one type; its NumPy kind must be in `kinds`."""

    def function(*operands: Operand) -> Expression:
        typed = _typed(name, operands)
        if typed[0].dtype.numpy.kind not in kinds:
            raise DtypeError(f"{name}: operands of type {typed[0].dtype.name} are not supported; cast them")
        return make(name, typed, typed[0].dtype)

    function.__name__ = name
    return function


def _logical(name: str) -> Callable[..., Expression]:
    """Return the constructor of the logical primitive `name`, with a bool result; operands other than 0 are true."""

    def function(*operands: Operand) -> Expression:
        return make(name, tuple(x if x.dtype is bool_ else not_equal(x, 0) for x in _typed(name, operands)), bool_)

    function.__name__ = name
    return function


def _truth(name: str) -> Callable[..., Expression]:
    """Return the constructor of the primitive `name`, whose operands have one type and whose result is bool."""

    def function(*operands: Operand) -> Expression:
        return make(name, _typed(name, operands), bool_)

    function.__name__ = name
    return function


FLOAT, WHOLE, TRUTH = "fV", "iu", "b"

add = _same("add")
subtract = _same("subtract")
multiply = _same("multiply")
negative = _same("negative")
absolute = _same("absolute")
sign = _same("sign")
maximum = _same("maximum")
minimum = _same("minimum")
divide = _same("divide", FLOAT)
sqrt = _same("sqrt", FLOAT)
rsqrt = _same("rsqrt", FLOAT)
reciprocal = _same("reciprocal", FLOAT)
exp = _same("exp", FLOAT)
exp2 = _same("exp2", FLOAT)
expm1 = _same("expm1", FLOAT)
log = _same("log", FLOAT)
log2 = _same("log2", FLOAT)
log10 = _same("log10", FLOAT)
log1p = _same("log1p", FLOAT)
power = _same("power", FLOAT + WHOLE)
#: x - y trunc(x / y) of floats, exact, with the sign of x; x - y floor(x / y) and floor(x / y) of integers
fmod = _same("fmod", FLOAT)
remainder = _same("remainder", WHOLE)
floor_divide = _same("floor_divide", WHOLE)
#: x / y rounded toward zero, for y neither 0 nor -1
quotient = _same("quotient", WHOLE)
gcd = _same("gcd", WHOLE)
nextafter = _same("nextafter", FLOAT)
sin = _same("sin", FLOAT)
cos = _same("cos", FLOAT)
tan = _same("tan", FLOAT)
arcsin = _same("arcsin", FLOAT)
arccos = _same("arccos", FLOAT)
arctan = _same("arctan", FLOAT)
arctan2 = _same("arctan2", FLOAT)
sinh = _same("sinh", FLOAT)
cosh = _same("cosh", FLOAT)
tanh = _same("tanh", FLOAT)
arcsinh = _same("arcsinh", FLOAT)
arccosh = _same("arccosh", FLOAT)
arctanh = _same("arctanh", FLOAT)
erf = _same("erf", FLOAT)
erfc = _same("erfc", FLOAT)
sigmoid = _same("sigmoid", FLOAT)
softplus = _same("softplus", FLOAT)
floor = _same("floor", FLOAT)
ceil = _same("ceil", FLOAT)
rint = _same("rint", FLOAT)
trunc = _same("trunc", FLOAT)
copysign = _same("copysign", FLOAT)
less = _truth("less")
less_equal = _truth("less_equal")
equal = _truth("equal")
not_equal = _truth("not_equal")
isnan = _truth("isnan")
isinf = _truth("isinf")
isfinite = _truth("isfinite")
logical_and = _logical("logical_and")
logical_or = _logical("logical_or")
logical_xor = _logical("logical_xor")
logical_not = _logical("logical_not")
bitwise_and = _same("bitwise_and", WHOLE + TRUTH)
bitwise_or = _same("bitwise_or", WHOLE + TRUTH)
bitwise_xor = _same("bitwise_xor", WHOLE + TRUTH)
invert = _same("invert", WHOLE + TRUTH)
#: shifts by less than the number of bits; the right shift extends the sign
left_shift = _same("left_shift", WHOLE)
right_shift = _same("right_shift", WHOLE)
#: one value per row: the sum and the product, in an order independent of the machine (see `on_arrays.row_sum`), and the maximum
row_sum = _same("row_sum")
row_product = _same("row_product")
row_max = _same("row_max")
#: one value per column: the sum over all rows, in blocks of 64 (see `on_arrays.column_sum`); it is an output, never an argument
column_sum = _same("column_sum")


def greater(x: Operand, y: Operand) -> Expression:
    return less(y, x)


def greater_equal(x: Operand, y: Operand) -> Expression:
    return less_equal(y, x)


def row_min(x: Expression) -> Expression:
    """Return the minimum of a row: -row_max(-x) for floats, or ~row_max(~x) for integers."""
    return -row_max(-x) if x.dtype.is_float else invert(row_max(invert(x)))


def square(x: Expression) -> Expression:
    return multiply(x, x)


def clip(x: Expression, low: float | None, high: float | None) -> Expression:
    """Limit x to [low, high]; NaN remains NaN."""
    x = x if low is None else maximum(x, low)
    return x if high is None else minimum(x, high)


def where(condition: Expression, x: Operand, y: Operand) -> Expression:
    """Return x where the condition is true, else y; x and y are computed everywhere."""
    if condition.dtype is not bool_:
        raise DtypeError(f"where: the condition is {condition.dtype.name}, not bool; compare it with 0")
    chosen = _typed("where", (x, y))
    return make("where", (condition, *chosen), chosen[0].dtype)


def rare_where(condition: Expression, x: Operand, y: Operand) -> Expression:
    """Return the result of `where(condition, x, y)` for a condition that is rarely true.

    Compiled kernels compute x only for vectors of elements in which the condition is true for at least one element.
    """
    chosen = where(condition, x, y)
    return make("rare_where", chosen.arguments, chosen.dtype)


def library(name: str, *operands: Operand) -> Expression:
    """Return a call of the C library function `name`, which computes one element at a time, as in NumPy."""
    typed = _typed(name, operands)
    return make("library", typed, typed[0].dtype, name)


def cast(x: Expression, dtype: DType) -> Expression:
    """Convert x to another element type, as NumPy does."""
    return x if x.dtype is dtype else make("cast", (x,), dtype)


def weighted_sum(alpha: Operand, x: Operand, beta: Operand, y: Operand) -> Expression:
    """Return alpha x + beta y; targets with a fused multiply-add round once less."""
    typed = _typed("weighted_sum", (alpha, x, beta, y))
    return make("weighted_sum", typed, typed[0].dtype)


def fma(x: Operand, y: Operand, z: Operand) -> Expression:
    """Return x y + z with one rounding; arrays of float64 round twice where the exact computation overflows (see `on_arrays.exact_fma`)."""
    typed = _typed("fma", (x, y, z))
    return make("fma", typed, typed[0].dtype)


def ldexp(x: Expression, n: Expression) -> Expression:
    """Return x 2^n, for n of int32."""
    if n.dtype is not int32 or not x.dtype.is_float:
        raise DtypeError(f"ldexp: the operands are {x.dtype.name} and {n.dtype.name}, not a float type and int32")
    return make("ldexp", (x, n), x.dtype)


def reinterpret(x: Expression, dtype: DType) -> Expression:
    """Return the bits of x as another element type of the same size."""
    if x.dtype.itemsize != dtype.itemsize or bool_ in (x.dtype, dtype):
        raise DtypeError(f"reinterpret: {x.dtype.name} and {dtype.name} must be types of the same size other than bool")
    return x if x.dtype is dtype else make("reinterpret", (x,), dtype)


def looked_up(position: int, dtype: DType, at: Expression) -> Expression:
    """Return the element of table input `position` at offset `at` of its lookup axis, and at the current index of all other axes.

    The caller guarantees that `at` is within the axis.
    """
    return make("looked_up", (cast(at, int64),), dtype, position)


def columns() -> Expression:
    """Return the number of elements of a row as a float64 expression; readers of another type cast it."""
    return make("columns", (), float64)


def index(axis: int) -> Expression:
    """Return the int64 index of the element along axis `axis` of the index space; `axis` is negative, and -1 is the last axis."""
    if axis >= 0:
        raise JobError(f"index({axis}): the axis must be negative; -1 is the last axis of the index space")
    return make("index", (), int64, axis)


def row_element(x: Expression, at: Expression) -> Expression:
    """Return the element of the row x at index `at`, or 0 if the row has no such element."""
    return row_sum(where(equal(index(-1), cast(at, int64)), x, 0.0))


def philox(element: Expression, stream: Expression, key: tuple[int, int], plane: int = 0) -> Expression:
    """Return 32 random bits as int64: word `element` of the generator `expressions.philox`.

    `element` is the flat index of the element in the logical tensor, and `stream` the number of the run.  `key` identifies the tensor, and `plane`
    distinguishes several samples for one element.
    """
    if element.dtype is not int64 or stream.dtype is not int64:
        raise DtypeError(f"philox: element and stream are {element.dtype.name} and {stream.dtype.name}, not int64")
    return make("philox", (element, stream), int64, (*key, plane))


def in_order(outputs: Sequence[Expression]) -> tuple[Expression, ...]:
    """Return all subexpressions of the outputs, once each, in topological order: the arguments of an expression precede it."""
    return _in_order(tuple(outputs))


@lru_cache(4096)
def _in_order(outputs: tuple[Expression, ...]) -> tuple[Expression, ...]:
    order: dict[Expression, None] = {}
    stack = [(x, False) for x in reversed(outputs)]
    while stack:
        x, ready = stack.pop()
        if ready:
            order[x] = None
        elif x not in order:
            stack.append((x, True))
            stack.extend((y, False) for y in reversed(x.arguments))
    return tuple(order)


def replaced(x: Expression, substitutes: Mapping[Expression, Expression]) -> Expression:
    """Return x with each subexpression that is a key of `substitutes` replaced by the value of the key."""
    known = dict(substitutes)
    for y in in_order([x]):
        if y not in known:
            known[y] = make(y.primitive, tuple(known[z] for z in y.arguments), y.dtype, y.attribute) if y.arguments else y
    return known[x]


# Text form of expressions, such as 0.5 * x0 * (1.0 + erf(x0 * 0.7071)) --------------------------------------------------------------

_SIGNS = {
    "add": "+",
    "subtract": "-",
    "multiply": "*",
    "divide": "/",
    "less": "<",
    "less_equal": "<=",
    "equal": "==",
    "not_equal": "!=",
    "logical_and": "and",
    "logical_or": "or",
    "bitwise_and": "&",
    "bitwise_or": "|",
    "bitwise_xor": "^",
    "power": "**",
}


def _text(x: Expression, *, outermost: bool = False) -> str:
    match x.primitive:
        case "element":
            return f"x{x.attribute}"
        case "number":
            return f"n{x.attribute}"
        case "constant":
            return repr(x.attribute)
        case sign if sign in _SIGNS:
            joined = f" {_SIGNS[sign]} ".join(map(_text, x.arguments))
            return joined if outermost else f"({joined})"
        case primitive:
            function = x.dtype.name if primitive == "cast" else primitive
            return f"{function}({', '.join(_text(y, outermost=True) for y in x.arguments)})"
