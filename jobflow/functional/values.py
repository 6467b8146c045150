"""Values of tensors as NumPy arrays, Python numbers or text.  For a global tensor, all ranks call and all get the logical value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from jobflow.core.errors import DtypeError, JobError, ShapeError, user_line
from jobflow.core.types import Array
from jobflow.eager.convert import gathered
from jobflow.eager.state import building_now, running, state
from jobflow.eager.tensor import lasting_array
from jobflow.functional.devices import device_of
from jobflow.functional.dispatch import method
from jobflow.functional.typed import Tensor

#: tensors of more elements are printed without their middle
WHOLE = 1000
EDGE = 3
WIDTH = 80
DIGITS = 4


def value_of(x: Tensor, what: str) -> Array:
    """The numbers of x, whole; of a global tensor on every rank, all of which call it."""
    if x.traced is not None or (building_now() is not None and building_now().differentiates):
        raise JobError(f"{what} at {user_line()}: a tensor has no numbers while {running()} runs; return it from {state().building.short}")
    if x.layout is None:
        return lasting_array(x)
    return gathered(state(), x, what)


def numpy(x: Tensor) -> Array:
    """A NumPy array with the logical value; only that of a local tensor without gradient shares its memory."""
    made = value_of(x, "numpy()")
    shared = made is x.array and (x.layout is not None or (x._needs_gradient and state().grad_enabled))
    return np.array(made) if shared else made


def as_array(x: Tensor, dtype: Any = None, copy: bool | None = None) -> Array:
    """For NumPy's own functions."""
    made = value_of(x, "a NumPy array")
    return np.array(made, dtype) if copy else np.asarray(made, dtype)


def item(x: Tensor) -> Any:
    """The only element as a Python number."""
    return _only(x, "item()")


def _only(x: Tensor, what: str) -> Any:
    if x.tensor_type.size != 1:
        raise ShapeError(f"{what} at {user_line()}: the tensor {x.tensor_type} has {x.tensor_type.size} elements, not one")
    return value_of(x, what).reshape(()).item()


def tolist(x: Tensor) -> Any:
    """Nested lists of Python numbers."""
    return value_of(x, "tolist()").tolist()


def as_float(x: Tensor) -> float:
    """The only element."""
    return float(_only(x, "float()"))


def as_int(x: Tensor) -> int:
    """The only element, without its fraction."""
    return int(_only(x, "int()"))


def as_index(x: Tensor) -> int:
    """The only element, of integers: for range() and lists."""
    if x.dtype.is_float:
        raise DtypeError(f"an index at {user_line()}: the tensor {x.tensor_type} is not of integers")
    return int(_only(x, "an index"))


def as_bool(x: Tensor) -> bool:
    """Whether the only element is not 0."""
    if x.traced is not None:
        raise JobError(f"if at {user_line()}: the truth value of a tensor is not known while {running()} runs; use where(condition, x, y)")
    if x.tensor_type.size != 1:
        raise ShapeError(
            f"bool() at {user_line()}: the truth value of the {x.tensor_type.size} elements of {x.tensor_type} is not one; use all() or any()"
        )
    return bool(_only(x, "bool()"))


def length(x: Tensor) -> int:
    """The length of the first axis."""
    if not x.ndim:
        raise ShapeError(f"len() at {user_line()}: the tensor {x.tensor_type} has no axes")
    return x.shape[0]


def elements(x: Tensor) -> Iterator[Tensor]:
    """The tensors along the first axis."""
    return (x[i] for i in range(length(x)))


def contains(x: Tensor, value: Any) -> bool:
    """Whether an element equals the value."""
    return bool((x == value).any())


# -------------------------------------------------------------------- what is printed


