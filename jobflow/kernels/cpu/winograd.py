"""Winograd convolution F(m,r) along one or two axes, as prepared products on images in the order c,h,w,n.

    y = A' [ (G w G') . (B' d B) ] A          for each tile of m x m outputs, which reads t x t inputs d,  t = m + r - 1

(' transposes, . multiplies element by element).  Summed over input channels, each of the t*t products is a GEMM [o,c] @ [c, tiles n].
The direct sum has m*m*r*r / (t*t) times as many multiplications (4 for F(4,3), 4.6 for F(3,5)).  If the filter has one element along an
axis, the matrices of the axis are [1].  A one-dimensional convolution is therefore computed on images of height 1.

A block is part of one row of tiles, so that its intermediate values stay in the cache.  The transforms along a row of tiles form one banded matrix,
`band`.  Its rows are ordered (j, tile), which makes the columns (tile, n) of each product contiguous.  The matrices omit zero padding, so no
padded copy is needed.  The input gradient of a Winograd convolution is again a Winograd convolution.

Source of the matrices: Cook-Toom interpolation (A. Lavin, S. Gray, "Fast Algorithms for Convolutional Neural Networks", 2015).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.types import Array, dtype_of
from jobflow.kernels.cpu.images import lifted_image, lifted_window, load, mirror, store
from jobflow.ops.op import Binder, Call
from jobflow.ops.windows import Window

#: Finite evaluation points of the polynomials, for tiles of t inputs.  Since the transforms are GEMMs, the matrices need not be simple.  A search
#: minimized the error in float32, which is half (t = 6, 7) the error of the customary points 0, 1, -1, 2, -2, 1/2 ...
_POINTS: dict[int, tuple[float, ...]] = {
    4: (0.0, 1.0, -1.0),
    6: (0.0, 0.6875, -0.6875, 1.5, -1.5),
    7: (0.25, -0.25, 0.875, -0.875, 1.6875, -1.6875),
    8: (0.0, 0.5, -0.5, 1.0, -1.0, 1.9375, -1.9375),
}
#: target size of a block's intermediate values in bytes
_BLOCK = 2 << 20
#: most inputs of a row per banded matrix; wider matrices multiply too many zeros
_WIDEST = 20

Matrix = np.ndarray[Any, np.dtype[np.float64]]


@cache
def matrices(m: int, r: int) -> tuple[Matrix, Matrix, Matrix]:
    """Return A' [m,t], G [t,r] and B' [t,t] of F(m,r)."""
    if r == 1:
        return np.eye(m), np.ones((1, 1)), np.eye(m)
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
    """Return a banded matrix [(i, tile), position], restricted to the positions in `clip`.

    For each tile, it contains `matrix` [i, k] at position tile*step + k.
    """
    rows, width = matrix.shape
    wide = np.zeros((rows, tiles, (tiles - 1) * step + width))
    for tile in range(tiles):
        wide[:, tile, tile * step : tile * step + width] = matrix
    return wide.reshape(rows * tiles, -1)[:, clip]


@dataclass(frozen=True)
class _Span:
    """A run of tiles along one axis, with the valid parts of the outputs and inputs that they cover."""

    tiles: int
    outputs: slice
    inputs: slice
    valid_outputs: slice
    valid_inputs: slice


@dataclass(frozen=True)
class Axis:
    """The parameters of F(m,r) along one axis."""

    m: int
    r: int

    @property
    def t(self) -> int:
        return self.m + self.r - 1

    def a(self, dtype: Any, rows: slice = slice(None)) -> Array:
        return matrices(self.m, self.r)[0][rows].astype(dtype)

    def b(self, dtype: Any, columns: slice = slice(None)) -> Array:
        return matrices(self.m, self.r)[2][:, columns].astype(dtype)

    def spans(self, size: int, before: int, out: int, group: int) -> list[_Span]:
        """Return the spans of an axis with `size` inputs and `out` outputs, `group` tiles each; `before` is the padding at its beginning.

        The slices `valid_*` are relative to the start of the span.
        """
        spans = []
        for first in range(0, -(-out // self.m), group):
            tiles = min(group, -(-out // self.m) - first)
            low, width = first * self.m - before, tiles * self.m + self.r - 1
            inputs = slice(max(0, low), max(0, low, min(size, low + width)))
            outputs = slice(first * self.m, min(out, (first + tiles) * self.m))
            valid_outputs, valid_inputs = slice(0, outputs.stop - outputs.start), slice(inputs.start - low, inputs.stop - low)
            spans.append(_Span(tiles, outputs, inputs, valid_outputs, valid_inputs))
        return spans

    def group(self, out: int, row_bytes: int) -> int:
        """Return the number of tiles per block for `out` outputs, if the values of one tile take `row_bytes` bytes."""
        tiles = -(-out // self.m)
        most = max(1, min((_WIDEST - self.r + 1) // self.m, _BLOCK // row_bytes))
        return -(-tiles // -(-tiles // most))


def axes(m: int, window: Window) -> tuple[Axis, Axis]:
    """Return the parameters of F(m,r) along both axes of a two-dimensional window."""
    down, along = (Axis(m if r > 1 else 1, r) for r in window.kernel)
    return down, along


@dataclass(frozen=True)
class _Tiling:
    """The tiling of an image for F(m,r), split into blocks of tiles and samples."""

    down: Axis
    along: Axis
    rows: list[_Span]
    columns: list[_Span]
    samples: list[slice]

    @property
    def t(self) -> tuple[int, int]:
        return self.down.t, self.along.t

    def blocks(self) -> Iterator[tuple[_Span, _Span, slice]]:
        return product(self.rows, self.columns, self.samples)


def _tiling(backend: WinogradBackend, window: Window, m: int, image: tuple[int, ...], out: tuple[int, ...], channels: int, itemsize: int) -> _Tiling:
    """Split an image into blocks; `image` is h,w,n, and `channels` counts input and output channels together."""
    (height, width, n), (down, along) = image, axes(m, window)
    values = down.t * along.t * channels * n * itemsize
    group = along.group(out[1], values)
    (top, _), (left, _) = window.padding
    spans = down.spans(height, top, out[0], 1), along.spans(width, left, out[1], group)
    return _Tiling(down, along, *spans, backend.samples(n, values * group))


class ImageTile(NamedTuple):
    """A tile of [channels, rows, columns, n] by its first row and column; rows and columns may be outside the image."""

    image: Array
    top: int
    left: int


@dataclass(frozen=True, eq=False)
class TileTransform:
    """The transform y = down x along' of tiles x, for all channels and samples; `products` returns the transform's calls as two matrix products."""

    down: Matrix
    along: Matrix
    tiles: list[tuple[ImageTile, ImageTile]]
    products: Callable[[], list[Call]]


@dataclass(frozen=True)
class WinogradBackend:
    """Functions that return the calls of transforms and of y += a b, and `near`, the maximal number of bytes of values in a block.

    If `near` is None, a block contains all samples.
    """

    calls: Callable[[TileTransform], list[Call]]
    added: Callable[[Array, Array, Array], list[Call]]
    near: int | None

    def samples(self, n: int, block: int) -> list[slice]:
        """Return slices that divide the n samples, so that the values of a block take about `near` bytes.

        `block` is the number of bytes of the values of all samples.  Several slices have multiples of sixteen samples, apart from the last.
        """
        parts = 1 if self.near is None else -(-block // self.near)
        each = max(1, -(-n // (16 * parts))) * 16 if parts > 1 else n
        return [slice(first, min(n, first + each)) for first in range(0, n, each)]


#: transforms as products of all samples at once, so that the columns of their matrices are contiguous
PRODUCTS = WinogradBackend(lambda transform: transform.products(), lambda a, b, y: [], None)


def _of_tiles(values: Array, tiles: int) -> list[ImageTile]:
    """Return a view [c,i,j,n] of each tile of the transformed values [i,c,(j tile),n]."""
    per_tile = values.reshape(*values.shape[:2], -1, tiles, values.shape[3])
    return [ImageTile(per_tile[:, :, :, tile].swapaxes(0, 1), 0, 0) for tile in range(tiles)]


class _BlockScratch:
    """Scratch for the values of one block, reshaped for each block's sizes."""

    def __init__(self, device: Binder, dtype: Any) -> None:
        self._device, self._dtype = device, dtype_of(dtype)
        self._pool: dict[str, Array] = {}

    def __call__(self, name: str, *shape: int) -> Array:
        size = math.prod(shape)
        if name not in self._pool or self._pool[name].size < size:
            self._pool[name] = self._device.scratch((size,), self._dtype)
        return self._pool[name][:size].reshape(shape)


