"""Winograd convolution F(m,r) in two dimensions, as prepared GEMMs on images in the order c,h,w,n.

    y = A' [ (G w G') . (B' d B) ] A          for each tile of m x m outputs, which sees t x t inputs d,  t = m + r - 1

(' transposes, . multiplies element by element).  Summed over input channels, each of the t*t products is a GEMM [o,c] @ [c, tiles n]:
m*m*r*r / (t*t) times fewer multiplications than the direct sum (4 for F(4,3), 4.6 for F(3,5)).

A tile row of a few tile columns is worked on at a time, so that its intermediate values stay in the cache.  Within it the transforms
along a row of tiles are one banded matrix, `band`, whose rows are ordered (j, tile): then the columns (tile, n) of each product are one run.
Zero padding is left out of the matrices, so no padded copy exists.  The input gradient of such a convolution is such a convolution.

Source of the matrices: Cook-Toom interpolation (A. Lavin, S. Gray, "Fast Algorithms for Convolutional Neural Networks", 2015).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from jobflow.core.types import Array, dtype_of
from jobflow.ops.op import Binder, Call
from jobflow.ops.windows import Window

#: Where polynomials are evaluated, besides at infinity, for tiles of t inputs.  Since the transforms are GEMMs, the points need not give simple
#: matrices; these were searched for least error in float32, which is a half (t = 6, 7) of that of the customary 0, 1, -1, 2, -2, 1/2 ...
_POINTS: dict[int, tuple[float, ...]] = {
    4: (0.0, 1.0, -1.0),
    6: (0.0, 0.6875, -0.6875, 1.5, -1.5),
    7: (0.25, -0.25, 0.875, -0.875, 1.6875, -1.6875),
    8: (0.0, 0.5, -0.5, 1.0, -1.0, 1.9375, -1.9375),
}
#: bytes of a block's intermediate values to aim at
_BLOCK = 2 << 20
#: widest piece of a row that one banded matrix takes in; wider ones multiply too many zeros
_WIDEST = 20

Matrix = np.ndarray[Any, np.dtype[np.float64]]


@cache
def matrices(m: int, r: int) -> tuple[Matrix, Matrix, Matrix]:
    """A' [m,t], G [t,r] and B' [t,t] of F(m,r)."""
    t = m + r - 1
    points = _POINTS[t]
    others = [points[:i] + points[i + 1 :] for i in range(t - 1)]
    scale = [math.prod(p - q for q in rest) for p, rest in zip(points, others, strict=True)]
    at = np.zeros((m, t))
    at[:, :-1] = np.power.outer(points, np.arange(m)).T
    at[-1, -1] = 1
    g = np.zeros((t, r))
    g[:-1] = np.power.outer(points, np.arange(r)) / np.array(scale)[:, None]
    g[-1, -1] = 1
    bt = np.zeros((t, t))
    for i, rest in enumerate(others):
        bt[i, :-1] = np.poly(rest)[::-1]
    bt[-1] = np.poly(points)[::-1]
    return at, g, bt


def band(matrix: Matrix, tiles: int, step: int, clip: slice) -> Matrix:
    """[(i, tile), position]: `matrix` [i, k] at position tile*step + k for each tile; only the positions in `clip`."""
    rows, width = matrix.shape
    wide = np.zeros((rows, tiles, (tiles - 1) * step + width))
    for tile in range(tiles):
        wide[:, tile, tile * step : tile * step + width] = matrix
    return wide.reshape(rows * tiles, -1)[:, clip]


@dataclass(frozen=True)
class _Span:
    """Tiles `first` to `stop` of one axis: the outputs and inputs that exist of those they write and see."""

    tiles: int
    outputs: slice
    inputs: slice
    kept_outputs: slice
    kept_inputs: slice


def _spans(m: int, r: int, size: int, before: int, out: int, group: int) -> list[_Span]:
    """The tiles of an axis, `group` at a time; `kept_*` say which positions of the group, counted from its own start, exist."""
    spans = []
    for first in range(0, -(-out // m), group):
        tiles = min(group, -(-out // m) - first)
        low, seen = first * m - before, tiles * m + r - 1
        inputs = slice(max(0, low), max(0, low, min(size, low + seen)))
        outputs = slice(first * m, min(out, (first + tiles) * m))
        kept_outputs, kept_inputs = slice(0, outputs.stop - outputs.start), slice(inputs.start - low, inputs.stop - low)
        spans.append(_Span(tiles, outputs, inputs, kept_outputs, kept_inputs))
    return spans


@dataclass(frozen=True)
class _Tiling:
    """F(m,r) over an image, cut into blocks, with memory for one block's values."""

    m: int
    r: int
    rows: list[_Span]
    columns: list[_Span]

    @property
    def t(self) -> int:
        return self.m + self.r - 1

    def blocks(self) -> Iterator[tuple[_Span, _Span]]:
        return ((row, column) for row in self.rows for column in self.columns)


