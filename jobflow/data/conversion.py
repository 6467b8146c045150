"""Checked conversion of element types: a value that the target type cannot represent raises an error.

Integers must be in the range of an integer type, and exact in a float type: ids are not rounded.  Floats become integers if they are whole.
Between float types values are rounded, but a finite value must not become infinite.  Booleans are 0 and 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from jobflow.core.errors import DataError
from jobflow.core.types import Array, dtype_of, float_info

#: A function that describes the element at an index of the array, for messages.
Place = Callable[[tuple[int, ...]], str]
ADVICE = "set another element type with dtypes"
_BFLOAT16 = "bfloat16"


def converted(values: Array, dtype: np.dtype[Any], place: Place, advice: str = ADVICE) -> Array:
    """Return `values` with another element type, in C order, or `values` itself if it has that type.

    Raises: DataError for the first element that the type cannot represent; `place(index)` describes the element, and `advice` ends the message.
    """
    result, misfits = fitted(values, dtype)
    if misfits is not None:
        index = tuple(int(i) for i in np.argwhere(misfits)[0])
        value = values[index].item()
        raise DataError(f"{place(index)} is {value}, {misfit(value, dtype)}; {advice}")
    return result


def fitted(values: Array, dtype: np.dtype[Any]) -> tuple[Array, Array | None]:
    """Return `values` with another element type, and a mask of the elements that the type cannot represent; None without such elements."""
    if values.dtype == dtype:
        return values, None
    with np.errstate(invalid="ignore", over="ignore"):
        result = values.astype(dtype, order="C")
        if not values.size or holds_all(values.dtype, dtype):
            return result, None
        misfits = _misfits(values, result)
    return result, misfits if misfits is not None and misfits.any() else None


def is_number(dtype: np.dtype[Any]) -> bool:
    """Return True for element types that can be converted: booleans, integers and real floats."""
    return dtype.kind in "biuf" or dtype.name == _BFLOAT16


@lru_cache
def holds_all(source: np.dtype[Any], target: np.dtype[Any]) -> bool:
    """Return True if the target type can represent every value of the source type."""
    if source.kind == "b" or source.newbyteorder("=") == target.newbyteorder("="):
        return True
    if target.kind == "b" or (_is_float(source) and not _is_float(target)):
        return False
    if not _is_float(source) and _is_float(target):
        return max(map(abs, _span(source))) <= exact_up_to(target)
    (low, high), (least, most) = _span(source), _span(target)
    return bool(least <= low and high <= most)


def fits(value: float, dtype: np.dtype[Any]) -> bool:
    """Return True if a type can represent a Python number, by the rules of `fitted`; integers may have any size."""
    if dtype.kind == "b":
        return value in (0, 1)
    low, high = _span(dtype)
    if not _is_float(dtype):
        return low <= value <= high and value == int(value)
    if isinstance(value, float):
        with np.errstate(over="ignore"):
            return not math.isfinite(value) or bool(np.isfinite(np.array(value).astype(dtype)))
    return low <= value <= high and int(np.array(float(value)).astype(dtype)) == value


def misfit(value: float, dtype: np.dtype[Any]) -> str:
    """Return the reason why a type cannot represent a value, for example "which is not a whole number"."""
    if dtype.kind == "b":
        return "which is neither 0 nor 1"
    is_whole = isinstance(value, int) or (math.isfinite(value) and value == int(value))
    if not _is_float(dtype) and not is_whole:
        return f"which is not a whole number, as {dtype} requires"
    low, high = _span(dtype)
    if low <= value <= high:
        return f"which {dtype} rounds to {int(np.array(value).astype(dtype))}"
    return f"which is beyond {dtype} ({low} to {high})"


def _misfits(values: Array, result: Array) -> Array | None:
    source, target = _wide(values), result.dtype
    if target.kind == "b":
        return (source != 0) & (source != 1)
    if not _is_float(values.dtype):
        return _rounded(values, result) if _is_float(target) else _beyond(values, target)
    if _is_float(target):
        lost = ~np.isfinite(result)
        return lost & np.isfinite(values) if lost.any() else None
    low, high = _span(target)
    return ~((source >= low) & (source < float(high + 1)) & (source == np.trunc(source)))


def _beyond(values: Array, target: np.dtype[Any]) -> Array | None:
    """Return a mask of the integers outside of the range of another integer type, or None if all are inside."""
    low, high = _span(target)
    least, most = values.min().item(), values.max().item()
    if low <= least and most <= high:
        return None
    wrong: Array = np.zeros(values.shape, bool)
    if least < low:
        wrong |= values < low
    return wrong | (values > high) if most > high else wrong


def _rounded(values: Array, result: Array) -> Array | None:
    """Return a mask of the integers that a float type does not represent exactly, or None if all values are small enough."""
    if max(abs(values.min().item()), abs(values.max().item())) <= exact_up_to(result.dtype):
        return None
    wide, (_, high) = _wide(result), _span(values.dtype)
    return ~(np.isfinite(wide) & (wide < float(high + 1))) | (wide.astype(values.dtype) != values)


def _wide(values: Array) -> Array:
    """Return 16-bit floats as float32, which can be compared with any bound, and other values unchanged."""
    return values.astype(np.float32) if _is_float(values.dtype) and values.dtype.itemsize == 2 else values


def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or dtype.name == _BFLOAT16


@lru_cache
def _span(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """Return the smallest and the largest finite value of a type."""
    if dtype.kind in "iu":
        return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    if dtype.kind == "b":
        return 0, 1
    largest = float((float_info(dtype_of(dtype)) if dtype.name == _BFLOAT16 else np.finfo(dtype)).max)
    return -largest, largest


@lru_cache
def exact_up_to(dtype: np.dtype[Any]) -> int:
    """Return the largest n for which a float type represents all integers from -n to n."""
    return 2 ** (int((float_info(dtype_of(dtype)) if dtype.name == _BFLOAT16 else np.finfo(dtype)).nmant) + 1)