def _columns(image: Array) -> Array:
    """View [..., w, n] as [..., (w n)]; w and n are contiguous."""
    return image.reshape(*image.shape[:-2], image.shape[-2] * image.shape[-1], copy=False)


def _input_transform(
    backend: WinogradBackend, tiling: _Tiling, row: _Span, column: _Span, memory: _BlockScratch, x: Array
) -> tuple[Array, list[Call]]:
    """Return V [i,c,j,tile,n] = B' d B of a block of x [c,h,w,n], and its calls."""
    t, u = tiling.t
    part = x[:, row.inputs, column.inputs]
    c, _, w, n = part.shape
    v = memory("v", t, c, u * column.tiles, n)

    def products() -> list[Call]:
        half = memory("half", c, t, w, n)
        down = tiling.down.b(x.dtype, row.valid_inputs)
        along = band(tiling.along.b(np.float64), column.tiles, tiling.along.m, column.valid_inputs).astype(x.dtype)
        return [(np.matmul, (down, _columns(part), _columns(half))), (np.matmul, (along, half, v.transpose(1, 0, 2, 3)))]

    top, left, step = -row.valid_inputs.start, -column.valid_inputs.start, tiling.along.m
    inputs = [ImageTile(part, top, left + tile * step) for tile in range(column.tiles)]
    tiles = list(zip(inputs, _of_tiles(v, column.tiles), strict=True))
    return v.reshape(t, c, u, column.tiles, n), backend.calls(TileTransform(tiling.down.b(np.float64), tiling.along.b(np.float64), tiles, products))


