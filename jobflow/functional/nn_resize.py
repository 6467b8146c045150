"""Interpolation of images: nearest, linear, cubic and area modes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jobflow.core.errors import ArgumentError, DtypeError, ShapeError, user_line
from jobflow.core.types import Array, float32, float64, int64, uint8
from jobflow.core.types import Tensor as Value
from jobflow.functional.nn_base import Sizes, formula, one_of, real, sizes
from jobflow.functional.nn_windows import literal
from jobflow.functional.typed import Tensor
from jobflow.ops import adaptive_pool as ap
from jobflow.ops import elementwise as ew
from jobflow.ops import reduce as rd
from jobflow.ops import shape as sh
from jobflow.ops.index import gather
from jobflow.ops.source import arange

__all__ = ["interpolate", "upsample", "upsample_bilinear", "upsample_nearest"]


def _factors(scale_factor: Any, count: int) -> list[float]:
    """Return one factor per spatial axis, from one number for all axes or a list of `count` numbers; raise ShapeError unless all are positive."""
    factors = [real("interpolate", "scale_factor", f) for f in (scale_factor if isinstance(scale_factor, list | tuple) else (scale_factor,) * count)]
    if len(factors) != count or not all(0 < f < math.inf for f in factors):
        raise ShapeError(
            f"interpolate at {user_line()}: scale_factor must be a positive number, or a list of {count} positive numbers; got {scale_factor!r}"
        )
    return factors


def _coordinates(out: int, start: float, step: float) -> Value:
    """Return the float64 vector of start + step * i for i = 0 to out - 1."""
    return ew.shift(ew.scale(ew.cast(arange(0, out), float64), step), start)


def _nearest(x: Value, axis: int, out: int, ratio: float, exact: bool) -> Value:
    """Return x with axis `axis` resized to `out` elements; `exact` takes the elements nearest to the centres of the new pixels."""
    n = x.tensor_type.shape[axis]
    if out % n == 0 and ratio == n / out:
        shape, r = x.tensor_type.shape, out // n
        wide = sh.broadcast_to(sh.expand_dims(x, axis + 1), (*shape[: axis + 1], r, *shape[axis + 1 :]))
        return sh.reshape(wide, (*shape[:axis], out, *shape[axis + 1 :]))
    at = ew.clip(ew.floor(_coordinates(out, 0.5 * ratio if exact else 0.0, ratio)), 0.0, n - 1.0)
    return gather(x, ew.cast(at, int64), axis)


def _linear(x: Value, axis: int, out: int, ratio: float, corners: bool) -> Value:
    """Return x with axis `axis` resized to `out` elements, by linear interpolation between the two neighbours of each position.

    `ratio` is the distance of adjacent positions in elements of x, unless `corners` places the first and last positions at the ends of x.
    """
    n = x.tensor_type.shape[axis]
    if corners:
        at = _coordinates(out, 0.0, (n - 1) / (out - 1) if out > 1 else 0.0)
    else:
        at = ew.clip(_coordinates(out, 0.5 * ratio - 0.5, ratio), 0.0, None)
    low = ew.clip(ew.floor(at), 0.0, n - 1.0)
    high = ew.clip(ew.shift(low, 1.0), 0.0, n - 1.0)
    share = sh.reshape(ew.cast(ew.subtract(at, low), x.tensor_type.dtype), (out,) + (1,) * (x.tensor_type.ndim - axis - 1))
    below, above = (gather(x, ew.cast(index, int64), axis) for index in (low, high))
    return ew.add(ew.multiply(below, ew.shift(ew.negate(share), 1.0)), ew.multiply(above, share))


# -------------------------------------------------------------------- weighted taps


def cubic_weights(distance: Array, sharpness: float) -> Array:
    """Return Keys' cubic convolution kernel at these distances; `sharpness` is its slope at distance 1 (Keys 1981)."""
    x, a = np.abs(distance), sharpness
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    far = ((x - 5.0) * x + 8.0) * x * a - 4.0 * a
    return np.where(x <= 1.0, near, np.where(x < 2.0, far, 0.0))


