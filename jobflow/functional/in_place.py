"""In-place forms: `x.add_(y)`, `x += y`, `x[0] = y`.

The value is computed as ever, brought into the element type and layout of x, and copied into its memory; x then stands where the
value stands in the graph of gradients.  So x.mul_(y) needs no old values of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

from jobflow.core.errors import DtypeError, PlacementError, ShapeError, user_line
from jobflow.eager import in_place_writes as writing
from jobflow.eager.state import state
from jobflow.eager.tape import follow
from jobflow.eager.tensor import check_memory, own
from jobflow.functional.dispatch import called_as, method
from jobflow.functional.promotion import cast, kind
from jobflow.functional.typed import Tensor

#: how programs write the methods that are operators
OPERATORS = {
    f"__i{word}__": f"x {sign}= y"
    for word, sign in {
        "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "and": "&", "or": "|", "xor": "^",
    }.items()
}  # fmt: skip


def written(x: Tensor, what: str, value: Tensor) -> Tensor:
    """x, after `value` has been written over it.

    Raises: JobError for a leaf that requires gradients while they are recorded, ShapeError, DtypeError.
    """
    check_writable(x, what)
    if value.tensor_type.shape != x.tensor_type.shape:
        raise ShapeError(f"{what} at {user_line()}: a value {value.tensor_type} does not fit into the tensor {x.tensor_type} that it would overwrite")
    if kind(value.tensor_type.dtype) > kind(x.tensor_type.dtype):
        new = what.replace("=", "") if what in OPERATORS.values() else f"{what.rstrip('_')}(x, ...)"
        raise DtypeError(f"{what} at {user_line()}: the result is {value.tensor_type}, which a tensor {x.tensor_type} cannot hold; write x = {new}")
    value = cast(value, x.tensor_type.dtype)
    here = state()
    if x.layout != value.layout and (here.building is None or here.building.lays):
        value = _laid(x, what, value)
    if here.building is not None:
        here.building.write(x, value)
    else:
        own(x, what)[...] = value.array
        writing.written(here, x, value, what)
    return x


def check_writable(x: Tensor, what: str) -> None:
    """JobError for a leaf, or a view of one, whose gradient would be lost, and for a view that has memory of its own."""
    if x.traced is None and x._apart is None:
        writing.may_write(state(), x, what)
    check_memory(x, what)


def _laid(x: Tensor, what: str, value: Tensor) -> Tensor:
    if x.layout is None or value.layout is None or x.layout.placement != value.layout.placement:
        raise PlacementError(
            f"{what} at {user_line()}: the value is {value.layout or 'local'} but the tensor is {x.layout or 'local'}; use to_global"
        )
    from jobflow.eager import crossing  # jobs, which load this module too, do not lay tensors

    return crossing.change(state(), value, x.layout)


def kept(x: Tensor, others: Sequence[Any] = ()) -> Tensor:
    """x with memory of its own, if its old values may be read by a gradient; what is recorded is written over after the run."""
    here = state()
    recorded = x.traced is not None or here.building is not None
    if recorded or not here.grad_enabled or not any(isinstance(each, Tensor) and each._needs_gradient for each in (x, *others)):
        return x
    if x.base is not None:
        follow(x)
    made = Tensor.new(x.tensor_type, x.layout, x.array.copy())
    made.origin = x.origin
    made._needs_gradient, made.node, made.index = x._needs_gradient, x.node, x.index
    return made


def in_place(function: Callable[..., Tensor], word: str = "") -> Callable[..., Tensor]:
    """Return the method, or the operator `word`, that writes the function's result over its first argument."""
    name = f"{function.__name__}_"
    return method(form(function, OPERATORS.get(word) or word), word if word and word not in OPERATORS else name)


def form(function: Callable[..., Tensor], what: str = "") -> Callable[..., Tensor]:
    """Return the function that writes `function`'s result over its first argument; errors call it `what`."""
    name = f"{function.__name__}_"
    what = what or name
    value: Callable[..., Tensor] = called_as(function, name) if isinstance(function, FunctionType) else function

    def call(x: Tensor, *arguments: Any, **options: Any) -> Tensor:
        check_writable(x, what)
        return written(x, what, value(kept(x, arguments), *arguments, **options))

    call.__wrapped__ = function  # type: ignore[attr-defined]
    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"{function.__name__}, written over the tensor itself."
    return call
