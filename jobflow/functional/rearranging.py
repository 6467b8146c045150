"""Functions that split, stack, flip and rotate tensors, and extract their diagonals, triangles and windows; see also `shapes` and `joining`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jobflow.core.errors import ArgumentError, ShapeError, user_line
from jobflow.core.types import bool_, int64
from jobflow.functional import creation
from jobflow.functional.argument_checks import check_size, checks_arguments
from jobflow.functional.binary_functions import sub
from jobflow.functional.comparing import logical_xor
from jobflow.functional.dispatch import attribute, method
from jobflow.functional.global_tensors import value_of
from jobflow.functional.indexing import constant_like, listed
from jobflow.functional.joining import all_tensors, cat, in_one_list, meshgrid, narrow, stack
from jobflow.functional.promotion import together
from jobflow.functional.selecting import diag
from jobflow.functional.shapes import axis_of, common_shape, flatten, flip, integer, movedim, reshape, transpose
from jobflow.functional.typed import Tensor
from jobflow.ops.index import Gather
from jobflow.ops.slice_update import SliceUpdate
from jobflow.ops.slices import Slice
from jobflow.tensors.run import run
from jobflow.tensors.tensor import Size

__all__ = [
    "atleast_1d", "atleast_2d", "atleast_3d", "block_diag", "broadcast_shapes", "cartesian_prod", "column_stack", "combinations", "diag_embed",
    "diagflat", "diff", "dsplit", "dstack", "fliplr", "flipud", "hsplit", "ravel", "rot90", "row_stack", "tensor_split",
    "tril_indices", "triu_indices", "vsplit",
]  # fmt: skip

# -------------------------------------------------------------------- numbers of axes


def _at_least(what: str, tensors: tuple[Any, ...], shape: Any) -> Any:
    """Return each tensor in the shape `shape(x)`; one tensor for a single argument, else a tuple."""
    one = len(tensors) == 1 and isinstance(tensors[0], Tensor)
    several = tensors[0] if len(tensors) == 1 and not one else tensors
    results = tuple(reshape(x, shape(x)) for x in all_tensors(what, several))
    return results[0] if one else results


def atleast_1d(*tensors: Any) -> Any:
    """Return the tensors with at least one axis; a scalar becomes a vector of one element."""
    return _at_least("atleast_1d", tensors, lambda x: x.shape or (1,))


def atleast_2d(*tensors: Any) -> Any:
    """Return the tensors with at least two axes; a vector becomes a matrix of one row."""
    return _at_least("atleast_2d", tensors, lambda x: (1,) * (2 - x.ndim) + tuple(x.shape))


def _cube(x: Tensor) -> tuple[int, ...]:
    shape = tuple(x.shape)
    return shape if len(shape) > 2 else (*shape, 1) if len(shape) == 2 else (1, *(shape or (1,)), 1)


def atleast_3d(*tensors: Any) -> Any:
    """Return the tensors with at least three axes; a vector becomes [1, n, 1], and a matrix [n, m, 1]."""
    return _at_least("atleast_3d", tensors, _cube)


def ravel(x: Tensor) -> Tensor:
    """Return the elements of x as a vector."""
    return flatten(x)


def broadcast_shapes(*shapes: Any) -> Any:
    """Return the shape to which tensors of these shapes broadcast.  Raises: ShapeError if the shapes do not broadcast."""
    for shape in shapes:
        if not isinstance(shape, int | list | tuple):
            raise ArgumentError(f"broadcast_shapes at {user_line()}: a shape must be a tuple of sizes; got {shape!r}")
    listed_shapes = [(shape,) if isinstance(shape, int) else tuple(integer("broadcast_shapes", n) for n in shape) for shape in shapes]
    return Size(common_shape("broadcast_shapes", *listed_shapes, ()))


# -------------------------------------------------------------------- stacks and splits


def column_stack(tensors: Sequence[Tensor]) -> Tensor:
    """Return the tensors concatenated along their second axis; vectors and scalars first become columns."""
    return cat([reshape(x, (x.tensor_type.size, 1)) if x.ndim < 2 else x for x in all_tensors("column_stack", tensors)], 1)


def row_stack(tensors: Sequence[Tensor]) -> Tensor:
    """Return the tensors concatenated along their first axis; vectors and scalars first become rows."""
    return cat([reshape(x, (1, x.tensor_type.size)) if x.ndim < 2 else x for x in all_tensors("row_stack", tensors)], 0)


def dstack(tensors: Sequence[Tensor]) -> Tensor:
    """Return the tensors concatenated along their third axis, after `atleast_3d`."""
    return cat([reshape(x, _cube(x)) for x in all_tensors("dstack", tensors)], 2)


def tensor_split(x: Tensor, indices_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Return pieces of axis `dim` as views: a number of nearly equal ones, or the pieces between these indices.

    Raises: ShapeError for a tensor without axes, ArgumentError for fewer than one section.
    """
    return _split("tensor_split", x, indices_or_sections, dim)


