"""Arithmetic of two tensors and matrix products, as functions, methods, operators and in-place variants.

A Python number becomes an attribute of a scalar operation, such as `Scale`, if one exists.  Scalar operations keep partial tensors partial.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jobflow.core.scope as scope
from jobflow.core.errors import ArgumentError, DtypeError, ShapeError, user_line
from jobflow.core.types import bool_, float32, float64, uint8
from jobflow.functional.dispatch import method, operator, reflected
from jobflow.functional.in_place import in_place
from jobflow.functional.promotion import (
    Number,
    Operand,
    as_float,
    cast,
    convert_number,
    kind,
    operand,
    pair,
    rounded_once,
    together,
    with_number,
)
from jobflow.functional.typed import Tensor
from jobflow.ops.arithmetic import Add, Divide, FloorDivide, FloorMod, Maximum, Minimum, Multiply, Remainder, Subtract, TruncateDivide
from jobflow.ops.axes import ExpandDims, Squeeze
from jobflow.ops.bitwise import BitwiseAnd, BitwiseNot, BitwiseOr, BitwiseXor
from jobflow.ops.broadcast import BroadcastTo
from jobflow.ops.matmul import BatchMatMul, BroadcastMatMul, MatMul
from jobflow.ops.op import Op, broadcast_shapes
from jobflow.ops.pointwise import Negate
from jobflow.ops.runtime_assertions import RuntimeAssertion, divisor_assertion, exponent_assertion
from jobflow.ops.scalar import DivideBy, FillLike, Scale, Shift
from jobflow.ops.transcendental import Power, ScalarPower, Sqrt, Square
from jobflow.tensors.run import run

__all__ = [
    "add", "addcdiv", "addcmul", "addmm", "baddbmm", "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "bmm", "div", "divide", "dot",
    "float_power", "floor_divide", "fmod", "matmul", "maximum", "minimum", "mm", "mul", "multiply", "mv", "neg", "negative", "outer",
    "positive", "pow", "remainder", "sub", "subtract", "true_divide",
]  # fmt: skip

_ADD, _SUBTRACT, _MULTIPLY, _DIVIDE, _NEGATE, _MATMUL = Add(), Subtract(), Multiply(), Divide(), Negate(), MatMul()


def both(what: str, op: Op, x: Any, y: Any) -> Tensor:
    """Return op(x, y) with both operands converted to tensors of their common element type."""
    return run(op, *pair(what, x, y))


def sides(what: str, x: Any, y: Any) -> tuple[Any, Any]:
    """Return the operands as tensors or Python numbers; raise DtypeError unless at least one is a tensor."""
    if isinstance(x, Tensor):
        return x, operand(what, x, y)
    if isinstance(y, Tensor):
        return operand(what, y, x), y
    raise DtypeError(f"{what} at {user_line()}: one of the operands must be a tensor; got {x!r} and {y!r}")


# -------------------------------------------------------------------- sums


def add(x: Operand, other: Operand, *, alpha: Number = 1) -> Tensor:
    """Return x + alpha * other, with broadcasting and type promotion; for bool tensors, the logical or.

    Raises: ShapeError if the shapes do not broadcast; DtypeError if neither operand is a tensor.
    """
    x, other = sides("add", x, other)
    if alpha != 1:
        return _plus_times(x, other, alpha)
    if isinstance(x, Tensor) and isinstance(other, Tensor):
        x, other = pair("add", x, other)
        return run(_ADD if x.tensor_type.dtype is not bool_ else BitwiseOr(), x, other)
    return _shifted(x, other) if isinstance(x, Tensor) else _shifted(other, x)  # type: ignore[arg-type]


def _times(other: Any, alpha: Number) -> Any:
    return mul(other, alpha) if isinstance(other, Tensor) else other * alpha


@rounded_once
def _plus_times(x: Any, other: Any, alpha: Number) -> Tensor:
    return add(x, _times(other, alpha))


@rounded_once
def _minus_times(x: Any, other: Any, alpha: Number) -> Tensor:
    return sub(x, _times(other, alpha))


def _shifted(x: Tensor, number: Number) -> Tensor:
    x, number = with_number(x, number)
    return run(Shift(number), x) if x.tensor_type.dtype is not bool_ else both("add", BitwiseOr(), x, number)


def _less(x: Tensor, number: Number) -> Tensor:
    """Return x - number."""
    x, number = with_number(x, number)
    return run(Shift(-number), x) if x.tensor_type.dtype is not bool_ else both("sub", _SUBTRACT, x, number)


def _from(number: Number, x: Tensor) -> Tensor:
    """Return number - x."""
    x, number = with_number(x, number)
    return run(Shift(number), neg(x)) if x.tensor_type.dtype is not bool_ else both("sub", _SUBTRACT, number, x)


def sub(x: Operand, other: Operand, *, alpha: Number = 1) -> Tensor:
    """Return x - alpha * other, with broadcasting and type promotion.  Raises: ShapeError as in `add`; DtypeError for bool tensors."""
    x, other = sides("sub", x, other)
    if alpha != 1:
        return _minus_times(x, other, alpha)
    if isinstance(x, Tensor) and isinstance(other, Tensor):
        return both("sub", _SUBTRACT, x, other)
    return _less(x, other) if isinstance(x, Tensor) else _from(x, other)  # type: ignore[arg-type]


subtract = sub


def rsub(x: Tensor, other: Operand, *, alpha: Number = 1) -> Tensor:
    """Return other - alpha * x."""
    return sub(other, x, alpha=alpha)


def neg(x: Tensor) -> Tensor:
    """Return -x.  Raises: DtypeError for a bool tensor."""
    return run(_NEGATE, x)


negative = neg


def positive(x: Tensor) -> Tensor:
    """Return x itself."""
    return x


@rounded_once
def addcmul(x: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1) -> Tensor:
    """Return x + value * tensor1 * tensor2, element by element and with broadcasting."""
    x, tensor1, tensor2 = together("addcmul", x, tensor1, tensor2)
    return add(x, mul(tensor1, tensor2), alpha=value)


@rounded_once
def addcdiv(x: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1) -> Tensor:
    """Return x + value * tensor1 / tensor2, element by element and with broadcasting."""
    x, tensor1, tensor2 = together("addcdiv", x, tensor1, tensor2)
    return add(x, div(tensor1, tensor2), alpha=value)


# -------------------------------------------------------------------- products and quotients


def mul(x: Operand, other: Operand) -> Tensor:
    """Return x * other, with broadcasting and type promotion; for bool tensors, the logical and.

    Raises: ShapeError if the shapes do not broadcast; DtypeError if neither operand is a tensor.
    """
    x, other = sides("mul", x, other)
    if isinstance(x, Tensor) and isinstance(other, Tensor):
        x, other = pair("mul", x, other)
        return run(_MULTIPLY if x.tensor_type.dtype is not bool_ else BitwiseAnd(), x, other)
    return _scaled(x, other) if isinstance(x, Tensor) else _scaled(other, x)


def _scaled(x: Any, number: Any) -> Tensor:
    x, number = with_number(x, number)
    return run(Scale(number), x) if x.tensor_type.dtype is not bool_ else both("mul", BitwiseAnd(), x, number)


multiply = mul


def div(x: Operand, other: Operand, *, rounding_mode: str | None = None) -> Tensor:
    """Return x / other, with broadcasting; the quotient of integers has the default element type, float32 initially.

    `rounding_mode="floor"` rounds the quotient down and "trunc" rounds it towards 0; both keep the common element type of the operands.
    Raises: ArgumentError for an unknown rounding mode, and for an integer divisor 0 together with a rounding mode.
    """
    x, other = sides("div", x, other)
    if rounding_mode is None:
        return _quotient(x, other)
    if rounding_mode == "floor":
        return floor_divide(x, other)
    if rounding_mode != "trunc":
        raise ArgumentError(f'div at {user_line()}: rounding_mode must be None, "floor" or "trunc"; got {rounding_mode!r}')
    return _whole("div", x, other, TruncateDivide(), divisor_assertion("div"))


def _whole(what: str, x: Any, other: Any, op: Op, check: RuntimeAssertion) -> Tensor:
    """Return op(x, other) with bool operands converted to uint8, and with `check` applied to an integer right operand."""
    a, b = pair(what, *sides(what, x, other))
    if a.tensor_type.dtype is bool_:
        a, b = cast(a, uint8), cast(b, uint8)
    return run(op, a, run(check, b) if b.tensor_type.dtype.is_integer else b)


def _quotient(x: Any, other: Any) -> Tensor:
    if isinstance(other, Tensor):
        a, b = pair("div", x, other)
        return run(_DIVIDE, as_float(a), as_float(b))
    x = as_float(x)
    return run(DivideBy(convert_number(other, x.tensor_type.dtype)), x)


true_divide = divide = div


def _of_two(what: str, function: Callable[..., Tensor], doc: str, **options: Any) -> Callable[..., Tensor]:
    """Return a function named `what` of two operands, which calls function(what, x, other, **options)."""

    def call(x: Operand, other: Operand) -> Tensor:
        return function(what, x, other, **options)

    call.__name__ = call.__qualname__ = what
    call.__doc__ = doc
    return call


def _divided(what: str, op: Op, doc: str) -> Callable[..., Tensor]:
    return _of_two(what, _whole, doc, op=op, check=divisor_assertion(what))


floor_divide = _divided("floor_divide", FloorDivide(), "Return x / other rounded down, in the common element type of the operands.")
remainder = _divided("remainder", FloorMod(), "Return x - other * floor(x / other), with the sign of `other`.")
fmod = _divided("fmod", Remainder(), "Return x - other * trunc(x / other), with the sign of x.")


def pow(x: Operand, exponent: Operand) -> Tensor:
    """Return x to the power of `exponent`, element by element.

    Raises: for an integer x, DtypeError for a negative number as `exponent`, ArgumentError for an `exponent` tensor with a negative element.
    """
    x, exponent = sides("pow", x, exponent)
    if isinstance(x, Tensor) and not isinstance(exponent, Tensor):
        return _to_the(x, exponent)  # type: ignore[arg-type]
    return _whole("pow", x, exponent, Power(), exponent_assertion("pow"))


def _to_the(x: Tensor, exponent: Number) -> Tensor:
    x, number = with_number(x, exponent)
    if not x.tensor_type.dtype.is_float and number < 0:
        raise DtypeError(f"pow at {user_line()}: {x.tensor_type} to the negative power {number} has no integer result; use x.float()")
    special: dict[float, Op] = {2: Square(), 0: FillLike(1)}
    if x.tensor_type.dtype.is_float:
        special[0.5] = Sqrt()
    return run(special.get(number) or ScalarPower(number), x)


def float_power(x: Operand, exponent: Operand) -> Tensor:
    """Return x to the power of `exponent`, computed in float64."""
    x, exponent = (cast(side, float64) if isinstance(side, Tensor) else float(side) for side in sides("float_power", x, exponent))
    return pow(x, exponent)


def _extreme(what: str, x: Any, other: Any, op: Op, of_truth: Op) -> Tensor:
    """Return the maximum or minimum of two operands, computed by `op`, or by the logical operation `of_truth` for bool operands."""
    a, b = pair(what, *sides(what, x, other))
    return run(op if a.tensor_type.dtype is not bool_ else of_truth, a, b)


maximum = _of_two(
    "maximum", _extreme, "Return the larger of x and other, element by element; NaN if either is NaN.", op=Maximum(), of_truth=BitwiseOr()
)
minimum = _of_two(
    "minimum", _extreme, "Return the smaller of x and other, element by element; NaN if either is NaN.", op=Minimum(), of_truth=BitwiseAnd()
)


# -------------------------------------------------------------------- bits


def _bits(what: str, x: Any, other: Any, op: Op) -> Tensor:
    a, b = pair(what, *sides(what, x, other))
    if kind(a.tensor_type.dtype) == 2:
        raise DtypeError(
            f"{what} at {user_line()}: bitwise operations need integers or bool; got {a.tensor_type}; compare the tensors first, or use logical_*"
        )
    return run(op, a, b)


bitwise_and = _of_two("bitwise_and", _bits, "Return the bitwise and of x and other; for bool tensors, the logical and.", op=BitwiseAnd())
bitwise_or = _of_two("bitwise_or", _bits, "Return the bitwise or of x and other; for bool tensors, the logical or.", op=BitwiseOr())
bitwise_xor = _of_two(
    "bitwise_xor", _bits, "Return the bitwise exclusive or of x and other; for bool tensors, the logical exclusive or.", op=BitwiseXor()
)


def bitwise_not(x: Tensor) -> Tensor:
    """Return the bitwise complement of x; for a bool tensor, the logical not.  Raises: DtypeError for floats."""
    if kind(x.tensor_type.dtype) == 2:
        raise DtypeError(
            f"bitwise_not at {user_line()}: bitwise operations need integers or bool; got {x.tensor_type}; compare the "
            "tensor first, or use logical_not"
        )
    return run(BitwiseNot(), x)


# -------------------------------------------------------------------- matrices


def matmul(input: Operand, other: Operand) -> Tensor:
    """Return the matrix product of `input` and `other` over their last two axes; leading axes broadcast.

    A vector on the left is a row, and a vector on the right is a column; the result omits the axis of size 1.
    Raises: ShapeError for a tensor without axes, or if the summed axes have different sizes.

    Examples:
        >>> flow.matmul(flow.ones(2, 3), flow.ones(3, 4)).shape
        jobflow.Size([2, 4])
        >>> a = flow.tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> a @ flow.tensor([1.0, 0.0])
        tensor([1., 3.], dtype=jobflow.float32)
    """
    x, y = pair("matmul", input, other)
    if x.tensor_type.ndim == 2 and y.tensor_type.ndim == 2:
        return run(_MATMUL, x, y)
    if not x.tensor_type.ndim or not y.tensor_type.ndim:
        raise ShapeError(f"matmul at {user_line()}: input {x.tensor_type} and other {y.tensor_type} must both have at least one axis")
    row, column = x.tensor_type.ndim == 1, y.tensor_type.ndim == 1
    product = _product(run(ExpandDims(0), x) if row else x, run(ExpandDims(1), y) if column else y)
    last = product.tensor_type.ndim - 1
    gone = (*((last - 1,) if row else ()), *((last,) if column else ()))
    return run(Squeeze(gone), product) if gone else product


def _product(x: Tensor, y: Tensor) -> Tensor:
    """Return the matrix product of two tensors with at least two axes each."""
    product: Tensor
    if y.tensor_type.ndim == 2:
        product = run(_MATMUL if x.tensor_type.ndim == 2 else BroadcastMatMul(), x, y)
        return product
    if x.tensor_type.shape[:-2] != y.tensor_type.shape[:-2]:
        lead = broadcast_shapes("matmul", x.tensor_type.with_shape(x.tensor_type.shape[:-2]), y.tensor_type.with_shape(y.tensor_type.shape[:-2]))
        x, y = (each if each.tensor_type.shape[:-2] == lead else run(BroadcastTo((*lead, *each.tensor_type.shape[-2:])), each) for each in (x, y))
    product = run(BatchMatMul(), x, y)
    return product


def _of_axes(what: str, a: Tensor, b: Tensor, *axes: int) -> tuple[Tensor, Tensor]:
    """Return both tensors; raise ShapeError unless `a` has axes[0] axes and `b` has axes[1] axes."""
    if (a.tensor_type.ndim, b.tensor_type.ndim) != axes:
        raise ShapeError(f"{what} at {user_line()}: the operands must have {axes[0]} and {axes[1]} axes; got {a.tensor_type} and {b.tensor_type}")
    return a, b


def mm(input: Tensor, mat2: Tensor) -> Tensor:
    """Return the matrix product [n, k] x [k, m] -> [n, m].  Raises: ShapeError unless both tensors have two axes and equal k."""
    return matmul(*_of_axes("mm", input, mat2, 2, 2))


def bmm(input: Tensor, mat2: Tensor) -> Tensor:
    """Return the batched matrix product [b, n, k] x [b, k, m] -> [b, n, m].  Raises: ShapeError for other shapes."""
    if input.tensor_type.shape[:1] != mat2.tensor_type.shape[:1]:
        raise ShapeError(f"bmm at {user_line()}: input {input.tensor_type} and mat2 {mat2.tensor_type} must have the same batch size, axis 0")
    return matmul(*_of_axes("bmm", input, mat2, 3, 3))


def mv(input: Tensor, vec: Tensor) -> Tensor:
    """Return the product of a matrix and a vector, [n, k] x [k] -> [n].  Raises: ShapeError for other shapes."""
    return matmul(*_of_axes("mv", input, vec, 2, 1))


def dot(input: Tensor, tensor: Tensor) -> Tensor:
    """Return the inner product of two vectors, a scalar tensor.  Raises: ShapeError unless both tensors have one axis of the same size."""
    return matmul(*_of_axes("dot", input, tensor, 1, 1))


def outer(input: Tensor, vec2: Tensor) -> Tensor:
    """Return the outer product of two vectors, a matrix [n, m].  Raises: ShapeError unless both tensors have one axis."""
    x, y = pair("outer", *_of_axes("outer", input, vec2, 1, 1))
    return mul(run(ExpandDims(1), x), y)


def plus(x: Tensor, beta: Number, product: Tensor, alpha: Number) -> Tensor:
    """Return beta * x + alpha * product; beta = 0 ignores the values of x, even NaN.  Under `autocast`, x has the type of the product."""
    if scope.current().autocast is product.dtype and x.dtype is float32:
        x = cast(x, product.dtype)
    scaled = x if beta == 1 else run(FillLike(0), x) if beta == 0 and (x.dtype.is_float or isinstance(beta, int)) else mul(x, beta)
    return add(scaled, product if alpha == 1 else mul(product, alpha))


@rounded_once
def addmm(x: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
    """Return beta * x + alpha * (mat1 @ mat2); with beta = 0 the values of x are ignored."""
    product = mm(mat1, mat2)
    return plus(x, beta, product, alpha)


@rounded_once
def baddbmm(x: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
    """Return beta * x + alpha * (batch1 @ batch2), for batches of matrices; with beta = 0 the values of x are ignored."""
    product = bmm(batch1, batch2)
    return plus(x, beta, product, alpha)


class ArithmeticMethods:
    """Arithmetic methods and operators of tensors."""

    __slots__ = ()

    __add__ = operator(add)
    __and__ = operator(bitwise_and)
    __floordiv__ = operator(floor_divide)
    __iadd__ = in_place(add, "__iadd__")
    __iand__ = in_place(bitwise_and, "__iand__")
    __ifloordiv__ = in_place(floor_divide, "__ifloordiv__")
    __imod__ = in_place(remainder, "__imod__")
    __imul__ = in_place(mul, "__imul__")
    __invert__ = method(bitwise_not)
    __ior__ = in_place(bitwise_or, "__ior__")
    __ipow__ = in_place(pow, "__ipow__")
    __isub__ = in_place(sub, "__isub__")
    __itruediv__ = in_place(div, "__itruediv__")
    __ixor__ = in_place(bitwise_xor, "__ixor__")
    __matmul__ = operator(matmul)
    __mod__ = operator(remainder)
    __mul__ = operator(mul)
    __neg__ = method(neg)
    __or__ = operator(bitwise_or)
    __pos__ = method(positive)
    __pow__ = operator(pow)
    __radd__ = reflected(add)
    __rand__ = reflected(bitwise_and)
    __rfloordiv__ = reflected(floor_divide)
    __rmatmul__ = reflected(matmul)
    __rmod__ = reflected(remainder)
    __rmul__ = reflected(mul)
    __ror__ = reflected(bitwise_or)
    __rpow__ = reflected(pow)
    __rsub__ = reflected(sub)
    __rtruediv__ = reflected(div)
    __rxor__ = reflected(bitwise_xor)
    __sub__ = operator(sub)
    __truediv__ = operator(div)
    __xor__ = operator(bitwise_xor)
    add = method(add)
    add_ = in_place(add)
    addcdiv = method(addcdiv)
    addcdiv_ = in_place(addcdiv)
    addcmul = method(addcmul)
    addcmul_ = in_place(addcmul)
    addmm = method(addmm)
    addmm_ = in_place(addmm)
    baddbmm = method(baddbmm)
    baddbmm_ = in_place(baddbmm)
    bitwise_and = method(bitwise_and)
    bitwise_and_ = in_place(bitwise_and)
    bitwise_not = method(bitwise_not)
    bitwise_or = method(bitwise_or)
    bitwise_or_ = in_place(bitwise_or)
    bitwise_xor = method(bitwise_xor)
    bitwise_xor_ = in_place(bitwise_xor)
    bmm = method(bmm)
    div = method(div)
    div_ = in_place(div)
    dot = method(dot)
    float_power = method(float_power)
    floor_divide = method(floor_divide)
    floor_divide_ = in_place(floor_divide)
    fmod = method(fmod)
    fmod_ = in_place(fmod)
    matmul = method(matmul)
    maximum = method(maximum)
    minimum = method(minimum)
    mm = method(mm)
    mul = method(mul)
    mul_ = in_place(mul)
    mv = method(mv)
    neg = method(neg)
    neg_ = in_place(neg)
    outer = method(outer)
    pow = method(pow)
    pow_ = in_place(pow)
    remainder = method(remainder)
    remainder_ = in_place(remainder)
    rsub = method(rsub)
    sub = method(sub)
    sub_ = in_place(sub)
    divide = method(div, "divide")
    divide_ = div_
    ger = method(outer, "ger")
    multiply = method(mul, "multiply")
    multiply_ = mul_
    negative = method(neg, "negative")
    negative_ = neg_
    subtract = method(sub, "subtract")
    subtract_ = sub_
    true_divide = method(div, "true_divide")
    true_divide_ = div_
