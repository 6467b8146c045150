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


def differences(wanted: Any, given: Any, numbers: bytes, drawn: bool = False, where: str = "", exact: Any = None) -> Iterator[str]:
    """In words; nothing if they are equal.  Of numbers that were drawn only shape and dtype; `exact` is what came out in float64."""
    if isinstance(wanted, dict) and "tensor" in wanted:
        yield from tensor_differences(wanted["tensor"], given, numbers, drawn, where, exact)
    elif isinstance(wanted, dict) and ("tuple" in wanted or "list" in wanted):
        parts = wanted.get("tuple", wanted.get("list"))
        exacts = exact.get("tuple", exact.get("list")) if exact else [None] * len(parts)
        if not isinstance(given, tuple | list) or len(parts) != len(given):
            yield f"{where}structure: {described(given)}, not {len(parts)} parts"
            return
        for i, (part, own, near) in enumerate(zip(parts, given, exacts, strict=True)):
            yield from differences(part, own, numbers, drawn, f"{where}{i}: ", near)
    elif isinstance(wanted, dict) and "dtype" in wanted:
        if name_of(given) != wanted["dtype"]:
            yield f"{where}value: {given}, not {wanted['dtype']}"
    else:
        number = float(wanted["float"]) if isinstance(wanted, dict) and "float" in wanted else wanted
        if isinstance(given, Tensor) or type(given) is not type(number):
            yield f"{where}structure: {described(given)}, not {number!r}"
        elif not drawn and not same_number(number, given):
            yield f"{where}value: {given!r}, not {number!r}"


def same_number(wanted: Any, given: Any) -> bool:
    if isinstance(wanted, float):
        return (math.isnan(wanted) and math.isnan(given)) or math.isclose(wanted, given, rel_tol=1e-5, abs_tol=1e-7)
    return bool(wanted == given)


def described(given: Any) -> str:
    if isinstance(given, Tensor):
        return f"a tensor {name_of(given.dtype)}{list(given.shape)}"
    return f"{len(given)} parts" if isinstance(given, tuple | list) else repr(given)[:60]


def tensor_differences(wanted: Any, given: Any, numbers: bytes, drawn: bool, where: str, exact: Any = None) -> Iterator[str]:
    _, dtype, shape, _ = wanted
    if not isinstance(given, Tensor):
        yield f"{where}structure: {described(given)}, not a tensor {dtype}{shape}"
        return
    if name_of(given.dtype) != dtype:
        yield f"{where}dtype: {name_of(given.dtype)}, not {dtype}"
        return
    if list(given.shape) != shape:
        yield f"{where}shape: {list(given.shape)}, not {shape}"
        return
    if not drawn:
        known = None if exact is None or exact["tensor"][2] != shape else array_of(numbers, exact["tensor"])
        yield from value_differences(array_of(numbers, wanted), numbers_of(given), dtype, where, known)


def value_differences(wanted: np.ndarray, given: np.ndarray, dtype: str, where: str, exact: np.ndarray | None = None) -> Iterator[str]:
    if dtype in TOLERANCES:
        relative, absolute = TOLERANCES[dtype]
        equal = np.isclose(given, wanted, relative, absolute, equal_nan=True)
        if exact is not None and dtype in EPSILON:  # halves: as far off as one rounding of the largest number
            finite = np.abs(exact[np.isfinite(exact)])
            equal |= np.isclose(given, exact, relative, EPSILON[dtype] * float(finite.max(initial=0.0)), equal_nan=True)
    else:
        equal = given == wanted
    if not np.all(equal):
        at = np.unravel_index(int(np.argmin(equal)), np.shape(equal))
        place = f" at {[int(i) for i in at]}" if at else ""
        yield f"{where}value: {given[at]!s}, not {wanted[at]!s}{place} ({np.size(equal) - np.count_nonzero(equal)} of {np.size(equal)})"


def layout_differences(wanted: Any, given: Any, source: Any, where: str = "") -> Iterator[str]:
    """A view must look at the memory of what it is a view of, with the same strides."""
    _, _, shape, strides = wanted
    if not isinstance(given, Tensor) or list(given.shape) != shape or 0 in shape:
        return
    if not any(np.shares_memory(given.detach().numpy(), x.detach().numpy()) for x in source):
        yield f"{where}view: a copy"
    elif strides is not None and [s for s, n in zip(given.stride(), shape, strict=True) if n > 1] != [
        s for s, n in zip(strides, shape, strict=True) if n > 1
    ]:
        yield f"{where}strides: {given.stride()}, not {strides}"


def tie_differences(case: dict[str, Any], place: int, out: Any, numbers: bytes) -> Iterator[str]:
    """Positions need not be those that were recorded, but those of equal elements; values must be equal."""
    args, kwargs = case["args"]["tuple"], dict(case["kwargs"]["dict"])
    axis = kwargs.get("dim", args[place] if len(args) > place else -1)
    source = array_of(numbers, args[0]["tensor"])
    wanted = case["out"]["tuple"] if "tuple" in case["out"] else [case["out"]]
    given = [out] if isinstance(out, Tensor) else list(out)
    for want, own in zip(wanted[:-1], given[:-1], strict=True):
        yield from differences(want, own, numbers)
    if list(given[-1].shape) != wanted[-1]["tensor"][2] or name_of(given[-1].dtype) != "int64":
        yield f"positions: {described(given[-1])}"
    else:
        places = [array_of(numbers, wanted[-1]["tensor"]), given[-1].numpy()]
        if source.ndim and places[0].ndim < source.ndim:
            places = [np.expand_dims(at, axis) for at in places]
        want, own = (np.take_along_axis(source, at, axis) if source.ndim else source + at for at in places)
        yield from value_differences(want, own, case["dtype"], "positions: ")
