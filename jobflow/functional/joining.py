"""Joining and splitting tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

from jobflow.core.errors import ArgumentError, AxisError, ShapeError, user_line
from jobflow.eager import crossing
from jobflow.eager.run import run
from jobflow.eager.state import state
from jobflow.functional.dispatch import method
from jobflow.functional.promotion import together
from jobflow.functional.shapes import axis_of, integer, reshape, squeeze, unsqueeze
from jobflow.functional.typed import Tensor
from jobflow.ops.slices import Concat, Slice

__all__ = [
    "cat", "chunk", "concat", "concatenate", "hstack", "meshgrid", "narrow", "split", "stack", "unbind", "vstack",
]  # fmt: skip


def _all_tensors(what: str, tensors: Sequence[Tensor]) -> list[Tensor]:
    """As a list; ArgumentError unless they are tensors, at least one."""
    if isinstance(tensors, Tensor) or not isinstance(tensors, Iterable):
        raise ArgumentError(f"{what} at {user_line()}: takes a list or tuple of tensors; got {type(tensors).__name__}")
    given = list(tensors)
    for i, x in enumerate(given):
        if not isinstance(x, Tensor):
            raise ArgumentError(f"{what} at {user_line()}: element {i} of the list is not a tensor but {x!r}")
    if not given:
        raise ShapeError(f"{what} at {user_line()}: needs at least one tensor")
    return given


def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """The tensors one after the other along axis `dim`, in the element type that they have together."""
    given = together("cat", *_all_tensors("cat", tensors))
    full = [x for x in given if x.shape != (0,)] or given[:1]  # an empty list of numbers goes with any shape
    return run(Concat(axis_of("cat", dim, full[0].ndim)), *full)


concat = concatenate = cat


def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """The tensors, of one shape, side by side along a new axis `dim`."""
    given = _all_tensors("stack", tensors)
    if any(x.shape != given[0].shape for x in given):
        raise ShapeError(f"stack at {user_line()}: needs tensors of one shape; got {', '.join(str(x.tensor_type) for x in given)}")
    return cat([unsqueeze(x, dim) for x in given], axis_of("stack", dim, given[0].ndim + 1))


def hstack(tensors: Sequence[Tensor]) -> Tensor:
    """The tensors one after the other along their second axis; along the first if they have one only."""
    given = [reshape(x, 1) if x.ndim == 0 else x for x in _all_tensors("hstack", tensors)]
    return cat(given, 0 if given[0].ndim == 1 else 1)


def vstack(tensors: Sequence[Tensor]) -> Tensor:
    """The tensors one below the other; those of one axis are rows."""
    return cat([reshape(x, (1, x.tensor_type.size)) if x.ndim < 2 else x for x in _all_tensors("vstack", tensors)], 0)


def _window(x: Tensor, axis: int, start: int, stop: int) -> Slice:
    starts, stops = [0] * x.ndim, list(x.shape)
    starts[axis], stops[axis] = start, stop
    return Slice(tuple(starts), tuple(stops), (1,) * x.ndim)


def _axis(what: str, x: Tensor, dim: int) -> int:
    """The axis that is cut; AxisError for a tensor without axes."""
    if not x.ndim:
        raise AxisError(f"{what} at {user_line()}: {x.tensor_type} has no axes to split")
    return axis_of(what, dim, x.ndim)


def narrow(x: Tensor, dim: int, start: int | Tensor, length: int) -> Tensor:
    """The `length` elements of axis `dim` from `start` on; a view."""
    axis = _axis("narrow", x, dim)
    start, length = integer("narrow", start), integer("narrow", length)
    first = start + x.shape[axis] if start < 0 else start
    if not 0 <= first <= first + length <= x.shape[axis]:
        raise ShapeError(f"narrow at {user_line()}: {length} elements from {start} on are not inside axis {axis} of {x.tensor_type}")
    return run(_window(x, axis, first, first + length), x)


def split(tensor: Tensor, split_size_or_sections: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Consecutive pieces of axis `dim`: of one size, the last smaller where that is left over, or of the sizes of a list; views."""
    axis = _axis("split", tensor, dim)
    n, given = tensor.shape[axis], split_size_or_sections
    if isinstance(given, int):
        if given < 1:
            raise ShapeError(f"split at {user_line()}: pieces of {given} elements of {tensor.tensor_type}")
        lengths = [min(given, n - start) for start in range(0, n, given)] or [0]
    else:
        lengths = [integer("split", length) for length in given]
    if sum(lengths) != n or any(length < 0 for length in lengths):
        raise ShapeError(f"split at {user_line()}: pieces of {lengths} elements do not add up to axis {axis} of {tensor.tensor_type}")
    if len(lengths) > 1:
        tensor = crossing.as_read(state(), _window(tensor, axis, 0, lengths[0]), tensor)
    return tuple(run(_window(tensor, axis, stop - length, stop), tensor) for stop, length in zip(accumulate(lengths), lengths, strict=True))


def chunk(x: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """At most `chunks` pieces of axis `dim`, equal but for the last."""
    if chunks < 1:
        raise ShapeError(f"chunk at {user_line()}: {x.tensor_type} into {chunks} pieces")
    axis = _axis("chunk", x, dim)
    return split(x, max(-(-x.shape[axis] // chunks), 1), axis)


def unbind(x: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """The slices along axis `dim`, without that axis; views."""
    axis = _axis("unbind", x, dim)
    return tuple(squeeze(part, axis) for part in split(x, 1, axis)) if x.shape[axis] else ()


def meshgrid(*tensors: Tensor, indexing: str = "ij") -> tuple[Tensor, ...]:
    """For vectors x, y, ...: X[i, j, ...] = x[i], Y[i, j, ...] = y[j]; with indexing="xy" the first two axes are exchanged."""
    given = list(tensors[0]) if len(tensors) == 1 and isinstance(tensors[0], list | tuple) else list(tensors)
    if indexing not in ("ij", "xy"):
        raise ShapeError(f'meshgrid at {user_line()}: indexing is "ij" or "xy", not {indexing!r}')
    for x in given:
        if x.ndim > 1:
            raise ShapeError(f"meshgrid at {user_line()}: takes vectors and numbers, not {x.tensor_type}; x.flatten() makes one")
    shape = tuple(x.tensor_type.size for x in given)
    columns = [reshape(x, tuple(x.tensor_type.size if j == i else 1 for j in range(len(given)))) for i, x in enumerate(given)]
    grids = tuple(column.expand(shape) for column in columns)
    return tuple(grid.transpose(0, 1) for grid in grids) if indexing == "xy" and len(given) > 1 else grids


class JoiningMethods:
    """Methods of tensors: joining and splitting."""

    __slots__ = ()

    chunk = method(chunk)
    narrow = method(narrow)
    split = method(split)
    unbind = method(unbind)