def _weighted(x: Value, axis: int, index: Array, weights: Array) -> Value:
    """Return x with axis `axis` replaced by weighted sums over taps: element i is sum over k of weights[i, k] * x[index[i, k]]."""
    ndim = x.tensor_type.ndim
    factors = sh.reshape(literal(weights.astype(x.tensor_type.dtype.numpy)), (*weights.shape, *(1,) * (ndim - axis - 1)))
    return rd.reduce_sum(ew.multiply(gather(x, literal(index), axis), factors), (axis + 1,))


def _cubic(x: Value, axis: int, out: int, ratio: float, corners: bool) -> Value:
    """Return x with axis `axis` resized to `out` elements by cubic convolution of the four nearest elements."""
    n = x.tensor_type.shape[axis]
    at = np.arange(out) * ((n - 1) / (out - 1) if out > 1 else 0.0) if corners else (np.arange(out) + 0.5) * ratio - 0.5
    index = np.floor(at).astype(np.int64)[:, None] + np.arange(-1, 3)
    return _weighted(x, axis, np.clip(index, 0, n - 1), cubic_weights(at[:, None] - index, -0.75))


def _antialiased(x: Value, axis: int, out: int, ratio: float, corners: bool, cubic: bool) -> Value:
    """Return x with axis `axis` resized to `out` elements, by a triangular or cubic filter as wide as a new pixel."""
    n = x.tensor_type.shape[axis]
    if corners:
        ratio = (n - 1) / (out - 1) if out > 1 else 0.0
    width = max(ratio, 1.0)
    support = (2.0 if cubic else 1.0) * width
    centers = ratio * (np.arange(out) + 0.5)
    first = np.maximum((centers - support + 0.5).astype(np.int64), 0)
    stop = np.minimum((centers + support + 0.5).astype(np.int64), n)
    index = first[:, None] + np.arange(int((stop - first).max()))
    distance = (index - centers[:, None] + 0.5) / width
    weights = cubic_weights(distance, -0.5) if cubic else np.maximum(1.0 - np.abs(distance), 0.0)
    weights = np.where(index < stop[:, None], weights, 0.0)
    return _weighted(x, axis, np.minimum(index, n - 1), weights / weights.sum(1, keepdims=True))


# -------------------------------------------------------------------- the functions

#: mode -> the number of spatial axes that it needs; None for any number
_MODES = {"nearest": None, "nearest-exact": None, "area": None, "linear": 1, "bilinear": 2, "bicubic": 2, "trilinear": 3}


def _check_mode(t: Any, mode: str, align_corners: bool | None, antialias: bool) -> None:
    what = "interpolate"
    one_of(what, "mode", mode, tuple(_MODES))
    spatial, needed = t.ndim - 2, _MODES[mode]
    if not 1 <= spatial <= 3 or needed not in (None, spatial):
        axes = "3 to 5" if needed is None else needed + 2
        raise ShapeError(
            f'{what} at {user_line()}: mode "{mode}" needs {axes} axes, [n, c, *spatial]; input is {t}; reshape the input or change the mode'
        )
    if needed is None and align_corners is not None:
        raise ArgumentError(f'{what} at {user_line()}: mode "{mode}" has no align_corners; omit it, or choose a linear or cubic mode')
    if antialias and mode not in ("bilinear", "bicubic"):
        raise ArgumentError(f'{what} at {user_line()}: mode "{mode}" has no antialias; choose bilinear or bicubic')
    if 0 in t.shape[1:]:
        raise ShapeError(f"{what} at {user_line()}: the images of input {t} must not be empty")
    if mode not in ("nearest", "nearest-exact") and not t.dtype.is_float and t.dtype is not uint8:
        raise DtypeError(f'{what} at {user_line()}: mode "{mode}" computes fractions; cast input {t} to floats')


