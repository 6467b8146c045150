"""Type promotion: the element type of an operation on tensors and numbers.

    bool < uint8, int8 < int32 < int64 < float16, bfloat16 < float32 < float64

The largest type wins, and where neither of two has the numbers of the other (uint8 and int8, float16 and bfloat16) the smallest that has
those of both: int32, float32.  A number of Python, or a tensor without axes, changes the type of a tensor with axes only where it is of
another kind (bool, integer, float): int64[3] + 0.5 is float32, float16[3] + 0.5 is float16.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeAlias, TypeVar

import numpy as np

from jobflow.core.errors import ArgumentError, DtypeError, JobError, PlacementError, user_line
from jobflow.core.layout import B, Layout
from jobflow.core.types import DType, bfloat16, bool_, char, dtype_of, float16, float32, float64, hides_elements, int8, int32, int64, type_of, uint8
from jobflow.eager.run import run, source
from jobflow.eager.state import building_now, running, state
from jobflow.functional.typed import Tensor
from jobflow.ops.rounding import rounding_once
from jobflow.ops.scalar import Cast
from jobflow.ops.source import Constant

P = ParamSpec("P")
R = TypeVar("R")
Number: TypeAlias = bool | int | float
#: What may stand beside a tensor; arrays beside local tensors only.
Operand: TypeAlias = "Tensor | Number | np.generic | np.ndarray[Any, Any]"

#: how many numbers a rank keeps as tensors
KEPT = 1024

_ORDER = {dtype: i for i, dtype in enumerate((bool_, uint8, int8, int32, int64, float16, bfloat16, float32, float64))} | {char: 2}
#: types neither of which has the numbers of the other, and the smallest that has those of both
_BOTH = {frozenset(pair): dtype for *pair, dtype in ((uint8, int8, int32), (uint8, char, int32), (float16, bfloat16, float32))}


def kind(dtype: DType) -> int:
    """0 of truth values, 1 of integers, 2 of floats."""
    return 2 if dtype.is_float else 0 if dtype is bool_ else 1


def number_kind(number: Number) -> int:
    """The same of a Python number."""
    return 0 if isinstance(number, bool) else 1 if isinstance(number, int) else 2


def number_dtype(number: Number) -> DType:
    """The type of a number that stands alone."""
    return (bool_, int64, state().default_dtype)[number_kind(number)]


def wider(a: DType, b: DType) -> DType:
    """The smallest type that has the numbers of both."""
    return _BOTH.get(frozenset((a, b))) or (a if _ORDER[a] >= _ORDER[b] else b)


def result_type(*operands: Operand) -> DType:
    """The type that these have together."""
    if not operands:
        raise ArgumentError(f"result_type at {user_line()}: no argument has a type")
    known = [_judged(operand) for operand in operands]
    highest = max(kind(dtype) for _, dtype in known)
    chosen = [(weight, dtype) for weight, dtype in known if kind(dtype) == highest]
    heaviest = max(weight for weight, _ in chosen)
    dtypes = [dtype for weight, dtype in chosen if weight == heaviest]
    found = dtypes[0]
    for dtype in dtypes[1:]:
        found = wider(found, dtype)
    return found


def _judged(operand: Any) -> tuple[int, DType]:
    """How much an operand has to say (2: a tensor with axes, 1: one without, 0: a number), and its type."""
    if isinstance(operand, Tensor):
        return (2 if operand.tensor_type.shape else 1), operand.tensor_type.dtype
    if isinstance(operand, np.ndarray):
        return 2, dtype_of(operand.dtype)
    return 0, number_dtype(operand)


def cast(x: Tensor, dtype: DType) -> Tensor:
    """x as this type; x itself if it has it."""
    return x if x.tensor_type.dtype is dtype else run(Cast(dtype), x)


_rounding_once = rounding_once(cast)


def rounded_once(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function of tensors: two-byte floats are computed in float32 and rounded once."""
    return _rounding_once(function)


def as_float(x: Tensor) -> Tensor:
    """x as floats of the default type if it is not of floats."""
    return x if x.tensor_type.dtype.is_float else cast(x, state().default_dtype)


def is_operand(other: Any) -> bool:
    """Whether an operator takes it."""
    return isinstance(other, Tensor | int | float | np.generic | np.ndarray)