def _output_calls(backend: WinogradBackend, tiling: _Tiling, row: _Span, column: _Span, memory: _BlockScratch, summed: Array, y: Array) -> list[Call]:
    """Return the calls for a block of the output y [o,h,w,n] = A' M A, where `summed` is M [i,o,(j tile),n]."""
    part = y[:, row.outputs, column.outputs]

    def products() -> list[Call]:
        half = memory("half", *summed.shape[:2], part.shape[2], part.shape[3])
        along = band(tiling.along.a(np.float64).T, column.tiles, tiling.along.m, column.valid_outputs).T.astype(y.dtype)
        down = tiling.down.a(y.dtype, row.valid_outputs)
        return [(np.matmul, (along, summed, half)), (np.matmul, (down, _columns(half).transpose(1, 0, 2), _columns(part)))]

    written = [ImageTile(part, 0, tile * tiling.along.m) for tile in range(column.tiles)]
    tiles = list(zip(_of_tiles(summed, column.tiles), written, strict=True))
    return backend.calls(TileTransform(tiling.down.a(np.float64), tiling.along.a(np.float64), tiles, products))


def _gradient_transform(
    backend: WinogradBackend, tiling: _Tiling, row: _Span, column: _Span, memory: _BlockScratch, dy: Array
) -> tuple[Array, list[Call]]:
    """Return [i,o,j,tile,n] = A dy A' of a block of dy [o,h,w,n], and its calls."""
    t, u = tiling.t
    part = dy[:, row.outputs, column.outputs]
    o, _, w, n = part.shape
    spread = memory("spread", t, o, u * column.tiles, n)

    def products() -> list[Call]:
        half = memory("half", o, t, w, n)
        along = band(tiling.along.a(np.float64).T, column.tiles, tiling.along.m, column.valid_outputs).astype(dy.dtype)
        down = tiling.down.a(dy.dtype, row.valid_outputs).T
        return [(np.matmul, (down, _columns(part), _columns(half))), (np.matmul, (along, half, spread.transpose(1, 0, 2, 3)))]

    read = [ImageTile(part, 0, tile * tiling.along.m) for tile in range(column.tiles)]
    tiles = list(zip(read, _of_tiles(spread, column.tiles), strict=True))
    transform = TileTransform(tiling.down.a(np.float64).T, tiling.along.a(np.float64).T, tiles, products)
    return spread.reshape(t, o, u, column.tiles, n), backend.calls(transform)


def _products(v: Array) -> Array:
    """View [i,c,j,tile,n] as GEMM operands: a stack [i,j] of matrices [c, (tile n)]."""
    return _columns(v).transpose(0, 2, 1, 3)


def _kron(down: Axis, along: Axis, dtype: Any) -> Array:
    """Return the Kronecker product of the matrices G of both axes: [(i j), (r s)]."""
    return np.kron(matrices(down.m, down.r)[1], matrices(along.m, along.r)[1]).astype(dtype)


