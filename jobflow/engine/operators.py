"""Arithmetic operators of the tensors of a job."""

from __future__ import annotations

from numbers import Real
from typing import Any, TypeAlias, TypeGuard

import numpy as np

import jobflow.core.scope as scope
from jobflow.core.errors import NOT_A_TENSOR, DtypeError, JobError, user_line
from jobflow.core.types import DType, Tensor, Typed, bool_, int8
from jobflow.ops import elementwise as ew
from jobflow.ops import matmul as linalg
from jobflow.ops.arithmetic import TruncateDivide
from jobflow.ops.pointwise import call

#: Operands of a tensor. A number is converted to the tensor's element type.
Operand: TypeAlias = "TensorOperators | float"

#: advice for computing with a tensor of a job
_ADVICE = "or return the tensor from the job"


#: NumPy's functions for operators with an array or a scalar on the left
_REFLECTED = {
    np.add: "__radd__",
    np.subtract: "__rsub__",
    np.multiply: "__rmul__",
    np.true_divide: "__rtruediv__",
    np.floor_divide: "__rfloordiv__",
    np.remainder: "__rmod__",
    np.power: "__rpow__",
    np.less: "__gt__",
    np.less_equal: "__ge__",
    np.greater: "__lt__",
    np.greater_equal: "__le__",
    np.equal: "__eq__",
    np.not_equal: "__ne__",
}


class TensorOperators(Typed):
    """Operators of tensors; a mixin without state.

    Comparisons are elementwise inside of a job or graph. Elsewhere, and with an operand that is neither tensor nor number, `==` and `!=` compare
    identity, so values can be keys of dictionaries. Division by a number multiplies by its reciprocal. As in the legacy API, division by zero gives
    zeros, and integer division drops the fraction.
    """

    __slots__ = ()

    def __bool__(self) -> bool:
        """Return True, as for any object; raise JobError for a tensor of type bool or int8, such as the result of a comparison."""
        if self.tensor_type.dtype not in (int8, bool_):
            return True
        raise JobError(
            f"bool() at {user_line()}: the truth value of a {self.tensor_type} tensor is not known while a job is traced; use where(condition, x, y)"
        )

    def _no_number(self, *_: Any) -> Any:
        raise JobError(
            f"conversion to a number at {user_line()}: a {self.tensor_type} tensor has no values while a job is traced; "
            f"use jobflow's functions, such as flow.math.exp, {_ADVICE}"
        )

    __float__ = __int__ = __complex__ = __round__ = __trunc__ = __floor__ = __ceil__ = _no_number

    def __index__(self) -> int:
        raise JobError(
            f"conversion to an index at {user_line()}: a {self.tensor_type} tensor has no values while a job is traced; use x.shape for its sizes"
        )

    def __len__(self) -> int:
        raise JobError(f"len() at {user_line()}: a {self.tensor_type} tensor has no length while a job is traced; use x.shape for its sizes")

    def __format__(self, how: str) -> str:
        if how:
            raise JobError(
                f"format {how!r} at {user_line()}: a {self.tensor_type} tensor has no values while a job is traced; print them with watch(x)"
            )
        return str(self)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """Make NumPy operands on the left of an operator defer to the tensor; raise JobError for other calls of NumPy's functions."""
        left = inputs[0]
        if method == "__call__" and not options and len(inputs) == 2 and isinstance(left, np.ndarray | np.generic) and ufunc in _REFLECTED:
            answer = getattr(self, _REFLECTED[ufunc])(left)
            return ufunc is np.not_equal if answer is NotImplemented else answer  # only for == and !=, which then compare identity
        raise JobError(
            f"np.{ufunc.__name__} at {user_line()}: a {self.tensor_type} tensor has no values while a job is traced; "
            f"use jobflow's functions, such as flow.math.{ufunc.__name__}, {_ADVICE}"
        )

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise JobError(
            f"conversion to an array at {user_line()}: the {self.tensor_type} tensor {self!r} has no values while a job is traced; "
            f"use jobflow's functions, {_ADVICE}"
        )

    def __array_function__(self, function: Any, *_: Any) -> Any:
        raise JobError(
            f"np.{function.__name__} at {user_line()}: a {self.tensor_type} tensor has no values while a job is traced; "
            f"use jobflow's functions, {_ADVICE}"
        )

    def __neg__(self) -> Any:
        return ew.negate(self)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return ew.absolute(self)

    def __add__(self, other: Operand) -> Any:
        if _is_number(other):
            return ew.shift(self, other)
        return ew.add(self, other) if _is_tensor(other) else _no_operand(other)

    __radd__ = __add__

    def __sub__(self, other: Operand) -> Any:
        if _is_number(other):
            return ew.shift(self, -other)
        return ew.subtract(self, other) if _is_tensor(other) else _no_operand(other)

    def __rsub__(self, other: Operand) -> Any:
        return ew.shift(ew.negate(self), other) if _is_number(other) else _no_operand(other)

    def __mul__(self, other: Operand) -> Any:
        if _is_number(other):
            return ew.scale(self, other)
        return ew.multiply(self, other) if _is_tensor(other) else _no_operand(other)

    __rmul__ = __mul__

    def __truediv__(self, other: Operand) -> Any:
        return quotient(self, other) if _is_number(other) or _is_tensor(other) else _no_operand(other)

    def __rtruediv__(self, other: Operand) -> Any:
        return quotient(other, self) if _is_number(other) else _no_operand(other)

    def __floordiv__(self, other: Operand) -> Any:
        return _with(ew.floor_divide, self, other)

    def __rfloordiv__(self, other: Operand) -> Any:
        return ew.floor_divide(ew.fill_like(self, other), self) if _is_number(other) else _no_operand(other)

    def __mod__(self, other: Operand) -> Any:
        return _with(ew.floor_mod, self, other)

    def __rmod__(self, other: Operand) -> Any:
        return ew.floor_mod(ew.fill_like(self, other), self) if _is_number(other) else _no_operand(other)

    def __pow__(self, other: Operand) -> Any:
        if _is_number(other):
            return ew.scalar_power(self, other)
        return ew.power(self, other) if _is_tensor(other) else _no_operand(other)

    def __rpow__(self, other: Operand) -> Any:
        return ew.power(ew.fill_like(self, other), self) if _is_number(other) else _no_operand(other)

    def __lt__(self, other: Operand) -> Any:
        return _compared(ew.Less(), self, other)

    def __le__(self, other: Operand) -> Any:
        return _compared(ew.LessEqual(), self, other)

    def __gt__(self, other: Operand) -> Any:
        return _compared(ew.Greater(), self, other)

    def __ge__(self, other: Operand) -> Any:
        return _compared(ew.GreaterEqual(), self, other)

    def __eq__(self, other: object) -> Any:
        return NotImplemented if scope.current().interpreter is None else _compared(ew.Equal(), self, other)

    def __ne__(self, other: object) -> Any:
        return NotImplemented if scope.current().interpreter is None else _compared(ew.NotEqual(), self, other)

    __hash__ = object.__hash__

    def __matmul__(self, other: TensorOperators) -> Any:
        return linalg.matmul(self, other) if _is_tensor(other) else _no_operand(other)


