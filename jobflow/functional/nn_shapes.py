"""Padding, and rearrangements of pixels and channels."""

from __future__ import annotations

import math
from collections.abc import Sequence

from jobflow.core.errors import ShapeError, user_line
from jobflow.core.types import Tensor as Value
from jobflow.functional.nn_base import composed, one_of
from jobflow.functional.promotion import convert_fill
from jobflow.functional.shapes import integer
from jobflow.functional.typed import Tensor
from jobflow.ops import elementwise as ew
from jobflow.ops import shape as sh
from jobflow.ops import slices as sl

__all__ = ["channel_shuffle", "native_channel_shuffle", "pad", "pixel_shuffle", "pixel_unshuffle"]

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
        most = {"reflect": t.shape[axis] - 1, "circular": left}.get(mode, 2**31 - 1)
        if max(before, after) > most or left < 0 or (mode != "constant" and not t.shape[axis]):
            raise ShapeError(
                f'{what} at {user_line()}: pad ({before}, {after}) with mode "{mode}" exceeds axis {axis} of input {t}; pass smaller widths'
            )
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


def _shuffled(what: str, input: Tensor, groups: int) -> Value:
    shape = input.tensor_type.shape
    if len(shape) < 3 or groups < 1 or shape[1] % groups:
        raise ShapeError(
            f"{what} at {user_line()}: input {input.tensor_type} must be [n, channels, ...] with at least 3 axes, and groups {groups} must divide "
            f"the number of channels"
        )
    n, c, *spatial = shape
    x = sh.reshape(input, (n, groups, c // groups, *spatial))
    return sh.reshape(sh.transpose(x, (0, 2, 1, *range(3, len(shape) + 1))), shape)


@composed
def channel_shuffle(input: Tensor, groups: int) -> Value:
    """Exchange the channels of `groups` groups: channel j of group i becomes channel i of group j (Zhang et al. 2018).

    Raises: ShapeError unless `groups` divides the number of channels.
    """
    return _shuffled("channel_shuffle", input, groups)


@composed
def native_channel_shuffle(input: Tensor, groups: int) -> Value:
    """Exchange the channels of `groups` groups, as `channel_shuffle` does."""
    return _shuffled("native_channel_shuffle", input, groups)
