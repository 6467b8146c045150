"""Indexing: x[...] and x[...] = v.

Integers, slices, None and Ellipsis are windows on memory; lists and tensors of integers look elements up; truth values are the
places where they hold.  Integers and slices come first: where lists or tensors are parted by slices, what they find comes first in
the result, in the order PyTorch has, not NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import AxisError, DtypeError, JobError, ShapeError, user_line
from jobflow.core.layout import B, Layout, Split
from jobflow.core.types import Array, TensorType, bool_, dtype_of, int64, uint8
from jobflow.eager import crossing
from jobflow.eager.convert import empty
from jobflow.eager.in_place_writes import written as note_written
from jobflow.eager.parameters import described
from jobflow.eager.run import run, source, update
from jobflow.eager.state import building_now, running, state
from jobflow.eager.tape import OpGradient, record
from jobflow.functional.dispatch import method
from jobflow.functional.global_tensors import value_of
from jobflow.functional.in_place import check_writable, written
from jobflow.functional.promotion import cast, fitting, operand, together
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
from jobflow.ops.slices import Concat, Flip, Slice, window_of
from jobflow.ops.source import Constant


def whole(like: Tensor) -> Layout | None:
    """Where `like` lies, with all of a tensor on every rank."""
    return None if like.layout is None else Layout(like.layout.placement, (B,) * len(like.layout.sbp))


def listed(like: Tensor, array: Array) -> Tensor:
    """An array that all ranks have, as a tensor where `like` lies."""
    type = TensorType(array.shape, dtype_of(array.dtype))
    layout = whole(like)
    if building_now() is None:
        inside = layout is None or state().rank.index in layout.placement.ranks
        return Tensor.new(type, layout, array if inside else empty(type))
    parts = [source(Constant((1,), type.dtype, number), layout) for number in array.ravel().tolist()]
    return run(Reshape(type.shape), run(Concat(0), *parts) if parts else source(Constant((0,), type.dtype), layout))


def placed(ids: Tensor, n: int, what: str) -> Tensor:
    """Positions along an axis of n elements, those from the end counted from the front; AxisError for others."""
    if not ids.dtype.is_integer:
        raise DtypeError(f"{what} at {user_line()}: positions are integers, or bool for a mask; got {ids.tensor_type}")
    return run(index_assertion(what, n), ids)


def found(mask: Tensor, like: Tensor, what: str) -> list[Tensor]:
    """Per axis of a bool tensor the positions where it holds; every rank there is calls it."""
    if mask.traced is not None:
        raise JobError(
            f"{what} at {user_line()}: the number of elements that a mask selects is not known while {running()} runs; "
            f"use where(mask, x, y) or masked_fill there"
        )
    return [listed(like, places.astype(np.int64)) for places in np.nonzero(value_of(mask, what))]


# --------------------------------------------------------------------- reading a key


#: An index without the numbers that are looked up: an int, a slice as (start, stop, step), None, '...', "ids", or a mask of so many axes.
Token = Any


@dataclass(frozen=True)
class Cut:
    """What a key does to tensors of a type, but for the lookups."""

    window: Slice
    #: axes along which the window is then turned around
    backwards: tuple[int, ...]
    #: all of it as ops, one after the other
    ops: tuple[Op, ...]
    #: the shape of the window, and what it is without the axes that integers choose from and with new ones
    inside: tuple[int, ...]
    shape: tuple[int, ...]
    #: per list, tensor or mask of the key: the axis that it is about, and its place in `shape`
    lookups: tuple[tuple[int, int], ...]


def read(x: Tensor, key: Any, what: str) -> tuple[Cut, dict[int, Tensor]]:
    """What a key does, and by axis of what is left after that the positions to look up."""
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
            tensors.append(item if isinstance(item, Tensor) else _array(x, item))
            tokens.append(f"{tensors[-1].ndim} axes" if tensors[-1].dtype is bool_ else "ids")
    cut = cut_of(x.tensor_type, tuple(tokens), what)
    lookups: dict[int, Tensor] = {}
    for tensor, (axis, place) in zip(tensors, cut.lookups, strict=True):
        for i, ids in enumerate(_positions(x, tensor, axis, what)):
            lookups[place + i] = ids
    return cut, lookups


def _mask(item: Any) -> Any:
    """A tensor or an array of uint8 is a mask, as in PyTorch."""
    if isinstance(item, Tensor):
        return cast(item, bool_) if item.dtype is uint8 else item
    return item != 0 if isinstance(item, np.ndarray) and item.dtype == np.uint8 else item


def _bound(edge: Any) -> int | None:
    return edge if edge is None or type(edge) is int else integer("a bound of a slice", edge)


def _array(x: Tensor, item: Any) -> Tensor:
    """A list or an array of positions or truth values, where x lies."""
    array = _list(item, "x[...]")
    if array.size == 0 and array.dtype.kind == "f":
        array = array.astype(np.int64)  # []
    if array.dtype.kind not in "iub":
        raise DtypeError(
            f"x[...] at {user_line()}: an index is an integer, slice, None, '...', or a list or tensor of integers or bool; got {described(item)}"
        )
    return listed(x, array if array.dtype.kind == "b" else array.astype(np.int64))


def _list(item: Any, what: str) -> Array:
    """A list as an array."""
    try:
        return np.asarray(item)
    except ValueError:
        raise ShapeError(f"{what} at {user_line()}: lists beside each other have different lengths in {described(item)}") from None


def _positions(x: Tensor, tensor: Tensor, axis: int, what: str) -> list[Tensor]:
    """Those that a tensor of positions, or a mask, stands for."""
    if tensor.dtype is not bool_:
        return [tensor]
    check_mask(tensor, x, axis, what)
    return found(tensor, x, what) if tensor.ndim else [listed(x, np.zeros(int(bool(value_of(tensor, what))), np.int64))]


@lru_cache(maxsize=1 << 12)
def cut_of(x: TensorType, tokens: tuple[Token, ...], what: str) -> Cut:
    """Sort what is between the brackets."""
    taken = sum(map(_width, tokens))
    if taken > x.ndim:
        raise AxisError(f"{what} at {user_line()}: {taken} indices for {x}, which has {x.ndim} axes")
    tokens = _one_ellipsis(x, tokens, taken, what)
    edges: list[Any] = []
    chosen, made, lookups, place = [], [], [], 0
    for token in tokens:
        axis, width = len(edges), x.ndim - taken if token is Ellipsis else _width(token)
        if isinstance(token, int):
            at = _counted(token, x, axis, what)
            edges.append((at, at + 1, None))
            chosen.append(axis)
            continue
        edges += [token] if isinstance(token, tuple) else [(None, None, None)] * width
        if isinstance(token, str):
            lookups.append((axis, place))
        if token is None or token == "0 axes":
            made.append(place)
            width = 1
        place += width
    if any(step == 0 for _, _, step in edges):
        raise ShapeError(f"{what} at {user_line()}: a slice with step 0")
    window, backwards = window_of(x.shape, *(zip(*edges, strict=True) if edges else ((), (), ())))
    ops: list[Op] = [] if window.takes_all(x.shape) else [Subscript(window.starts, window.stops, window.steps)]
    ops += [Flip(backwards)] if backwards else []
    ops += [Squeeze(tuple(chosen))] if chosen else []
    ops += [ExpandDims(at) for at in made]
    left = x
    for op in ops:
        left = op.infer(left)  # type: ignore[assignment]
    return Cut(Slice(window.starts, window.stops, window.steps), backwards, tuple(ops), window.infer(x).shape, left.shape, tuple(lookups))


def _one_ellipsis(x: TensorType, tokens: tuple[Token, ...], taken: int, what: str) -> tuple[Token, ...]:
    """The tokens with one '...'; others stand for no axes, which they may if nothing that follows would be about another axis in PyTorch."""
    if Ellipsis not in tokens:
        return (*tokens, Ellipsis)
    first = tokens.index(Ellipsis) + 1
    more = tokens[first:]
    if Ellipsis in more and taken < x.ndim and set(more[more.index(Ellipsis) :]) != {Ellipsis}:
        raise AxisError(f"{what} at {user_line()}: nothing but '...' follows a second '...', for it is not clear which axes each stands for")
    return tokens[:first] + tuple(token for token in more if token is not Ellipsis)


def _width(token: Token) -> int:
    """Of how many axes an index speaks."""
    if token is None or token is Ellipsis:
        return 0
    return int(token.removesuffix(" axes")) if isinstance(token, str) and token != "ids" else 1


def _counted(at: int, x: TensorType, axis: int, what: str) -> int:
    n = x.shape[axis]
    if not -n <= at < n:
        raise AxisError(f"{what} at {user_line()}: position {at} is outside axis {axis} of {x}, which has {n} elements")
    return at % n


def check_mask(mask: Tensor, x: Tensor, axis: int, what: str) -> None:
    here = x.shape[axis : axis + mask.ndim]
    if tuple(mask.shape) != tuple(here):
        raise AxisError(f"{what} at {user_line()}: a mask of shape {list(mask.shape)} for the axes {list(here)} of {x.tensor_type}")


# --------------------------------------------------------------------------- reading


def getitem(x: Tensor, key: Any) -> Tensor:
    """x[key]; windows are views."""
    key = _mask(key)
    if isinstance(key, Tensor) and key.dtype is bool_ and key.ndim == x.ndim > 0:
        check_mask(key, x, 0, "x[...]")
        return selected(x, key, "x[...]")
    cut, lookups = read(x, key, "x[...]")
    y = looked_at(x, cut)
    if lookups:
        return looked_up(y, lookups, "x[...]")
    if y is x:
        y = run(Identity(), x)
    return y


def looked_at(x: Tensor, cut: Cut) -> Tensor:
    """The window of x, without the axes that integers chose from, and with the new ones."""
    for op in cut.ops:
        x = run(op, x)
    return x


def merged(x: Tensor, lookups: dict[int, Tensor], what: str) -> tuple[Tensor, Tensor, int, bool]:
    """x with the axes that are looked up as one, the positions there, which axis it is, and whether axes were brought to the front."""
    axes = sorted(lookups)
    each = [placed(lookups[axis], x.shape[axis], what) for axis in axes]
    if len(axes) == 1:
        return x, each[0], axes[0], False
    common_shape(what, *(ids.shape for ids in each))
    apart = axes != list(range(axes[0], axes[-1] + 1))
    if apart:
        x, axes = movedim(x, axes, range(len(axes))), list(range(len(axes)))
    first, last = axes[0], axes[-1]
    ids, *others = together(what, *each) if len({ids.dtype for ids in each}) > 1 else each
    ids = cast(ids, int64)
    for axis, other in zip(axes[1:], others, strict=True):
        ids = run(Add(), run(Scale(x.shape[axis]), ids), cast(other, int64))
    flat = (*x.shape[:first], math.prod(x.shape[first : last + 1]), *x.shape[last + 1 :])
    return run(Reshape(flat), x), ids, first, apart


def looked_up(x: Tensor, lookups: dict[int, Tensor], what: str) -> Tensor:
    """The elements at the positions."""
    table, ids, axis, _ = merged(x, lookups, what)
    return run(Gather(axis), table, ids)


def selected(x: Tensor, mask: Tensor, what: str) -> Tensor:
    """The elements of x where a mask of its shape holds, in order: on every rank, or partial where x is."""
    if x.traced is not None or mask.traced is not None:
        found(mask if mask.traced is not None else x, x, what)
    places = np.flatnonzero(value_of(mask, what))
    if x.layout is not None and any(isinstance(sbp, Split) for sbp in x.layout.sbp):
        together_ = tuple(B if isinstance(sbp, Split) else sbp for sbp in x.layout.sbp)
        x = crossing.change(state(), x, Layout(x.layout.placement, together_))
    return run(Gather(0), reshape(x, x.tensor_type.size), listed(x, places.astype(np.int64)))


# --------------------------------------------------------------------------- writing


def setitem(x: Tensor, key: Any, value: Any) -> None:
    """x[key] = value: x keeps its layout and element type, and the value is brought into them."""
    what = "x[...] = value"
    check_writable(x, what)
    given = operand(what, x, value if not isinstance(value, list | tuple) else _list(value, what))
    scalar, key = not isinstance(given, Tensor) or given.ndim == 0, _mask(key)
    if isinstance(key, Tensor) and key.dtype is bool_ and scalar and key.ndim <= x.ndim:
        check_mask(key, x, 0, what)
        written(x, what, filled(x, reshape(key, (*key.shape, *(1,) * (x.ndim - key.ndim))), given))
        return
    cut, lookups = read(x, key, what)
    if lookups:
        part = looked_at(x, cut)
        new = put(part, lookups, given, what)
        if part is x:
            written(x, what, new)
            return
        given = new
    write_window(x, cut, given, what)


def filled(x: Tensor, mask: Tensor, value: Any) -> Tensor:
    """x with a number, or a tensor without axes, where the mask holds."""
    if isinstance(value, Tensor):
        return run(Where(), mask, cast(value, x.dtype), x)
    made = run(MaskedFill(number_as(x, value)), x, mask)
    return made


def number_as(x: Tensor, number: Any) -> Any:
    """A number as x holds it: whole, in a tensor of integers."""
    return fitting(int(number) if x.dtype.is_integer and math.isfinite(number) else number, x.dtype)


def _fitted(x: Tensor, value: Any, shape: Sequence[int], what: str) -> Tensor:
    """A value of x's element type in this shape."""
    if not isinstance(value, Tensor):
        return source(Constant(tuple(shape), x.dtype, number_as(x, value)), whole(x))
    extra = value.ndim - len(shape)
    if extra > 0 and all(n == 1 for n in value.shape[:extra]):
        value = reshape(value, value.shape[extra:])
    value = cast(value, x.dtype)
    try:
        return value if tuple(value.shape) == tuple(shape) else expand(value, shape)
    except ShapeError:
        raise ShapeError(
            f"{what} at {user_line()}: the value {value.tensor_type} does not fit the shape {list(shape)} that it would overwrite"
        ) from None


