"""Convolutions as compiled loops that sum over the taps of a window in registers: the tier "llvm" of CPUs.

Windows are not gathered: each tap reads the padded image at an offset that is computed when the loop is bound (`cpu/images.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, wraps
from itertools import product
from typing import Any

import numpy as np

from jobflow.core.types import Array, DType, dtype_of
from jobflow.kernels.argument_block import address, argument_block
from jobflow.kernels.cpu.convolutions import why_not
from jobflow.kernels.cpu.images import PaddedPhases, image_view, is_innermost, load, stage, store
from jobflow.kernels.llvm.convolution_text import Tile, products, sums
from jobflow.kernels.llvm.machine_code import Function, compiler
from jobflow.kernels.registry import implements
from jobflow.ops.conv import Conv, ConvGradInput, ConvGradWeight, ConvOp
from jobflow.ops.op import Binder, Call
from jobflow.ops.windows import Window

#: most elements of filters for the first-level cache, and of images for a core's own cache
_FAR, _NEAR = 1 << 14, 1 << 16
#: most filters, or taps, of a tile
_MOST = 8


class _ReusedScratch:
    """A device whose scratch arrays are reused by each block of channel groups; each block begins with a call of `again`."""

    def __init__(self, device: Binder) -> None:
        self.device, self.xp = device, device.xp
        self.arrays: list[Array] = []

    def again(self) -> Binder:
        self.remaining = iter([*self.arrays])
        return self

    def scratch(self, shape: tuple[int, ...], dtype: DType) -> Array:
        size = math.prod(shape)
        memory = next((a for a in self.remaining if a.size >= size), None)
        if memory is None:
            memory = self.device.scratch((size,), dtype)
            self.arrays.append(memory)
        return memory[:size].reshape(shape)


def _by_groups(prepare: Callable[[Any, Binder, Sequence[Array], Sequence[Array]], list[Call]]) -> Callable[..., list[Call]]:
    """Wrap `prepare` so that a convolution is split into blocks of channel groups, whose staged images stay in the cache until they are read."""

    @wraps(prepare)
    def in_blocks(op: ConvOp, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        step = max(1, _NEAR * op.groups // max(a.size for a in (*inputs, *outputs)))
        if step >= op.groups:
            return prepare(op, device, inputs, outputs)
        calls, same = list[Call](), _ReusedScratch(device)
        filters = 2 if isinstance(op, ConvGradWeight) else 1  # index of the filters among the operands
        for first in range(0, op.groups, step):
            count, parts = min(step, op.groups - first), list[Array]()
            for k, array in enumerate((*inputs, *outputs)):
                each = array.shape[k != filters] // op.groups
                channels = slice(first * each, (first + count) * each)
                parts.append(array[channels] if k == filters else array[:, channels])
            calls += prepare(replace(op, groups=count), same.again(), parts[:2], parts[2:])
        return calls

    return in_blocks


@cache
def _function(text: Any, tile: Tile) -> Function:
    return compiler().function(text(tile))


def _tile(text: Any, filters: int, columns: int, dtype: Any) -> Tile:
    """Return the largest tile of sums that fits the machine's registers, for this many filters and columns (elements of a run, or taps)."""
    wide = "+avx512f" in compiler().features.split(",")
    lanes, room = (64 if wide else 32) // dtype.itemsize, 24 if wide else 12
    real, size = "float" if dtype.itemsize == 4 else "double", dtype.itemsize
    if text is products:
        shapes = ((most, room // most) for most in range(1, min(filters, _MOST) + 1))
        many, taps = min(((f, min(t, columns, _MOST)) for f, t in shapes), key=lambda shape: _steps(filters, columns, *shape))
        return Tile(many, taps, lanes, real, size)
    columns = max(1, min(3 if filters > 2 else 8, columns // lanes))
    most = min(filters, room // columns, _MOST)
    even = next((n for n in range(most, most // 2, -1) if filters % n == 0), most)
    return Tile(even, columns, lanes, real, size)


def _steps(filters: int, taps: int, most_filters: int, most_taps: int) -> int:
    """Estimate the multiply-adds and loads for tiles of `most_filters` by `most_taps`; remaining filters and taps are computed one at a time."""
    pairs = product(((most_filters, filters // most_filters), (1, filters % most_filters)), ((most_taps, taps // most_taps), (1, taps % most_taps)))
    return sum(m * n * (f * t + f + t) for (f, m), (t, n) in pairs)


def _along(array: Array, first: int, at: Sequence[int]) -> int:
    """Return the offset in bytes of the index `at` along the axes of an array from axis `first` on."""
    return sum(n * array.strides[first + i] for i, n in enumerate(at))


def _call(text: Any, groups: int, image: Array, w: Array, filter_axis: int, y: Array, taps: Sequence[tuple[int, int]]) -> Call:
    """Prepare the call for a staged image [b, c, *phases, *sizes, m], filters along axis `filter_axis` of w, and y [b, o, *out, m].

    `taps` are the offsets in bytes, in the image and in w, of all taps of a group's channels.
    """
    dims, filters, size = y.ndim - 3, y.shape[1] // groups, y.shape[-2] * y.shape[-1]
    starts = [(b, at) for b in range(y.shape[0]) for at in np.ndindex(*y.shape[2:-2])]
    runs = np.array([(b * image.strides[0] + _along(image, 2 + dims, at), b * y.strides[0] + _along(y, 2, at)) for b, at in starts], np.int64)
    table = np.array(taps, np.int64)
    tile = _tile(text, filters, size if text is sums else len(taps), y.dtype)
    by_group = [image.shape[1] // groups * image.strides[1], w.shape[0] // groups * w.strides[0], filters * y.strides[1]]
    words = [len(taps), len(runs), groups, filters, size, *by_group, w.strides[filter_axis], y.strides[1]]
    arrays = (image, w, y, table, runs)
    return _function(text, tile), (argument_block([*map(address, arrays), *words], arrays),)


def _taps(window: Window, staged: Array, w: Array, channels: int) -> list[tuple[int, int]]:
    """Return the offsets in bytes of all taps of the channels, in the staged image and in w, for the computation of y or dw."""
    dims, offsets = len(window.kernel), []
    for c, tap in product(range(channels), np.ndindex(*window.kernel)):
        positions_in_phase, phases = zip(*(divmod(k * d, s) for k, d, s in zip(tap, window.dilations, window.strides, strict=True)), strict=True)
        at = c * staged.strides[1] + _along(staged, 2, phases) + _along(staged, 2 + dims, positions_in_phase)
        offsets.append((at, c * w.strides[1] + _along(w, 2, tap)))
    return offsets


def _refused(op: ConvOp, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
    if not compiler().has_fma:
        return "this machine has no fused multiply-adds"
    return why_not("direct", "llvm", op, inputs, outputs)


@implements(Conv, tier="llvm", rank=10, refuses=_refused)
@_by_groups
def direct_sums(op: Conv, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    (x, w), (y,) = inputs, outputs
    innermost, window = is_innermost(x), op.window(w.shape[2:])
    target, after = store(device, y, innermost)
    staged, calls = stage(device, PaddedPhases(window, x.shape[2:], y.shape[2:]), image_view(x, innermost))
    return [*calls, _call(sums, op.groups, staged, w, 0, target, _taps(window, staged, w, w.shape[1])), *after]


@implements(ConvGradWeight, tier="llvm", rank=10, refuses=_refused)
@_by_groups
def direct_products(op: ConvGradWeight, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    (x, dy), (dw,) = inputs, outputs
    innermost, window = is_innermost(x), op.window(op.kernel_sizes)
    gradient, before = load(device, dy, innermost)
    staged, calls = stage(device, PaddedPhases(window, x.shape[2:], dy.shape[2:]), image_view(x, innermost))
    return [*before, *calls, _call(products, op.groups, staged, dw, 0, gradient, _taps(window, staged, dw, dw.shape[1]))]


@implements(ConvGradInput, tier="llvm", rank=10, refuses=_refused)
@_by_groups
def direct_sums_of_gradient(op: ConvGradInput, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    """Prepare the calls for dx phase by phase, as sums over the taps that reach a phase.

    Position i * stride + k * dilation of padded dx receives the product of dy[i] and tap k.
    """
    (dy, w), (dx,) = inputs, outputs
    innermost, window = is_innermost(dy), op.window(w.shape[2:])
    dims, image = len(window.kernel), image_view(dx, innermost)
    before: list[Call] = []
    if w.size > _FAR and op.groups == 1:  # the taps of a channel of dx are not contiguous in w
        near = device.scratch((w.shape[1], w.shape[0], *w.shape[2:]), dtype_of(w.dtype)).swapaxes(0, 1)
        before, w = [(np.copyto, (near, w))], near
    phases = PaddedPhases(window, dx.shape[2:], dy.shape[2:])
    reach = tuple(size - n for size, n in zip(phases.sizes, dy.shape[2:], strict=True))
    around = Window(tuple(n + 1 for n in reach), (1,) * dims, tuple((n, n) for n in reach), (1,) * dims)
    staged, calls = stage(device, PaddedPhases(around, dy.shape[2:], phases.sizes), image_view(dy, innermost))
    calls = [*before, *calls]
    parts = list(phases.parts())
    if sum(image[:, :, *inside].size for _, inside, _ in parts) < dx.size:
        calls.append((dx.fill, (0,)))
    for phase_index, inside, elements in parts:
        part, taps = image[:, :, *inside], []
        for o, tap in product(range(w.shape[0] // op.groups), np.ndindex(*window.kernel)):
            steps = [divmod(k * d, s) for k, d, s in zip(tap, window.dilations, window.strides, strict=True)]
            if all(phase == number for (_, phase), number in zip(steps, phase_index, strict=True)):
                at = [element.start + n - step for element, n, (step, _) in zip(elements, reach, steps, strict=True)]
                taps.append((o * staged.strides[1] + _along(staged, 2 + dims, at), o * w.strides[0] + _along(w, 2, tap)))
        if not taps:
            calls.append((part.fill, (0,)))
            continue
        has_lines = part.strides[-2] == part.shape[-1] * part.itemsize and part.strides[-1] == part.itemsize
        target = part if has_lines else device.scratch(part.shape, dtype_of(dx.dtype))
        calls.append(_call(sums, op.groups, staged, w, 1, target, taps))
        calls += [] if has_lines else [(np.copyto, (part, target))]
    return calls
