"""Operands of job functions: tensors of one element type, numbers, sizes and shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from jobflow.core.errors import ArgumentError, DtypeError, user_line
from jobflow.core.types import DType, Tensor
from jobflow.engine.sizes import sizes
from jobflow.ops import source

#: the largest size or count
MOST = int(np.iinfo(np.int32).max)
Operand: TypeAlias = Tensor | float


def fitting(what: str, number: float, dtype: DType) -> float:
    """Convert a number to `dtype`; raise DtypeError if it is out of range or loses a fraction, and ArgumentError for other values."""
    try:
        return dtype.number(number)
    except TypeError:
        raise ArgumentError(f"{what} at {user_line()}: {number!r} is not a number; pass arrays as arguments of the job") from None
    except ValueError as error:
        raise DtypeError(
            f"{what} at {user_line()}: {error}, but the tensor is {dtype.name}; cast it first to a type that represents the number"
        ) from None


def filling(what: str, number: float, dtype: DType) -> float:
    """Convert a number to `dtype` as a fill value; integer types drop the fraction, as in OneFlow."""
    return fitting(what, int(number) if dtype.is_integer and isinstance(number, float) and math.isfinite(number) else number, dtype)


def operands(what: str, x: Operand, y: Operand) -> tuple[Operand, Operand]:
    """Return both operands: tensors of equal element type, or a tensor and a number converted to its type.

    Raises: DtypeError for unequal types; ArgumentError without a tensor.
    """
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        if x.tensor_type.dtype is not y.tensor_type.dtype:
            raise DtypeError(
                f"{what} at {user_line()}: {x.tensor_type} and {y.tensor_type} differ in element type; cast one of them with cast(x, dtype)"
            )
        return x, y
    if isinstance(x, Tensor):
        return x, fitting(what, y, x.tensor_type.dtype)  # type: ignore[arg-type]
    if isinstance(y, Tensor):
        return fitting(what, x, y.tensor_type.dtype), y
    raise ArgumentError(f"{what} at {user_line()}: at least one operand must be a tensor, not {x!r} and {y!r}")


def tensors(what: str, x: Operand, y: Operand) -> tuple[Tensor, Tensor]:
    """Return both operands as tensors of equal element type; a number becomes a tensor of shape (1,)."""
    a, b = operands(what, x, y)
    if not isinstance(a, Tensor):
        assert isinstance(b, Tensor)
        return source.constant(a, (1,), b.tensor_type.dtype), b
    return a, b if isinstance(b, Tensor) else source.constant(b, (1,), a.tensor_type.dtype)


def spans(what: str, x: Tensor, entries: Sequence[Any]) -> tuple[list[int | None], list[int | None], list[int | None]]:
    """Return starts, stops and steps of a list of (start, stop, step), whose entries may be None; raise ArgumentError for a wrong or empty slice."""
    shape = x.tensor_type.shape
    if not isinstance(entries, list | tuple) or len(entries) > len(shape):
        raise ArgumentError(f"{what} at {user_line()}: slice_tup_list must be a list of at most {len(shape)} (start, stop, step), not {entries!r}")
    result = [_stepped(what, x, i, entry) for i, entry in enumerate(entries)]
    starts, stops, steps = ([span[k] for span in result] for k in (0, 1, 2))
    return starts, stops, steps


def _stepped(what: str, x: Tensor, axis: int, entry: Any) -> tuple[int | None, int | None, int | None]:
    """Return the (start, stop, step) `entry`; raise ArgumentError if it has another form, is out of range, or selects no elements.

    If x has a dynamic size, only the form is checked.
    """
    n, where = x.tensor_type.shape[axis], f"{what} at {user_line()}: {entry!r} on axis {axis} of {x.tensor_type}"
    if not isinstance(entry, list | tuple) or len(entry) != 3 or entry[2] == 0:
        raise ArgumentError(f"{where}: must be (start, stop, step) with a step that is not 0")
    start, stop, step = entry
    if may_be_empty(x):
        return start, stop, step
    if (start is not None and not -n <= start < n) or (stop is not None and not -n - 1 <= stop <= n):
        raise ArgumentError(f"{where}: start must be in [{-n}, {n}) and stop in [{-n - 1}, {n}]")
    if not range(*slice(start, stop, step).indices(n)):
        raise ArgumentError(f"{where}: selects no elements")
    return start, stop, step


def may_be_empty(x: Tensor) -> bool:
    """Return True if x has a dynamic size, which can be smaller in a run than its declared shape."""
    return bool(getattr(getattr(x, "traced", x), "is_dynamic", False))


def counts(what: str, **arguments: Any) -> None:
    """Raise ArgumentError unless each argument is an int from 1 to MOST."""
    for name, n in arguments.items():
        if not isinstance(n, int | np.integer) or not 1 <= n <= MOST:
            largest = f" of at most {MOST}" if isinstance(n, int) and n > MOST else ""
            raise ArgumentError(f"{what} at {user_line()}: {name} must be a positive int{largest}, not {n!r}")


def positive_shape(what: str, name: str, arguments: Any) -> tuple[int, ...]:
    """Return the shape `arguments` as a tuple; raise ArgumentError unless it is a list or tuple of positive ints."""
    if not isinstance(arguments, list | tuple) or not all(isinstance(n, int | np.integer) and n > 0 for n in arguments):
        raise ArgumentError(f"{what} at {user_line()}: {name} must be a list of positive ints, not {arguments!r}")
    return sizes(arguments)