def shown(x: Tensor) -> str:
    """The values, where they lie, and what they are."""
    parts = []
    if x.traced is not None:
        parts += ["...", f"size={tuple(x.shape)}"]
    else:
        parts.append(written(value_of(x, "print"), len("tensor(")))
    if x.layout is not None:
        parts += [f"placement={x.placement!r}", f"sbp={x.sbp!r}"]
    elif device_of(x).type != "cpu":
        parts.append(f"device='{device_of(x)}'")
    parts.append(f"dtype={x.dtype!r}")
    if x.node is not None:
        parts.append(f"grad_fn={x.node!r}")
    elif x._needs_gradient:
        parts.append("requires_grad=True")
    return broken("tensor(", parts) + ")"


def broken(start: str, parts: list[str]) -> str:
    """The parts one after another, in lines that are not too long."""
    text = start + parts[0]
    for part in parts[1:]:
        column = len(text) - text.rfind("\n") - 1
        text += f", {part}" if column + len(part) + 3 <= WIDTH else f",\n{' ' * len(start)}{part}"
    return text


def written(array: Array, indent: int) -> str:
    """The elements, with as many digits as they need; without the middle if there are many."""
    return np.array2string(
        array,
        separator=", ",
        prefix=" " * indent,
        threshold=WHOLE,
        edgeitems=EDGE,
        max_line_width=WIDTH,
        formatter={"all": _formatter(array)},
    )


def _formatter(array: Array) -> Any:
    """A function from an element to its text; all of one width."""
    if array.dtype.kind == "b":
        wide = 4 if array.all() else 5
        return lambda value: f"{bool(value)!s:>{wide if array.ndim else 0}}"
    values = _visible(array).astype(np.float64) if array.dtype.kind in "fV" else _visible(array)
    if array.dtype.kind in "iu":
        wide = max((len(str(value)) for value in values.tolist()), default=0)
        return lambda value: f"{int(value):>{wide}d}"
    spelling = _spelling(values)
    wide = max((len(_text(value, spelling)) for value in values.tolist()), default=0)
    return lambda value: f"{_text(float(value), spelling):>{wide if array.ndim else 0}}"


def _visible(array: Array) -> Array:
    """The elements that are printed, flat."""
    if array.size > WHOLE:
        for axis in range(array.ndim):
            if array.shape[axis] > 2 * EDGE:
                array = np.concatenate([array.take(range(EDGE), axis), array.take(range(-EDGE, 0), axis)], axis)
    return array.reshape(-1)


def _spelling(values: Array) -> str:
    """Whole numbers end with a point; others have four digits behind it, with an exponent if their sizes are far apart."""
    sizes = np.abs(values[np.isfinite(values) & (values != 0)])
    if not sizes.size:
        return "whole"
    largest, smallest = sizes.max(), sizes.min()
    if (sizes == np.floor(sizes)).all():
        return "e" if largest > 1e8 else "whole"
    return "e" if largest / smallest > 1000 or largest > 1e8 or smallest < 1e-4 else "f"


def _text(value: float, spelling: str) -> str:
    if not np.isfinite(value):
        return str(value)
    return f"{value:.0f}." if spelling == "whole" else f"{value:.{DIGITS}{spelling}}"


def formatted(x: Tensor, spec: str) -> str:
    """A single element takes a format of numbers."""
    if not x.ndim and x.traced is None:
        return format(item(x), spec)
    if spec and spec[-1] in "bcdeEfFgGnoxX%":
        raise ShapeError(
            f"format at {user_line()}: the tensor {x.tensor_type} has more than one number for {spec!r}; format x.mean(), or each of x.tolist()"
        )
    return format(shown(x), spec)


class ValueMethods:
    """Methods of tensors: values and text."""

    __slots__ = ()

    __array__ = method(as_array)
    __bool__ = method(as_bool)
    __contains__ = method(contains)
    __float__ = method(as_float)
    __format__ = method(formatted)
    __index__ = method(as_index)
    __int__ = method(as_int)
    __iter__ = method(elements)
    __len__ = method(length)
    __repr__ = method(shown)
    __str__ = method(shown)
    item = method(item)
    numpy = method(numpy)
    tolist = method(tolist)