def _tiling(window: Window, m: int, image: tuple[int, ...], out: tuple[int, ...], channels: int, itemsize: int) -> _Tiling:
    """`image` is h,w,n; `channels` counts those of input and output together."""
    r, (height, width, n) = window.kernel[0], image
    t = m + r - 1
    tiles = -(-out[1] // m)
    most = max(1, min((_WIDEST - r + 1) // m, _BLOCK // (t * t * channels * n * itemsize)))
    even = -(-tiles // -(-tiles // most))
    (top, _), (left, _) = window.padding
    return _Tiling(m, r, _spans(m, r, height, top, out[0], 1), _spans(m, r, width, left, out[1], even))


class _BlockScratch:
    """Scratch for the values of one block, cut anew for each block's sizes."""

    def __init__(self, device: Binder, dtype: Any) -> None:
        self._device, self._dtype = device, dtype_of(dtype)
        self._pool: dict[str, Array] = {}

    def __call__(self, name: str, *shape: int) -> Array:
        size = math.prod(shape)
        if name not in self._pool or self._pool[name].size < size:
            self._pool[name] = self._device.scratch((size,), self._dtype)
        return self._pool[name][:size].reshape(shape)


def _columns(image: Array) -> Array:
    """[..., w, n] as [..., (w n)]; a view, since w and n are one run."""
    return image.reshape(*image.shape[:-2], image.shape[-2] * image.shape[-1], copy=False)


def _see(tiling: _Tiling, row: _Span, column: _Span, memory: _BlockScratch, x: Array) -> tuple[Array, list[Call]]:
    """V [i,c,j,tile,n] = B' d B of a block of x [c,h,w,n]."""
    t, bt = tiling.t, matrices(tiling.m, tiling.r)[2]
    part = x[:, row.inputs, column.inputs]
    c, _, w, n = part.shape
    half = memory("half", c, t, w, n)
    v = memory("v", t, c, t * column.tiles, n)
    down = bt[:, row.kept_inputs].astype(x.dtype)
    along = band(bt, column.tiles, tiling.m, column.kept_inputs).astype(x.dtype)
    calls: list[Call] = [
        (np.matmul, (down, _columns(part), _columns(half))),
        (np.matmul, (along, half, v.transpose(1, 0, 2, 3))),
    ]
    return v.reshape(t, c, t, column.tiles, n), calls


def _products(v: Array) -> Array:
    """[i,c,j,tile,n] as the GEMM operands [i,j] of [c, (tile n)]."""
    return _columns(v).transpose(0, 2, 1, 3)


def _transformed_weights(device: Binder, m: int, w: Array) -> tuple[Array, list[Call]]:
    """G w G' as [i,j,o,c]."""
    o, c, r, _ = w.shape
    g = matrices(m, r)[1]
    t = m + r - 1
    flat, calls = w, []
    if not w.flags.c_contiguous:
        flat = device.scratch(w.shape, dtype_of(w.dtype))
        calls = [(np.copyto, (flat, w))]
    u = device.scratch((t * t, o * c), dtype_of(w.dtype))
    return u.reshape(t, t, o, c), [*calls, (np.matmul, (np.kron(g, g).astype(w.dtype), flat.reshape(o * c, r * r).T, u))]


def _sums(window: Window, m: int, device: Binder, x: Array, u: Array, y: Array) -> list[Call]:
    """y [o,h,w,n] from x [c,h,w,n] and transformed weights u [i,j,o,c]."""
    c, o = x.shape[0], y.shape[0]
    tiling = _tiling(window, m, x.shape[1:], y.shape[1:3], c + o, x.itemsize)
    at, memory, t, n = matrices(m, tiling.r)[0], _BlockScratch(device, x.dtype), tiling.t, x.shape[3]
    calls: list[Call] = []
    for row, column in tiling.blocks():
        v, seen = _see(tiling, row, column, memory, x)
        part = y[:, row.outputs, column.outputs]
        product = memory("product", t, o, t, column.tiles, n)
        half = memory("half", t, o, part.shape[2], n)
        along = band(at.T, column.tiles, m, column.kept_outputs).T.astype(x.dtype)
        down = at[row.kept_outputs].astype(x.dtype)
        calls += [
            *seen,
            (np.matmul, (u, _products(v), _products(product))),
            (np.matmul, (along, product.reshape(t, o, t * column.tiles, n), half)),
            (np.matmul, (down, _columns(half).transpose(1, 0, 2), _columns(part))),
        ]
    return calls


def forward(window: Window, m: int, device: Binder, x: Array, w: Array, y: Array) -> list[Call]:
    """The calls of y [o,h,w,n] = conv(x [c,h,w,n], w [o,c,r,r]) by F(m,r)."""
    u, prepared = _transformed_weights(device, m, w)
    return prepared + _sums(window, m, device, x, u, y)


def grad_input(mirror: Window, m: int, device: Binder, dy: Array, w: Array, dx: Array) -> list[Call]:
    """The calls of dx: the convolution of dy with w reversed in space and transposed in channels, through the window `mirror`."""
    u, prepared = _transformed_weights(device, m, w[..., ::-1, ::-1])
    return prepared + _sums(mirror, m, device, dy, u.transpose(0, 1, 3, 2), dx)


def grad_weight(window: Window, m: int, device: Binder, x: Array, dy: Array, dw: Array) -> list[Call]:
    """The calls of dw [o,c,r,r] = G' [ sum over tiles of (A dy A') . V ] G."""
    c, o, n, r = x.shape[0], dy.shape[0], x.shape[3], window.kernel[0]
    tiling = _tiling(window, m, x.shape[1:], dy.shape[1:3], c + o, x.itemsize)
    at, g, _ = matrices(m, r)
    memory, t = _BlockScratch(device, x.dtype), tiling.t
    total, product = device.scratch((t, t, o, c), dtype_of(x.dtype)), device.scratch((t, t, o, c), dtype_of(x.dtype))
    calls: list[Call] = []
    for i, (row, column) in enumerate(tiling.blocks()):
        v, seen = _see(tiling, row, column, memory, x)
        part = dy[:, row.outputs, column.outputs]
        half = memory("half", o, t, part.shape[2], n)
        spread = memory("spread", t, o, t * column.tiles, n)
        down = at[row.kept_outputs].T.astype(x.dtype)
        along = band(at.T, column.tiles, m, column.kept_outputs).astype(x.dtype)
        operands = _products(spread.reshape(t, o, t, column.tiles, n)), _products(v).swapaxes(2, 3)
        calls += [
            *seen,
            (np.matmul, (down, _columns(part), _columns(half))),
            (np.matmul, (along, half, spread.transpose(1, 0, 2, 3))),
        ]
        calls += [(np.matmul, (*operands, product)), (np.add, (total, product, total))] if i else [(np.matmul, (*operands, total))]
    flat = device.scratch((r * r, o * c), dtype_of(x.dtype))
    gathered = flat.reshape(r, r, o, c).transpose(2, 3, 0, 1)
    return [*calls, (np.matmul, (np.kron(g, g).T.astype(x.dtype), total.reshape(t * t, o * c), flat)), (np.copyto, (dw, gathered))]
