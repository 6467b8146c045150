"""Functions that join and split tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

from jobflow.core.errors import ArgumentError, AxisError, DtypeError, ShapeError, user_line
from jobflow.functional.dispatch import method
from jobflow.functional.promotion import together
from jobflow.functional.shapes import axis_of, integer, reshape, squeeze, unsqueeze
from jobflow.functional.typed import Tensor
from jobflow.ops.slices import Concat, Slice
from jobflow.tensors import redistribution
from jobflow.tensors.run import run
from jobflow.tensors.state import state

__all__ = [
    "cat", "chunk", "concat", "concatenate", "hstack", "meshgrid", "narrow", "split", "stack", "unbind", "vstack",
]  # fmt: skip


def all_tensors(what: str, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the tensors as a list; raise ArgumentError unless all are tensors, ShapeError for an empty list."""
    if isinstance(tensors, Tensor) or not isinstance(tensors, Iterable):
        raise ArgumentError(f"{what} at {user_line()}: tensors must be a list or tuple of tensors; got {type(tensors).__name__}")
    listed = list(tensors)
    for i, x in enumerate(listed):
        if not isinstance(x, Tensor):
            raise ArgumentError(f"{what} at {user_line()}: element {i} of the list must be a tensor; got {x!r}")
    if not listed:
        raise ShapeError(f"{what} at {user_line()}: the list must have at least one tensor")
    return listed


def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Return the tensors concatenated along axis `dim`, in their common element type.

    Raises: ArgumentError unless `tensors` is a list or tuple of tensors; ShapeError for an empty list, or if the sizes of another axis differ.

    Examples:
        >>> flow.cat([flow.zeros(1, 2), flow.ones(1, 2)])
        tensor([[0., 0.],
                [1., 1.]], dtype=jobflow.float32)
        >>> flow.cat([flow.zeros(1, 2), flow.ones(1, 2)], dim=1).shape
        jobflow.Size([1, 4])
    """
    operands = together("cat", *all_tensors("cat", tensors))
    full = [x for x in operands if x.shape != (0,)] or operands[:1]  # empty vectors are skipped, as in PyTorch
    return run(Concat(axis_of("cat", dim, full[0].ndim)), *full)


concat = concatenate = cat


def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Return the tensors, all of the same shape, stacked along a new axis `dim`.  Raises: ShapeError for different shapes.

    Examples:
        >>> flow.stack([flow.zeros(3), flow.ones(3)]).shape
        jobflow.Size([2, 3])
    """
    operands = all_tensors("stack", tensors)
    if any(x.shape != operands[0].shape for x in operands):
        raise ShapeError(f"stack at {user_line()}: all tensors must have the same shape; got {', '.join(str(x.tensor_type) for x in operands)}")
    return cat([unsqueeze(x, dim) for x in operands], axis_of("stack", dim, operands[0].ndim + 1))


def hstack(tensors: Sequence[Tensor]) -> Tensor:
    """Return the tensors concatenated along their second axis, or along the first axis for vectors and scalars."""
    operands = [reshape(x, 1) if x.ndim == 0 else x for x in all_tensors("hstack", tensors)]
    return cat(operands, 0 if operands[0].ndim == 1 else 1)


def vstack(tensors: Sequence[Tensor]) -> Tensor:
    """Return the tensors concatenated along their first axis; vectors and scalars first become matrices of one row."""
    return cat([reshape(x, (1, x.tensor_type.size)) if x.ndim < 2 else x for x in all_tensors("vstack", tensors)], 0)


def _window(x: Tensor, axis: int, start: int, stop: int) -> Slice:
    starts, stops = [0] * x.ndim, list(x.shape)
    starts[axis], stops[axis] = start, stop
    return Slice(tuple(starts), tuple(stops), (1,) * x.ndim)


def _axis(what: str, x: Tensor, dim: int) -> int:
    """Return `dim` as a nonnegative axis; raise AxisError if x has no axes, or no axis `dim`."""
    if not x.ndim:
        raise AxisError(f"{what} at {user_line()}: {x.tensor_type} has no axes to split")
    return axis_of(what, dim, x.ndim)


