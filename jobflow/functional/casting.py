"""Conversion between element types: x.float(), x.long()."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import jobflow.core.types as types
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import DtypeError, user_line
from jobflow.core.types import DType, dtype_of
from jobflow.functional.dispatch import method
from jobflow.functional.memory_formats import check_format
from jobflow.functional.promotion import cast as as_dtype
from jobflow.functional.promotion import kind, wider
from jobflow.functional.typed import Tensor
from jobflow.tensors.state import state

__all__ = [
    "can_cast", "cast", "finfo", "get_default_dtype", "iinfo", "is_floating_point", "is_tensor", "promote_types", "set_default_dtype",
]  # fmt: skip

#: name of a tensor class -> its element type
CLASSES: dict[str, DType] = {
    "FloatTensor": types.float32,
    "DoubleTensor": types.float64,
    "HalfTensor": types.float16,
    "BFloat16Tensor": types.bfloat16,
    "ShortTensor": types.int16,
    "IntTensor": types.int32,
    "LongTensor": types.int64,
    "CharTensor": types.int8,
    "ByteTensor": types.uint8,
    "BoolTensor": types.bool_,
}


def cast(x: Tensor, dtype: Any) -> Tensor:
    """Return x converted to element type `dtype`, or x itself if it has this type.  Raises: DtypeError for an unknown type."""
    return as_dtype(x, named("cast", dtype))


def named(what: str, dtype: Any) -> DType:
    """Return the element type that `dtype` names; raise DtypeError for an unknown name."""
    try:
        return dtype_of(dtype if dtype is not None else "?none")  # np.dtype(None) would be float64
    except (KeyError, TypeError, ValueError):
        raise DtypeError(f"{what} at {user_line()}: {dtype!r} is not an element type such as jobflow.float32") from None


def _to(name: str, dtype: DType) -> Callable[[Tensor], Tensor]:
    """Return a method `name` that converts a tensor to element type `dtype`."""

    def conversion(x: Tensor, memory_format: Any = None) -> Tensor:
        check_format(name, memory_format)
        return as_dtype(x, dtype)

    conversion.__name__ = name
    conversion.__doc__ = f"Return x as {dtype.name}; x itself if it already has this type."
    return conversion


def as_type(x: Tensor, dtype: Any = None, non_blocking: bool = False) -> Any:
    """Return the name of the tensor's class, such as "jobflow.FloatTensor"; with `dtype`, return x converted to this type.

    `dtype` is an element type, a tensor class, or the name of a tensor class.  Classes of `flow.cuda` also copy x to the device "cuda".
    """
    if dtype is None:
        name = next(name for name, known in CLASSES.items() if known.numpy == x.tensor_type.dtype.numpy)
        return f"jobflow.{'cuda.' if x.is_cuda else ''}{name}"
    on_cuda = getattr(dtype, "device_type", None) == "cuda"
    if isinstance(dtype, str):
        name = dtype.removeprefix("jobflow.")
        on_cuda = name.startswith("cuda.")
        dtype = CLASSES.get(name.removeprefix("cuda."), dtype)
    of_class = getattr(dtype, "dtype", None)
    if on_cuda:
        x = x.cuda()
    return as_dtype(x, named("type", of_class if isinstance(of_class, DType) else dtype))


def is_tensor(x: Any) -> bool:
    """Return True if x is a tensor."""
    return isinstance(x, Tensor)


def is_floating_point(x: Tensor) -> bool:
    """Return True if the element type of x is a floating point type."""
    return x.tensor_type.dtype.is_float


def promote_types(a: Any, b: Any) -> DType:
    """Return the common element type of tensors of types a and b, by the rules of type promotion."""
    return wider(named("promote_types", a), named("promote_types", b))


def can_cast(a: Any, b: Any) -> bool:
    """Return True if values of type a may be assigned to a tensor of type b.

    The result is False from floats to integers, from floats to bool, and from integers to bool.
    """
    return kind(named("can_cast", a)) <= kind(named("can_cast", b))


@dataclass(frozen=True)
class FloatLimits:
    """The limits of a floating point type as Python numbers; `tiny` is the smallest normal number, `eps` the distance from 1 to the next number."""

    dtype: str
    bits: int
    min: float
    max: float
    eps: float
    tiny: float
    smallest_normal: float
    resolution: float


def finfo(dtype: Any = None) -> FloatLimits:
    """Return the limits of a floating point type, by default the default element type.  Raises: DtypeError for another type."""
    if dtype is None:
        dtype = get_default_dtype()
    chosen = named("finfo", dtype)
    if not chosen.is_float:
        raise DtypeError(f"finfo at {user_line()}: {chosen.name} is not a floating point type; use iinfo")
    info = types.float_info(chosen)
    values = {name: float(getattr(info, name)) for name in ("min", "max", "eps", "tiny", "smallest_normal", "resolution")}
    return FloatLimits(chosen.name, int(info.bits), **values)


def iinfo(dtype: Any) -> Any:
    """Return the limits of an integer type with the attributes of `numpy.iinfo`: min, max, bits.  Raises: DtypeError for another type."""
    chosen = named("iinfo", dtype)
    if not chosen.is_integer:
        raise DtypeError(f"iinfo at {user_line()}: {chosen.name} is not an integer type; use finfo")
    return np.iinfo(chosen.numpy)


def get_default_dtype() -> DType:
    """Return the element type of tensors created from Python floats, float32 unless `set_default_dtype` changed it."""
    return state().default_dtype


def set_default_dtype(dtype: Any) -> None:
    """Set the element type of tensors created from Python floats.  Raises: DtypeError unless it is a floating point type."""
    chosen = named("set_default_dtype", dtype)
    if not chosen.is_float:
        raise DtypeError(f"set_default_dtype at {user_line()}: {chosen.name} is not a floating point type; use float32 or float64")
    state().default_dtype = chosen


class CastingMethods:
    """Methods of tensors that convert the element type."""

    __slots__ = ()

    bfloat16 = _to("bfloat16", types.bfloat16)
    bool = _to("bool", types.bool_)
    byte = _to("byte", types.uint8)
    cast = method(cast)
    char = _to("char", types.int8)
    double = _to("double", types.float64)
    float = _to("float", types.float32)
    half = _to("half", types.float16)
    int = _to("int", types.int32)
    is_floating_point = method(is_floating_point)
    long = _to("long", types.int64)
    short = _to("short", types.int16)
    type = method(as_type, "type")
