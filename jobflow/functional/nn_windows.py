"""Sliding windows as tables of indices: unfold and fold, and maxima of windows with their positions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jobflow.core.errors import DtypeError, ShapeError, user_line
from jobflow.core.signatures import variant
from jobflow.core.types import Array, int64
from jobflow.core.types import Tensor as Value
from jobflow.functional.nn_base import Sizes, composed, formula, sizes
from jobflow.functional.nn_conv import batched, unbatched
from jobflow.functional.typed import Tensor
from jobflow.ops import elementwise as ew
from jobflow.ops import reduce as rd
from jobflow.ops import shape as sh
from jobflow.ops.index import dim_gather, gather, unsorted_segment_sum
from jobflow.ops.op import apply
from jobflow.ops.runtime_assertions import check, class_assertion
from jobflow.ops.scatter import scatter
from jobflow.ops.source import Literal, constant

__all__ = ["fold", "max_unpool1d", "max_unpool2d", "max_unpool3d", "unfold"]


def literal(array: Array) -> Value:
    """Return a tensor with the elements of a constant array."""
    result: Value = apply(Literal.of(array))
    return result


def taps(count: int, kernel: int, stride: int, dilation: int, before: int) -> Array:
    """Return the index that tap k of window i reads, [count, kernel]; `before` is the padding before the axis."""
    return np.arange(count)[:, None] * stride + np.arange(kernel) * dilation - before


# -------------------------------------------------------------------- maxima with positions


@dataclass(frozen=True)
class Windows:
    """The windows along one axis: the index of each tap, [windows, taps], and the windows without any element."""

    index: Array
    empty: Array

    @classmethod
    def of(cls, index: Array, start: Any, stop: Any) -> Windows:
        """Return windows whose taps outside [start, stop) repeat the nearest tap inside, which changes neither maximum nor first position."""
        inside = (index >= start) & (index < stop)
        first = np.where(inside, index, np.iinfo(np.int64).max).min(1, keepdims=True, initial=np.iinfo(np.int64).max)
        last = np.where(inside, index, -1).max(1, keepdims=True, initial=-1)
        return cls(np.clip(np.minimum(np.maximum(index, first), last), 0, None), ~inside.any(1))


def largest(x: Value, windows: Sequence[Windows]) -> tuple[Value, Value]:
    """Return the maxima of windows of x [n, c, *spatial], and the int64 position of each first maximum in the flattened spatial axes.

    `windows` has the windows of each spatial axis.  One axis after the other is reduced, beginning with the last one.
    """
    spatial = x.tensor_type.shape[2:]
    at: Value | None = None
    for a in reversed(range(len(spatial))):
        axis, table = a + 2, windows[a].index
        read = literal(table)
        each = gather(x, read, axis)
        best = sh.expand_dims(ew.cast(rd.argmax(each, axis + 1), int64), axis + 1)
        x = sh.squeeze(dim_gather(each, best, axis + 1), (axis + 1,))
        own = _index_of(table, best, axis)
        own = ew.scale(own, math.prod(spatial[a + 1 :]))
        at = own if at is None else ew.add(own, sh.squeeze(dim_gather(gather(at, read, axis), best, axis + 1), (axis + 1,)))
        if windows[a].empty.any():
            x = _without(x, windows[a].empty, axis)
    assert at is not None
    return x, at


def _index_of(table: Array, best: Value, axis: int) -> Value:
    """Return the index along the axis that the tap `best` of each window reads."""
    count, width = table.shape
    rest = best.tensor_type.ndim - axis - 2
    begin = sh.reshape(literal(np.arange(count) * width), (count,) + (1,) * rest)
    return gather(literal(table.reshape(-1)), ew.add(sh.squeeze(best, (axis + 1,)), begin), 0)


def _without(x: Value, empty: Array, axis: int) -> Value:
    """Return x with the lowest number of its type in place of the maxima of empty windows."""
    hidden = sh.reshape(literal(empty), (len(empty),) + (1,) * (x.tensor_type.ndim - axis - 1))
    dtype = x.tensor_type.dtype
    return ew.where(hidden, ew.fill_like(x, -math.inf if dtype.is_float else dtype.span[0]), x)


# -------------------------------------------------------------------- unpooling


def _unpooled_sizes(
    what: str, spatial: Sequence[int], kernel: Sequence[int], strides: Sequence[int], around: Sequence[int], output: Any
) -> list[int]:
    """Return the sizes of the output of unpooling; raise ShapeError for an `output_size` that pooling would not reduce to the input."""
    usual = [(n - 1) * s - 2 * p + k for n, k, s, p in zip(spatial, kernel, strides, around, strict=True)]
    if output is None:
        if min(usual, default=1) < 1:
            raise ShapeError(f"{what} at {user_line()}: the output size {usual} must be at least 1 along each axis; pass output_size")
        return usual
    chosen = tuple(output) if isinstance(output, Sequence) else (output,)
    chosen = sizes(what, "output_size", chosen[-len(usual) :] if len(chosen) in (len(usual) + 1, len(usual) + 2) else chosen, len(usual))
    if any(not n - s < m < n + s for n, m, s in zip(usual, chosen, strides, strict=True)):
        raise ShapeError(f"{what} at {user_line()}: output_size {list(chosen)} must differ from {usual} by less than the stride {list(strides)}")
    return list(chosen)


def _max_unpool(
    spatial: int,
    input: Tensor,
    indices: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    output_size: Sequence[int] | None = None,
) -> Value:
    what = f"max_unpool{spatial}d"
    kernel = sizes(what, "kernel_size", kernel_size, spatial, 1)
    strides = kernel if stride is None else sizes(what, "stride", stride, spatial, 1)
    around = sizes(what, "padding", padding, spatial)
    t, ids = input.tensor_type, indices.tensor_type
    if ids.dtype is not int64:
        raise DtypeError(f"{what} at {user_line()}: indices {ids} must be int64, as a max pool with return_indices=True returns them")
    if ids.shape != t.shape:
        raise ShapeError(f"{what} at {user_line()}: indices {ids} must have the shape of input {t}")
    x = batched(what, input, spatial)
    lead, n = x.tensor_type.shape[:2], x.tensor_type.shape[2:]
    if not math.prod(x.tensor_type.shape[1:]):
        raise ShapeError(f"{what} at {user_line()}: only the batch axis of input {t} may be empty")
    target = _unpooled_sizes(what, n, kernel, strides, around, output_size)
    flat = (*lead, math.prod(n))
    at = check(class_assertion(what, math.prod(target)), indices)
    empty = constant(0, (*lead, math.prod(target)), t.dtype)
    return unbatched(sh.reshape(scatter(empty, 2, sh.reshape(at, flat), sh.reshape(x, flat)), (*lead, *target)), input)


_UNPOOLED = (
    "Return zeros with the elements of `input` [n, c, l] or [c, l] at the positions `indices`, the inverse of a max pool.\n\n    `indices` are the "
    "second result of a max pool with return_indices=True and the same kernel_size, stride and padding.\n    `output_size` is needed where "
    "pooling rounded the size.\n    Raises: ShapeError, DtypeError for arguments that do not match, ArgumentError for an index out of range.\n    "
)
max_unpool1d = composed(variant(_max_unpool, 1, "max_unpool1d", _UNPOOLED))
max_unpool2d = composed(
    variant(_max_unpool, 2, "max_unpool2d", "Return zeros with the elements of images at the positions `indices`; see `max_unpool1d`.")
)
max_unpool3d = composed(
    variant(_max_unpool, 3, "max_unpool3d", "Return zeros with the elements of volumes at the positions `indices`; see `max_unpool1d`.")
)


# -------------------------------------------------------------------- columns of windows


def _blocks(what: str, image: Sequence[int], kernel_size: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes) -> list[Array]:
    """Return the index that each tap of each window reads, [taps, windows], along both axes of an image; raise ShapeError for invalid sizes."""
    kernel, dilations = sizes(what, "kernel_size", kernel_size, 2, 1), sizes(what, "dilation", dilation, 2, 1)
    around, strides = sizes(what, "padding", padding, 2, 0), sizes(what, "stride", stride, 2, 1)
    counts = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, d, p, s in zip(image, kernel, dilations, around, strides, strict=True)]
    if min(counts) < 1:
        raise ShapeError(
            f"{what} at {user_line()}: kernel_size {list(kernel)} with dilation {list(dilations)} exceeds images of size {list(image)} with "
            f"padding {list(around)}; reduce the kernel, or increase the padding"
        )
    return [taps(*each).T for each in zip(counts, kernel, strides, dilations, around, strict=True)]


@composed
def unfold(input: Tensor, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1) -> Value:
    """Return the windows of images [n, c, h, w] or [c, h, w] as columns, [n, c * taps, windows]; padding reads zeros.

    Raises: ShapeError for invalid sizes, or for an input that is not one or several images.
    """
    x = batched("unfold", input, 2)
    n, c, *image = x.tensor_type.shape
    if 0 in (c, *image):
        raise ShapeError(f"unfold at {user_line()}: only the batch axis of input {input.tensor_type} may be empty")
    rows, columns = _blocks("unfold", image, kernel_size, dilation, padding, stride)
    y = gather(gather(x, literal(rows), 2), literal(columns), 4)
    kernel = rows.shape[0] * columns.shape[0]
    y = sh.reshape(sh.transpose(y, (0, 1, 2, 4, 3, 5)), (n, c * kernel, rows.shape[1] * columns.shape[1]))
    return y if input.tensor_type.ndim == 4 else sh.squeeze(y, (0,))


@formula
def fold(input: Tensor, output_size: Sizes, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1) -> Value:
    """Return images [n, c, *output_size] with the sums of the windows in the columns of `input` [n, c * taps, windows], as `unfold` orders them.

    Raises: ShapeError for invalid sizes, or unless the input has one row per channel and tap, and one column per window.
    """
    t, what = input.tensor_type, "fold"
    image = sizes(what, "output_size", output_size, 2, 1)
    rows, columns = _blocks(what, image, kernel_size, dilation, padding, stride)
    kernel, windows = rows.shape[0] * columns.shape[0], rows.shape[1] * columns.shape[1]
    if t.ndim not in (2, 3) or t.shape[-2] % kernel or not t.shape[-2] or t.shape[-1] != windows:
        raise ShapeError(
            f"{what} at {user_line()}: input {t} must be [n, channels * {kernel}, {windows}] or [channels * {kernel}, {windows}] for images of "
            f"size {list(image)}"
        )
    n, c = t.shape[0] if t.ndim == 3 else 1, t.shape[-2] // kernel
    y = sh.reshape(input, (n, c, rows.shape[0], columns.shape[0], rows.shape[1], columns.shape[1]))
    y = unsorted_segment_sum(sh.transpose(y, (0, 1, 2, 4, 3, 5)), literal(columns), image[1], 4)
    y = unsorted_segment_sum(y, literal(rows), image[0], 2)
    return y if t.ndim == 3 else sh.squeeze(y, (0,))