def _transformed_weights(device: Binder, window: Window, m: int, w: Array) -> tuple[Array, list[Call]]:
    """Return G w G' as [i,j,o,c], and its calls."""
    o, c, *kernel = w.shape
    down, along = axes(m, window)
    flat, calls = w, []
    if not w.flags.c_contiguous:
        flat = device.scratch(w.shape, dtype_of(w.dtype))
        calls = [(np.copyto, (flat, w))]
    u = device.scratch((down.t * along.t, o * c), dtype_of(w.dtype))
    transformed: Call = (np.matmul, (_kron(down, along, w.dtype), flat.reshape(o * c, math.prod(kernel)).T, u))
    return u.reshape(down.t, along.t, o, c), [*calls, transformed]


def _sums(backend: WinogradBackend, window: Window, m: int, device: Binder, x: Array, u: Array, y: Array) -> list[Call]:
    """Return the calls for y [o,h,w,n] from x [c,h,w,n] and transformed weights u [i,j,o,c]."""
    c, o = x.shape[0], y.shape[0]
    tiling = _tiling(backend, window, m, x.shape[1:], y.shape[1:3], c + o, x.itemsize)
    memory, (t, s) = _BlockScratch(device, x.dtype), tiling.t
    calls: list[Call] = []
    for row, column, samples in tiling.blocks():
        v, transforms = _input_transform(backend, tiling, row, column, memory, x[..., samples])
        tile_sums = memory("product", t, o, s * column.tiles, v.shape[4])
        summed: Call = (np.matmul, (u, _products(v), _products(tile_sums.reshape(t, o, s, column.tiles, v.shape[4]))))
        calls += [*transforms, summed, *_output_calls(backend, tiling, row, column, memory, tile_sums, y[..., samples])]
    return calls


def _added(a: Array, b: Array, memory: _BlockScratch, y: Array) -> list[Call]:
    product = memory("product", *y.shape)
    return [(np.matmul, (a, b, product)), (np.add, (y, product, y))]


def forward(backend: WinogradBackend, window: Window, m: int, device: Binder, x: Array, w: Array, y: Array) -> list[Call]:
    """Return the calls for y = conv(x, w) by F(m,r)."""
    window = lifted_window(window)
    source, before = load(device, x)
    target, after = store(device, y)
    u, prepared = _transformed_weights(device, window, m, w)
    return [*before, *prepared, *_sums(backend, window, m, device, lifted_image(source), u, lifted_image(target)), *after]


def grad_input(backend: WinogradBackend, window: Window, m: int, device: Binder, dy: Array, w: Array, dx: Array) -> list[Call]:
    """Return the calls for dx: the convolution of dy with w flipped along the spatial axes and transposed in channels."""
    mirrored = mirror(lifted_window(window))
    assert mirrored is not None
    source, before = load(device, dy)
    target, after = store(device, dx)
    u, prepared = _transformed_weights(device, mirrored, m, w[(..., *(slice(None, None, -1),) * (w.ndim - 2))])
    sums = _sums(backend, mirrored, m, device, lifted_image(source), u.transpose(0, 1, 3, 2), lifted_image(target))
    return [*before, *prepared, *sums, *after]


def grad_weight(backend: WinogradBackend, window: Window, m: int, device: Binder, x: Array, dy: Array, dw: Array) -> list[Call]:
    """Return the calls for dw [o,c,r,s] = G' [ sum over tiles of (A dy A') . V ] G."""
    window = lifted_window(window)
    source, first = load(device, x)
    gradient, second = load(device, dy)
    image, other = lifted_image(source), lifted_image(gradient)
    c, o = image.shape[0], other.shape[0]
    tiling = _tiling(backend, window, m, image.shape[1:], other.shape[1:3], c + o, x.itemsize)
    memory, (t, u) = _BlockScratch(device, x.dtype), tiling.t
    total = device.scratch((t, u, o, c), dtype_of(x.dtype))
    calls = [*first, *second]
    for i, (row, column, samples) in enumerate(tiling.blocks()):
        v, transforms = _input_transform(backend, tiling, row, column, memory, image[..., samples])
        spread, widened = _gradient_transform(backend, tiling, row, column, memory, other[..., samples])
        operands = _products(spread), _products(v).swapaxes(2, 3)
        calls += [*transforms, *widened]
        calls += (backend.added(*operands, total) or _added(*operands, memory, total)) if i else [(np.matmul, (*operands, total))]
    flat = device.scratch((math.prod(window.kernel), o * c), dtype_of(x.dtype))
    gathered = np.moveaxis(flat.reshape(*dw.shape[2:], o, c), (-2, -1), (0, 1))
    return [*calls, (np.matmul, (_kron(tiling.down, tiling.along, x.dtype).T, total.reshape(t * u, o * c), flat)), (np.copyto, (dw, gathered))]
