"""Copies of tensors with other elements in a slice, on a diagonal or at flat indices, and windows by strides."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jobflow.core.errors import ArgumentError, AxisError, DtypeError, JobError, ShapeError, user_line
from jobflow.functional.argument_checks import check_size, checks_arguments
from jobflow.functional.dispatch import method
from jobflow.functional.global_tensors import is_contiguous
from jobflow.functional.gradients import clone
from jobflow.functional.in_place import form
from jobflow.functional.index_updates import index_put
from jobflow.functional.indexing import listed
from jobflow.functional.promotion import cast
from jobflow.functional.selecting import diagonal_axes, diagonal_slice, take
from jobflow.functional.shapes import axis_of, flatten, integer, permute, reshape, unsqueeze
from jobflow.functional.typed import Tensor
from jobflow.ops.slice_update import SliceUpdate
from jobflow.ops.slices import Slice
from jobflow.tensors.run import run

__all__ = ["as_strided", "diagonal_scatter", "put", "select_scatter", "slice_scatter"]


def _updated(what: str, x: Tensor, src: Tensor, window: Slice) -> Tensor:
    """Return x with the elements of `src` in a window; raise ShapeError unless `src` has the shape of the window."""
    shape = tuple(max(0, -((start - stop) // step)) for start, stop, step in zip(window.starts, window.stops, window.steps, strict=True))
    if tuple(src.shape) != shape:
        raise ShapeError(f"{what} at {user_line()}: src {src.tensor_type} must have the shape {list(shape)} of the elements of x {x.tensor_type}")
    return run(SliceUpdate(window), x, cast(src, x.dtype)) if src.tensor_type.size else clone(x)


@checks_arguments
def slice_scatter(x: Tensor, src: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Tensor:
    """Return x with the elements of `src` in x[..., start:end:step, ...] along axis `dim`.

    Raises: ShapeError unless `src` has the shape of the slice, ArgumentError for a step below 1.
    """
    axis = axis_of("slice_scatter", dim, x.ndim)
    if step < 1 or not x.ndim:
        problem = f"step must be at least 1; got {step}" if x.ndim else f"x {x.tensor_type} has no axis"
        raise ArgumentError(f"slice_scatter at {user_line()}: {problem}")
    first, stop, by = slice(start, end, step).indices(x.shape[axis])
    count = max(0, -((first - stop) // by))
    last = first + (count - 1) * by + 1 if count else first
    one = tuple((0, n, 1) if i != axis else (first, last, by) for i, n in enumerate(x.shape))
    starts, stops, steps = (tuple(each[i] for each in one) for i in range(3))
    return _updated("slice_scatter", x, src, Slice(starts, stops, steps))


@checks_arguments
def select_scatter(x: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """Return x with the elements of `src` at one index of axis `dim`.

    Raises: ShapeError unless `src` has the shape of x without this axis, AxisError for an index out of range.
    """
    axis = axis_of("select_scatter", dim, x.ndim)
    n = x.shape[axis] if x.ndim else 0
    if not -n <= index < n:
        raise AxisError(f"select_scatter at {user_line()}: index {index} is out of range, {-n} to {n - 1}, for axis {axis} of {x.tensor_type}")
    if tuple(src.shape) != (*x.shape[:axis], *x.shape[axis + 1 :]):
        raise ShapeError(f"select_scatter at {user_line()}: src {src.tensor_type} must have the shape of x {x.tensor_type} without axis {axis}")
    return slice_scatter(x, unsqueeze(src, axis), axis, index % n, index % n + 1)


@checks_arguments
def diagonal_scatter(x: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Return x with the elements of `src` where index(dim2) - index(dim1) = offset; `src` has the shape of `diagonal`.

    Raises: ShapeError for another shape, or unless `dim1` and `dim2` are different axes.
    """
    what = "diagonal_scatter"
    check_size(what, "offset", offset)
    order = diagonal_axes(what, x, dim1, dim2)
    turned = permute(x, order)
    *lead, rows, columns = turned.shape
    window = Slice(*diagonal_slice(turned.shape, offset))
    result = _updated(what, reshape(turned, (*lead, rows * columns)), src, window)
    return permute(reshape(result, turned.shape), [order.index(i) for i in range(x.ndim)])


@checks_arguments
def put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """Return x with the elements of `source` at the indices `index` of the flattened x; with `accumulate`, they are added.

    Raises: ShapeError for different numbers of indices and elements, DtypeError for another element type, AxisError for an index out of range.
    """
    what = "put"
    if source.dtype is not x.dtype or not index.dtype.is_integer:
        raise DtypeError(
            f"{what} at {user_line()}: source {source.tensor_type} must have the element type of x {x.tensor_type}, and index {index.tensor_type} "
            f"an integer type; cast them"
        )
    if index.tensor_type.size != source.tensor_type.size:
        raise ShapeError(f"{what} at {user_line()}: index {index.tensor_type} and source {source.tensor_type} must have the same number of elements")
    if not index.tensor_type.size:
        return clone(x)
    return reshape(index_put(flatten(x), (flatten(index),), flatten(source), accumulate), x.shape)


put_ = form(put)


@checks_arguments
def as_strided(x: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None) -> Tensor:
    """Return y[i, j, ...] = flattened x[storage_offset + i * stride[0] + j * stride[1] + ...], with the shape `size`, as a copy.

    Raises: JobError unless x is contiguous and a whole tensor, ShapeError for elements beyond x.
    """
    what = "as_strided"
    sizes, strides = ([integer(what, n) for n in each] for each in (size, stride))
    offset = 0 if storage_offset is None else integer(what, storage_offset)
    if len(sizes) != len(strides) or min([offset, *sizes, *strides]) < 0:
        raise ArgumentError(
            f"{what} at {user_line()}: size {sizes} and stride {strides} must have equal lengths, and be, like storage_offset {offset}, not negative"
        )
    check_size(what, "size or stride", offset, *sizes, *strides)
    root = x
    while root.base is not None:
        root = root.base[0]
    if not is_contiguous(x) or (root.tensor_type.size != x.tensor_type.size and storage_offset is not None):
        raise JobError(f"{what} at {user_line()}: {x.tensor_type} is a view of a part or another order of a tensor; call clone() first")
    last = offset + sum((n - 1) * step for n, step in zip(sizes, strides, strict=True))
    if 0 in sizes:
        return reshape(flatten(x)[:0], sizes)
    if last >= x.tensor_type.size:
        raise ShapeError(f"{what} at {user_line()}: size {sizes} with stride {strides} reads element {last} of {x.tensor_type}, beyond its end")
    at = np.full((), offset, np.int64)
    for n, step in zip(sizes, strides, strict=True):
        at = np.add.outer(at, step * np.arange(n))
    return take(x, listed(x, at))


class SliceUpdateMethods:
    """Methods of tensors that replace slices."""

    __slots__ = ()

    as_strided = method(as_strided)
    diagonal_scatter = method(diagonal_scatter)
    put = method(put)
    put_ = method(put_)
    select_scatter = method(select_scatter)
    slice_scatter = method(slice_scatter)