def operand(what: str, beside: Tensor, other: Any) -> Tensor | Number:
    """What stands beside a tensor, as a tensor or a Python number.

    Raises: PlacementError for an array beside a global tensor, JobError for one beside a traced tensor, DtypeError for what is not a number.
    """
    if isinstance(other, Tensor | int | float):
        return other
    if isinstance(other, np.generic) or (isinstance(other, np.ndarray) and not other.ndim):
        return other.item()
    if not isinstance(other, np.ndarray):
        raise DtypeError(f"{what} at {user_line()}: the other operand must be a tensor or a number; got {other!r} of type {type(other).__name__}")
    if beside.layout is None and beside.traced is not None:
        raise JobError(
            f"{what} at {user_line()}: a NumPy array of shape {list(other.shape)} beside the tensor {beside.tensor_type} of {running()}; "
            f"give {building_now().short} the array as an argument"
        )
    if beside.layout is not None:
        raise PlacementError(
            f"{what} at {user_line()}: a NumPy array of shape {list(other.shape)} beside a global tensor {beside.tensor_type}; "
            f"make a tensor of it: jobflow.tensor(array, placement=..., sbp=...)"
        )
    check_numbers(what, other)
    try:
        return Tensor.new(type_of(other), None, other)
    except KeyError:
        raise DtypeError(f"{what} at {user_line()}: a NumPy array of {other.dtype} does not have one of jobflow's element types; cast it") from None


def check_numbers(what: str, data: Any) -> None:
    """ArgumentError for an array with masked elements."""
    if hides_elements(data):
        raise ArgumentError(f"{what} at {user_line()}: the array has masked elements, which a tensor cannot have; pass array.filled(number)")


def constant(like: Tensor, number: Number, dtype: DType) -> Tensor:
    """The number as a tensor without axes, where `like` lies; nobody writes over it, for it is kept."""
    layout = like.layout
    where = None if layout is None else layout if layout.is_whole else Layout(layout.placement, (B,) * len(layout.sbp))
    value = fitting(number, dtype)
    here = state()
    if here.building is not None or value != value or (value == 0 and math.copysign(1.0, value) < 0):  # -0.0 is equal to 0.0, NaN to nothing
        return source(Constant((), dtype, value), where)
    found: Tensor | None = here.constants.get((dtype, where, value))
    if found is None:
        if len(here.constants) >= KEPT:
            here.constants.clear()
        found = here.constants[dtype, where, value] = source(Constant((), dtype, value), where)
    return found


def fitting(number: Number, dtype: DType) -> Number:
    """The number as this type has it; DtypeError if it does not."""
    if dtype is bool_:
        return bool(number)
    if dtype.is_float:
        return dtype.number(number)
    low, high = dtype.span
    if number != number or abs(number) == math.inf or not low <= int(number) <= high:
        raise DtypeError(f"{user_line()}: {number} is out of range for {dtype.name}, {low} to {high}; cast the tensor to a larger type")
    return int(number)


def with_number(x: Tensor, number: Number) -> tuple[Tensor, Number]:
    """Both in the type that they have together."""
    dtype = x.tensor_type.dtype
    if number_kind(number) > kind(dtype):
        dtype = number_dtype(number)
        x = cast(x, dtype)
    return x, fitting(number, dtype)


def pair(what: str, x: Any, y: Any) -> tuple[Tensor, Tensor]:
    """Two operands, at least one of them a tensor, as tensors of one type."""
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        if x.tensor_type.dtype is y.tensor_type.dtype:
            return x, y
        dtype = result_type(x, y)
        return cast(x, dtype), cast(y, dtype)
    tensor = x if isinstance(x, Tensor) else y
    if not isinstance(tensor, Tensor):
        raise DtypeError(f"{what} at {user_line()}: one of the operands must be a tensor; got {x!r} and {y!r}")
    other = operand(what, tensor, y if tensor is x else x)
    if isinstance(other, Tensor):
        return pair(what, tensor, other) if tensor is x else pair(what, other, tensor)
    tensor, number = with_number(tensor, other)
    made = constant(tensor, number, tensor.tensor_type.dtype)
    return (tensor, made) if isinstance(x, Tensor) else (made, tensor)


def together(what: str, *tensors: Tensor) -> Sequence[Tensor]:
    """Tensors as one type."""
    first = tensors[0].tensor_type.dtype
    if all(x.tensor_type.dtype is first for x in tensors):
        return tensors
    dtype = result_type(*tensors)
    return [cast(x, dtype) for x in tensors]