def narrow(x: Tensor, dim: int, start: int | Tensor, length: int) -> Tensor:
    """Return `length` elements of axis `dim`, starting at index `start`, as a view.

    Raises: ShapeError if the elements are not all inside the axis.
    """
    axis = _axis("narrow", x, dim)
    start, length = integer("narrow", start), integer("narrow", length)
    first = start + x.shape[axis] if start < 0 else start
    if not 0 <= first <= first + length <= x.shape[axis]:
        raise ShapeError(f"narrow at {user_line()}: length {length} from start {start} exceeds axis {axis} of {x.tensor_type}; pass a smaller range")
    return run(_window(x, axis, first, first + length), x)


def split(tensor: Tensor, split_size_or_sections: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Return consecutive pieces of axis `dim` as views.

    An integer is the size of all pieces, except for a smaller last one.  A list has one size per piece.
    Raises: ShapeError if the sizes do not add up to the axis.
    """
    axis = _axis("split", tensor, dim)
    n, size_or_sizes = tensor.shape[axis], split_size_or_sections
    if isinstance(size_or_sizes, int):
        if size_or_sizes < 1:
            raise ShapeError(f"split at {user_line()}: split_size_or_sections must be at least 1; got {size_or_sizes} for {tensor.tensor_type}")
        lengths = [min(size_or_sizes, n - start) for start in range(0, n, size_or_sizes)] or [0]
    else:
        lengths = [integer("split", length) for length in size_or_sizes]
    if sum(lengths) != n or any(length < 0 for length in lengths):
        raise ShapeError(f"split at {user_line()}: pieces of {lengths} elements do not add up to axis {axis} of {tensor.tensor_type}")
    if len(lengths) > 1:
        tensor = redistribution.as_read(state(), _window(tensor, axis, 0, lengths[0]), tensor)
    return tuple(run(_window(tensor, axis, stop - length, stop), tensor) for stop, length in zip(accumulate(lengths), lengths, strict=True))


def chunk(x: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """Return at most `chunks` pieces of axis `dim` as views, of equal size except for the last.  Raises: ShapeError if chunks < 1."""
    if chunks < 1:
        raise ShapeError(f"chunk at {user_line()}: chunks must be at least 1; got {chunks} for {x.tensor_type}")
    axis = _axis("chunk", x, dim)
    return split(x, max(-(-x.shape[axis] // chunks), 1), axis)


def unbind(x: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """Return the slices along axis `dim`, without that axis, as views."""
    axis = _axis("unbind", x, dim)
    return tuple(squeeze(part, axis) for part in split(x, 1, axis)) if x.shape[axis] else ()


def in_one_list(arguments: tuple[Any, ...]) -> list[Any]:
    """Return the arguments as a list; a single argument that is a list or tuple contains all of them."""
    return list(arguments[0]) if len(arguments) == 1 and isinstance(arguments[0], list | tuple) else list(arguments)


def meshgrid(*tensors: Any, indexing: str = "ij") -> tuple[Tensor, ...]:
    """Return coordinate grids X[i, j, ...] = x[i], Y[i, j, ...] = y[j], ... of vectors x, y, ...; "xy" swaps the first two axes.

    The vectors are separate arguments, or one list.
    Raises: ShapeError for a tensor of several axes, or another `indexing`; DtypeError for an argument that is not a tensor.
    """
    vectors = in_one_list(tensors)
    for x in vectors:
        if not isinstance(x, Tensor):
            raise DtypeError(f"meshgrid at {user_line()}: tensors contains {x!r} of type {type(x).__name__}; pass tensors, or one list of tensors")
    if indexing not in ("ij", "xy"):
        raise ShapeError(f'meshgrid at {user_line()}: indexing must be "ij" or "xy"; got {indexing!r}')
    for x in vectors:
        if x.ndim > 1:
            raise ShapeError(f"meshgrid at {user_line()}: the tensors must be vectors or scalars; got {x.tensor_type}; use x.flatten()")
    shape = tuple(x.tensor_type.size for x in vectors)
    columns = [reshape(x, tuple(x.tensor_type.size if j == i else 1 for j in range(len(vectors)))) for i, x in enumerate(vectors)]
    grids = tuple(column.expand(shape) for column in columns)
    return tuple(grid.transpose(0, 1) for grid in grids) if indexing == "xy" and len(vectors) > 1 else grids


class JoiningMethods:
    """Methods of tensors for splitting."""

    __slots__ = ()

    chunk = method(chunk)
    narrow = method(narrow)
    split = method(split)
    unbind = method(unbind)
