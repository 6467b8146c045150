"""Type promotion, which selects the common element type of tensors and numbers.

    bool < uint8, int8 < int16 < int32 < int64 < float16, bfloat16 < float32 < float64

The result is the largest type.  If neither of two types contains the other (uint8 and int8, float16 and bfloat16), the result is the smallest
type that contains both: int16, float32.  Python numbers and tensors without axes change the type of a tensor with axes only if they have a
higher kind (bool, integer, float).  So int64[3] + 0.5 is float32, and float16[3] + 0.5 is float16.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeAlias, TypeVar

import numpy as np

from jobflow.core.errors import ArgumentError, DtypeError, JobError, PlacementError, user_line
from jobflow.core.layout import B, Layout
from jobflow.core.types import (
    DType,
    bfloat16,
    bool_,
    char,
    dtype_of,
    float16,
    float32,
    float64,
    hides_elements,
    int8,
    int16,
    int32,
    int64,
    type_of,
    uint8,
)
from jobflow.functional.typed import Tensor
from jobflow.ops.axes import Reshape
from jobflow.ops.rounding import rounding_once
from jobflow.ops.scalar import Cast, Detach
from jobflow.ops.source import Constant
from jobflow.tensors.gpus import gpu_of
from jobflow.tensors.run import run, source
from jobflow.tensors.run_values import HostValue
from jobflow.tensors.state import building_now, running, state

P = ParamSpec("P")
R = TypeVar("R")
Number: TypeAlias = bool | int | float
#: The other operand of a tensor; arrays only for local tensors.
Operand: TypeAlias = "Tensor | Number | np.generic | np.ndarray[Any, Any]"

#: the number of constants that a rank caches as tensors
MAX_CONSTANTS = 1024

_ORDER = {dtype: i for i, dtype in enumerate((bool_, uint8, int8, int16, int32, int64, float16, bfloat16, float32, float64))} | {char: 2}
#: pairs of types, neither of which contains the other -> the smallest type that contains both
_BOTH = {frozenset(pair): dtype for *pair, dtype in ((uint8, int8, int16), (uint8, char, int16), (float16, bfloat16, float32))}


def kind(dtype: DType) -> int:
    """Return the kind of a type: 0 for bool, 1 for integers, 2 for floats."""
    return 2 if dtype.is_float else 0 if dtype is bool_ else 1


def number_kind(number: Number) -> int:
    """Return the kind of a Python number: 0 for bool, 1 for int, 2 for float."""
    return 0 if isinstance(number, bool) else 1 if isinstance(number, int) else 2


def number_dtype(number: Number) -> DType:
    """Return the element type of a Python number without a tensor operand."""
    return (bool_, int64, state().default_dtype)[number_kind(number)]


def wider(a: DType, b: DType) -> DType:
    """Return the smallest type that contains the values of a and b."""
    return _BOTH.get(frozenset((a, b))) or (a if _ORDER[a] >= _ORDER[b] else b)


def result_type(*operands: Operand) -> DType:
    """Return the common element type of tensors, arrays and numbers, by the rules of type promotion.  Raises: ArgumentError without operands."""
    if not operands:
        raise ArgumentError(f"result_type at {user_line()}: at least one operand is needed")
    known = [_judged(operand) for operand in operands]
    highest = max(kind(dtype) for _, dtype in known)
    chosen = [(weight, dtype) for weight, dtype in known if kind(dtype) == highest]
    heaviest = max(weight for weight, _ in chosen)
    dtypes = [dtype for weight, dtype in chosen if weight == heaviest]
    common = dtypes[0]
    for dtype in dtypes[1:]:
        common = wider(common, dtype)
    return common


def _judged(operand: Any) -> tuple[int, DType]:
    """Return the priority of an operand (2: a tensor with axes, 1: a tensor without axes, 0: a number) and its element type."""
    if isinstance(operand, Tensor):
        return (2 if operand.tensor_type.shape else 1), operand.tensor_type.dtype
    if isinstance(operand, np.ndarray):
        return 2, dtype_of(operand.dtype)
    return 0, number_dtype(operand)


def contains_float64(data: Any) -> bool:
    """Return True if nested lists contain a float64 array, tensor or NumPy number, whose type the result keeps."""
    if isinstance(data, list | tuple):
        kinds = set(map(type, data))
        return not kinds <= {float, int, bool} and any(map(contains_float64, data))
    return isinstance(data, Tensor | np.ndarray | np.generic) and data.dtype in (float64, np.float64)


def cast(x: Tensor, dtype: DType) -> Tensor:
    """Return x converted to `dtype`, or x itself if it has this type."""
    return x if x.tensor_type.dtype is dtype else run(Cast(dtype), x)


_rounding_once = rounding_once(cast)


def rounded_once(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function of tensors to compute two-byte floats in float32 and round the result once."""
    return _rounding_once(function)


def as_float(x: Tensor) -> Tensor:
    """Return x converted to the default element type, or x itself if it has a floating point type."""
    return x if x.tensor_type.dtype.is_float else cast(x, state().default_dtype)