def quotient(x: Any, y: Any) -> Tensor:
    """Return x / y; quotients of integers are truncated, and the result is zero if x or y is the number zero."""
    if _is_number(y) and (not y or x.tensor_type.dtype.is_float):
        return ew.scale(x, 1.0 / y if y else 0)
    if _is_number(x) and y.tensor_type.dtype.is_float:
        return ew.scale(ew.reciprocal_no_nan(y), x)
    x, y = (ew.fill_like(y, x), y) if _is_number(x) else (x, ew.fill_like(x, y)) if _is_number(y) else (x, y)
    return ew.divide(x, y) if x.tensor_type.dtype.is_float or y.tensor_type.dtype.is_float else call(TruncateDivide(), x, y)


def _no_operand(other: Any) -> Any:
    """Return NotImplemented; raise DtypeError for a NumPy array, because Python's own message would not explain the mistake."""
    if isinstance(other, np.ndarray):
        raise DtypeError(f"operator at {user_line()}: an operand is a NumPy array {other.dtype}{list(other.shape)}, not a tensor; {NOT_A_TENSOR}")
    return NotImplemented


def _is_number(other: Any) -> TypeGuard[float]:
    return isinstance(other, Real)


def _is_tensor(other: Any) -> TypeGuard[Tensor]:
    return isinstance(other, Tensor)


def _with(function: Any, x: Tensor, other: Any) -> Any:
    """Apply `function` to two tensors; a number is converted to a tensor like `x`."""
    if _is_number(other):
        return function(x, ew.fill_like(x, other))
    return function(x, other) if _is_tensor(other) else _no_operand(other)


def _compared(op: ew.Comparison, x: Tensor, other: Any) -> Any:
    """Return the comparison as the interpreter's truth type: bool, or int8 in the job API."""
    dtype: DType = getattr(scope.current().interpreter, "truth", bool_)
    if not _is_number(other):
        return ew.cast(call(op, x, other), dtype) if _is_tensor(other) else _no_operand(other)
    exact = ew.with_number(op, x.tensor_type.dtype, other)
    if isinstance(exact, bool):
        return ew.fill_like(x, exact, dtype=dtype)
    return ew.cast(call(exact[0], x, ew.fill_like(x, exact[1])), dtype)
