"""Values of tensors as NumPy arrays, Python numbers or text.

For a global tensor, all ranks must call these functions, and every rank receives the logical value.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from jobflow.core.errors import ArgumentError, DtypeError, JobError, ShapeError, user_line
from jobflow.core.types import Array, type_of
from jobflow.functional.devices import device_of
from jobflow.functional.dispatch import method
from jobflow.functional.typed import Tensor
from jobflow.tensors.constant_values import constant_value
from jobflow.tensors.convert import gathered
from jobflow.tensors.device_copies import moved
from jobflow.tensors.gpus import as_numpy, gpu_of
from jobflow.tensors.state import building_now, running, state
from jobflow.tensors.tensor import lasting_array

__all__ = ["set_printoptions"]


class _PrintOptions:
    """The format of printed tensors: see `set_printoptions`."""

    def __init__(self) -> None:
        self.precision, self.threshold, self.edgeitems, self.linewidth = 4, 1000, 3, 80
        #: True or False: always or never with an exponent; None: for a wide range of numbers
        self.sci_mode: bool | None = None


_options = _PrintOptions()
#: the values of `profile=`
_PROFILES = {
    "default": {"precision": 4, "threshold": 1000, "edgeitems": 3, "linewidth": 80},
    "short": {"precision": 2, "threshold": 1000, "edgeitems": 2, "linewidth": 80},
    "full": {"precision": 4, "threshold": sys.maxsize, "edgeitems": 3, "linewidth": 80},
}


def set_printoptions(
    precision: int | None = None,
    threshold: float | None = None,
    edgeitems: int | None = None,
    linewidth: int | None = None,
    profile: str | None = None,
    sci_mode: bool | None = None,
) -> None:
    """Set the format of printed tensors; None keeps a value, and `profile` is "default", "short" or "full".

    Tensors with more than `threshold` elements are abbreviated to `edgeitems` at both ends.  Raises: ArgumentError for another value.
    """
    what = f"set_printoptions at {user_line()}"
    if profile is not None and not (isinstance(profile, str) and profile in _PROFILES):
        raise ArgumentError(f"{what}: profile must be one of {', '.join(_PROFILES)}; got {profile!r}")
    values = {"precision": precision, "threshold": threshold, "edgeitems": edgeitems, "linewidth": linewidth}
    for name, value in values.items():
        least, most = int(name in ("edgeitems", "linewidth")), 100 if name == "precision" else math.inf
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most):
            raise ArgumentError(f"{what}: {name} must be a number from {least} to {most}; got {value!r}")
    if sci_mode is not None and not isinstance(sci_mode, bool):
        raise ArgumentError(f"{what}: sci_mode must be True, False or None; got {sci_mode!r}")
    chosen = _PROFILES.get(profile or "", {}) | {name: value for name, value in values.items() if value is not None}
    for name, value in chosen.items():
        setattr(_options, name, int(min(value, sys.maxsize)))
    _options.sci_mode = sci_mode


def value_of(x: Tensor, what: str) -> Array:
    """Return the logical value of x as an array; for a global tensor, all ranks must call this function.

    In nn.Graph.build, every run of the graph checks that the elements of x have not changed.
    """
    building = building_now()
    if building is not None and x.traced is None:
        building.read_elements(x, what)
    return _elements(x, what, building)


def _elements(x: Tensor, what: str, building: Any) -> Array:
    """Return the logical value of x as an array, which runs of a graph do not compare with later values."""
    if x.traced is not None or (building is not None and building.differentiates):
        constant = constant_value(x, guarded=True)
        if constant is not None:
            return constant
        raise JobError(f"{what} at {user_line()}: a tensor has no values while {running()} runs; return the tensor from {state().building.short}")
    if x.layout is None:
        array = lasting_array(x)
        return array if type(array) is np.ndarray else as_numpy(array)
    return gathered(state(), x, what)


def numpy(x: Tensor) -> Array:
    """Return the logical value as a NumPy array, which shares the memory of a local tensor on the host unless gradients are recorded for it.

    Raises: JobError during tracing.
    """
    array = value_of(x, "numpy()")
    shared = array is x.array and (x.layout is not None or (x._needs_gradient and state().grad_enabled))
    return np.array(array) if shared else array


def as_array(x: Tensor, dtype: Any = None, copy: bool | None = None) -> Array:
    """Return the logical value as a NumPy array, for `np.asarray` and other NumPy functions."""
    array = value_of(x, "a NumPy array")
    return np.array(array, dtype) if copy else np.asarray(array, dtype)


def of_array(x: Tensor, array: Array, context: Any = None, return_scalar: bool = False) -> Any:
    """Return the result of a NumPy function of x: a local tensor, or an array if x is global or tensors lack the element type.

    Raises: JobError if gradients are recorded for x, because NumPy functions have none.
    """
    try:
        type = type_of(array)
    except (KeyError, TypeError):
        return array
    if x.layout is not None:
        return array[()] if return_scalar else array
    if x._needs_gradient and state().grad_enabled:
        raise JobError(
            f"a NumPy function at {user_line()}: {x.tensor_type} requires gradients, which NumPy does not compute; use the function of jobflow, or "
            f"x.detach()"
        )
    result = Tensor.new(type, None, array)
    return result if gpu_of(x.array) is None else moved(state(), result, gpu_of(x.array), x._device)


def item(x: Tensor) -> Any:
    """Return the only element as a Python number.  Raises: ShapeError unless there is exactly one, JobError during tracing."""
    tracer = building_now()
    if tracer is not None and tracer.differentiates and x.tensor_type.size == 1 and constant_value(x) is None:
        return tracer.host_item(x)
    return _only(x, "item()")


def _only(x: Tensor, what: str, read: Callable[[Tensor, str], Array] = value_of) -> Any:
    if x.tensor_type.size != 1:
        problem = f"the tensor {x.tensor_type} has {x.tensor_type.size} elements, not one; select one element, or use tolist()"
        raise ShapeError(f"{what} at {user_line()}: {problem}")
    return read(x, what).reshape(()).item()


def tolist(x: Tensor) -> Any:
    """Return the elements as nested lists of Python numbers.  Raises: JobError during tracing."""
    return value_of(x, "tolist()").tolist()


def as_float(x: Tensor) -> float:
    """Return the only element as a float.  Raises: ShapeError unless there is exactly one, JobError during tracing."""
    return float(_only(x, "float()"))


def as_int(x: Tensor) -> int:
    """Return the only element as an int, rounded towards 0.  Raises: ShapeError unless there is exactly one, JobError during tracing."""
    return int(_only(x, "int()"))


def as_index(x: Tensor) -> int:
    """Return the only element of an integer tensor, for range() and list indices; raise DtypeError for floats."""
    if x.dtype.is_float:
        raise DtypeError(f"an index at {user_line()}: the tensor must have an integer type; got {x.tensor_type}; use x.long()")
    return int(_only(x, "an index"))


def as_bool(x: Tensor) -> bool:
    """Return True if the only element is nonzero.  Raises: ShapeError unless there is exactly one, JobError during tracing."""
    if x.traced is not None and constant_value(x, guarded=True) is None:
        raise JobError(f"if at {user_line()}: the truth value of a tensor is not known while {running()} runs; use where(condition, x, y)")
    if x.tensor_type.size != 1:
        raise ShapeError(
            f"bool() at {user_line()}: the truth value of {x.tensor_type} with {x.tensor_type.size} elements is ambiguous; use all() or any()"
        )
    return bool(_only(x, "bool()"))


def length(x: Tensor) -> int:
    """Return the size of the first axis; raise ShapeError for a tensor without axes."""
    if not x.ndim:
        raise ShapeError(f"len() at {user_line()}: the tensor {x.tensor_type} has no axes; use numel()")
    return x.shape[0]


def elements(x: Tensor) -> Iterator[Tensor]:
    """Iterate over the slices along the first axis."""
    return (x[i] for i in range(length(x)))


def contains(x: Tensor, value: Any) -> bool:
    """Return True if an element equals the value, which is a number or a tensor.  Raises: DtypeError for another value."""
    if not isinstance(value, Tensor | bool | int | float | np.ndarray | np.generic):
        raise DtypeError(f"in at {user_line()}: {value!r} is not a number or a tensor, so it cannot be an element of {x.tensor_type}")
    return bool((x == value).any())


# -------------------------------------------------------------------- text


def shown(x: Tensor) -> str:
    """Return the repr of a tensor, with values, layout or device, element type and gradient function."""
    parts = []
    if x.traced is not None:
        parts += ["...", f"size={tuple(x.shape)}"]
    else:
        parts.append(written(_elements(x, "print", building_now()), len("tensor(")))
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


def shown_in_notebook(x: Tensor) -> str | None:
    """Return the repr of a global tensor with a drawing of its layout, as HTML; None for a local tensor, whose repr is text alone."""
    from jobflow.core.layout_html import layout_html

    return None if x.layout is None else layout_html(x.tensor_type, x.layout, shown(x))


def broken(start: str, parts: list[str]) -> str:
    """Return `start` and the parts, joined with commas, with a line break before each part that would exceed the line width."""
    text = start + parts[0]
    for part in parts[1:]:
        column = len(text) - text.rfind("\n") - 1
        text += f", {part}" if column + len(part) + 3 <= _options.linewidth else f",\n{' ' * len(start)}{part}"
    return text


def written(array: Array, indent: int) -> str:
    """Return the text of the elements, with as many digits as needed; longer tensors are abbreviated."""
    return np.array2string(
        array,
        separator=", ",
        prefix=" " * indent,
        threshold=_options.threshold,
        edgeitems=_options.edgeitems,
        max_line_width=_options.linewidth,
        formatter={"all": _formatter(array)},
    )


def _formatter(array: Array) -> Any:
    """Return a function from an element to its text; all texts have the same width."""
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
    """Return the elements that are printed, as a vector."""
    if array.size > _options.threshold:
        for axis in range(array.ndim):
            if array.shape[axis] > 2 * _options.edgeitems:
                array = np.concatenate([array.take(range(_options.edgeitems), axis), array.take(range(-_options.edgeitems, 0), axis)], axis)
    return array.reshape(-1)


def _spelling(values: Array) -> str:
    """Return the number format: "whole" for whole numbers, "e" (with an exponent) for a wide range of numbers, otherwise "f" (with decimals)."""
    sizes = np.abs(values[np.isfinite(values) & (values != 0)])
    if _options.sci_mode is not None:
        return "e" if _options.sci_mode else "whole" if (sizes == np.floor(sizes)).all() else "f"
    if not sizes.size:
        return "whole"
    largest, smallest = sizes.max(), sizes.min()
    if (sizes == np.floor(sizes)).all():
        return "e" if largest > 1e8 else "whole"
    return "e" if largest / smallest > 1000 or largest > 1e8 or smallest < 1e-4 else "f"


def _text(value: float, spelling: str) -> str:
    if not np.isfinite(value):
        return str(value)
    return f"{value:.0f}." if spelling == "whole" else f"{value:.{_options.precision}{spelling}}"


def formatted(x: Tensor, spec: str) -> str:
    """Return the element of a tensor without axes in the number format `spec`, or the repr of another tensor in the string format `spec`.

    Raises: ShapeError for a number format of a tensor with axes; JobError for a number format during tracing, unless x is constant.
    """
    is_number = bool(spec) and spec[-1] in "bcdeEfFgGnoxX%"
    if not x.ndim and (x.traced is None or is_number):
        building = building_now()
        if x.traced is None and (building is None or building.differentiates):
            return format(item(x), spec)
        return format(_only(x, "format", lambda x, what: _elements(x, what, building)), spec)
    if is_number:
        raise ShapeError(
            f"format at {user_line()}: the format {spec!r} needs a single element; got {x.tensor_type}; format x.mean(), or each of x.tolist()"
        )
    return format(shown(x), spec)


class ValueMethods:
    """Methods of tensors for values and text."""

    __slots__ = ()

    __array__ = method(as_array)
    __array_wrap__ = method(of_array)
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
    _repr_html_ = method(shown_in_notebook)
    item = method(item)
    numpy = method(numpy)
    tolist = method(tolist)
