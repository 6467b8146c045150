"""Sampling of images at the points of a grid, and grids of affine maps (Jaderberg et al. 2015)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jobflow.core.errors import ArgumentError, DtypeError, ShapeError, user_line
from jobflow.core.types import Tensor as Value
from jobflow.core.types import int64
from jobflow.functional.nn_base import formula, one_of, one_type
from jobflow.functional.nn_windows import literal
from jobflow.functional.typed import Tensor
from jobflow.ops import elementwise as ew
from jobflow.ops import shape as sh
from jobflow.ops import slices as sl
from jobflow.ops.broadcast import broadcast_to
from jobflow.ops.index import batch_gather
from jobflow.ops.matmul import matmul

__all__ = ["affine_grid", "grid_sample"]

_MODES = ("bilinear", "nearest", "bicubic")
_PADDING = ("zeros", "border", "reflection")


# -------------------------------------------------------------------- coordinates


def _pixels(x: Value, n: int, corners: bool) -> Value:
    """Return coordinates from -1 to 1 as indices of an axis of n pixels; -1 and 1 are centres of pixels with `corners`, else their outer edges."""
    if corners:
        return ew.scale(ew.shift(x, 1.0), (n - 1) / 2)
    return ew.scale(ew.shift(ew.scale(ew.shift(x, 1.0), float(n)), -1.0), 0.5)


def _reflected(x: Value, n: int, corners: bool) -> Value:
    """Return indices reflected at the first and last pixel, or at their outer edges without `corners`."""
    low, span = (0.0, float(n - 1)) if corners else (-0.5, float(n))
    if span <= 0:
        return ew.fill_like(x, 0.0)
    away = ew.absolute(ew.shift(x, -low))
    flips = ew.floor(ew.scale(away, 1.0 / span))
    rest = ew.subtract(away, ew.scale(flips, span))
    odd = ew.greater(ew.subtract(flips, ew.scale(ew.floor(ew.scale(flips, 0.5)), 2.0)), ew.fill_like(flips, 0.5))
    return ew.shift(ew.where(odd, ew.shift(ew.negate(rest), span), rest), low)


def _inside(x: Value, n: int) -> Value:
    """Return indices clipped to the axis; a clipped index has no gradient."""
    low, high = ew.fill_like(x, 0.0), ew.fill_like(x, float(n - 1))
    within = ew.logical_and(ew.greater(x, low), ew.less(x, high))
    return ew.where(within, x, ew.detach(ew.clip(x, 0.0, float(n - 1))))


def _padded(x: Value, n: int, padding: str, corners: bool) -> Value:
    """Return indices clipped or reflected into the axis for the padding modes "border" and "reflection", unchanged for "zeros"."""
    if padding == "zeros":
        return x
    return _inside(_reflected(x, n, corners) if padding == "reflection" else x, n)


# -------------------------------------------------------------------- weighted pixels


class _Image:
    """Images [n, c, *spatial] that are read at indices [n, points] per spatial axis."""

    def __init__(self, x: Value) -> None:
        n, c, *self.spatial = x.tensor_type.shape
        self.rows = sh.transpose(sh.reshape(x, (n, c, math.prod(self.spatial))), (0, 2, 1))

    def read(self, at: Sequence[Value]) -> Value:
        """Return the pixels [n, points, c] at whole-number indices; 0 outside of the images."""
        flat: Value | None = None
        legal: Value | None = None
        for x, n in zip(at, self.spatial, strict=True):
            inside = ew.logical_and(ew.greater_equal(x, ew.fill_like(x, 0.0)), ew.less_equal(x, ew.fill_like(x, n - 1.0)))
            index = ew.cast(ew.where(inside, x, ew.fill_like(x, 0.0)), int64)
            flat = index if flat is None else ew.add(ew.scale(flat, n), index)
            legal = inside if legal is None else ew.logical_and(legal, inside)
        assert flat is not None and legal is not None
        return batch_gather(self.rows, ew.where(legal, flat, ew.fill_like(flat, -1)), 1)

    def summed(self, taps: Sequence[Sequence[tuple[Value, Value]]]) -> Value:
        """Return the sum over all combinations of taps (index, weight), one per axis, of the product of the weights times the pixel."""
        total: Value | None = None
        for combination in itertools.product(*taps):
            weight = combination[0][1]
            for _, factor in combination[1:]:
                weight = ew.multiply(weight, factor)
            part = ew.multiply(self.read([index for index, _ in combination]), sh.expand_dims(weight, 2))
            total = part if total is None else ew.add(total, part)
        assert total is not None
        return total


def _two(x: Value) -> list[tuple[Value, Value]]:
    """Return the two indices next to x, and their weights in linear interpolation."""
    low = ew.detach(ew.floor(x))
    share = ew.subtract(x, low)
    return [(low, ew.shift(ew.negate(share), 1.0)), (ew.shift(low, 1.0), share)]


def _four(x: Value, move: Callable[[Value], Value]) -> list[tuple[Value, Value]]:
    """Return the four indices next to x, and their weights in cubic convolution with slope -0.75 (Keys 1981).

    `move` applies the padding mode to indices.
    """
    low = ew.detach(ew.floor(x))
    t, a = ew.subtract(x, low), -0.75

    def near(d: Value) -> Value:
        return ew.shift(ew.multiply(ew.multiply(ew.shift(ew.scale(d, a + 2.0), -(a + 3.0)), d), d), 1.0)

    def far(d: Value) -> Value:
        return ew.shift(ew.scale(ew.multiply(ew.shift(ew.multiply(ew.shift(d, -5.0), d), 8.0), d), a), -4.0 * a)

    rest = ew.shift(ew.negate(t), 1.0)
    weights = far(ew.shift(t, 1.0)), near(t), near(rest), far(ew.shift(rest, 1.0))
    return [(move(ew.shift(low, float(k - 1))), weight) for k, weight in enumerate(weights)]


# -------------------------------------------------------------------- the functions


def _check(input: Tensor, grid: Tensor, mode: str) -> None:
    what, x, g = "grid_sample", input.tensor_type, grid.tensor_type
    if x.ndim not in (4, 5) or g.ndim != x.ndim or g.shape[-1] != x.ndim - 2 or g.shape[0] != x.shape[0]:
        raise ShapeError(
            f"{what} at {user_line()}: input {x} must be [n, c, h, w] with grid [n, h_out, w_out, 2], or [n, c, d, h, w] with grid "
            f"[n, d_out, h_out, w_out, 3]; grid is {g}"
        )
    if 0 in x.shape[1:]:
        raise ShapeError(f"{what} at {user_line()}: the images of input {x} must not be empty")
    if not x.dtype.is_float or not g.dtype.is_float:
        raise DtypeError(f"{what} at {user_line()}: input {x} and grid {g} must contain floating point numbers; cast them with .float()")
    if mode == "bicubic" and x.ndim != 4:
        raise ShapeError(f'{what} at {user_line()}: mode "bicubic" needs images [n, c, h, w]; input is {x}; use mode="bilinear"')


@one_type
@formula
def grid_sample(input: Tensor, grid: Tensor, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool | None = None) -> Value:
    """Return `input` [n, c, h, w] sampled at the points of `grid` [n, h_out, w_out, 2], or volumes at points of 3 coordinates.

    A point is (x, y) or (x, y, z), from -1 to 1 for the image: centres of the corner pixels with `align_corners`, else their outer edges.
    `mode` is "bilinear", "nearest" or "bicubic".  `padding_mode` selects the pixels outside of the image: "zeros", "border" (the nearest pixel) or
    "reflection".
    Raises: ShapeError, DtypeError for arguments that do not match, ConfigError for an unknown mode.
    """
    one_of("grid_sample", "mode", mode, _MODES)
    one_of("grid_sample", "padding_mode", padding_mode, _PADDING)
    _check(input, grid, mode)
    corners = bool(align_corners)
    n, c, *spatial = input.tensor_type.shape
    *points, axes = grid.tensor_type.shape[1:]
    count, image = math.prod(points), _Image(input)
    flat = sh.reshape(grid, (n, count, axes))
    taps: list[Any] = []
    for axis, size in enumerate(spatial):
        x = sh.squeeze(sl.slice_(flat, (None, None, axes - 1 - axis), (None, None, axes - axis)), (2,))
        at = _pixels(x, size, corners)

        def move(index: Value, size: int = size) -> Value:
            return _padded(index, size, padding_mode, corners)

        if mode == "bicubic":
            taps.append(_four(at, move))
        else:
            at = move(at)
            taps.append(_two(at) if mode == "bilinear" else [ew.round_half_even(at)])
    y = image.read([nearest for (nearest,) in taps]) if mode == "nearest" else image.summed(taps)
    return sh.reshape(sh.transpose(y, (0, 2, 1)), (n, c, *points))


@formula
def affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool | None = None) -> Value:
    """Return the grid for `grid_sample` of the affine maps `theta` [n, 2, 3], for outputs of `size` [n, c, h, w].

    For volumes, `theta` is [n, 3, 4] and `size` [n, c, d, h, w].  With `align_corners`, -1 and 1 are centres of pixels, else their outer edges.
    Raises: ShapeError, DtypeError for arguments that do not match.
    """
    what, t = "affine_grid", theta.tensor_type
    if not isinstance(size, Sequence) or isinstance(size, str) or not all(isinstance(n, int | np.integer) for n in size):
        raise ArgumentError(f"{what} at {user_line()}: size must be a sequence of ints such as (n, c, h, w); got {size!r}")
    axes = len(size) - 2
    if axes not in (2, 3) or min(size) < 1 or t.shape != (size[0], axes, axes + 1):
        raise ShapeError(
            f"{what} at {user_line()}: theta {t} must be [n, 2, 3] with size [n, c, h, w], or [n, 3, 4] with size [n, c, d, h, w]; size is "
            f"{list(size)}"
        )
    if not t.dtype.is_float:
        raise DtypeError(f"{what} at {user_line()}: theta {t} must contain floating point numbers; cast it with .float()")
    lines = [np.linspace(-1.0, 1.0, n) if n > 1 else np.zeros(1) for n in size[2:]]
    if not align_corners:
        lines = [line * (len(line) - 1) / len(line) for line in lines]
    points = np.stack([*np.meshgrid(*lines, indexing="ij")[::-1], np.ones(tuple(size[2:]))], -1).reshape(-1, axes + 1)
    base = literal(points.astype(t.dtype.numpy))
    grid = matmul(broadcast_to(sh.expand_dims(base, 0), (size[0], *points.shape)), theta, transpose_b=True)
    return sh.reshape(grid, (size[0], *size[2:], axes))
