"""Compares what jobflow gives with what was recorded."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from conformance_format import array_of

import jobflow as flow

Tensor = type(flow.tensor(0.0))

#: relative and absolute, by dtype: several roundings in the last place
TOLERANCES = {"float64": (1e-7, 1e-8), "float32": (1e-4, 1e-5), "float16": (4e-3, 1e-4), "bfloat16": (3.2e-2, 1e-3)}

#: the distance of 1 from the next number
EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7}


def name_of(dtype: Any) -> str:
    return str(dtype).rpartition(".")[2]


def numbers_of(x: Any) -> np.ndarray:
    """Of a tensor; bfloat16 as float32."""
    x = x.detach()
    return np.asarray((x.to(flow.float32) if name_of(x.dtype) == "bfloat16" else x).numpy())


def differences(expected: Any, actual: Any, data: bytes, drawn: bool = False, where: str = "", exact: Any = None) -> Iterator[str]:
    """In words; nothing if they are equal.  Of numbers that were drawn only shape and dtype; `exact` is what came out in float64."""
    if isinstance(expected, dict) and "tensor" in expected:
        yield from tensor_differences(expected["tensor"], actual, data, drawn, where, exact)
    elif isinstance(expected, dict) and ("tuple" in expected or "list" in expected):
        parts = expected.get("tuple", expected.get("list"))
        exacts = exact.get("tuple", exact.get("list")) if exact else [None] * len(parts)
        if not isinstance(actual, tuple | list) or len(parts) != len(actual):
            yield f"{where}structure: {described(actual)}, not {len(parts)} parts"
            return
        for i, (part, own, near) in enumerate(zip(parts, actual, exacts, strict=True)):
            yield from differences(part, own, data, drawn, f"{where}{i}: ", near)
    elif isinstance(expected, dict) and "dtype" in expected:
        if name_of(actual) != expected["dtype"]:
            yield f"{where}value: {actual}, not {expected['dtype']}"
    else:
        number = float(expected["float"]) if isinstance(expected, dict) and "float" in expected else expected
        if isinstance(actual, Tensor) or type(actual) is not type(number):
            yield f"{where}structure: {described(actual)}, not {number!r}"
        elif not drawn and not same_number(number, actual):
            yield f"{where}value: {actual!r}, not {number!r}"


def same_number(expected: Any, actual: Any) -> bool:
    if isinstance(expected, float):
        return (math.isnan(expected) and math.isnan(actual)) or math.isclose(expected, actual, rel_tol=1e-5, abs_tol=1e-7)
    return bool(expected == actual)


def described(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor {name_of(value.dtype)}{list(value.shape)}"
    return f"{len(value)} parts" if isinstance(value, tuple | list) else repr(value)[:60]


def tensor_differences(expected: Any, actual: Any, data: bytes, drawn: bool, where: str, exact: Any = None) -> Iterator[str]:
    _, dtype, shape, _ = expected
    if not isinstance(actual, Tensor):
        yield f"{where}structure: {described(actual)}, not a tensor {dtype}{shape}"
        return
    if name_of(actual.dtype) != dtype:
        yield f"{where}dtype: {name_of(actual.dtype)}, not {dtype}"
        return
    if list(actual.shape) != shape:
        yield f"{where}shape: {list(actual.shape)}, not {shape}"
        return
    if not drawn:
        known = None if exact is None or exact["tensor"][2] != shape else array_of(data, exact["tensor"])
        yield from value_differences(array_of(data, expected), numbers_of(actual), dtype, where, known)


def value_differences(expected: np.ndarray, actual: np.ndarray, dtype: str, where: str, exact: np.ndarray | None = None) -> Iterator[str]:
    if dtype in TOLERANCES:
        relative, absolute = TOLERANCES[dtype]
        equal = np.isclose(actual, expected, relative, absolute, equal_nan=True)
        if exact is not None and dtype in EPSILON:  # halves: as far off as one rounding of the largest number
            finite = np.abs(exact[np.isfinite(exact)])
            equal |= np.isclose(actual, exact, relative, EPSILON[dtype] * float(finite.max(initial=0.0)), equal_nan=True)
    else:
        equal = actual == expected
    if not np.all(equal):
        at = np.unravel_index(int(np.argmin(equal)), np.shape(equal))
        where_text = f" at {[int(i) for i in at]}" if at else ""
        yield f"{where}value: {actual[at]!s}, not {expected[at]!s}{where_text} ({np.size(equal) - np.count_nonzero(equal)} of {np.size(equal)})"


def layout_differences(expected: Any, actual: Any, source: Any, where: str = "") -> Iterator[str]:
    """A view must look at the memory of what it is a view of, with the same strides."""
    _, _, shape, strides = expected
    if not isinstance(actual, Tensor) or list(actual.shape) != shape or 0 in shape:
        return
    if not any(np.shares_memory(actual.detach().numpy(), x.detach().numpy()) for x in source):
        yield f"{where}view: a copy"
    elif strides is not None and [s for s, n in zip(actual.stride(), shape, strict=True) if n > 1] != [
        s for s, n in zip(strides, shape, strict=True) if n > 1
    ]:
        yield f"{where}strides: {actual.stride()}, not {strides}"


def tie_differences(case: dict[str, Any], axis_argument: int, out: Any, data: bytes) -> Iterator[str]:
    """Positions need not be those that were recorded, but those of equal elements; values must be equal."""
    args, kwargs = case["args"]["tuple"], dict(case["kwargs"]["dict"])
    axis = kwargs.get("dim", args[axis_argument] if len(args) > axis_argument else -1)
    source = array_of(data, args[0]["tensor"])
    expected = case["out"]["tuple"] if "tuple" in case["out"] else [case["out"]]
    actual = [out] if isinstance(out, Tensor) else list(out)
    for want, own in zip(expected[:-1], actual[:-1], strict=True):
        yield from differences(want, own, data)
    if list(actual[-1].shape) != expected[-1]["tensor"][2] or name_of(actual[-1].dtype) != "int64":
        yield f"positions: {described(actual[-1])}"
    else:
        places = [array_of(data, expected[-1]["tensor"]), actual[-1].numpy()]
        if source.ndim and places[0].ndim < source.ndim:
            places = [np.expand_dims(at, axis) for at in places]
        want, own = (np.take_along_axis(source, at, axis) if source.ndim else source + at for at in places)
        yield from value_differences(want, own, case["dtype"], "positions: ")
