"""Functions that reshape tensors, reorder their axes, or repeat their elements.

Results are views where possible.  A view shares memory with the input, and writing into the view changes the input.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

from jobflow.core.errors import ArgumentError, AxisError, DtypeError, JobError, ShapeError, user_line
from jobflow.core.types import DType
from jobflow.functional.dispatch import attribute, method
from jobflow.functional.promotion import cast
from jobflow.functional.typed import Tensor
from jobflow.ops.axes import ExpandDims, Reshape, Squeeze, Transpose, tiled_shapes
from jobflow.ops.broadcast import BroadcastTo
from jobflow.ops.layout_ops import Identity
from jobflow.ops.slices import Flip
from jobflow.tensors.constant_values import depends_on_run
from jobflow.tensors.run import run
from jobflow.tensors.state import running
from jobflow.tensors.tensor import Size

__all__ = [
    "broadcast_tensors", "broadcast_to", "expand", "flatten", "flip", "moveaxis", "movedim", "numel", "permute", "repeat",
    "reshape", "squeeze", "swapaxes", "swapdims", "t", "tile", "transpose", "unflatten", "unsqueeze",
]  # fmt: skip


def sizes(arguments: Sequence[Any]) -> tuple[int, ...]:
    """Return the sizes passed as f(2, 3), f((2, 3)), f([2, 3]) or f(Size)."""
    if len(arguments) == 1 and isinstance(arguments[0], Sequence):
        arguments = arguments[0]
    return tuple(integer("a size", n) for n in arguments)


def integer(what: str, value: Any) -> int:
    """Return an int from an integer of Python or NumPy, or a tensor of one integer; raise DtypeError for other values."""
    if isinstance(value, Tensor) and depends_on_run(value):
        raise JobError(
            f"{what} at {user_line()}: the value of the tensor {value.tensor_type} is not known while {running()} runs; "
            "pass an int, or select elements with index_select or gather"
        )
    try:
        return operator.index(value)
    except TypeError:
        raise DtypeError(f"{what} at {user_line()}: {value!r} of type {type(value).__name__} is not an integer") from None


def axis_of(what: str, dim: int, ndim: int) -> int:
    """Return `dim` as a nonnegative axis; raise AxisError if it is out of range.  A tensor without axes accepts 0 and -1."""
    dim = dim if type(dim) is int else integer(f"{what}(dim=...)", dim)
    room = max(ndim, 1)
    if not -room <= dim < room:
        raise AxisError(f"{what} at {user_line()}: dim {dim} is out of range, {-room} to {room - 1}, for a tensor with ndim={ndim}")
    return dim % room


def _filled(what: str, x: Tensor, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return `shape` with -1 replaced by the size that fits the elements of x; raise ShapeError if the number of elements differs."""
    known = math.prod(n for n in shape if n != -1)
    if shape.count(-1) == 1 and known and x.tensor_type.size % known == 0:
        return tuple(x.tensor_type.size // known if n == -1 else n for n in shape)
    if -1 in shape or known != x.tensor_type.size:
        raise ShapeError(f"{what} at {user_line()}: {x.tensor_type} has {x.tensor_type.size} elements, which do not fill the shape {list(shape)}")
    return shape


def reshape(x: Tensor, *shape: Any) -> Tensor:
    """Return the elements of x in another shape; one size may be -1.  The result is a view where possible.

    Raises: ShapeError if the number of elements differs.

    Examples:
        >>> flow.arange(6).reshape(2, -1)
        tensor([[0, 1, 2],
                [3, 4, 5]], dtype=jobflow.int64)
    """
    return run(Reshape(_filled("reshape", x, sizes(shape))), x)


def view(x: Tensor, *size: Any) -> Tensor:
    """Return a view of x in another shape, see `reshape`; for an element type as argument, return x cast to that type.

    Raises: ShapeError if the memory layout of a local tensor allows no view, or if the number of elements differs.
    """
    if len(size) == 1 and isinstance(size[0], DType):
        return cast(x, size[0])
    op = Reshape(_filled("view", x, sizes(size)))
    if x.layout is None and x.traced is None and not _viewable(x, op):
        raise ShapeError(
            f"view at {user_line()}: {x.tensor_type} cannot be viewed as {list(op.shape)}, because its elements are not contiguous in memory "
            f"(it is a transposed or sliced view itself); use reshape, or contiguous() first"
        )
    return run(op, x)


def _viewable(x: Tensor, op: Reshape) -> bool:
    try:
        op.view(x.array)
    except ValueError:
        return False
    return True


def view_as(x: Tensor, other: Tensor) -> Tensor:
    """Return x as a view in the shape of `other`; see `view`."""
    return view(x, other.shape)


def reshape_as(x: Tensor, other: Tensor) -> Tensor:
    """Return x in the shape of `other`; see `reshape`."""
    return reshape(x, other.shape)


def flatten(x: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Return x with the axes from `start_dim` to `end_dim`, both included, merged into one.

    Raises: ShapeError if `start_dim` comes after `end_dim`.
    """
    first, last = axis_of("flatten", start_dim, x.ndim), axis_of("flatten", end_dim, x.ndim)
    if first > last:
        raise ShapeError(f"flatten at {user_line()}: start_dim {start_dim} comes after end_dim {end_dim} of {x.tensor_type}")
    return reshape(x, (*x.shape[:first], math.prod(x.shape[first : last + 1]), *x.shape[last + 1 :]))


def unflatten(x: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    """Return x with axis `dim` split into axes of these sizes; one may be -1.

    Raises: ShapeError unless the product of the sizes is the size of the axis.
    """
    at = axis_of("unflatten", dim, x.ndim)
    if not x.ndim:
        raise ShapeError(f"unflatten at {user_line()}: {x.tensor_type} has no axis to unflatten")
    new_sizes = tuple(int(n) for n in sizes)
    if -1 in new_sizes:
        known = math.prod(n for n in new_sizes if n != -1)
        new_sizes = tuple(x.shape[at] // max(known, 1) if n == -1 else n for n in new_sizes)
    if math.prod(new_sizes) != x.shape[at]:
        raise ShapeError(
            f"unflatten at {user_line()}: the product of sizes {list(sizes)} is not the size of axis {at} of {x.tensor_type}; "
            f"pass sizes whose product is {x.shape[at]}"
        )
    return reshape(x, (*x.shape[:at], *new_sizes, *x.shape[at + 1 :]))


def squeeze(x: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    """Return x without its axes of size 1, or without the axes of size 1 among `dim`."""
    named = range(x.ndim) if dim is None else [axis_of("squeeze", d, x.ndim) for d in ([dim] if isinstance(dim, int) else dim)]
    gone = tuple(sorted({axis for axis in named if axis < x.ndim and x.shape[axis] == 1}))
    return run(Squeeze(gone), x)


def unsqueeze(x: Tensor, dim: int) -> Tensor:
    """Return x with a new axis of size 1 as axis `dim` of the result."""
    return run(ExpandDims(axis_of("unsqueeze", dim, x.ndim + 1)), x)


def transpose(x: Tensor, dim0: int, dim1: int) -> Tensor:
    """Return x with the axes `dim0` and `dim1` swapped."""
    order = list(range(max(x.ndim, 1)))
    a, b = axis_of("transpose", dim0, x.ndim), axis_of("transpose", dim1, x.ndim)
    order[a], order[b] = order[b], order[a]
    return permute(x, order[: x.ndim])


swapaxes = swapdims = transpose


def permute(x: Tensor, *dims: Any) -> Tensor:
    """Return x with its axes in the order `dims`.  Raises: ShapeError unless `dims` is a permutation of the axes."""
    order = tuple(axis_of("permute", d, x.ndim) for d in sizes(dims))
    if sorted(order) != list(range(x.ndim)):
        raise ShapeError(f"permute at {user_line()}: dims {list(order)} is not a permutation of the axes of {x.tensor_type}")
    return run(Transpose(order), x)


def t(x: Tensor) -> Tensor:
    """Return the transpose of a matrix; a vector or scalar unchanged.  Raises: ShapeError for more than two axes."""
    if x.ndim > 2:
        raise ShapeError(f"t at {user_line()}: x must have at most two axes; got {x.tensor_type}; use transpose(dim0, dim1)")
    return permute(x, range(x.ndim)[::-1])


def _turned(x: Tensor) -> Tensor:
    """The tensor with its axes in reverse order."""
    return permute(x, range(x.ndim)[::-1])


def _turned_matrices(x: Tensor) -> Tensor:
    """The tensor with its last two axes swapped."""
    return transpose(x, -2, -1)


def movedim(x: Tensor, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor:
    """Return x with the axes `source` moved to the positions `destination`; the other axes keep their order.

    Raises: ShapeError unless `source` and `destination` name the same number of different axes.
    """
    here, there = (
        [axis_of("movedim", d, x.ndim) for d in (argument if isinstance(argument, Sequence) else [argument])] for argument in (source, destination)
    )
    if len(here) != len(there) or len(set(here)) != len(here) or len(set(there)) != len(there):
        raise ShapeError(f"movedim at {user_line()}: source {source} and destination {destination} must name the same number of different axes")
    if not x.ndim:
        return x
    order = [axis for axis in range(x.ndim) if axis not in here]
    for to, axis in sorted(zip(there, here, strict=True)):
        order.insert(to, axis)
    return permute(x, order)


moveaxis = movedim


def flip(x: Tensor, *dims: Any) -> Tensor:
    """Return x reversed along the axes `dims`."""
    axes = tuple(sorted({axis_of("flip", d, x.ndim) for d in sizes(dims)}))
    return run(Flip(axes), x) if x.ndim else run(Identity(), x)


def expand(x: Tensor, *size: Any) -> Tensor:
    """Return x repeated along its axes of size 1 and along new leading axes; -1 keeps the size of an axis.

    Raises: ShapeError if another axis would change.
    """
    target = sizes(size)
    lead = len(target) - x.ndim
    filled = tuple(x.shape[i - lead] if n == -1 and i >= lead else n for i, n in enumerate(target))
    if lead < 0 or any(n < 0 for n in filled) or any(n not in (1, m) for n, m in zip(x.shape, filled[lead:], strict=True)):
        raise ShapeError(f"expand at {user_line()}: {x.tensor_type} does not expand to {list(target)}; only axes of size 1 are repeated")
    return run(BroadcastTo(filled), x)


def expand_as(x: Tensor, other: Tensor) -> Tensor:
    """Return x expanded to the shape of `other`; see `expand`."""
    return expand(x, other.shape)


def broadcast_to(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Return x expanded to a shape; see `expand`."""
    return expand(x, shape)


def broadcast_tensors(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors expanded to their common shape.  Raises: ShapeError if they do not broadcast together, ArgumentError without tensors."""
    if not tensors:
        raise ArgumentError(f"broadcast_tensors at {user_line()}: at least one tensor is needed")
    shape = common_shape("broadcast_tensors", *(x.shape for x in tensors))
    return tuple(expand(x, shape) for x in tensors)


def common_shape(what: str, *shapes: Sequence[int]) -> tuple[int, ...]:
    """Return the shape to which the shapes broadcast; raise ShapeError if they do not broadcast."""
    ndim = max(map(len, shapes))
    columns = zip(*((1,) * (ndim - len(shape)) + tuple(shape) for shape in shapes), strict=True)
    column_sizes = [({*column} - {1}) or {1} for column in columns]
    if any(len(column) > 1 for column in column_sizes):
        raise ShapeError(f"{what} at {user_line()}: {' and '.join(str(list(shape)) for shape in shapes)} do not broadcast together")
    return tuple(column.pop() for column in column_sizes)


def expanded_together(what: str, *tensors: Tensor) -> list[Tensor]:
    """Return the tensors expanded to their common shape; raise ShapeError if they do not broadcast together."""
    shape = common_shape(what, *(x.shape for x in tensors))
    return [x if tuple(x.shape) == shape else expand(x, shape) for x in tensors]


def repeat(x: Tensor, *repeats: Any) -> Tensor:
    """Return x concatenated repeats[i] times along axis i; additional leading counts add leading axes.

    Raises: ShapeError for a negative count, or fewer counts than axes.
    """
    times = sizes(repeats)
    if len(times) < x.ndim or any(n < 0 for n in times):
        raise ShapeError(f"repeat at {user_line()}: {list(times)} must have one count >= 0 for each axis of {x.tensor_type}")
    between, repeated, whole = tiled_shapes((1,) * (len(times) - x.ndim) + tuple(x.shape), times)
    return run(Reshape(whole), run(BroadcastTo(repeated), run(Reshape(between), x)))


def tile(x: Tensor, *dims: Any) -> Tensor:
    """Return x concatenated dims[i] times along axis i, see `repeat`; missing leading counts are 1."""
    times = sizes(dims)
    return repeat(x, (1,) * (x.ndim - len(times)) + times)


def size(x: Tensor, dim: int | None = None) -> Size | int:
    """Return the logical shape, or the size of axis `dim`."""
    return x.shape if dim is None else x.shape[axis_of("size", dim, x.ndim)]


def dim(x: Tensor) -> int:
    """Return the number of axes."""
    return x.ndim


def numel(x: Tensor) -> int:
    """Return the number of elements of the logical tensor."""
    return x.tensor_type.size


class ShapeMethods:
    """Methods of tensors for shapes."""

    __slots__ = ()

    T = attribute(_turned)
    broadcast_to = method(broadcast_to)
    dim = method(dim)
    expand = method(expand)
    expand_as = method(expand_as)
    flatten = method(flatten)
    flip = method(flip)
    mT = attribute(_turned_matrices)
    movedim = method(movedim)
    numel = method(numel)
    permute = method(permute)
    repeat = method(repeat)
    reshape = method(reshape)
    reshape_as = method(reshape_as)
    size = method(size)
    squeeze = method(squeeze)
    t = method(t)
    tile = method(tile)
    transpose = method(transpose)
    unflatten = method(unflatten)
    unsqueeze = method(unsqueeze)
    view = method(view)
    view_as = method(view_as)
    moveaxis = method(movedim, "moveaxis")
    ndimension = method(dim, "ndimension")
    nelement = method(numel, "nelement")
    swapaxes = method(transpose, "swapaxes")
    swapdims = method(transpose, "swapdims")
