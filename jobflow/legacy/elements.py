"""Elements of tensors by index, and sorting: flow.gather_nd, flow.tensor_scatter_nd_update, flow.sort, flow.math.top_k ...

The last axis of `indices` [..., k] contains coordinates. They select elements of a tensor with k axes, or slices of a tensor with more axes.
"""

from __future__ import annotations

import math as numbers
from collections.abc import Sequence
from typing import Any

import jobflow.functional as functional
from jobflow.core.errors import ArgumentError, DtypeError, ShapeError, user_line
from jobflow.core.types import Tensor, int32, int64
from jobflow.legacy.job_dispatch import ALIAS, alias, all_of, traced
from jobflow.legacy.operands import fitting, positive_shape, spans
from jobflow.ops import elementwise as ew
from jobflow.ops import index as ix
from jobflow.ops import shape as sh
from jobflow.ops import slice_update as su
from jobflow.ops import slices as sl
from jobflow.ops import sort as st
from jobflow.ops.margin_loss import combined_margin
from jobflow.ops.op import normal_axis
from jobflow.ops.runtime_assertions import assert_bounds

Name = str | None
#: untyped, because its functions are called with tensors of jobs here
_F: Any = functional

# By coordinates -----------------------------------------------------------------------------------------------------


def _rows(what: str, shape: Sequence[int], indices: Tensor) -> tuple[Tensor, int, tuple[int, ...]]:
    """Return (flat indices int64[n], number of entries, shape of an entry) for the coordinates `indices` in a tensor of `shape`.

    The last axis of `indices` contains k coordinates, which select an entry: an element, or a slice over the axes from k on.
    A flat index is the row-major number of an entry. Raises: DtypeError unless indices are integers; ShapeError for a wrong k.
    """
    t = indices.tensor_type
    depth = t.shape[-1] if t.ndim else 0
    if not t.dtype.is_integer:
        raise DtypeError(f"{what} at {user_line()}: indices {t} must be integers; cast them")
    if not 1 <= depth <= len(shape):
        raise ShapeError(
            f"{what} at {user_line()}: the last axis of indices {t} must have 1 to {len(shape)} coordinates in a tensor of shape {list(shape)}"
        )
    flat = sh.reshape(indices if t.dtype is int64 else ew.cast(indices, int64), (t.size // depth, depth))
    result = None
    for axis in range(depth):
        at = assert_bounds(sl.slice_(flat, [0, axis], [None, axis + 1], [1, 1]), what, low=0, high=shape[axis] - 1, noun="index")
        along = ew.scale(at, numbers.prod(shape[axis + 1 : depth])) if axis + 1 < depth else at
        result = along if result is None else ew.add(result, along)
    assert result is not None
    return sh.reshape(result, (t.size // depth,)), numbers.prod(shape[:depth]), tuple(shape[depth:])


def gather_nd(params: Tensor, indices: Tensor, name: Name = None) -> Tensor:
    """Return the elements or slices of params at the coordinates on the last axis of `indices`.

    A coordinate out of range raises an error in the run.
    """
    rows, count, rest = _rows("gather_nd", params.tensor_type.shape, indices)
    result = ix.gather(sh.reshape(params, (count, *rest)), rows, 0)
    return sh.reshape(result, (*indices.tensor_type.shape[:-1], *rest))


def scatter_nd(indices: Tensor, updates: Tensor, shape: Sequence[int], name: Name = None) -> Tensor:
    """Return a tensor of `shape` with `updates` added at the coordinates on the last axis of `indices`, and zeros elsewhere."""
    whole = positive_shape("scatter_nd", "shape", shape)
    rows, count, rest = _rows("scatter_nd", whole, indices)
    return sh.reshape(ix.unsorted_segment_sum(_updates("scatter_nd", indices, updates, rest), rows, count), whole)


def tensor_scatter_nd_add(params: Tensor, indices: Tensor, updates: Tensor, name: Name = None) -> Tensor:
    """Return params with `updates` added at the coordinates on the last axis of `indices`; all updates with equal coordinates are added."""
    rows, count, rest = _rows("tensor_scatter_nd_add", params.tensor_type.shape, indices)
    added = ix.unsorted_segment_sum(_updates("tensor_scatter_nd_add", indices, updates, rest), rows, count)
    return ew.add(params, sh.reshape(added, params.tensor_type.shape))


def tensor_scatter_nd_update(params: Tensor, indices: Tensor, updates: Tensor, name: Name = None) -> Tensor:
    """Return params with `updates` at the coordinates on the last axis of `indices`; one of several updates with equal coordinates is used."""
    rows, count, rest = _rows("tensor_scatter_nd_update", params.tensor_type.shape, indices)
    arguments = _updates("tensor_scatter_nd_update", indices, updates, rest)
    size = numbers.prod(rest)
    places = _F.expand(sh.reshape(rows, (rows.tensor_type.size, 1)), (rows.tensor_type.size, size))
    result = _F.scatter(sh.reshape(params, (count, size)), 0, places, sh.reshape(arguments, (rows.tensor_type.size, size)))
    return sh.reshape(result, params.tensor_type.shape)


def _updates(what: str, indices: Tensor, updates: Tensor, rest: tuple[int, ...]) -> Tensor:
    """Return `updates` with one row per coordinate tuple in `indices`.

    Raises: ShapeError unless the shape of `updates` consists of the axes of `indices` except the last, and of `rest`.
    """
    lead = indices.tensor_type.shape[:-1]
    if updates.tensor_type.shape != (*lead, *rest):
        raise ShapeError(
            f"{what} at {user_line()}: updates {updates.tensor_type} must be {[*lead, *rest]}, one for each of indices {indices.tensor_type}"
        )
    return sh.reshape(updates, (numbers.prod(lead), *rest))


def slice_update(x: Tensor, update: Tensor, slice_tup_list: Sequence[Any], name: Name = None) -> Tensor:
    """Return x with x[start:stop:step] replaced by `update`, for a list of one (start, stop, step) per axis; all three may be None."""
    return su.slice_update(x, update, *spans("slice_update", x, slice_tup_list))


def logical_slice(x: Tensor, slice_tup_list: Sequence[Any], name: Name = None) -> Tensor:
    """Return x[start:stop:step] of the logical tensor, in any layout, for a list of one (start, stop, step) per axis; steps must be positive."""
    starts, stops, steps = spans("logical_slice", x, slice_tup_list)
    if any(step is not None and step < 1 for step in steps):
        raise ArgumentError(f"logical_slice at {user_line()}: the steps of {slice_tup_list} must be positive")
    return su.subscript(x, starts, stops, steps)


# Sorting ------------------------------------------------------------------------------------------------------------


def _descending(what: str, direction: Any) -> bool:
    if direction not in ("ASCENDING", "DESCENDING"):
        raise ArgumentError(f'{what} at {user_line()}: direction must be "ASCENDING" or "DESCENDING", not {direction!r}')
    return bool(direction == "DESCENDING")


def sort(input: Tensor, axis: Any = -1, direction: str = "ASCENDING", name: Name = None) -> Tensor:
    """Sort `input` along `axis` in "ASCENDING" or "DESCENDING" direction; sort(input, direction) is the older form."""
    axis, direction = (-1, axis) if isinstance(axis, str) else (axis, direction)
    return st.sort(input, normal_axis(f"sort at {user_line()}", axis, input.tensor_type.ndim), _descending("sort", direction))[0]


def argsort(input: Tensor, axis: Any = -1, direction: str = "ASCENDING", name: Name = None) -> Tensor:
    """Return the int32 indices that sort `input` along `axis`; argsort(input, direction) is the older form."""
    axis, direction = (-1, axis) if isinstance(axis, str) else (axis, direction)
    return ew.cast(
        st.sort(input, normal_axis(f"argsort at {user_line()}", axis, input.tensor_type.ndim), _descending("argsort", direction))[1], int32
    )


def top_k(input: Tensor, axis: int = -1, k: int = 1, sorted: bool = True, name: Name = None) -> Tensor:
    """Return the int32 indices of the k largest elements along `axis`, always in descending order; k is limited to the size of the axis."""
    along = normal_axis(f"top_k at {user_line()}", axis, input.tensor_type.ndim)
    return ew.cast(st.topk(input, min(int(k), input.tensor_type.shape[along]), along)[1], int32)


diag = alias(_F.diag, "input", diagonal=0)


# Losses and images --------------------------------------------------------------------------------------------------


def combined_margin_loss(x: Tensor, label: Tensor, m1: float = 1, m2: float = 0, m3: float = 0, name: Name = None) -> Tensor:
    """Apply an angular margin to the cosines x [n, classes]: the entry x[i, label[i]] = cos(angle) becomes cos(m1 angle + m2) - m3."""
    return margins(x, label, m1, m2, m3, name)[0]


def margins(x: Tensor, label: Tensor, m1: float, m2: float, m3: float, name: Name = None) -> tuple[Tensor, Tensor]:
    """Return the result of `combined_margin_loss`, and the angles arccos(x[i, label[i]])."""
    if x.tensor_type.ndim != 2 or not label.tensor_type.dtype.is_integer or label.tensor_type.size != x.tensor_type.shape[0]:
        raise ShapeError(
            f"combined_margin_loss at {user_line()}: x must be [n, classes] and label n integers, not {x.tensor_type} and {label.tensor_type}"
        )
    for word, number in (("m1", m1), ("m2", m2), ("m3", m3)):
        fitting(f"combined_margin_loss: {word}", number, x.tensor_type.dtype)
    return combined_margin(x, sh.reshape(label, x.tensor_type.shape[:1]), float(m1), float(m2), float(m3), name=name)


def square_sum(x: Tensor, name: Name = None) -> Tensor:
    """Return the sum of the squares of all elements as a tensor of shape (1,)."""
    return sh.reshape(_F.sum(ew.square(x)), (1,))


def upsample_2d(
    x: Tensor,
    size: float | Sequence[float] = (2, 2),
    align_corners: Any = False,
    data_format: str = "NCHW",
    interpolation: str = "nearest",
    name: Name = "Upsample2D",
) -> Tensor:
    """Enlarge 4-D images by the factors `size` = (height, width), or by one factor for both, with "nearest" or "bilinear" interpolation.

    `align_corners` requires "bilinear". A string as the third argument is the data format, as in OneFlow 0.2.
    """
    if isinstance(align_corners, str):  # upsample_2d(x, size, data_format, interpolation)
        interpolation = data_format if data_format in ("nearest", "bilinear") else interpolation
        align_corners, data_format = False, align_corners
    what = f"upsample_2d at {user_line()}"
    if str(data_format).upper() not in ("NCHW", "NHWC") or interpolation not in ("nearest", "bilinear") or x.tensor_type.ndim != 4:
        raise ArgumentError(
            f'{what}: x {x.tensor_type} must have 4 axes, data_format {data_format!r} must be "NCHW" or "NHWC", '
            f'and interpolation {interpolation!r} must be "nearest" or "bilinear"'
        )
    if align_corners and interpolation == "nearest":
        raise ArgumentError(f"{what}: align_corners requires bilinear interpolation; pass interpolation='bilinear'")
    last = data_format.upper() == "NHWC"
    factors = tuple(size) if isinstance(size, Sequence) else (size, size)
    images = sh.transpose(x, (0, 3, 1, 2)) if last else x
    from jobflow.functional.nn_resize import interpolate  # few programs need it

    arguments: Any = images
    result: Any = interpolate(
        arguments, scale_factor=factors, mode=interpolation, align_corners=bool(align_corners) if interpolation == "bilinear" else None
    )
    return sh.transpose(result, (0, 2, 3, 1)) if last else result


globals().update(all_of(__name__, globals(), (__name__, ALIAS), traced))
