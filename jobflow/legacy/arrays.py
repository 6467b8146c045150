"""Top-level functions on arrays with the conventions of the job API: flow.reshape, flow.concat, flow.gather, flow.matmul ...

Python numbers are converted to the element type of the tensor operand. `name` becomes the name of the last traced op.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import jobflow.core.scope as scope
import jobflow.functional as functional
from jobflow.core.errors import ArgumentError, DtypeError, JobError, ShapeError, user_line
from jobflow.core.types import DType, Tensor, bool_, dtype_of, int32, int64
from jobflow.engine.sizes import sizes
from jobflow.legacy.job_dispatch import ALIAS, alias, all_of, of_jobs, traced
from jobflow.legacy.operands import Operand, counts, filling, fitting, may_be_empty, spans, tensors
from jobflow.ops import broadcast as bc
from jobflow.ops import elementwise as ew
from jobflow.ops import index as ix
from jobflow.ops import matmul as la
from jobflow.ops import shape as sh
from jobflow.ops import slices as sl
from jobflow.ops import source
from jobflow.ops.layout_ops import Identity, StaticShape
from jobflow.ops.op import apply, normal_axis
from jobflow.ops.runtime_assertions import assert_bounds
from jobflow.ops.scalar import Cast, InHalf
from jobflow.ops.windows import explicit_padding

Name = str | None
#: untyped, because its functions are called with tensors of jobs here
_F: Any = functional


def _ints(what: str, argument: str, arguments: Any) -> tuple[int, ...]:
    """Return a list or tuple of ints as a tuple; raise ArgumentError for other values."""
    if not isinstance(arguments, list | tuple) or not all(isinstance(n, Integral) for n in arguments):
        raise ArgumentError(f"{what} at {user_line()}: {argument} must be a list or tuple of ints, not {arguments!r}")
    return sizes(arguments)


def _axis(what: str, axis: int, ndim: int) -> int:
    return normal_axis(f"{what} at {user_line()}", axis, ndim)


# Element types and constants ----------------------------------------------------------------------------------------


def _dtype(what: str, dtype: Any) -> DType:
    """Return the element type for `dtype`, an element type or an argument of np.dtype; raise ArgumentError for other values."""
    try:
        return dtype_of(dtype if dtype is not None else "?none")  # np.dtype(None) would be float64
    except (KeyError, TypeError, ValueError):
        raise ArgumentError(f"{what} at {user_line()}: dtype must be an element type, for example jobflow.float32, not {dtype!r}") from None


def cast(x: Tensor, dtype: DType, name: Name = None) -> Tensor:
    """Convert x to `dtype`, or return x itself if it has that type.

    Gradients also pass through a cast to an integer type, unless x is bool.
    """
    kind = _dtype("cast", dtype)
    through = x.tensor_type.dtype is not bool_ and kind.is_integer
    return x if x.tensor_type.dtype is kind else apply(Cast(kind, through), x)


def identity(x: Tensor, name: Name = None) -> Tensor:
    """Return x unchanged, as the output of an Identity op."""
    return apply(Identity(), x)


def cast_to_static_shape(x: Tensor, name: Name = None) -> Tensor:
    """Declare that x has the same shape on all devices.

    A loss computed from the result is averaged over its elements.
    """
    return apply(StaticShape(), x)


def amp_white_identity(x: Tensor, name: Name = None) -> Tensor:
    """Return x, in half precision under automatic mixed precision, so that neighbouring ops can run in half precision."""
    return apply(InHalf(), x)


def constant(value: float, dtype: DType | None = None, shape: Sequence[int] | None = None, name: Name = None) -> Tensor:
    """Return a tensor filled with `value`; `shape` defaults to (1,), and `dtype` is required."""
    kind, whole = _dtype("constant", dtype), (1,) if shape is None else _ints("constant", "shape", shape)
    if min(whole, default=0) < 0:
        raise ArgumentError(f"constant at {user_line()}: shape {list(whole)} must have no negative size")
    return source.constant(filling("constant", value, kind), whole, kind)


def constant_scalar(value: float, dtype: DType | None = None, name: Name = None) -> Tensor:
    """Return a tensor of shape (1,) filled with `value`; `dtype` is required."""
    return constant(value, dtype, (1,))


def constant_like(like: Tensor, value: float, dtype: DType | None = None, name: Name = None) -> Tensor:
    """Return a tensor filled with `value`, with the shape of `like` and, by default, its element type."""
    kind = like.tensor_type.dtype if dtype is None else _dtype("constant_like", dtype)
    return ew.fill_like(like, filling("constant_like", value, kind), dtype=kind)


def ones_like(like: Tensor, dtype: DType | None = None, name: Name = None) -> Tensor:
    """Return a tensor of ones with the shape of `like` and, by default, its element type."""
    return constant_like(like, 1, dtype)


def zeros_like(like: Tensor, dtype: DType | None = None, name: Name = None) -> Tensor:
    """Return a tensor of zeros with the shape of `like` and, by default, its element type."""
    return constant_like(like, 0, dtype)


def ones(shape: Sequence[int], dtype: DType | None = None, name: Name = None) -> Tensor:
    """Return a tensor of ones with the shape `shape`; `dtype` is required."""
    return constant(1, dtype, shape)


def zeros(shape: Sequence[int], dtype: DType | None = None, name: Name = None) -> Tensor:
    """Return a tensor of zeros with the shape `shape`; `dtype` is required."""
    return constant(0, dtype, shape)


def range(start: int, limit: int | None = None, delta: int = 1, dtype: DType | None = None, name: str = "range") -> Tensor:
    """Return the vector start, start + delta, ... of numbers below `limit`; the default type is int64. range(n) is range(0, n).

    Raises: ArgumentError if the range is empty or `delta` is not positive.
    """
    first, stop = (0, start) if limit is None else (start, limit)
    _ints("range", "start, limit and delta", (first, stop, delta))
    if delta <= 0 or stop <= first:
        raise ArgumentError(f"range at {user_line()}: start must be below limit and delta positive, not start {first}, limit {stop}, delta {delta}")
    return source.arange(first, stop, delta, dtype=dtype or int64)


# Shapes -------------------------------------------------------------------------------------------------------------


def reshape(x: Tensor, shape: Sequence[int], name: Name = None) -> Tensor:
    """Reshape x to `shape`; one entry may be -1, which is inferred from the number of elements."""
    target = _ints("reshape", "shape", shape)
    known, size = math.prod(n for n in target if n != -1), x.tensor_type.size
    if known == size == 0 and -1 in target:  # no rows: infer from the size of a row
        known, size = (math.prod(n for n in each if n not in (-1, 0)) for each in (target, x.tensor_type.shape))
    if target.count(-1) > 1 or any(n < -1 or n == 0 for n in shape):
        raise ArgumentError(f"reshape at {user_line()}: shape {list(target)} may have one -1, and its other entries must be positive")
    if (not known or size % known) if -1 in target else size != known:
        raise ArgumentError(f"reshape at {user_line()}: the {x.tensor_type.size} elements of x {x.tensor_type} do not fill shape {list(target)}")
    return sh.reshape(x, tuple(size // known if n == -1 else n for n in target))


def reshape_like(x: Tensor, like: Tensor, name: Name = None) -> Tensor:
    """Reshape x to the shape of `like`."""
    return reshape(x, like.tensor_type.shape)


def dynamic_reshape(x: Tensor, shape: Sequence[int], name: Name = None) -> Tensor:
    """Reshape x to `shape`; x must have its declared shape in every run."""
    return reshape(x, shape)


flatten = alias(_F.flatten, "input", start_dim=0, end_dim=-1)


def transpose(
    a: Tensor, perm: Sequence[int] | None = None, conjugate: bool = False, batch_axis_non_change: bool = False, name: Name = None
) -> Tensor:
    """Permute axes: axis i of the result is axis perm[i] of a.

    `perm` is required. `batch_axis_non_change` has no effect.
    """
    old_name = batch_axis_non_change if isinstance(batch_axis_non_change, str) else None  # its position in OneFlow 0.2
    if conjugate:
        raise JobError(f"transpose at {user_line()}: conjugate=True requires complex tensors, which are not supported; omit it")
    order = tuple(_axis("transpose", i, a.tensor_type.ndim) for i in _ints("transpose", "perm", perm))
    if sorted(order) != list(builtins.range(a.tensor_type.ndim)):
        raise ArgumentError(f"transpose at {user_line()}: perm {perm} is not a permutation of the {a.tensor_type.ndim} axes of {a.tensor_type}")
    return sh.transpose(a, order, name=old_name)


expand_dims = alias(_F.unsqueeze, "input", axis=...)


def squeeze(input: Tensor, axis: Sequence[int] | None = None, name: Name = None) -> Tensor:
    """Remove the listed axes, which must have size 1; None removes all axes of size 1.

    A tensor of one element keeps the shape (1,).
    """
    shape = input.tensor_type.shape
    if axis is None:
        removed = [i for i, n in enumerate(shape) if n == 1]
    else:
        removed = [_axis("squeeze", i, len(shape)) for i in _ints("squeeze", "axis", axis)]
    if any(shape[i] != 1 for i in removed):
        raise ShapeError(f"squeeze at {user_line()}: axis {list(removed)} of input {input.tensor_type} must have size 1")
    return sh.reshape(input, tuple(n for i, n in enumerate(shape) if i not in removed) or (1,))


def expand(x: Tensor, expand_size: Sequence[int], name: Name = None) -> Tensor:
    """Repeat x to `expand_size` along axes of size 1 and new leading axes; -1 keeps the size of an axis."""
    target = _ints("expand", "expand_size", expand_size)
    if len(target) < x.tensor_type.ndim or any(n < -1 for n in target) or -1 in target[: len(target) - x.tensor_type.ndim]:
        raise ArgumentError(
            f"expand at {user_line()}: expand_size {list(target)} must have an entry for each axis of x {x.tensor_type}; "
            "new leading axes must not be -1"
        )
    return _F.expand(x, target)


def broadcast_like(x: Tensor, like: Tensor, broadcast_axes: Sequence[int] | None = None, name: Name = None) -> Tensor:
    """Broadcast x to the shape of `like`; `broadcast_axes` lists the axes of `like` that x lacks or that have size 1 in x."""
    shape = like.tensor_type.shape
    if broadcast_axes is None or len(x.tensor_type.shape) == len(shape):
        return bc.broadcast_to(x, shape)
    axes = {_axis("broadcast_like", i, len(shape)) for i in _ints("broadcast_like", "broadcast_axes", broadcast_axes)}
    remaining = tuple(1 if i in axes else n for i, n in enumerate(shape))
    return bc.broadcast_to(sh.reshape(x, remaining), shape)


def concat(
    inputs: Sequence[Tensor] | None = None,
    axis: int = 0,
    max_dim_size: int | None = None,
    name: Name = None,
    values: Sequence[Tensor] | None = None,
) -> Tensor:
    """Concatenate tensors along `axis`; a single tensor is returned unchanged.

    `max_dim_size` is an upper bound of the result's size along `axis`, for inputs of dynamic size. `values` is an alias of `inputs`.
    """
    parts = inputs if inputs is not None else values
    if not isinstance(parts, list | tuple) or not parts:
        raise ArgumentError(f"concat at {user_line()}: inputs must be a non-empty list of tensors, not {parts!r}")
    if len(parts) == 1:
        return _only(parts)
    along = _axis("concat", axis, parts[0].tensor_type.ndim)
    result = sl.concat(list(parts), along)
    return result if max_dim_size is None else _at_most(max_dim_size, result, parts, along)


def _at_most(most: int, result: Tensor, parts: Sequence[Tensor], axis: int) -> Tensor:
    """Limit the dynamic size of `result`, the concatenated `parts`, along `axis` to `most`; a run with a larger size raises an error.

    Raises: ArgumentError if the parts of static shape alone exceed `most`.
    """
    what, length = f"concat at {user_line()}", result.tensor_type.shape[axis]
    counts("concat", max_dim_size=most)
    static = sum(part.tensor_type.shape[axis] for part in parts if not may_be_empty(part))
    if static > most:
        raise ArgumentError(f"{what}: max_dim_size {most} is below {static}, the size of the inputs of static shape along axis {axis}")
    if static == length:
        return result
    if length > most:
        recorder: Any = scope.current().interpreter
        recorder.body.refuse(f"{what}: size {length} along axis {axis} exceeds max_dim_size {most}")
    stops = list(result.tensor_type.shape)
    stops[axis] = min(length, most)
    return apply(sl.Slice((0,) * len(stops), tuple(stops), (1,) * len(stops)), result)  # also over the full length, so that op names do not change


def _only(parts: Sequence[Tensor]) -> Tensor:
    return parts[0]


def stack(inputs: Sequence[Tensor], axis: int = 0, name: Name = None) -> Tensor:
    """Stack tensors of equal shape along the new axis `axis`."""
    parts = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    if not parts or any(t.tensor_type.shape != parts[0].tensor_type.shape for t in parts):
        listed = ", ".join(str(t.tensor_type) for t in parts) or "empty"
        raise ShapeError(f"stack at {user_line()}: inputs must be tensors of equal shape, but the list is {listed}")
    return sl.stack(parts, _axis("stack", axis, parts[0].tensor_type.ndim + 1))


# Slices and padding-------------------------------------------------------------------------------------------------


def slice(x: Tensor, begin: Sequence[int | None], size: Sequence[int | None], name: Name = None) -> Tensor:
    """Return x[begin : begin + size] along every axis.

    A `begin` of None means 0, and a negative `begin` counts from the end of the axis. A `size` that is None, -1 or too large extends to the end.
    """
    shape = x.tensor_type.shape
    for argument, entries in (("begin", begin), ("size", size)):
        if not isinstance(entries, list | tuple) or len(entries) != len(shape):
            raise ArgumentError(f"slice at {user_line()}: {argument} {entries!r} must be a list with one entry for each of the {len(shape)} axes")
    spans = [_span(x, i, begin[i], size[i]) for i in builtins.range(len(shape))]
    return sl.slice_(x, [a for a, _ in spans], [b for _, b in spans])


def _span(x: Tensor, axis: int, begin: int | None, size: int | None) -> tuple[int, int]:
    n = x.tensor_type.shape[axis]
    start = 0 if begin is None else begin + n if begin < 0 else begin
    stop = n if size in (None, -1) else min(start + int(size or 0), n)
    if may_be_empty(x):
        return min(max(start, 0), n), max(stop, min(max(start, 0), n))
    if not 0 <= start < stop:
        raise ArgumentError(f"slice at {user_line()}: begin {begin}, size {size} select no elements of x {x.tensor_type} along axis {axis}")
    return start, stop


def slice_v2(x: Tensor, slice_tup_list: Sequence[Any], name: Name = None) -> Tensor:
    """Return x[start:stop:step] for a list of one (start, stop, step) per axis.

    Start, stop and step may be None. Axes without a tuple are not sliced.
    """
    return sl.slice_(x, *spans("slice_v2", x, slice_tup_list))


reverse = alias(_F.flip, "input", axis=...)


def _pairs(what: str, x: Tensor, paddings: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Return `paddings` as one pair (before, after) per axis of x; raise ArgumentError if it has another form."""
    arguments = isinstance(paddings, list | tuple) and all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in paddings)
    if not arguments or len(paddings) != x.tensor_type.ndim:
        raise ArgumentError(f"{what} at {user_line()}: paddings {paddings!r} must have one (before, after) for each of the {x.tensor_type.ndim} axes")
    return [(before, after) for before, after in (_ints(what, "each of paddings", tuple(pair)) for pair in paddings)]


