"""Pooling over 1 to 3 spatial axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from jobflow.core.errors import ArgumentError, ShapeError, user_line
from jobflow.core.signatures import variant
from jobflow.core.types import Tensor as Value
from jobflow.functional.nn_base import Sizes, composed, formula, real, sizes
from jobflow.functional.nn_conv import batched, unbatched
from jobflow.functional.nn_windows import Windows, largest, taps
from jobflow.functional.promotion import rounded_once
from jobflow.functional.typed import Tensor
from jobflow.ops import activation as act
from jobflow.ops import adaptive_pool as ap
from jobflow.ops import elementwise as ew
from jobflow.ops import pool as pl
from jobflow.ops import slices as sl
from jobflow.ops.windows import Window, spread

__all__ = [
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d", "adaptive_max_pool1d_with_indices",
    "adaptive_max_pool2d", "adaptive_max_pool2d_with_indices", "adaptive_max_pool3d", "adaptive_max_pool3d_with_indices", "avg_pool1d",
    "avg_pool2d", "avg_pool3d", "lp_pool1d", "lp_pool2d", "lp_pool3d", "max_pool1d", "max_pool1d_with_indices", "max_pool2d",
    "max_pool2d_with_indices", "max_pool3d", "max_pool3d_with_indices",
]  # fmt: skip


def _windows(
    what: str, spatial: int, kernel_size: Sizes, stride: Sizes | None, padding: Sizes, dilation: Sizes = 1
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return kernel size, stride, padding and dilation per spatial axis; raise ShapeError for invalid ones."""
    kernel = sizes(what, "kernel_size", kernel_size, spatial, 1)
    strides = kernel if stride is None or (isinstance(stride, Sequence) and not stride) else sizes(what, "stride", stride, spatial, 1)
    around, dilations = sizes(what, "padding", padding, spatial), sizes(what, "dilation", dilation, spatial, 1)
    if any(2 * p > spread(k, d) or p < 0 for p, k, d in zip(around, kernel, dilations, strict=True)):
        raise ShapeError(f"{what} at {user_line()}: padding {list(around)} must be at least 0 and at most half of kernel_size {list(kernel)}")
    return kernel, strides, around, dilations