def _target(shape: Sequence[int], size: Any, scale_factor: Any, recompute: bool | None) -> tuple[tuple[int, ...], list[float]]:
    """Return the output sizes, and the ratios of input to output size; raise ShapeError for invalid sizes."""
    what = "interpolate"
    if (size is None) == (scale_factor is None):
        raise ShapeError(f"{what} at {user_line()}: pass either size or scale_factor; got size={size!r}, scale_factor={scale_factor!r}")
    if size is not None:
        if recompute:
            raise ArgumentError(f"{what} at {user_line()}: recompute_scale_factor needs scale_factor, but size={size!r} was passed; omit one of them")
        target = sizes(what, "size", size, len(shape), 1)
        ratios = [n / m for n, m in zip(shape, target, strict=True)]
    else:
        factors = _factors(scale_factor, len(shape))
        target = tuple(math.floor(min(n * f, 2**31)) for n, f in zip(shape, factors, strict=True))
        ratios = [n / max(m, 1) if recompute else 1.0 / f for n, m, f in zip(shape, target, factors, strict=True)]
    if min(target) < 1 or max(target) >= 2**31:
        raise ShapeError(f"{what} at {user_line()}: the output size {list(target)} must be at least 1 and below 2**31 along each axis")
    return target, ratios


def _resized(x: Value, axis: int, out: int, ratio: float, mode: str, corners: bool, antialias: bool) -> Value:
    """Return x with axis `axis` resized to `out` elements."""
    if mode.startswith("nearest"):
        return _nearest(x, axis, out, ratio, mode == "nearest-exact")
    if antialias:
        return _antialiased(x, axis, out, ratio, corners, mode == "bicubic")
    if mode == "bicubic":
        return _cubic(x, axis, out, ratio, corners)
    return _linear(x, axis, out, ratio, corners)


@formula
def interpolate(
    input: Tensor,
    size: Sizes | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Value:
    """Return `input`, images [n, c, *spatial], resized to `size` or by `scale_factor`.

    `mode` is "nearest", "nearest-exact", "area" (means), "bicubic", or "linear", "bilinear", "trilinear" for 1, 2, 3 spatial axes.
    `align_corners` keeps the positions of the corner pixels.  `antialias` widens the filter of "bilinear" and "bicubic" where images shrink.
    `recompute_scale_factor` replaces `scale_factor` by the ratio of output and input size.
    Raises: ShapeError for invalid sizes, or for a mode of another number of axes.  An option that the mode does not have raises ArgumentError.
    Integers other than uint8 raise DtypeError, except in the nearest modes.
    """
    t = input.tensor_type
    _check_mode(t, mode, align_corners, antialias)
    target, ratios = _target(t.shape[2:], size, scale_factor, recompute_scale_factor)
    nearest = mode.startswith("nearest")
    x: Value = input if nearest or t.dtype.is_float else ew.cast(input, float32)
    if mode == "area":
        x = ap.adaptive_avg_pool(x, target)
    else:
        for axis, (out, ratio) in enumerate(zip(target, ratios, strict=True), 2):
            x = _resized(x, axis, out, ratio, mode, bool(align_corners), antialias)
    if x.tensor_type.dtype is t.dtype:
        return x
    return ew.cast(ew.clip(ew.floor(ew.shift(x, 0.5)), 0.0, 255.0), t.dtype)


def upsample(
    input: Tensor,
    size: Sizes | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
) -> Tensor:
    """Return `input` resized as `interpolate` does with the same arguments."""
    return interpolate(input, size, scale_factor, mode, align_corners)


def upsample_nearest(input: Tensor, size: Sizes | None = None, scale_factor: float | Sequence[float] | None = None) -> Tensor:
    """Return `input` resized as `interpolate` does with mode "nearest"."""
    return interpolate(input, size, scale_factor, "nearest")


def upsample_bilinear(input: Tensor, size: Sizes | None = None, scale_factor: float | Sequence[float] | None = None) -> Tensor:
    """Return `input` [n, c, h, w] resized as `interpolate` does with mode "bilinear" and align_corners=True."""
    return interpolate(input, size, scale_factor, "bilinear", True)