def pad(x: Tensor, paddings: Sequence[Sequence[int]], constant_value: float = 0, name: Name = None) -> Tensor:
    """Pad each axis with (before, after) elements of constant_value; `paddings` has one pair per axis."""
    return sl.pad(x, _pairs("pad", x, paddings), fitting("pad", constant_value, x.tensor_type.dtype))


def pad_grad(x: Tensor, paddings: Sequence[Sequence[int]], constant_value: float = 0, name: Name = None) -> Tensor:
    """Return the gradient of `pad`: x without its (before, after) elements of each axis; `constant_value` has no effect."""
    pairs = _pairs("pad_grad", x, paddings)
    return slice(x, [before for before, _ in pairs], [n - sum(pair) for n, pair in zip(x.tensor_type.shape, pairs, strict=True)])


def _sides(what: str, x: Tensor, padding: int | Sequence[int]) -> tuple[int, int, int, int]:
    """Return `padding` of images [n, c, h, w] as (left, right, top, bottom); raise ArgumentError unless it is smaller than the images."""
    sides = (padding,) * 4 if isinstance(padding, int) else _ints(what, "padding", padding)
    if x.tensor_type.ndim != 4 or len(sides) != 4 or min(sides) < 0:
        raise ArgumentError(
            f"{what} at {user_line()}: padding {padding!r} must be an int or (left, right, top, bottom), and x 4-D, not {x.tensor_type}"
        )
    height, width = x.tensor_type.shape[2:]
    if max(sides[:2]) >= width or max(sides[2:]) >= height:
        raise ArgumentError(f"{what} at {user_line()}: padding {padding!r} must be smaller than the image of {x.tensor_type}")
    return sides[0], sides[1], sides[2], sides[3]


