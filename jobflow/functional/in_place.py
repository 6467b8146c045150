"""In-place variants of functions, such as `x.add_(y)`, `x += y` and `x[0] = y`.

The result is computed out of place, converted to the element type and layout of x, and copied into the memory of x.  Then x replaces the
result in the autograd graph.  Therefore x.mul_(y) does not need to save old values of x itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

from jobflow.core.errors import DtypeError, PlacementError, ShapeError, user_line
from jobflow.functional.dispatch import called_as, method
from jobflow.functional.promotion import cast, kind
from jobflow.functional.typed import Tensor
from jobflow.tensors import in_place_writes as writing
from jobflow.tensors.gpus import duplicate, gpu_of, write
from jobflow.tensors.state import state
from jobflow.tensors.tape import follow
from jobflow.tensors.tensor import check_memory, own

#: method of an operator -> the operator as programs write it
OPERATORS = {
    f"__i{word}__": f"x {sign}= y"
    for word, sign in {
        "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "and": "&", "or": "|", "xor": "^",
        "lshift": "<<", "rshift": ">>",
    }.items()
}  # fmt: skip


def written(x: Tensor, what: str, value: Tensor) -> Tensor:
    """Overwrite x with `value`, and return x.

    The value may have a lower kind of element type (bool, integer, float), or another layout on the same placement.
    Raises: JobError as in `check_writable`; ShapeError, DtypeError, PlacementError for another value.
    """
    check_writable(x, what)
    if value.tensor_type.shape != x.tensor_type.shape:
        raise ShapeError(
            f"{what} at {user_line()}: the value {value.tensor_type} does not have the shape of the tensor {x.tensor_type} that it overwrites"
        )
    if kind(value.tensor_type.dtype) > kind(x.tensor_type.dtype):
        new = what.replace("=", "") if what in OPERATORS.values() else f"{what.rstrip('_')}(x, ...)"
        raise DtypeError(f"{what} at {user_line()}: the result is {value.tensor_type}, which a tensor {x.tensor_type} cannot hold; write x = {new}")
    value = cast(value, x.tensor_type.dtype)
    here = state()
    if x.layout != value.layout and (here.building is None or here.building.lays):
        value = _redistribute(x, what, value)
    if here.building is not None:
        here.building.write(x, value)
    else:
        target = own(x, what)
        if here.gpus:
            gpu = gpu_of(target)
            if gpu is not None and gpu.assertions.are_pending:
                gpu.assertions.settle(user_line())
            write(target, value.array)
        else:
            target[...] = value.array
        writing.written(here, x, value, what)
    return x


def holds(x: Tensor, value: Tensor) -> bool:
    """Return True if x can hold the elements of `value`: their kind (bool, integer, float) is not higher."""
    return kind(value.tensor_type.dtype) <= kind(x.tensor_type.dtype)


def check_writable(x: Tensor, what: str) -> None:
    """Raise JobError if an in-place operation must not overwrite x.

    Reasons are the lost gradient of a leaf or its view, and memory that is copied, read-only or shared by several elements.
    """
    if x.traced is None and x._copied_from is None:
        writing.may_write(state(), x, what)
    check_memory(x, what)


def _redistribute(x: Tensor, what: str, value: Tensor) -> Tensor:
    if x.layout is None or value.layout is None or x.layout.placement != value.layout.placement:
        raise PlacementError(
            f"{what} at {user_line()}: the value is {value.layout or 'local'} but the tensor is {x.layout or 'local'}; use to_global"
        )
    from jobflow.tensors import redistribution  # not needed by jobs, which load this module, too

    return redistribution.redistribute(state(), value, x.layout)


def copy_for_gradient(x: Tensor, others: Sequence[Any] = ()) -> Tensor:
    """Return a copy of x if a recorded gradient may read its old values, else x.

    A traced tensor is replaced by another tensor for the same value, because its writes are applied after the run.
    """
    here = state()
    if x.traced is not None or here.building is not None:
        return here.building.unwritten(x) if here.building is not None and here.building.differentiates and here.grad_enabled else x
    if not here.grad_enabled or not any(isinstance(each, Tensor) and each._needs_gradient for each in (x, *others)):
        return x
    if x.base is not None:
        follow(x)
    result = Tensor.new(x.tensor_type, x.layout, duplicate(x.array))
    result._provenance = x._provenance
    result._needs_gradient, result.node, result.index = x._needs_gradient, x.node, x.index
    return result


def in_place(function: Callable[..., Tensor], word: str = "") -> Callable[..., Tensor]:
    """Return the in-place variant of a function as a method named `word`, or as the operator `word`."""
    name = f"{function.__name__}_"
    return method(form(function, OPERATORS.get(word) or word), word if word and word not in OPERATORS else name)


def form(function: Callable[..., Tensor], what: str = "") -> Callable[..., Tensor]:
    """Return the in-place variant of a function, which overwrites its first argument; `what` is its name in error messages."""
    name = f"{function.__name__}_"
    what = what or name
    value: Callable[..., Tensor] = called_as(function, name) if isinstance(function, FunctionType) else function

    def call(x: Tensor, *arguments: Any, **options: Any) -> Tensor:
        check_writable(x, what)
        return written(x, what, value(copy_for_gradient(x, arguments), *arguments, **options))

    call.__wrapped__ = function  # type: ignore[attr-defined]
    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"Overwrite the tensor with the result of `{function.__name__}`, and return it."
    return call
