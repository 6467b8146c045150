"""Borders, and images made larger or smaller."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from jobflow.core.errors import DtypeError, ShapeError, user_line
from jobflow.core.types import Tensor as Value
from jobflow.core.types import float32, float64, int64, uint8
from jobflow.functional.nn_base import Sizes, composed, formula, one_of, real, sizes
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
    """x without what negative borders take away."""
    return _part(x, axis, max(-before, 0), x.tensor_type.shape[axis] - max(-after, 0)) if min(before, after) < 0 else x


def _border(x: Value, axis: int, count: int, mode: str, first: bool) -> list[Value]:
    """What comes before (`first`) or after x along an axis, where nothing is made up."""
    n = x.tensor_type.shape[axis]
    if count <= 0:
        return []
    if mode == "reflect":
        return [sl.flip(_part(x, axis, 1, count + 1) if first else _part(x, axis, n - 1 - count, n - 1), (axis,))]
    if mode == "circular":
        return [_part(x, axis, n - count, n) if first else _part(x, axis, 0, count)]
    edge = _part(x, axis, 0, 1) if first else _part(x, axis, n - 1, n)
    return [sh.tile(edge, [count if i == axis else 1 for i in range(x.tensor_type.ndim)])]


def _factors(given: Any, count: int) -> list[float]:
    """One factor per spatial axis, from one for all or one for each."""
    factors = [real("interpolate", "scale_factor", f) for f in (given if isinstance(given, list | tuple) else (given,) * count)]
    if len(factors) != count or not all(0 < f < math.inf for f in factors):
        raise ShapeError(f"interpolate at {user_line()}: scale_factor takes one positive number, or {count}; got {given!r}")
    return factors


@composed
def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: float = 0.0) -> Value:
    """x with borders: `pad` is before and after the last axis, then before and after the one before it, and so on.

    The border is `value`, or by `mode`: "reflect" (mirrored, without the edge), "replicate" (the edge), "circular".  What is negative
    takes away.
    """
    t, what = input.tensor_type, "pad"
    one_of("pad", "mode", mode, _MODES)
    if not isinstance(pad, Sequence) or len(pad) % 2 or len(pad) > 2 * t.ndim:
        raise ShapeError(f"{what} at {user_line()}: {pad!r} are not pairs (before, after) for at most the {t.ndim} axes of input {t}")
    widths = [integer("pad", width) for width in pad]
    pairs = {t.ndim - 1 - i: (widths[2 * i], widths[2 * i + 1]) for i in range(len(widths) // 2)}
    for axis, (before, after) in pairs.items():
        left = t.shape[axis] + min(before, 0) + min(after, 0)
        most = {"reflect": t.shape[axis] - 1, "circular": left}.get(mode, math.inf)
        if max(before, after) > most or left < 0 or (mode != "constant" and not t.shape[axis]):
            raise ShapeError(f'{what} at {user_line()}: ({before}, {after}) with mode "{mode}" does not go with axis {axis} of input {t}')
    x: Value = input
    for axis, (before, after) in pairs.items():
        if mode != "constant":
            x = _bordered(x, axis, before, after, mode)
        else:
            x = _cropped(x, axis, before, after)
    if mode == "constant" and any(max(pair) > 0 for pair in pairs.values()):
        around = [tuple(max(n, 0) for n in pairs.get(axis, (0, 0))) for axis in range(t.ndim)]
        x = sl.pad(x, [(before, after) for before, after in around], value)
    return ew.identity(x) if x is input else x


def _bordered(x: Value, axis: int, before: int, after: int, mode: str) -> Value:
    inside = _cropped(x, axis, before, after)
    edges = inside if mode == "circular" else x  # what goes round goes round what is left
    parts = [*_border(edges, axis, before, mode, True), inside, *_border(edges, axis, after, mode, False)]
    return sl.concat(parts, axis) if len(parts) > 1 else parts[0]


# -------------------------------------------------------------------- pixels and channels


@composed
def pixel_shuffle(input: Tensor, upscale_factor: int) -> Value:
    """[..., c r r, h, w] -> [..., c, h r, w r]: channels become pixels."""
    *lead, channels, h, w = _image("pixel_shuffle", input)
    r = upscale_factor
    if r < 1 or channels % (r * r):
        raise ShapeError(
            f"pixel_shuffle at {user_line()}: {channels} channels of input {input.tensor_type} are no multiple of the square of upscale_factor {r}"
        )
    rows, n = math.prod(lead), channels // (r * r)
    x = sh.transpose(sh.reshape(input, (rows, n, r, r, h, w)), (0, 1, 4, 2, 5, 3))
    return sh.reshape(x, (*lead, n, h * r, w * r))


@composed
def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Value:
    """[..., c, h r, w r] -> [..., c r r, h, w]: pixels become channels."""
    *lead, channels, h, w = _image("pixel_unshuffle", input)
    r = downscale_factor
    if r < 1 or h % r or w % r:
        raise ShapeError(f"pixel_unshuffle at {user_line()}: the image of input {input.tensor_type} is not a multiple of downscale_factor {r}")
    rows = math.prod(lead)
    x = sh.transpose(sh.reshape(input, (rows, channels, h // r, r, w // r, r)), (0, 1, 3, 5, 2, 4))
    return sh.reshape(x, (*lead, channels * r * r, h // r, w // r))


def _image(what: str, x: Tensor) -> tuple[int, ...]:
    if x.tensor_type.ndim < 3:
        raise ShapeError(f"{what} at {user_line()}: input {x.tensor_type} is [..., channels, h, w]")
    return x.tensor_type.shape


def _places(out: int, start: float, step: float) -> Value:
    """start + step i for i < out, in float64."""
    return ew.shift(ew.scale(ew.cast(arange(0, out), float64), step), start)


def _nearest(x: Value, axis: int, out: int, ratio: float) -> Value:
    n = x.tensor_type.shape[axis]
    if out % n == 0 and ratio == n / out:
        shape, r = x.tensor_type.shape, out // n
        wide = sh.broadcast_to(sh.expand_dims(x, axis + 1), (*shape[: axis + 1], r, *shape[axis + 1 :]))
        return sh.reshape(wide, (*shape[:axis], out, *shape[axis + 1 :]))
    at = ew.clip(ew.floor(_places(out, 0.0, ratio)), 0.0, n - 1.0)
    return gather(x, ew.cast(at, int64), axis)


def _linear(x: Value, axis: int, out: int, ratio: float, corners: bool) -> Value:
    """Between the neighbours of each place."""
    n = x.tensor_type.shape[axis]
    if corners:
        at = _places(out, 0.0, (n - 1) / (out - 1) if out > 1 else 0.0)
    else:
        at = ew.clip(_places(out, 0.5 * ratio - 0.5, ratio), 0.0, None)
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
    """Images [n, c, *spatial] of another size, given by `size` or `scale_factor`.

    `mode` is "nearest", or "linear", "bilinear", "trilinear" for 1, 2, 3 spatial axes; with `align_corners` the outermost pixels keep their places.
    """
    t, what = input.tensor_type, "interpolate"
    spatial = t.ndim - 2
    one_of("interpolate", "mode", mode, ("nearest", *_LINEAR))
    if spatial < 1 or _LINEAR.get(mode, spatial) != spatial:
        raise ShapeError(f'{what} at {user_line()}: mode "{mode}" does not go with input {t}, [n, c, ...]')
    if 0 in t.shape[2:]:
        raise ShapeError(f"{what} at {user_line()}: the images of input {t} are empty")
    if (size is None) == (scale_factor is None):
        raise ShapeError(f"{what} at {user_line()}: one of size and scale_factor is needed; got size={size!r}, scale_factor={scale_factor!r}")
    if size is not None:
        wanted: tuple[int, ...] = sizes("interpolate", "size", size, spatial, 1)
        ratios = [n / m for n, m in zip(t.shape[2:], wanted, strict=True)]
    else:
        factors = _factors(scale_factor, spatial)
        wanted = tuple(math.floor(min(n * f, 2**31)) for n, f in zip(t.shape[2:], factors, strict=True))
        ratios = [n / m if recompute_scale_factor else 1.0 / f for n, m, f in zip(t.shape[2:], wanted, factors, strict=True)]
    if min(wanted) < 1 or max(wanted) >= 2**31:
        raise ShapeError(f"{what} at {user_line()}: the image would be of size {list(wanted)}")
    if mode != "nearest" and not t.dtype.is_float and t.dtype is not uint8:
        raise DtypeError(f'{what} at {user_line()}: mode "{mode}" gives fractions; cast input {t} to floats')
    x: Value = input if mode == "nearest" or t.dtype.is_float else ew.cast(input, float32)
    for axis, (out, ratio) in enumerate(zip(wanted, ratios, strict=True), 2):
        if mode == "nearest":
            x = _nearest(x, axis, out, ratio)
        else:
            x = _linear(x, axis, out, ratio, bool(align_corners))
    return x if x.tensor_type.dtype is t.dtype else ew.cast(ew.floor(ew.shift(x, 0.5)), t.dtype)