def same_padding(
    x: Tensor, padding: str, data_format: str, kernel_size: Sequence[int], strides: Sequence[int], dilation_rate: Sequence[int], name: Name = None
) -> Tensor:
    """Pad the spatial axes of x with zeros as the convolution paddings "SAME_UPPER" and "SAME_LOWER" do.

    A "VALID" convolution of the result has ceil(n / stride) positions along an axis of size n.
    """
    ndim, last = x.tensor_type.ndim - 2, str(data_format).upper().endswith("C") or data_format == "channels_last"
    sizes = [
        _ints("same_padding", word, arguments)
        for word, arguments in (("kernel_size", kernel_size), ("strides", strides), ("dilation_rate", dilation_rate))
    ]
    way = padding.lower() if isinstance(padding, str) else ""
    if way not in ("same_upper", "same_lower") or ndim < 1 or any(len(each) != ndim or min(each) < 1 for each in sizes):
        raise ArgumentError(
            f'same_padding at {user_line()}: padding {padding!r} must be "SAME_UPPER" or "SAME_LOWER", and kernel_size, strides and dilation_rate a '
            f"positive entry for each of the {max(ndim, 0)} spatial axes of {x.tensor_type}"
        )
    spatial = x.tensor_type.shape[1:-1] if last else x.tensor_type.shape[2:]
    pairs = list(explicit_padding("same_padding", way if way == "same_upper" else "same", spatial, *sizes))
    return pad(x, [(0, 0), *pairs, (0, 0)] if last else [(0, 0), (0, 0), *pairs])