def _max_pool(
    spatial: int,
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    what = f"max_pool{spatial}d"
    kernel, strides, around, dilations = _windows(what, spatial, kernel_size, stride, padding, dilation)
    x = batched(what, input, spatial)
    if 0 in x.tensor_type.shape[1:]:
        raise ShapeError(f"{what} at {user_line()}: only the batch axis of input {input.tensor_type} may be empty")
    pairs = tuple((p, p) for p in around)
    if not return_indices and max(dilations) == 1:
        return unbatched(pl.max_pool(x, kernel, strides, pairs, ceil_mode=bool(ceil_mode)), input)
    window, n = Window(kernel, strides, pairs, dilations, bool(ceil_mode)), x.tensor_type.shape[2:]
    rule = zip(window.out_sizes(f"{what} at {user_line()}", n), kernel, strides, dilations, around, strict=True)
    results = largest(x, [Windows.of(taps(*each), 0, size) for each, size in zip(rule, n, strict=True)])
    return _with_positions(results, input, return_indices)


def _with_positions(results: tuple[Value, Value], input: Tensor, return_indices: bool) -> Any:
    """Return the maxima, with their positions if `return_indices`, and without the batch axis that `input` lacks."""
    maxima, at = (unbatched(each, input) for each in results)
    return (maxima, at) if return_indices else maxima


def _with_indices(spatial: int, pool: Any) -> Any:
    """Return a max pool of `spatial` axes as a function that returns (maxima, positions) by default."""
    name = f"{pool.__name__}_with_indices"
    text = f"Return `{pool.__name__}` of the same arguments, and the int64 positions of the maxima in the flattened spatial axes."
    function = _adaptive_max if pool.__name__.startswith("adaptive") else _max_pool
    return composed(variant(function, spatial, name, text, return_indices=True))


_MAX = (
    "Return the largest element of each window of [n, c, l] or [c, l].\n\n    `stride` defaults to kernel_size, and `dilation` is the distance "
    "between elements of a window.  `ceil_mode` includes an incomplete last window that starts inside the input or the padding before it.\n    With "
    "`return_indices`, the result is (maxima, positions); positions are int64 and count the elements of the flattened spatial axes.\n    Raises: "
    "ShapeError for invalid sizes.\n    "
)
max_pool1d = composed(variant(_max_pool, 1, "max_pool1d", _MAX))
max_pool2d = composed(variant(_max_pool, 2, "max_pool2d", "Return the largest element of each window of images [n, c, h, w]; see `max_pool1d`."))
max_pool3d = composed(variant(_max_pool, 3, "max_pool3d", "Return the largest element of each window of volumes [n, c, d, h, w]; see `max_pool1d`."))


def _avg_pool(
    spatial: int,
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Value:
    what = f"avg_pool{spatial}d"
    kernel, strides, around, _ = _windows(what, spatial, kernel_size, stride, padding)
    x = batched(what, input, spatial)
    if divisor_override is not None:
        return unbatched(_summed(what, x, kernel, strides, around, ceil_mode, divisor_override), input)
    if not (count_include_pad and any(around)):
        return unbatched(pl.avg_pool(x, kernel, strides, [(p, p) for p in around], ceil_mode=ceil_mode), input)
    wide = sl.pad(x, [(0, 0), (0, 0), *((p, p) for p in around)])
    y = pl.avg_pool(wide, kernel, strides, [(0, 0)] * spatial, ceil_mode=ceil_mode)
    return unbatched(_begun_inside(y, x, strides, around), input)


def _begun_inside(y: Value, x: Value, strides: Sequence[int], around: Sequence[int]) -> Value:
    """Return y, the results of windows over x, without the last windows that start in the padding after x."""
    counts = (min(m, -(-(n + p) // s)) for m, n, s, p in zip(y.tensor_type.shape[2:], x.tensor_type.shape[2:], strides, around, strict=True))
    return sl.slice_(y, (None, None, *(0 for _ in strides)), (None, None, *counts))


def _summed(what: str, x: Value, kernel: Sequence[int], strides: Sequence[int], around: Sequence[int], ceil_mode: bool, divisor: int) -> Value:
    """Return the sum of each window divided by `divisor`, computed as the mean of padded windows times their size."""
    if not divisor:
        raise ShapeError(f"{what} at {user_line()}: divisor_override must not be 0")
    extra = [k if ceil_mode else 0 for k in kernel]
    wide = sl.pad(x, [(0, 0), (0, 0), *((p, p + more) for p, more in zip(around, extra, strict=True))])
    y = pl.avg_pool(wide, kernel, strides, [(0, 0)] * len(kernel))
    size = 1
    for k in kernel:
        size *= k
    rule = zip(x.tensor_type.shape[2:], kernel, strides, around, strict=True)
    counts = [(-(-(n + 2 * p - k) // s) if ceil_mode else (n + 2 * p - k) // s) + 1 for n, k, s, p in rule]
    y = sl.slice_(y, (None, None, *(0 for _ in counts)), (None, None, *counts))
    return ew.scale(_begun_inside(y, x, strides, around), size / divisor)


@composed
def avg_pool1d(
    input: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, ceil_mode: bool = False, count_include_pad: bool = True
) -> Value:
    """Return the mean of each window of [n, c, l] or [c, l]; padded zeros count unless `count_include_pad=False`.

    `stride` defaults to kernel_size.  `ceil_mode` includes an incomplete last window that starts inside the input or the padding before it.
    Raises: ShapeError for invalid sizes.
    """
    return _avg_pool(1, input, kernel_size, stride, padding, ceil_mode, count_include_pad)


_AVERAGE = "Return the mean of each window of images [n, c, h, w], see `avg_pool1d`; `divisor_override` replaces the number of elements."
avg_pool2d = composed(variant(_avg_pool, 2, "avg_pool2d", _AVERAGE))
avg_pool3d = composed(variant(_avg_pool, 3, "avg_pool3d", "Return the mean of each window of volumes [n, c, d, h, w]; see `avg_pool2d`."))


#: sizes of an output; None for an unchanged axis
Outputs = int | Sequence[int | None] | None


def _outputs(what: str, x: Value, output_size: Outputs) -> tuple[int, ...]:
    spatial = x.tensor_type.shape[2:]
    if 0 in spatial:
        raise ShapeError(f"{what} at {user_line()}: only the batch axis of input {x.tensor_type} may be empty")
    requested = tuple(output_size) if isinstance(output_size, Sequence | np.ndarray) else (output_size,) * len(spatial)
    if 0 in requested:
        raise ShapeError(f"{what} at {user_line()}: output_size {output_size!r} must be at least 1 along each axis")
    return sizes(what, "output_size", [n if size is None else size for n, size in zip_longest(spatial, requested)][: len(requested)], len(spatial), 0)


def _adaptive_avg(spatial: int, input: Tensor, output_size: Outputs) -> Value:
    x = batched(f"adaptive_avg_pool{spatial}d", input, spatial)
    return unbatched(ap.adaptive_avg_pool(x, _outputs(f"adaptive_avg_pool{spatial}d", x, output_size)), input)


def _adaptive_max(spatial: int, input: Tensor, output_size: Outputs, return_indices: bool = False) -> Any:
    x = batched(f"adaptive_max_pool{spatial}d", input, spatial)
    target = _outputs(f"adaptive_max_pool{spatial}d", x, output_size)
    n = x.tensor_type.shape[2:]
    if not return_indices and all(m and not size % m for size, m in zip(n, target, strict=True)):
        return unbatched(ap.adaptive_max_pool(x, target), input)
    return _with_positions(largest(x, [_adaptive_windows(size, m) for size, m in zip(n, target, strict=True)]), input, return_indices)


def _adaptive_windows(n: int, m: int) -> Windows:
    """Return the m windows of an axis of n elements."""
    starts, stops = (np.array(each, np.int64)[:, None] for each in zip(*ap.windows(n, m), strict=True))
    return Windows.of(starts + np.arange(int((stops - starts).max())), starts, stops)


_MEANS = (
    "Return m = `output_size` means along the last axis, of size n.\n\n    Mean i covers the elements from floor(i n / m) up to but excluding "
    "ceil((i + 1) n / m).\n    "
)
adaptive_avg_pool1d = rounded_once(composed(variant(_adaptive_avg, 1, "adaptive_avg_pool1d", _MEANS)))
adaptive_avg_pool2d = rounded_once(
    composed(variant(_adaptive_avg, 2, "adaptive_avg_pool2d", "Return `output_size` means of images [n, c, h, w]; see `adaptive_avg_pool1d`."))
)
adaptive_avg_pool3d = rounded_once(
    composed(variant(_adaptive_avg, 3, "adaptive_avg_pool3d", "Return `output_size` means of volumes [n, c, d, h, w]; see `adaptive_avg_pool1d`."))
)

_LARGEST = "Return `output_size` maxima along the last axis, over the windows of `adaptive_avg_pool1d`."
adaptive_max_pool1d = composed(variant(_adaptive_max, 1, "adaptive_max_pool1d", _LARGEST))
adaptive_max_pool2d = composed(
    variant(_adaptive_max, 2, "adaptive_max_pool2d", "Return `output_size` maxima of images [n, c, h, w]; see `adaptive_max_pool1d`.")
)
adaptive_max_pool3d = composed(
    variant(_adaptive_max, 3, "adaptive_max_pool3d", "Return `output_size` maxima of volumes [n, c, d, h, w]; see `adaptive_max_pool1d`.")
)


# -------------------------------------------------------------------- positions and power means

max_pool1d_with_indices = _with_indices(1, max_pool1d)
max_pool2d_with_indices = _with_indices(2, max_pool2d)
max_pool3d_with_indices = _with_indices(3, max_pool3d)
adaptive_max_pool1d_with_indices = _with_indices(1, adaptive_max_pool1d)
adaptive_max_pool2d_with_indices = _with_indices(2, adaptive_max_pool2d)
adaptive_max_pool3d_with_indices = _with_indices(3, adaptive_max_pool3d)


def _lp_pool(spatial: int, input: Tensor, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None, ceil_mode: bool = False) -> Value:
    what = f"lp_pool{spatial}d"
    p = real(what, "norm_type", norm_type)
    if not p:
        raise ArgumentError(f"{what} at {user_line()}: norm_type must not be 0")
    count = math.prod(sizes(what, "kernel_size", kernel_size, spatial, 1))
    means = _avg_pool(spatial, ew.scalar_power(input, p), kernel_size, stride, 0, ceil_mode)  # type: ignore[arg-type]
    positive = ew.multiply(ew.sign(means), act.relu(ew.absolute(means)))
    return ew.scalar_power(ew.scale(positive, count), 1.0 / p)


lp_pool1d = formula(
    variant(
        _lp_pool,
        1,
        "lp_pool1d",
        "Return (the sum of x^norm_type over each window of [n, c, l])^(1 / norm_type).  Raises: ShapeError as `avg_pool1d`.",
    )
)
lp_pool2d = formula(
    variant(_lp_pool, 2, "lp_pool2d", "Return (the sum of x^norm_type over each window of [n, c, h, w])^(1 / norm_type); see `lp_pool1d`.")
)
lp_pool3d = formula(
    variant(_lp_pool, 3, "lp_pool3d", "Return (the sum of x^norm_type over each window of [n, c, d, h, w])^(1 / norm_type); see `lp_pool1d`.")
)
