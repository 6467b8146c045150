"""Convolutions on CPUs: products with gathered windows (im2col), a few output rows at a time, or Winograd's algorithm if it costs less.

The products of im2col, where ' transposes:

    y  [g, o, (rows m)]     = w [g, o, (c k)]  @  columns [g, (c k), (rows m)]
    dw [g, o, (c k)]        = dy [g, o, (rows m)]  @  columns'
    dx                      = the convolution of dy with flipped filters, or w' @ dy added to the elements that each tap reads
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.types import Array, dtype_of
from jobflow.kernels.cpu import convolution_costs, winograd
from jobflow.kernels.cpu.images import PaddedPhases, has_runs, image_view, is_innermost, load, mirror, refused, stage, store
from jobflow.kernels.registry import ArrayCalls, register
from jobflow.kernels.target import Tier
from jobflow.ops.conv import Conv, ConvGradInput, ConvGradWeight, ConvOp
from jobflow.ops.op import Binder, Call
from jobflow.ops.windows import Window

#: bytes of columns in one block, so that they stay in the cache, and columns that make a product fast
_BUFFER, _COLUMNS = 1 << 18, 512


def _grouped(image: Array, groups: int) -> Array:
    """View [b, g*c, ...] as [b, g, c, ...]."""
    return image.reshape(image.shape[0], groups, image.shape[1] // groups, *image.shape[2:], copy=False)


def _flat(image: Array, axis: int) -> Array:
    """View all axes from `axis` on as one axis."""
    return image.reshape(*image.shape[:axis], math.prod(image.shape[axis:]), copy=False)


@dataclass(frozen=True)
class _Block:
    """A slice of the samples and a slice of the output rows."""

    samples: slice
    rows: slice

    def of(self, image: Array) -> Array:
        """Return the part of an output image [b, c, *out, m] in this block."""
        return image[self.samples, :, self.rows]


def _blocks(b: int, out: tuple[int, ...], m: int, column_bytes: int) -> Iterator[_Block]:
    """Yield blocks of an output [b, c, *out, m]: some rows of one entry of axis b, or several whole entries, as the buffer permits.

    A row has m * prod(out[1:]) columns, and a column takes `column_bytes` bytes of the buffer.
    """
    row = math.prod(out[1:]) * m
    most = max(_BUFFER // column_bytes, _COLUMNS) // row
    rows = -(-out[0] // -(-out[0] // max(1, min(out[0], most))))
    samples = max(1, most // out[0]) if rows == out[0] else 1
    for first in range(0, b, samples):
        for row in range(0, out[0], rows):
            yield _Block(slice(first, min(b, first + samples)), slice(row, min(out[0], row + rows)))


def _columns(device: Binder, window: Window, groups: int, image: Array, out: tuple[int, ...]) -> Iterator[tuple[_Block, list[Call], Array]]:
    """Yield each block of the output, the calls that gather the windows of its elements, and the windows as [b, g, (c k), (rows m)].

    `image` is [b, c, *spatial, m], and `out` has the spatial sizes of the output.
    """
    phases = PaddedPhases(window, image.shape[2:-1], out)
    staged, before = stage(device, phases, image)
    views = list(phases.views(staged))
    b, c, m = image.shape[0], image.shape[1], image.shape[-1]
    if math.prod(window.kernel) == 1 and has_runs(views[0][1][:, :, *(0,) * len(out)]):
        yield _Block(slice(0, b), slice(0, out[0])), before, _flat(_grouped(views[0][1][:, :, *(0,) * len(out)], groups), 3)
        return
    calls = before
    for block, buffer in _buffers(device, (b, c, *window.kernel), out, m, image.dtype):
        at = (block.samples, *(slice(None),) * (1 + len(out)), block.rows)
        calls = [*calls, *((np.copyto, (buffer[:, :, *taps], view[at])) for taps, view in views)]
        yield block, calls, buffer.reshape(buffer.shape[0], groups, c // groups * math.prod(window.kernel), -1)
        calls = []


def _buffers(device: Binder, taps: tuple[int, ...], out: tuple[int, ...], m: int, dtype: Any) -> Iterator[tuple[_Block, Array]]:
    """Return the blocks of the output, each with an array for one value per tap and output element; the arrays share memory.

    Their shapes are [b, c, *kernel, rows, *out[1:], m]; `taps` is (b, c, *kernel).
    """
    b, *rest = taps
    blocks = list(_blocks(b, out, m, math.prod(rest) * dtype.itemsize))
    shapes = [(x.samples.stop - x.samples.start, *rest, x.rows.stop - x.rows.start, *out[1:], m) for x in blocks]
    memory = device.scratch((max(map(math.prod, shapes)),), dtype_of(dtype))
    return ((block, memory[: math.prod(shape)].reshape(shape)) for block, shape in zip(blocks, shapes, strict=True))


def _product(a: Array, b: Array, y: Array) -> Call:
    """Return the call for y = a @ b; the product of a column and a row is computed by broadcasting, which is faster in NumPy."""
    return (np.multiply if a.shape[-1] == 1 else np.matmul), (a, b, y)


def _matrix(device: Binder, w: Array, groups: int) -> tuple[Array, list[Call]]:
    """Return filters [g*o, c, *kernel] as [g, o, (c k)], and the call that copies the filters, if they are not contiguous."""
    shape = (groups, w.shape[0] // groups, math.prod(w.shape[1:]))
    if w.flags.c_contiguous:
        return w.reshape(shape), []
    staged = device.scratch(w.shape, dtype_of(w.dtype))
    return staged.reshape(shape), [(np.copyto, (staged, w))]


def _flipped(device: Binder, w: Array, groups: int) -> tuple[Array, list[Call]]:
    """Return the filters [g, c, (o k)] whose convolution with dy is dx for stride 1, and the call that flips them along the spatial axes."""
    o, c, *kernel = w.shape
    source = w.reshape(groups, o // groups, c, *kernel)[(..., *(slice(None, None, -1) for _ in kernel))].swapaxes(1, 2)
    staged = device.scratch(source.shape, dtype_of(w.dtype))
    return staged.reshape(groups, c, -1), [(np.copyto, (staged, source))]


def _sums(device: Binder, window: Window, groups: int, x: Array, weights: Array, y: Array) -> list[Call]:
    """Return the calls for y = weights times the windows of x; x and y are [b, c, *spatial, m]."""
    calls: list[Call] = []
    for block, gathered, columns in _columns(device, window, groups, x, y.shape[2:-1]):
        calls += [*gathered, _product(weights, columns, _flat(_grouped(block.of(y), groups), 3))]
    return calls


def _im2col(op: Conv, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    (x, w), (y,) = inputs, outputs
    innermost = is_innermost(x)
    weights, before = _matrix(device, w, op.groups)
    target, after = store(device, y, innermost)
    return [*before, *_sums(device, op.window(w.shape[2:]), op.groups, image_view(x, innermost), weights, target), *after]


def _im2col_of_gradient(op: ConvGradInput, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    (dy, w), (dx,) = inputs, outputs
    innermost, turned = is_innermost(dy), mirror(op.window(w.shape[2:]))
    assert turned is not None
    weights, before = _flipped(device, w, op.groups)
    target, after = store(device, dx, innermost)
    return [*before, *_sums(device, turned, op.groups, image_view(dy, innermost), weights, target), *after]


def _taps_of_gradient(op: ConvGradInput, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    (dy, w), (dx,) = inputs, outputs
    innermost = is_innermost(dy)
    weights, before = _matrix(device, w, op.groups)
    source, loaded = load(device, dy, innermost)
    return [*before, *loaded, *_scatter(device, op.window(w.shape[2:]), op.groups, source, weights.swapaxes(1, 2), image_view(dx, innermost))]


def _scatter(device: Binder, window: Window, groups: int, dy: Array, weights: Array, dx: Array) -> list[Call]:
    """Return the calls for dx as a sum over taps.

    For a few rows of dy at a time, one product computes the contributions of all taps.  The contributions are then added to the elements that each
    tap reads.
    """
    out, m, c, kernel = dy.shape[2:-1], dy.shape[-1], dx.shape[1], window.kernel
    phases = PaddedPhases(window, dx.shape[2:-1], out)
    direct = phases.is_image and dx.shape[2:-1] == phases.sizes and has_runs(dx)
    shape = phases.shape(dx)
    total = dx.reshape(shape, copy=False) if direct else device.scratch(shape, dtype_of(dx.dtype))
    views, after = list(phases.views(total)), [] if direct else _unstage(phases, dx, total)
    if math.prod(kernel) == 1 and has_runs(total[:, :, *(0,) * len(out)]) and phases.sizes == out:
        first = total[:, :, *(0,) * len(out)]
        product = _product(weights, _flat(_grouped(dy, groups), 3), _flat(_grouped(first, groups), 3))
        return [*([(total.fill, (0,))] if first.size < total.size else []), product, *after]
    calls: list[Call] = [(total.fill, (0,))]
    for block, added in _buffers(device, (dy.shape[0], c, *kernel), out, m, dy.dtype):
        products = added.reshape(added.shape[0], groups, weights.shape[1], -1)
        calls.append(_product(weights, _flat(_grouped(block.of(dy), groups), 3), products))
        at = (block.samples, *(slice(None),) * (1 + len(out)), block.rows)
        for taps, view in views:
            parts, terms = view[at], added[:, :, *taps]
            calls += [(np.add, (parts[:, :, *tap], terms[:, :, *tap], parts[:, :, *tap])) for tap in np.ndindex(*terms.shape[2 : 2 + len(out)])]
    return [*calls, *after]


def _unstage(phases: PaddedPhases, dx: Array, total: Array) -> list[Call]:
    parts = list(phases.pairs(dx, total))
    whole = sum(part.size for part, _ in parts) == dx.size
    return [*([] if whole else [(dx.fill, (0,))]), *((np.copyto, (part, phase)) for part, phase in parts)]


def _im2col_of_filters(op: ConvGradWeight, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    (x, dy), (dw,) = inputs, outputs
    innermost, groups = is_innermost(x), op.groups
    gradient, calls = load(device, dy, innermost)
    total = dw if dw.flags.c_contiguous else device.scratch(dw.shape, dtype_of(dw.dtype))
    flat = total.reshape(groups, dw.shape[0] // groups, -1)
    pieces = list(_columns(device, op.window(op.kernel_sizes), groups, image_view(x, innermost), dy.shape[2:]))
    several = len(pieces) > 1 or pieces[0][2].shape[0] > 1
    product = device.scratch((pieces[0][2].shape[0], *flat.shape), dtype_of(dw.dtype)) if several else flat[None]
    calls += [(flat.fill, (0,))] if several else []
    for block, gathered, columns in pieces:
        part = product[: columns.shape[0]]
        calls += [*gathered, _product(_flat(_grouped(block.of(gradient), groups), 3), columns.swapaxes(2, 3), part)]
        calls += [(np.add, (flat, one, flat)) for one in part] if several else []
    return calls if total is dw else [*calls, (np.copyto, (dw, total))]


def _winograd(
    backend: winograd.WinogradBackend, m: convolution_costs.Tiles, op: ConvOp, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]
) -> list[Call]:
    window = op.window(op.shapes([a.shape for a in inputs], [a.shape for a in outputs])[1][2:])
    return _WINOGRAD[type(op)](backend, window, m, device, *inputs, *outputs)


def why_not(algorithm: convolution_costs.Algorithm, tier: Tier, op: ConvOp, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
    """Return the reason not to use `algorithm` for the convolution `op` of these arrays, or None if it applies and costs least."""
    shapes = op.logical or op.shapes([a.shape for a in inputs], [a.shape for a in outputs])
    return refused((*inputs, *outputs)) or convolution_costs.why_not(op, shapes, inputs[0].dtype == np.float32, algorithm, tier)


_WINOGRAD: dict[type[ConvOp], Any] = {Conv: winograd.forward, ConvGradInput: winograd.grad_input, ConvGradWeight: winograd.grad_weight}


def register_algorithms(tier: Tier, backend: winograd.WinogradBackend, refuses: Callable[[], str | None] = lambda: None) -> None:
    """Register for `tier` all convolution algorithms that consist of array functions; `backend` provides the Winograd transforms.

    `refuses` returns the reason the algorithms cannot run on this machine, or None.  The algorithm of least cost is preferred.  If no other
    algorithm applies, im2col computes y and dw, and a sum over taps computes dx.
    """

    def not_this(algorithm: convolution_costs.Algorithm, op: ConvOp, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
        return refuses() or why_not(algorithm, tier, op, inputs, outputs)

    def none(op: ConvOp, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
        return refuses() or refused((*inputs, *outputs))

    register(Conv, "cpu", tier, ArrayCalls("im2col", _im2col, none))
    register(ConvGradInput, "cpu", tier, ArrayCalls("im2col of gradient", _im2col_of_gradient, partial(not_this, "im2col")), rank=1)
    register(ConvGradInput, "cpu", tier, ArrayCalls("taps of gradient", _taps_of_gradient, none))
    register(ConvGradWeight, "cpu", tier, ArrayCalls("im2col of filters", _im2col_of_filters, none))
    for op in _WINOGRAD:
        for m in convolution_costs.TILES:
            register(op, "cpu", tier, ArrayCalls(f"Winograd, {m} outputs", partial(_winograd, backend, m), partial(not_this, m)), rank=m)


register_algorithms("numpy", winograd.PRODUCTS)