def put(x: Tensor, lookups: dict[int, Tensor], value: Any, what: str) -> Tensor:
    """x with the elements at the positions replaced; of several for one place the last stays."""
    table, ids, axis, apart = merged(x, lookups, what)
    shape = (*table.shape[:axis], *ids.shape, *table.shape[axis + 1 :])
    rows = (*table.shape[:axis], ids.tensor_type.size, *table.shape[axis + 1 :])
    new = reshape(_fitted(x, value, shape, what), rows)
    at = expand(reshape(ids, (*(1,) * axis, ids.tensor_type.size, *(1,) * (table.ndim - axis - 1))), rows)
    made: Tensor = run(Scatter(axis), table, at, new)
    if len(lookups) == 1:
        return made
    axes = sorted(lookups)
    if not apart:
        return reshape(made, x.shape)
    front = [*axes, *(i for i in range(x.ndim) if i not in lookups)]
    return movedim(reshape(made, [x.shape[i] for i in front]), range(len(axes)), axes)


def write_window(x: Tensor, cut: Cut, given: Any, what: str) -> None:
    """x[window] = value, in place."""
    window = cut.window
    if isinstance(given, Tensor):
        value = reshape(_fitted(x, given, cut.shape, what), cut.inside)
        if cut.backwards:
            value = run(Flip(cut.backwards), value)
    else:
        value = _fitted(x, given, cut.inside, what)
    if x.traced is not None:
        written(x, what, run(SliceUpdate(window), x, value))
        return
    here = state()
    update(here, SliceWrite(window), (x, value), what)
    made = Tensor.new(x.tensor_type, x.layout, x.array)
    if here.grad_enabled and (x._needs_gradient or value._needs_gradient):
        new = Tensor.new(value.tensor_type, value.layout, value.array)  # only what it is counts, not what it holds
        placement = None if x.layout is None else x.layout.placement
        record("setitem", (x, value), (made,), OpGradient(SliceUpdate(window), placement), (made, new, made))
    note_written(here, x, made, what)


class IndexingMethods:
    """Methods of tensors: subscripts."""

    __slots__ = ()

    __getitem__ = method(getitem)
    __setitem__ = method(setitem)
