"""In-place variants of functions of shapes: the tensor becomes another view of its memory, or uses other memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

from jobflow.core.errors import ArgumentError, JobError, PlacementError, user_line
from jobflow.functional.argument_checks import check_size
from jobflow.functional.dispatch import method
from jobflow.functional.shapes import sizes, squeeze, t, transpose, unsqueeze
from jobflow.functional.typed import Tensor
from jobflow.ops.source import External
from jobflow.tensors import in_place_writes as writing
from jobflow.tensors.gpus import may_share_memory, write, zeros
from jobflow.tensors.state import refuse_tracing, state


def _refuse(x: Tensor, what: str) -> None:
    """Raise JobError if the shape of x cannot change in place, because x is traced and has views, or because a gradient would be lost."""
    advice = f"write y = x.{what.rstrip('_')}(...)" if what not in ("resize_", "set_") else "compute a new tensor"
    if _is_result(x) and what not in ("resize_", "set_"):
        return
    refuse_tracing(what, "the shape of a tensor with data or views cannot change in place", advice)
    writing.may_write(state(), x, what)
    if x._needs_gradient and x._storage is not None and x._storage.shared:
        raise JobError(f"{what} at {user_line()}: {x.tensor_type} may have views, whose gradients would be lost; {advice}")


def _is_result(x: Tensor) -> bool:
    """Return True for a result of the program being traced that has no views and is no view."""
    shared = x.base is not None or (x._storage is not None and x._storage.shared)
    return x.traced is not None and not shared and not isinstance(x.traced.node.op, External)


def _reshaped_result(x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Make x, a result of the program being traced, the view that `function` returns for it, and return x."""
    old = Tensor(x.tensor_type, x.layout, None, traced=x.traced)
    old._needs_gradient, old.node, old.index = x._needs_gradient, x.node, x.index
    _become(x, function(old))
    x.base, x._storage, x.strides = None, None, None
    return x


def _become(x: Tensor, y: Tensor) -> None:
    """Give x the type, layout, memory and gradient function of y, a new tensor without other references."""
    x.tensor_type, x.layout, x.traced = y.tensor_type, y.layout, y.traced
    if y.traced is None:
        x.array = y.array
    x.node, x.index, x.base, x.strides = y.node, y.index, y.base, y.strides
    x._needs_gradient, x._provenance, x._synced_version, x._copied_from = y._needs_gradient, y._provenance, y._synced_version, y._copied_from
    if y._storage is not x._storage:
        x._storage = y._storage


def _form(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the in-place variant of a function that returns a view."""
    what = f"{function.__name__}_"

    @wraps(function)
    def call(x: Tensor, *arguments: Any, **options: Any) -> Tensor:
        _refuse(x, what)
        if x.traced is not None:
            return _reshaped_result(x, lambda result: function(result, *arguments, **options))
        shared = x._storage is not None and x._storage.shared
        old = Tensor.new(x.tensor_type, x.layout, x.array)
        old._storage = x.memory
        _become(old, x)
        _become(x, function(old, *arguments, **options))
        x.memory.reshaped = shared
        if not shared:  # nothing else refers to `old`
            x.base, x.memory.shared = None, False
        return x

    call.__name__ = call.__qualname__ = what
    raises = "Raises: JobError for a leaf that requires gradients, and while a program is traced for a tensor with data or views."
    call.__doc__ = f"Make x the view that `{function.__name__}` returns, and return x.  {raises}"
    return call


def resize_(x: Tensor, *sizes_: Any, memory_format: Any = None) -> Tensor:
    """Change the shape of x in place, and return x: it retains its first elements, and further elements are 0.

    Raises: JobError in a trace and for a tensor that requires gradients, PlacementError for a global tensor.
    """
    shape = sizes(sizes_)
    if any(n < 0 for n in shape):
        raise ArgumentError(f"resize_ at {user_line()}: sizes {list(shape)} must not be negative")
    check_size("resize_", "size", math.prod(shape))
    _refuse(x, "resize_")
    if x._needs_gradient:
        raise JobError(f"resize_ at {user_line()}: {x.tensor_type} requires gradients; compute a new tensor")
    if x.layout is not None:
        raise PlacementError(f"resize_ at {user_line()}: {x.tensor_type} is a global tensor; use to_local, or compute a new tensor")
    count, flat = math.prod(shape), x.array.reshape(-1)
    if count > flat.size:
        longer = zeros(x.array, (count,), x.tensor_type.dtype)
        write(longer[: flat.size], flat)
        flat = longer
    y = Tensor.new(x.tensor_type.with_shape(shape), None, flat[:count].reshape(shape))
    y._storage = x._storage if y.array.base is not None and may_share_memory(y.array, x.array) else None
    _become(x, y)
    return x


def resize_as_(x: Tensor, the_template: Tensor, *, memory_format: Any = None) -> Tensor:
    """Change the shape of x in place to that of another tensor, and return x; see `resize_`."""
    return resize_(x, the_template.shape)


def set_(x: Tensor, source: Tensor | None = None) -> Tensor:
    """Make x use the memory, shape and element type of `source`, and return x; without `source`, x becomes empty.

    Raises: JobError in a trace and for a leaf that requires gradients, ArgumentError for a global tensor with a local one.
    """
    _refuse(x, "set_")
    if source is None:
        return resize_(x, 0)
    if (x.layout is None) != (source.layout is None):
        raise ArgumentError(f"set_ at {user_line()}: x {x.tensor_type} and source {source.tensor_type} must both be local, or both be global")
    y = Tensor.new(source.tensor_type, source.layout, source.array)
    source.shares(y)
    _become(x, y)
    return x


class ShapeInPlaceMethods:
    """In-place variants of functions of shapes."""

    __slots__ = ()

    resize_ = method(resize_)
    resize_as_ = method(resize_as_)
    set_ = method(set_)
    squeeze_ = method(_form(squeeze))
    swapaxes_ = method(_form(transpose), "swapaxes_")
    swapdims_ = method(_form(transpose), "swapdims_")
    t_ = method(_form(t))
    transpose_ = method(_form(transpose))
    unsqueeze_ = method(_form(unsqueeze))
