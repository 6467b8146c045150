"""Indexing: x[...] and x[...] = v.

Integers, slices, None and Ellipsis return views.  Lists and tensors of integers gather elements, and masks gather the elements where
they are True.  Integers and slices apply first, as in PyTorch; NumPy treats an integer next to a list like a list.  If slices separate
lists or tensors, the gathered axes come first in the result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import AxisError, DtypeError, JobError, ShapeError, counted, user_line
from jobflow.core.layout import B, Layout, Split
from jobflow.core.types import Array, DType, TensorType, bool_, dtype_of, int64, uint8
from jobflow.functional.dispatch import method
from jobflow.functional.global_tensors import value_of
from jobflow.functional.in_place import check_writable, written
from jobflow.functional.promotion import cast, convert_fill, operand, together
from jobflow.functional.shapes import common_shape, expand, integer, movedim, reshape
from jobflow.functional.typed import Tensor
from jobflow.ops.arithmetic import Add, Where
from jobflow.ops.axes import ExpandDims, Reshape, Squeeze
from jobflow.ops.index import Gather
from jobflow.ops.layout_ops import Identity
from jobflow.ops.masked import MaskedFill
from jobflow.ops.op import Op
from jobflow.ops.runtime_assertions import index_assertion
from jobflow.ops.scalar import Scale
from jobflow.ops.scatter import Scatter
from jobflow.ops.slice_update import SliceUpdate, SliceWrite, Subscript
from jobflow.ops.slices import Flip, Slice, window_of
from jobflow.ops.source import Constant, Literal
from jobflow.tensors import redistribution
from jobflow.tensors.constant_values import depends_on_run
from jobflow.tensors.convert import empty
from jobflow.tensors.device_copies import on_device_of
from jobflow.tensors.gpus import anchor_of, gpu_of, on_device
from jobflow.tensors.in_place_writes import written as note_written
from jobflow.tensors.parameters import described
from jobflow.tensors.run import run, source, update
from jobflow.tensors.state import building_now, running, state
from jobflow.tensors.tape import OpGradient, record


def whole(like: Tensor) -> Layout | None:
    """Return the broadcast layout on the placement of `like`; None for a local tensor."""
    return None if like.layout is None else Layout(like.layout.placement, (B,) * len(like.layout.sbp))


def constant_like(like: Tensor, shape: tuple[int, ...], value: Any, dtype: DType | None = None) -> Tensor:
    """Return a tensor filled with `value`, broadcast on the placement of `like` or local on its device, by default with its element type."""
    gpu = None if like.traced is not None else gpu_of(like.array)
    result: Tensor = source(Constant(shape, dtype or like.dtype, value), whole(like), None, gpu)
    return result


def listed(like: Tensor, array: Array) -> Tensor:
    """Return an array with equal values on all ranks as a tensor, broadcast on the placement of `like`."""
    type = TensorType(array.shape, dtype_of(array.dtype))
    layout = whole(like)
    if building_now() is None:
        inside = layout is None or state().rank.index in layout.placement.ranks
        return Tensor.new(type, layout, _on_device_of(like, array) if inside else empty(type))
    return source(Literal.of(array), layout)


def _on_device_of(like: Tensor, array: Array) -> Array:
    """Return a NumPy array on the device of the tensor `like`."""
    return array if like.traced is not None else on_device(gpu_of(like.array), array)


def checked_indices(ids: Tensor, n: int, what: str) -> Tensor:
    """Return the indices `ids` into an axis of n elements, with n added to negative indices.

    Raises: AxisError for an index out of range, DtypeError for indices that are not integers.
    """
    if not ids.dtype.is_integer:
        raise DtypeError(f"{what} at {user_line()}: indices must be integers, or bool for a mask; got {ids.tensor_type}")
    return run(index_assertion(what, n), ids)


def _unknown_number(what: str) -> JobError:
    return JobError(
        f"{what} at {user_line()}: the number of elements that a mask selects is not known while {running()} runs; "
        f"use where(mask, x, y) or masked_fill there"
    )


def mask_indices(mask: Tensor, like: Tensor, what: str) -> list[Tensor]:
    """Return the indices of the True elements of a mask, one int64 vector per axis; all ranks must call this function.

    Raises: JobError for a traced mask that is not a constant, because the number of True elements is unknown.
    """
    if depends_on_run(mask):
        raise _unknown_number(what)
    return [listed(like, places.astype(np.int64)) for places in np.nonzero(value_of(mask, what))]


# --------------------------------------------------------------------- reading a key


#: The structure of an index: an int, a slice as (start, stop, step), None, '...', "ids" for integers, or "n axes" for a mask.
Token = Any


@dataclass(frozen=True)
class Cut:
    """The window that a key selects from tensors of one type, before lists and masks gather elements."""

    window: Slice
    #: axes along which the window is reversed
    backwards: tuple[int, ...]
    #: the operations that compute the window
    ops: tuple[Op, ...]
    #: the shape of the window, and the shape after removing the axes of integers and adding new axes
    inside: tuple[int, ...]
    shape: tuple[int, ...]
    #: per list, tensor or mask of the key: its axis of x, and its first axis in `shape`
    lookups: tuple[tuple[int, int], ...]


def read(x: Tensor, key: Any, what: str) -> tuple[Cut, dict[int, Tensor]]:
    """Return the window that a key selects from x, and a dict from axes of this window to index tensors of the key."""
    tokens: list[Token] = []
    tensors: list[Tensor] = []
    for item in map(_mask, key) if isinstance(key, tuple) else (key,):
        if item is None or item is Ellipsis or type(item) is int:
            tokens.append(item)
        elif isinstance(item, slice):
            tokens.append(tuple([_bound(edge) for edge in (item.start, item.stop, item.step)]))
        elif isinstance(item, np.integer):
            tokens.append(int(item))
        else:
            tensors.append(_moved(x, item) if isinstance(item, Tensor) else _array(x, item))
            tokens.append(f"{tensors[-1].ndim} axes" if tensors[-1].dtype is bool_ else "ids")
    cut = cut_of(x.tensor_type, tuple(tokens), what)
    lookups: dict[int, Tensor] = {}
    for tensor, (axis, position) in zip(tensors, cut.lookups, strict=True):
        for i, ids in enumerate(_index_tensors(x, tensor, axis, what)):
            lookups[position + i] = ids
    return cut, lookups


def _mask(item: Any) -> Any:
    """Return a uint8 tensor or array as a bool mask, as PyTorch does, and other items unchanged."""
    if isinstance(item, Tensor):
        return cast(item, bool_) if item.dtype is uint8 else item
    return item != 0 if isinstance(item, np.ndarray) and item.dtype == np.uint8 else item


def _are_on_devices(*tensors: Tensor) -> bool:
    """Return True if these tensors are local, have elements, and may be on different devices."""
    return bool(state().gpus) and building_now() is None and all(x.layout is None and x.traced is None for x in tensors)


def _moved(x: Tensor, index: Tensor) -> Tensor:
    """Return an index into x: a copy on the GPU of x of an index on the host, otherwise the index itself."""
    return on_device_of(x, index) if _are_on_devices(x, index) and not index.is_cuda else index


def _bound(edge: Any) -> int | None:
    return edge if edge is None or type(edge) is int else integer("a bound of a slice", edge)


def _array(x: Tensor, item: Any) -> Tensor:
    """Return a list or array of indices or truth values as a tensor, broadcast on the placement of x."""
    array = _list(item, "x[...]")
    if array.size == 0 and array.dtype.kind == "f":
        array = array.astype(np.int64)  # []
    if array.dtype.kind not in "iub":
        raise DtypeError(
            f"x[...] at {user_line()}: an index must be an integer, slice, None, '...', or a list or tensor of integers or bool; got "
            f"{described(item)}"
        )
    return listed(x, array if array.dtype.kind == "b" else array.astype(np.int64))


def _list(item: Any, what: str) -> Array:
    """Return `item`, a nested list or an array, as a NumPy array; raise ShapeError for nested lists of different lengths."""
    try:
        return np.asarray(item)
    except ValueError:
        raise ShapeError(f"{what} at {user_line()}: nested lists have different lengths in {described(item)}; pass lists of equal length") from None


def _index_tensors(x: Tensor, tensor: Tensor, axis: int, what: str) -> list[Tensor]:
    """Return the index tensors of `tensor`, an item of a key: the tensor itself, or one index vector per axis of a mask.

    Raises: AxisError unless a mask has the shape of the axes of x from `axis` on.
    """
    if tensor.dtype is not bool_:
        return [tensor]
    check_mask(tensor, x, axis, what)
    return mask_indices(tensor, x, what) if tensor.ndim else [listed(x, np.zeros(int(bool(value_of(tensor, what))), np.int64))]


@lru_cache(maxsize=1 << 12)
def cut_of(x: TensorType, tokens: tuple[Token, ...], what: str) -> Cut:
    """Return the window that the items of a key select from a tensor of type x."""
    indexed = sum(map(_width, tokens))
    if indexed > x.ndim:
        raise AxisError(f"{what} at {user_line()}: the number of indices, {indexed}, exceeds the number of axes of {x}; pass at most {x.ndim}")
    tokens = _one_ellipsis(x, tokens, indexed, what)
    edges: list[Any] = []
    chosen, new_axes, lookups, position = [], [], [], 0
    for token in tokens:
        axis, width = len(edges), x.ndim - indexed if token is Ellipsis else _width(token)
        if isinstance(token, int):
            at = _counted(token, x, axis, what)
            edges.append((at, at + 1, None))
            chosen.append(axis)
            continue
        edges += [token] if isinstance(token, tuple) else [(None, None, None)] * width
        if isinstance(token, str):
            lookups.append((axis, position))
        if token is None or token == "0 axes":
            new_axes.append(position)
            width = 1
        position += width
    if any(step == 0 for _, _, step in edges):
        raise ShapeError(f"{what} at {user_line()}: the step of a slice must not be 0")
    window, backwards = window_of(x.shape, *(zip(*edges, strict=True) if edges else ((), (), ())))
    ops: list[Op] = [] if window.takes_all(x.shape) else [Subscript(window.starts, window.stops, window.steps)]
    ops += [Flip(backwards)] if backwards else []
    ops += [Squeeze(tuple(chosen))] if chosen else []
    ops += [ExpandDims(at) for at in new_axes]
    left = x
    for op in ops:
        left = op.infer(left)  # type: ignore[assignment]
    return Cut(Slice(window.starts, window.stops, window.steps), backwards, tuple(ops), window.infer(x).shape, left.shape, tuple(lookups))


def _one_ellipsis(x: TensorType, tokens: tuple[Token, ...], indexed: int, what: str) -> tuple[Token, ...]:
    """Return the tokens with exactly one '...'; raise AxisError for an index after a second '...'."""
    if Ellipsis not in tokens:
        return (*tokens, Ellipsis)
    first = tokens.index(Ellipsis) + 1
    more = tokens[first:]
    if Ellipsis in more and indexed < x.ndim and set(more[more.index(Ellipsis) :]) != {Ellipsis}:
        raise AxisError(f"{what} at {user_line()}: an index after a second '...' is ambiguous; use one '...'")
    return tokens[:first] + tuple(token for token in more if token is not Ellipsis)


def _width(token: Token) -> int:
    """Return the number of axes that a token indexes."""
    if token is None or token is Ellipsis:
        return 0
    return int(token.removesuffix(" axes")) if isinstance(token, str) and token != "ids" else 1


def _counted(at: int, x: TensorType, axis: int, what: str) -> int:
    n = x.shape[axis]
    if not -n <= at < n:
        raise AxisError(f"{what} at {user_line()}: index {at} is out of range for axis {axis} of {x}, which has {counted(n, 'element')}")
    return at % n


def check_mask(mask: Tensor, x: Tensor, axis: int, what: str) -> None:
    here = x.shape[axis : axis + mask.ndim]
    if tuple(mask.shape) != tuple(here):
        raise AxisError(
            f"{what} at {user_line()}: the mask must have the shape {list(here)} of the indexed axes of {x.tensor_type}; got {list(mask.shape)}"
        )


# --------------------------------------------------------------------------- reading


def getitem(x: Tensor, key: Any) -> Tensor:
    """Return x[key]; the result of integers and slices is a view.

    Raises: AxisError for an index out of range, or for more indices than axes; DtypeError for an index of another type.
    """
    key = _mask(key)
    if isinstance(key, Tensor) and key.dtype is bool_ and key.ndim == x.ndim > 0:
        check_mask(key, x, 0, "x[...]")
        return selected(x, key, "x[...]")
    cut, lookups = read(x, key, "x[...]")
    y = apply_window(x, cut)
    if lookups:
        return gather_at(y, lookups, "x[...]")
    if y is x:
        y = run(Identity(), x)
    return y


def apply_window(x: Tensor, cut: Cut) -> Tensor:
    """Return the window `cut` of x, without the axes that integers index, and with a new axis for each None in the key."""
    for op in cut.ops:
        x = run(op, x)
    return x


def merged(x: Tensor, lookups: dict[int, Tensor], what: str) -> tuple[Tensor, Tensor, int, bool]:
    """Return x with its indexed axes merged, the merged indices, the merged axis, and True if axes moved to the front.

    `lookups` maps each indexed axis of x to its index tensor.
    """
    axes = sorted(lookups)
    each = [checked_indices(lookups[axis], x.shape[axis], what) for axis in axes]
    if len(axes) == 1:
        return x, each[0], axes[0], False
    common_shape(what, *(ids.shape for ids in each))
    separate = axes != list(range(axes[0], axes[-1] + 1))
    if separate:
        x, axes = movedim(x, axes, range(len(axes))), list(range(len(axes)))
    first, last = axes[0], axes[-1]
    ids, *others = together(what, *each) if len({ids.dtype for ids in each}) > 1 else each
    ids = cast(ids, int64)
    for axis, other in zip(axes[1:], others, strict=True):
        ids = run(Add(), run(Scale(x.shape[axis]), ids), cast(other, int64))
    flat = (*x.shape[:first], math.prod(x.shape[first : last + 1]), *x.shape[last + 1 :])
    return run(Reshape(flat), x), ids, first, separate


def gather_at(x: Tensor, lookups: dict[int, Tensor], what: str) -> Tensor:
    """Return the elements of x at the index tensors in `lookups`, a dict from an axis of x to its index tensor."""
    table, ids, axis, _ = merged(x, lookups, what)
    return run(Gather(axis), table, ids)


def selected(x: Tensor, mask: Tensor, what: str) -> Tensor:
    """Return the elements of x where a mask of the same shape is True, as a vector in row-major order.

    The result is broadcast, or partial along the mesh dimensions where x is partial.
    """
    if depends_on_run(mask) or (mask.traced is None and x.traced is not None):
        raise _unknown_number(what)
    places = np.flatnonzero(value_of(mask, what))
    if x.layout is not None and any(isinstance(sbp, Split) for sbp in x.layout.sbp):
        together_ = tuple(B if isinstance(sbp, Split) else sbp for sbp in x.layout.sbp)
        x = redistribution.redistribute(state(), x, Layout(x.layout.placement, together_))
    return run(Gather(0), reshape(x, x.tensor_type.size), listed(x, places.astype(np.int64)))


# --------------------------------------------------------------------------- writing


def setitem(x: Tensor, key: Any, value: Any) -> None:
    """Set x[key] = value in place; the value is converted to the element type and layout of x.

    Raises: ShapeError unless the value broadcasts to x[key], JobError if x must not be overwritten, and the errors of x[key].
    """
    what = "x[...] = value"
    check_writable(x, what)
    new_value = operand(what, x, value if not isinstance(value, list | tuple) else _list(value, what))
    scalar, key = not isinstance(new_value, Tensor) or new_value.ndim == 0, _mask(key)
    if isinstance(key, Tensor) and key.dtype is bool_ and scalar and key.ndim <= x.ndim:
        check_mask(key, x, 0, what)
        key = _moved(x, key)
        written(x, what, filled(x, reshape(key, (*key.shape, *(1,) * (x.ndim - key.ndim))), new_value))
        return
    cut, lookups = read(x, key, what)
    if lookups:
        part = apply_window(x, cut)
        new = put(part, lookups, new_value, what)
        if part is x:
            written(x, what, new)
            return
        new_value = new
    write_window(x, cut, new_value, what)


def filled(x: Tensor, mask: Tensor, value: Any) -> Tensor:
    """Return x with `value`, a number or a tensor without axes, where the mask is True."""
    if isinstance(value, Tensor):
        return run(Where(), mask, cast(value, x.dtype), x)
    result = run(MaskedFill(number_as(x, value)), x, mask)
    return result


def number_as(x: Tensor, number: Any) -> Any:
    """Return `number` as a value of the element type of x; an integer type drops the fraction.  Raises: DtypeError for a number out of range."""
    return convert_fill(int(number) if x.dtype.is_integer and math.isfinite(number) else number, x.dtype)


def _fitted(x: Tensor, value: Any, shape: Sequence[int], what: str) -> Tensor:
    """Return `value` in the element type of x, expanded to `shape`; raise ShapeError if the value does not broadcast."""
    if not isinstance(value, Tensor):
        return constant_like(x, tuple(shape), number_as(x, value))
    extra = value.ndim - len(shape)
    if extra > 0 and all(n == 1 for n in value.shape[:extra]):
        value = reshape(value, value.shape[extra:])
    if _are_on_devices(x, value):
        value = on_device_of(x, value)
    value = cast(value, x.dtype)
    try:
        return value if tuple(value.shape) == tuple(shape) else expand(value, shape)
    except ShapeError:
        raise ShapeError(
            f"{what} at {user_line()}: the value {value.tensor_type} does not broadcast to the shape {list(shape)} that it overwrites"
        ) from None


def put(x: Tensor, lookups: dict[int, Tensor], value: Any, what: str) -> Tensor:
    """Return x with `value` at the index tensors in `lookups`, a dict by axis of x; a repeated index keeps its last value."""
    table, ids, axis, separate = merged(x, lookups, what)
    shape = (*table.shape[:axis], *ids.shape, *table.shape[axis + 1 :])
    rows = (*table.shape[:axis], ids.tensor_type.size, *table.shape[axis + 1 :])
    new = reshape(_fitted(x, value, shape, what), rows)
    at = expand(reshape(ids, (*(1,) * axis, ids.tensor_type.size, *(1,) * (table.ndim - axis - 1))), rows)
    result: Tensor = run(Scatter(axis), table, at, new)
    if len(lookups) == 1:
        return result
    axes = sorted(lookups)
    if not separate:
        return reshape(result, x.shape)
    front = [*axes, *(i for i in range(x.ndim) if i not in lookups)]
    return movedim(reshape(result, [x.shape[i] for i in front]), range(len(axes)), axes)


def write_window(x: Tensor, cut: Cut, value_to_write: Any, what: str) -> None:
    """Write `value_to_write` into the window `cut` of x, in place."""
    window = cut.window
    if isinstance(value_to_write, Tensor):
        value = reshape(_fitted(x, value_to_write, cut.shape, what), cut.inside)
        if cut.backwards:
            value = run(Flip(cut.backwards), value)
    else:
        value = _fitted(x, value_to_write, cut.inside, what)
    if x.traced is not None:
        written(x, what, run(SliceUpdate(window), x, value))
        return
    here = state()
    update(here, SliceWrite(window), (x, value), what)
    result = Tensor.new(x.tensor_type, x.layout, x.array)
    if here.grad_enabled and (x._needs_gradient or value._needs_gradient):
        new = Tensor.new(value.tensor_type, value.layout, value.array)  # the gradient needs its type and layout, not its elements
        record("setitem", (x, value), (result,), OpGradient(SliceUpdate(window), anchor_of(x)), (result, new, result))
    note_written(here, x, result, what)


class IndexingMethods:
    """Subscript methods of tensors."""

    __slots__ = ()

    __getitem__ = method(getitem)
    __setitem__ = method(setitem)