def _host_operand(what: str, tensor: Tensor, other: HostValue) -> Tensor:
    """Return a placeholder for a number, while a function is compiled, as a tensor with the element type that a number has beside `tensor`.

    Raises: JobError for an element type that does not represent all values of the number, such as int8 and float16.
    """
    dtype, early = tensor.dtype, other.early
    if other.kind is not bool and kind(dtype) < (2 if other.kind is float else 1):
        dtype = state().default_dtype if other.kind is float else int64
    if other.kind is None or dtype not in (bool_, int64, float32, float64):
        raise other.unknown(what)
    if isinstance(other.tensor, Tensor):
        return cast(run(Reshape(()), run(Detach(), other.tensor)), dtype)
    if early is None:
        raise other.unknown(what)

    def number() -> Any:
        return float(early()) if dtype.is_float else convert_number(early(), dtype)

    return cast(building_now().host_array(np.asarray(number()), number), dtype)


def operand(what: str, tensor: Tensor, other: Any) -> Tensor | Number:
    """Return `other`, the second operand of an operation on `tensor`, as a tensor or a Python number.

    Raises: PlacementError for an array with a global tensor, JobError for an array with a traced tensor, DtypeError for other objects.
    """
    if type(other) is HostValue:
        return _host_operand(what, tensor, other)
    if isinstance(other, Tensor | int | float):
        return other
    if isinstance(other, np.generic) or (isinstance(other, np.ndarray) and not other.ndim):
        return other.item()
    if not isinstance(other, np.ndarray):
        raise DtypeError(f"{what} at {user_line()}: the other operand must be a tensor or a number; got {other!r} of type {type(other).__name__}")
    if tensor.layout is None and tensor.traced is not None:
        raise JobError(
            f"{what} at {user_line()}: a NumPy array of shape {list(other.shape)} cannot be combined with a tensor {tensor.tensor_type} of "
            f"{running()}; pass the array to {building_now().short} as an argument"
        )
    if tensor.layout is not None:
        raise PlacementError(
            f"{what} at {user_line()}: a NumPy array of shape {list(other.shape)} cannot be combined with a global tensor {tensor.tensor_type}; "
            f"convert it: jobflow.tensor(array, device=x.device) of the global tensor x"
        )
    check_numbers(what, other)
    try:
        return Tensor.new(type_of(other), None, other)
    except KeyError:
        raise DtypeError(
            f"{what} at {user_line()}: the NumPy type {other.dtype} is not an element type such as jobflow.float32; cast the array"
        ) from None


def check_numbers(what: str, data: Any) -> None:
    """Raise ArgumentError for an array with masked elements."""
    if hides_elements(data):
        raise ArgumentError(f"{what} at {user_line()}: a tensor cannot have masked elements; pass array.filled(number)")


def constant(like: Tensor, number: Number, dtype: DType) -> Tensor:
    """Return the number as a tensor without axes on the placement of `like`; it is cached and must not be overwritten."""
    layout = like.layout
    where = None if layout is None else layout if layout.is_whole else Layout(layout.placement, (B,) * len(layout.sbp))
    value = convert_number(number, dtype)
    here = state()
    gpu = gpu_of(like.array) if here.gpus and layout is None and like.traced is None and here.building is None else None
    if (
        here.building is not None or value != value or (value == 0 and math.copysign(1.0, value) < 0)
    ):  # as a dict key, -0.0 equals 0.0, and NaN differs from itself
        return source(Constant((), dtype, value), where, None, gpu)
    known = here.constants if gpu is None else gpu.constants
    cached: Tensor | None = known.get((dtype, where, value))
    if cached is None:
        if len(known) >= MAX_CONSTANTS:
            known.clear()
        cached = known[dtype, where, value] = source(Constant((), dtype, value), where, None, gpu)
    return cached


def convert_number(number: Number, dtype: DType) -> Number:
    """Return the number as a value of type `dtype`; raise DtypeError for a number outside the range of an integer type."""
    if dtype is bool_:
        return bool(number)
    if dtype.is_float:
        return dtype.number(number)
    low, high = dtype.span
    if number != number or abs(number) == math.inf or not low <= int(number) <= high:
        raise DtypeError(f"{user_line()}: {number} is out of range for {dtype.name}, {low} to {high}; cast the tensor to a larger type")
    return int(number)


def convert_fill(number: Number, dtype: DType) -> Number:
    """Return a fill value as a value of type `dtype`; raise DtypeError if it is out of range, as PyTorch does.

    Arithmetic instead rounds a number outside the range of a float type to infinity.
    """
    value = convert_number(number, dtype)
    if dtype.is_float and abs(value) == math.inf and abs(number) != math.inf:
        low, high = dtype.span
        raise DtypeError(f"{user_line()}: {number} is out of range for {dtype.name}, {low} to {high}; cast the tensor to a larger type")
    return value


def with_number(x: Tensor, number: Number) -> tuple[Tensor, Number]:
    """Return a tensor and a number, both converted to their common type."""
    dtype = x.tensor_type.dtype
    if number_kind(number) > kind(dtype):
        dtype = number_dtype(number)
        x = cast(x, dtype)
    return x, convert_number(number, dtype)


def pair(what: str, x: Any, y: Any) -> tuple[Tensor, Tensor]:
    """Return two operands as tensors of their common type; raise DtypeError unless at least one is a tensor."""
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
    converted = constant(tensor, number, tensor.tensor_type.dtype)
    return (tensor, converted) if isinstance(x, Tensor) else (converted, tensor)


def together(what: str, *tensors: Tensor) -> Sequence[Tensor]:
    """Return the tensors converted to their common type."""
    first = tensors[0].tensor_type.dtype
    if all(x.tensor_type.dtype is first for x in tensors):
        return tensors
    dtype = result_type(*tensors)
    return [cast(x, dtype) for x in tensors]
