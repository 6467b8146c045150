"""Padding, pixel shuffling and interpolation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from jobflow.core.errors import DtypeError, ShapeError, user_line
from jobflow.core.types import Tensor as Value
from jobflow.core.types import float32, float64, int64, uint8
from jobflow.functional.nn_base import Sizes, composed, formula, one_of, real, sizes
from jobflow.functional.promotion import convert_fill
from jobflow.functional.shapes import integer
from jobflow.functional.typed import Tensor
from jobflow.ops import elementwise as ew
from jobflow.ops import shape as sh
from jobflow.ops import slices as sl
from jobflow.ops.index import gather
from jobflow.ops.source import arange

__all__ = ["interpolate", "pad", "pixel_shuffle", "pixel_unshuffle"]

_MODES = ("constant", "reflect", "replicate", "circular")


def _part(x: Value, axis: int, start: int, stop: int) -> Value:
    front = (None,) * axis
    return sl.slice_(x, (*front, start), (*front, stop))


def _cropped(x: Value, axis: int, before: int, after: int) -> Value:
    """Return x without its first -before and its last -after elements along an axis; numbers `before` and `after` >= 0 remove none."""
    return _part(x, axis, max(-before, 0), x.tensor_type.shape[axis] - max(-after, 0)) if min(before, after) < 0 else x


def _border(x: Value, axis: int, count: int, mode: str, first: bool) -> list[Value]:
    """Return a list with the border of `count` elements before (`first`) or after x along an axis, or an empty list if count <= 0."""
    n = x.tensor_type.shape[axis]
    if count <= 0:
        return []
    if mode == "reflect":
        return [sl.flip(_part(x, axis, 1, count + 1) if first else _part(x, axis, n - 1 - count, n - 1), (axis,))]
    if mode == "circular":
        return [_part(x, axis, n - count, n) if first else _part(x, axis, 0, count)]
    edge = _part(x, axis, 0, 1) if first else _part(x, axis, n - 1, n)
    return [sh.tile(edge, [count if i == axis else 1 for i in range(x.tensor_type.ndim)])]


def _factors(scale_factor: Any, count: int) -> list[float]:
    """Return one factor per spatial axis, from one number for all axes or a list of `count` numbers; raise ShapeError unless all are positive."""
    factors = [real("interpolate", "scale_factor", f) for f in (scale_factor if isinstance(scale_factor, list | tuple) else (scale_factor,) * count)]
    if len(factors) != count or not all(0 < f < math.inf for f in factors):
        raise ShapeError(
            f"interpolate at {user_line()}: scale_factor must be a positive number, or a list of {count} positive numbers; got {scale_factor!r}"
        )
    return factors


@composed
def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: float = 0.0) -> Value:
    """Return `input` with borders; `pad` lists the widths before and after the last axis, then of the axis before it, and so on.

    `mode` selects the elements of the border: `value` ("constant"), mirrored elements without the edge ("reflect"), the edge ("replicate"), or
    the opposite end ("circular").  Negative widths remove elements.
    Raises: ShapeError for widths that do not fit an axis, ConfigError for an unknown mode.
    """
    t, what = input.tensor_type, "pad"
    one_of("pad", "mode", mode, _MODES)
    if not isinstance(pad, Sequence) or len(pad) % 2 or len(pad) > 2 * t.ndim:
        raise ShapeError(f"{what} at {user_line()}: pad must consist of pairs (before, after) for at most {t.ndim} axes of input {t}; got {pad!r}")
    widths = [integer("pad", width) for width in pad]
    pairs = {t.ndim - 1 - i: (widths[2 * i], widths[2 * i + 1]) for i in range(len(widths) // 2)}
    for axis, (before, after) in pairs.items():
        left = t.shape[axis] + min(before, 0) + min(after, 0)
        most = {"reflect": t.shape[axis] - 1, "circular": left}.get(mode, math.inf)
        if max(before, after) > most or left < 0 or (mode != "constant" and not t.shape[axis]):
            raise ShapeError(f'{what} at {user_line()}: pad ({before}, {after}) with mode "{mode}" does not fit axis {axis} of input {t}')
    x: Value = input
    for axis, (before, after) in pairs.items():
        if mode != "constant":
            x = _bordered(x, axis, before, after, mode)
        else:
            x = _cropped(x, axis, before, after)
    if mode == "constant" and any(max(pair) > 0 for pair in pairs.values()):
        around = [tuple(max(n, 0) for n in pairs.get(axis, (0, 0))) for axis in range(t.ndim)]
        x = sl.pad(x, [(before, after) for before, after in around], convert_fill(value, t.dtype))
    return ew.identity(x) if x is input else x


def _bordered(x: Value, axis: int, before: int, after: int, mode: str) -> Value:
    inside = _cropped(x, axis, before, after)
    edges = inside if mode == "circular" else x  # a circular border repeats the cropped elements
    parts = [*_border(edges, axis, before, mode, True), inside, *_border(edges, axis, after, mode, False)]
    return sl.concat(parts, axis) if len(parts) > 1 else parts[0]


# -------------------------------------------------------------------- pixels and channels


@composed
def pixel_shuffle(input: Tensor, upscale_factor: int) -> Value:
    """Rearrange channels into pixels, [..., c * r^2, h, w] -> [..., c, h * r, w * r] with r = upscale_factor (Shi et al. 2016).

    Raises: ShapeError unless r * r divides the number of channels.
    """
    *lead, channels, h, w = _image("pixel_shuffle", input)
    r = upscale_factor
    if r < 1 or channels % (r * r):
        raise ShapeError(
            f"pixel_shuffle at {user_line()}: the number of channels of input {input.tensor_type}, {channels}, must be a multiple of the square of "
            f"upscale_factor {r}"
        )
    rows, n = math.prod(lead), channels // (r * r)
    x = sh.transpose(sh.reshape(input, (rows, n, r, r, h, w)), (0, 1, 4, 2, 5, 3))
    return sh.reshape(x, (*lead, n, h * r, w * r))


@composed
def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Value:
    """Rearrange pixels into channels, [..., c, h * r, w * r] -> [..., c * r * r, h, w] with r = downscale_factor.

    Raises: ShapeError unless r divides the height and the width.
    """
    *lead, channels, h, w = _image("pixel_unshuffle", input)
    r = downscale_factor
    if r < 1 or h % r or w % r:
        raise ShapeError(f"pixel_unshuffle at {user_line()}: height and width of input {input.tensor_type} must be multiples of downscale_factor {r}")
    rows = math.prod(lead)
    x = sh.transpose(sh.reshape(input, (rows, channels, h // r, r, w // r, r)), (0, 1, 3, 5, 2, 4))
    return sh.reshape(x, (*lead, channels * r * r, h // r, w // r))


def _image(what: str, x: Tensor) -> tuple[int, ...]:
    if x.tensor_type.ndim < 3:
        raise ShapeError(f"{what} at {user_line()}: input {x.tensor_type} must be [..., channels, h, w]")
    return x.tensor_type.shape


def _coordinates(out: int, start: float, step: float) -> Value:
    """Return the float64 vector of start + step * i for i = 0 to out - 1."""
    return ew.shift(ew.scale(ew.cast(arange(0, out), float64), step), start)


def _nearest(x: Value, axis: int, out: int, ratio: float) -> Value:
    n = x.tensor_type.shape[axis]
    if out % n == 0 and ratio == n / out:
        shape, r = x.tensor_type.shape, out // n
        wide = sh.broadcast_to(sh.expand_dims(x, axis + 1), (*shape[: axis + 1], r, *shape[axis + 1 :]))
        return sh.reshape(wide, (*shape[:axis], out, *shape[axis + 1 :]))
    at = ew.clip(ew.floor(_coordinates(out, 0.0, ratio)), 0.0, n - 1.0)
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


_LINEAR = {"linear": 1, "bilinear": 2, "trilinear": 3}


@formula
def interpolate(
    input: Tensor,
    size: Sizes | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
) -> Value:
    """Return `input`, images [n, c, *spatial], resized to `size` or by `scale_factor`.

    `mode` is "nearest", or "linear", "bilinear", "trilinear" for 1, 2, 3 spatial axes.  `align_corners` keeps the positions of the corner pixels.
    `recompute_scale_factor` replaces `scale_factor` by the ratio of output and input size.
    Raises: ShapeError for invalid sizes, or for a mode of another number of axes; DtypeError for linear modes of integers other than uint8.
    """
    t, what = input.tensor_type, "interpolate"
    spatial = t.ndim - 2
    one_of("interpolate", "mode", mode, ("nearest", *_LINEAR))
    if spatial < 1 or _LINEAR.get(mode, spatial) != spatial:
        axes = _LINEAR[mode] + 2 if mode in _LINEAR else "at least 3"
        raise ShapeError(
            f'{what} at {user_line()}: mode "{mode}" needs {axes} axes, [n, c, *spatial]; input is {t}; reshape the input or change the mode'
        )
    if 0 in t.shape[2:]:
        raise ShapeError(f"{what} at {user_line()}: the images of input {t} must not be empty")
    if (size is None) == (scale_factor is None):
        raise ShapeError(f"{what} at {user_line()}: pass either size or scale_factor; got size={size!r}, scale_factor={scale_factor!r}")
    if size is not None:
        target: tuple[int, ...] = sizes("interpolate", "size", size, spatial, 1)
        ratios = [n / m for n, m in zip(t.shape[2:], target, strict=True)]
    else:
        factors = _factors(scale_factor, spatial)
        target = tuple(math.floor(min(n * f, 2**31)) for n, f in zip(t.shape[2:], factors, strict=True))
        ratios = [n / m if recompute_scale_factor else 1.0 / f for n, m, f in zip(t.shape[2:], target, factors, strict=True)]
    if min(target) < 1 or max(target) >= 2**31:
        raise ShapeError(f"{what} at {user_line()}: the output size {list(target)} must be at least 1 and below 2**31 along each axis")
    if mode != "nearest" and not t.dtype.is_float and t.dtype is not uint8:
        raise DtypeError(f'{what} at {user_line()}: mode "{mode}" computes fractions; cast input {t} to floats')
    x: Value = input if mode == "nearest" or t.dtype.is_float else ew.cast(input, float32)
    for axis, (out, ratio) in enumerate(zip(target, ratios, strict=True), 2):
        if mode == "nearest":
            x = _nearest(x, axis, out, ratio)
        else:
            x = _linear(x, axis, out, ratio, bool(align_corners))
    return x if x.tensor_type.dtype is t.dtype else ew.cast(ew.floor(ew.shift(x, 0.5)), t.dtype)