def constant_pad2d(x: Tensor, padding: int | Sequence[int], constant_value: float = 0, name: Name = None) -> Tensor:
    """Pad images [n, c, h, w] with constant_value; `padding` is an int or (left, right, top, bottom)."""
    left, right, top, bottom = _sides("constant_pad2d", x, padding)
    return pad(x, [(0, 0), (0, 0), (top, bottom), (left, right)], constant_value)


def zero_pad2d(x: Tensor, padding: int | Sequence[int], name: Name = None) -> Tensor:
    """Pad images [n, c, h, w] with zeros; `padding` is an int or (left, right, top, bottom)."""
    return constant_pad2d(x, padding, 0)


def reflection_pad2d(x: Tensor, padding: int | Sequence[int], name: Name = None) -> Tensor:
    """Pad images [n, c, h, w] by reflecting them at their border elements."""
    return _framed("reflection_pad2d", x, padding, "reflect")


def replication_pad2d(x: Tensor, padding: int | Sequence[int], name: Name = None) -> Tensor:
    """Pad images [n, c, h, w] by repeating their border elements."""
    return _framed("replication_pad2d", x, padding, "replicate")


def _framed(what: str, x: Tensor, padding: int | Sequence[int], mode: str) -> Tensor:
    from jobflow.functional import nn_shapes  # few programs need it

    images: Any = x
    return nn_shapes.pad(images, _sides(what, x, padding), mode)