def _split(what: str, x: Tensor, at: Any, dim: int) -> tuple[Tensor, ...]:
    if not x.ndim:
        raise ShapeError(f"{what} at {user_line()}: {x.tensor_type} has no axes to split")
    axis = axis_of(what, dim, x.ndim)
    if isinstance(at, Tensor):
        if at.ndim > 1 or at.dtype is not int64:
            raise ArgumentError(f"{what} at {user_line()}: indices_or_sections must be an int64 scalar or vector; got {at.tensor_type}")
        at = value_of(at, what).tolist()
    n = x.shape[axis]
    if isinstance(at, list | tuple):
        edges = [min(max(i + n if i < 0 else i, 0), n) for i in (integer(what, each) for each in at)]
    else:
        sections = integer(what, at)
        check_size(what, "indices_or_sections", sections)
        if sections < 1:
            raise ArgumentError(f"{what} at {user_line()}: the number of sections must be at least 1; got {sections}")
        size, larger = divmod(n, sections)
        edges = [i * size + min(i, larger) for i in range(1, sections)]
    return tuple(narrow(x, axis, start, max(stop - start, 0)) for start, stop in itertools.pairwise([0, *edges, n]))


def _split_evenly(what: str, x: Tensor, at: Any, axis: int, least: int) -> tuple[Tensor, ...]:
    if x.ndim < least:
        raise ShapeError(f"{what} at {user_line()}: {x.tensor_type} must have at least {least} axes")
    if isinstance(at, int) and not isinstance(at, bool) and (at < 1 or x.shape[axis] % at):
        raise ShapeError(f"{what} at {user_line()}: axis {axis} of {x.tensor_type} cannot be split into {at} equal sections; use tensor_split")
    return _split(what, x, at, axis)