# Selection by index or condition ------------------------------------------------------------------------------------


def gather(
    params: Tensor, indices: Tensor, validate_indices: bool | None = None, axis: int | None = None, batch_dims: int = 0, name: Name = None
) -> Tensor:
    """Select elements of params at `indices` along `axis` (default: batch_dims).

    An index beyond the axis selects zeros. A negative index raises an error in the run.
    With batch_dims > 0, `axis` must equal batch_dims. Both operands then share the axes before the last axis of `indices`:
    params [4, 32, 8] and indices [4, 5] with axis 2 and batch_dims 2 yield [4, 5, 8].
    """
    if not indices.tensor_type.dtype.is_integer:
        raise DtypeError(f"gather at {user_line()}: indices {indices.tensor_type} must be integers; cast them")
    indices = assert_bounds(indices, "gather", low=0, noun="index")
    along = _axis("gather", batch_dims if axis is None else axis, params.tensor_type.ndim)
    if batch_dims == 0:
        return ix.gather(params, indices, along)
    if along != batch_dims:
        raise JobError(f"gather at {user_line()}: axis must equal batch_dims {batch_dims}, not {axis}")
    return ix.batch_gather(params, indices, max(indices.tensor_type.ndim - 1, 0))  # as in OneFlow 0.4, for any batch_dims