def hsplit(x: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """Return equal pieces of the second axis, or of a vector, as views; or the pieces between indices."""
    return _split_evenly("hsplit", x, indices_or_sections, 0 if x.ndim == 1 else 1, 1)


def vsplit(x: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """Return equal pieces of the first axis of a tensor with at least two axes, as views; or the pieces between indices."""
    return _split_evenly("vsplit", x, indices_or_sections, 0, 2)


def dsplit(x: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """Return equal pieces of the third axis, as views; or the pieces between indices."""
    return _split_evenly("dsplit", x, indices_or_sections, 2, 3)


# -------------------------------------------------------------------- flips and rotations


def fliplr(x: Tensor) -> Tensor:
    """Return x reversed along its second axis.  Raises: ShapeError for fewer than two axes."""
    if x.ndim < 2:
        raise ShapeError(f"fliplr at {user_line()}: {x.tensor_type} must have at least two axes")
    return flip(x, 1)


def flipud(x: Tensor) -> Tensor:
    """Return x reversed along its first axis.  Raises: ShapeError for a tensor without axes."""
    if not x.ndim:
        raise ShapeError(f"flipud at {user_line()}: {x.tensor_type} must have at least one axis")
    return flip(x, 0)


@checks_arguments
def rot90(x: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    """Return x rotated k times by 90 degrees in the plane of two axes, from the first axis towards the second.

    Raises: ShapeError unless `dims` are two different axes.
    """
    axes = [axis_of("rot90", d, x.ndim) for d in dims]
    if len(axes) != 2 or axes[0] == axes[1]:
        raise ShapeError(f"rot90 at {user_line()}: dims {list(dims)} must be two different axes of {x.tensor_type}")
    a, b = axes
    k %= 4
    if k in (0, 2):
        return flip(x, a, b) if k else x.clone()
    return transpose(flip(x, b), a, b) if k == 1 else flip(transpose(x, a, b), b)


def _adjoint(x: Tensor) -> Tensor:
    """The transpose of a matrix; the conjugate of real elements is the element itself."""
    if x.ndim not in (0, 2):
        raise ShapeError(f"H at {user_line()}: {x.tensor_type} must have two axes; use mT for batches of matrices")
    return transpose(x, 0, 1) if x.ndim else x


# -------------------------------------------------------------------- diagonals and triangles


@checks_arguments
def diag_embed(x: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Return matrices with the last axis of x on a diagonal, and zeros elsewhere; the axes of the matrices are `dim1` and `dim2`.

    Raises: ShapeError unless `dim1` and `dim2` are different axes of the result.
    """
    a, b = axis_of("diag_embed", dim1, x.ndim + 1), axis_of("diag_embed", dim2, x.ndim + 1)
    if a == b or not x.ndim:
        raise ShapeError(f"diag_embed at {user_line()}: dim1 and dim2 must be two different axes; got {dim1} and {dim2} for {x.tensor_type}")
    check_size("diag_embed", "offset", offset)
    *lead, count = x.shape
    n = count + abs(offset)
    zeros, ones = (0,) * len(lead), (1,) * len(lead)
    empty = constant_like(x, (*lead, n * n), 0)
    if count:
        start = offset if offset >= 0 else -offset * n
        window = Slice((*zeros, start), (*lead, start + (count - 1) * (n + 1) + 1), (*ones, n + 1))
        empty = run(SliceUpdate(window), empty, x)
    return movedim(reshape(empty, (*lead, n, n)), (-2, -1), (a, b))


@checks_arguments
def diagflat(x: Tensor, offset: int = 0) -> Tensor:
    """Return a matrix with the elements of x on a diagonal, and zeros elsewhere."""
    return diag(flatten(x), offset)


def block_diag(*tensors: Any) -> Tensor:
    """Return a matrix with the tensors as blocks on its diagonal, and zeros elsewhere; vectors and scalars are matrices of one row.

    Raises: ShapeError for a tensor with more than two axes.
    """
    blocks = all_tensors("block_diag", in_one_list(tensors))
    for x in blocks:
        if x.ndim > 2:
            raise ShapeError(f"block_diag at {user_line()}: the tensors must have at most two axes; got {x.tensor_type}")
    blocks = [x if x.ndim == 2 else reshape(x, (1, x.tensor_type.size)) for x in together("block_diag", *blocks)]
    height, width = (sum(x.shape[axis] for x in blocks) for axis in (0, 1))
    result, row, column = constant_like(blocks[0], (height, width), 0), 0, 0
    for x in blocks:
        stop = (row + x.shape[0], column + x.shape[1])
        if x.tensor_type.size:
            result = run(SliceUpdate(Slice((row, column), stop, (1, 1))), result, x)
        row, column = stop
    return result


def _triangle(what: str, indices: Any, row: Any, col: Any, offset: Any, options: dict[str, Any]) -> Tensor:
    rows, columns = integer(what, row), integer(what, col)
    if rows < 0 or columns < 0:
        raise ArgumentError(f"{what} at {user_line()}: row={row} and col={col} must not be negative")
    check_size(what, "row, col or offset", rows, columns, integer(what, offset))
    options.pop("layout", None)
    options.setdefault("dtype", int64)
    return creation.tensor(np.stack(indices(rows, integer(what, offset), columns)), **options)


def tril_indices(row: int, col: int, offset: int = 0, **options: Any) -> Tensor:
    """Return the indices [2, n] of the lower triangle of a matrix, row by row; see `tril`."""
    return _triangle("tril_indices", np.tril_indices, row, col, offset, options)


def triu_indices(row: int, col: int, offset: int = 0, **options: Any) -> Tensor:
    """Return the indices [2, n] of the upper triangle of a matrix, row by row; see `triu`."""
    return _triangle("triu_indices", np.triu_indices, row, col, offset, options)


# -------------------------------------------------------------------- differences and windows


@checks_arguments
def diff(x: Tensor, n: int = 1, dim: int = -1, prepend: Tensor | None = None, append: Tensor | None = None) -> Tensor:
    """Return the n-th differences of neighbours along axis `dim`, after joining `prepend` and `append` to x.

    A difference of bools is True if they differ.  Raises: ShapeError for a tensor without axes, ArgumentError for a negative n.
    """
    if not x.ndim or n < 0:
        error = ArgumentError if n < 0 else ShapeError
        raise error(f"diff at {user_line()}: x must have at least one axis, and n must not be negative; got {x.tensor_type} and n={n}")
    axis = axis_of("diff", dim, x.ndim)
    if not n:
        return x.clone()
    parts = [part for part in (prepend, x, append) if part is not None]
    x = cat(parts, axis) if len(parts) > 1 else x
    for _ in range(min(n, x.shape[axis])):
        length = max(x.shape[axis] - 1, 0)
        later, earlier = narrow(x, axis, min(1, x.shape[axis]), length), narrow(x, axis, 0, length)
        x = logical_xor(later, earlier) if x.dtype is bool_ else sub(later, earlier)
    return x


@checks_arguments
def unfold(x: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """Return the windows of `size` elements of axis `dimension`, one every `step` elements, along a new last axis.

    Raises: ShapeError for windows longer than the axis, ArgumentError for a step below 1.
    """
    axis = axis_of("unfold", dimension, x.ndim)
    if not x.ndim:
        return reshape(unfold(reshape(x, 1), 0, size, step), size)
    n = x.shape[axis]
    if not 0 <= size <= n or step < 1:
        error = ArgumentError if step < 1 or size < 0 else ShapeError
        raise error(f"unfold at {user_line()}: size {size} must be from 0 to {n}, the size of axis {axis}, and step {step} at least 1")
    starts = np.arange(0, n - size + 1, step)
    ids = listed(x, (starts[:, None] + np.arange(size)).astype(np.int64))
    return movedim(run(Gather(axis), x, ids), axis + 1, -1)


# -------------------------------------------------------------------- products of sets


@checks_arguments
def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """Return the combinations of r elements of a vector, one per row; with `with_replacement`, elements may repeat.

    Raises: ShapeError unless `input` is a vector.
    """
    if input.ndim != 1 or r < 0:
        raise ShapeError(f"combinations at {user_line()}: input must be a vector, and r not negative; got {input.tensor_type} and r={r}")
    if not r:
        return constant_like(input, (0,), 0)
    n = input.shape[0]
    grid = np.indices((n,) * r).reshape(r, -1)
    ascending = (np.diff(grid, axis=0) >= (0 if with_replacement else 1)).all(0)
    return run(Gather(0), input, listed(input, np.ascontiguousarray(grid[:, ascending].T.astype(np.int64))))


def cartesian_prod(*tensors: Any) -> Tensor:
    """Return the combinations of one element of each vector, one per row; return a single vector unchanged."""
    vectors = all_tensors("cartesian_prod", in_one_list(tensors))
    for x in vectors:
        if x.ndim != 1:
            raise ShapeError(f"cartesian_prod at {user_line()}: the tensors must be vectors; got {x.tensor_type}; use x.flatten()")
    if len(vectors) == 1:
        return vectors[0]
    return reshape(stack([flatten(grid) for grid in meshgrid(*vectors)], -1), (math.prod(x.shape[0] for x in vectors), len(vectors)))


class RearrangingMethods:
    """Functions that split, flip, rotate and window tensors as methods."""

    __slots__ = ()

    H = attribute(_adjoint)
    diag_embed = method(diag_embed)
    diagflat = method(diagflat)
    diff = method(diff)
    dsplit = method(dsplit)
    fliplr = method(fliplr)
    flipud = method(flipud)
    hsplit = method(hsplit)
    mH = attribute(lambda x: transpose(x, -2, -1))
    ravel = method(ravel)
    rot90 = method(rot90)
    tensor_split = method(tensor_split)
    unfold = method(unfold)
    vsplit = method(vsplit)