def dim_gather(input: Tensor, dim: int, index: Tensor, name: Name = None) -> Tensor:
    """Return y[i, j, ..] = input[.., index[i, j, ..], ..], where index[i, j, ..] is the position along axis `dim`."""
    at = _axis("dim_gather", dim, input.tensor_type.ndim)
    if index.tensor_type.dtype.is_integer:
        index = assert_bounds(index, "dim_gather", low=0, high=input.tensor_type.shape[at] - 1, noun="index")
    return ix.dim_gather(input, index, at)


def one_hot(
    indices: Tensor, depth: int, on_value: float = 1, off_value: float = 0, axis: int = -1, dtype: DType | None = None, name: Name = None
) -> Tensor:
    """Encode indices along a new axis of size `depth`: on_value at the index, off_value elsewhere.

    An index outside of [0, depth) yields only off_value. `dtype` is required.
    """
    counts("one_hot", depth=depth)
    kind = _dtype("one_hot", dtype)
    on, off = fitting("one_hot", on_value, kind), fitting("one_hot", off_value, kind)
    return ix.one_hot(indices, depth, dtype=kind, axis=_axis("one_hot", axis, indices.tensor_type.ndim + 1), on=on, off=off)


def where(condition: Tensor, x: Operand | None = None, y: Operand | None = None, name: Name = None) -> Tensor:
    """Select x where `condition` is not zero and y elsewhere, with broadcasting; `condition` is an integer tensor."""
    if x is None or y is None:
        raise JobError(f"where at {user_line()}: only one of x and y was passed; pass both or neither")
    if condition.tensor_type.dtype.is_float:
        raise DtypeError(f"where at {user_line()}: condition {condition.tensor_type} must be integers; use a comparison such as math.greater")
    return _F.where(condition, *tensors("where", x, y))


def masked_fill(x: Tensor, mask: Tensor, value: float, name: Name = None) -> Tensor:
    """Return `value` where mask is not zero and x elsewhere; for integer x, the fraction of `value` is dropped."""
    whole = x.tensor_type.dtype.is_integer and isinstance(value, float) and math.isfinite(value)
    return where(mask, math.trunc(value) if whole else value, x)


def elem_cnt(inputs: Tensor, dtype: DType | None = None, name: Name = None) -> Tensor:
    """Return the number of elements of `inputs` as a tensor of shape (1,); the default dtype is int32."""
    return constant(inputs.tensor_type.size, dtype or int32, (1,))


# Products -----------------------------------------------------------------------------------------------------------


def matmul(a: Tensor, b: Tensor, transpose_a: bool = False, transpose_b: bool = False, alpha: float = 1.0, name: Name = None) -> Tensor:
    """Return alpha times the matrix product of a and b over the last two axes.

    Leading axes of a and b must be equal. If b is a matrix, a may have leading axes but cannot be transposed.
    """
    s, t = a.tensor_type, b.tensor_type
    if min(s.ndim, t.ndim) < 2 or (s.ndim != t.ndim and t.ndim != 2):
        raise ShapeError(f"matmul at {user_line()}: a {s} and b {t} must have the same number of axes, at least 2, or b must be a matrix")
    if s.ndim == t.ndim and s.shape[:-2] != t.shape[:-2]:
        raise ShapeError(f"matmul at {user_line()}: a {s} and b {t} must have equal leading axes, which are not broadcast")
    if s.ndim > t.ndim and transpose_a:
        raise ShapeError(f"matmul at {user_line()}: if b {t} is a matrix, transpose_a requires that a is a matrix, not {s}")
    plain = alpha == 1.0
    y = la.matmul(a, b, transpose_a=bool(transpose_a), transpose_b=bool(transpose_b))
    return y if plain else ew.scale(y, alpha)


def _identity_n(inputs: Sequence[Tensor], name: Name = None) -> list[Tensor]:
    """Apply `identity` to each tensor; the op of tensor i is named `<name>_<i>`."""
    return [identity(x, name if name is None else f"{name}_{i}") for i, x in enumerate(inputs)]


globals().update(all_of(__name__, globals(), (__name__, ALIAS), traced))
identity_n = all_of(__name__, {"identity_n": _identity_n}, __name__, of_jobs)["identity_n"]  # names each op itself
