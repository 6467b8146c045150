"""Convolutions on the CPU as prepared NumPy calls.

Every path computes on images in the order c,h,w,n (see `memory_order`): what a window needs is copied in runs of w*n elements, and GEMMs
are w*n or h*w*n columns wide.

    rows    a buffer holds the image once per kernel *column*, ordered [row, column, channel, (w n)]: the rows under an output row's
            window are adjacent, so they are one GEMM operand without being copied once per kernel row; no work on padding rows
    taps    the usual im2col, once per kernel element, for windows whose rows are not adjacent or whose GEMMs would be too narrow
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from jobflow.core.types import Array, dtype_of
from jobflow.ops import winograd
from jobflow.ops.memory_order import lift, load, store, takes
from jobflow.ops.op import Binder, Call
from jobflow.ops.windows import Window, spread

#: bytes of a window buffer: big enough for wide GEMMs, small enough to stay near the core
_BUFFER = 4 << 20
#: GEMM columns per output row from which on `rows` wins over `taps`
_WIDE = 256


def _split(image: Array, groups: int) -> Array:
    """[g*c, ...] as [g, c, ...]: a view."""
    return image.reshape(groups, image.shape[0] // groups, *image.shape[1:], copy=False)


def _flat(image: Array) -> Array:
    """[..., h, w, n] as [..., h*w*n]: a view, since these are one run."""
    return image.reshape(*image.shape[:-3], math.prod(image.shape[-3:]), copy=False)


@dataclass(frozen=True)
class _Piece:
    """Some output rows: the calls that gather what their windows see, and the GEMM operand that results.

    `columns` is [g, (r s c), (h w n)] for the output rows `rows` and the kernel rows `taps`.
    """

    calls: tuple[Call, ...]
    rows: slice
    taps: slice
    columns: Array


def _pieces(device: Binder, window: Window, x: Array, out: tuple[int, int]) -> Iterator[_Piece]:
    """What all windows see of x [g,c,h,w,n], piece by piece; each piece is used before the next one's calls run."""
    if window.kernel == window.strides == (1, 1) and window.padding == ((0, 0), (0, 0)):
        yield _Piece((), slice(0, out[0]), slice(0, 1), _flat(x))
    elif window.kernel[0] > 1 and window.dilations[0] == 1 and out[1] * x.shape[-1] >= _WIDE:
        yield from _row_pieces(device, window, x, out)
    else:
        yield from _tap_pieces(device, window, x, out)


def _row_pieces(device: Binder, window: Window, x: Array, out: tuple[int, int]) -> Iterator[_Piece]:
    g, c, height, width, n = x.shape
    (kh, kw), stride, before = window.kernel, window.strides[0], window.padding[0][0]
    row_bytes = g * kw * c * out[1] * n * x.itemsize
    block = max(1, min(out[0], (max(2 * kh, _BUFFER // row_bytes) - kh) // stride + 1))
    buffer = device.scratch((g, min(height, (block - 1) * stride + kh), kw, c, out[1], n), dtype_of(x.dtype))
    reaches = [(s, window.reach(1, s, width, out[1])) for s in range(kw)]
    calls: list[Call] = []
    for s, reach in reaches:
        calls += _clear_outside(buffer[:, :, s], 3, reach[1] if reach else slice(0, 0))
    for first in range(0, out[0], block):
        stop = min(out[0], first + block)
        top, bottom = max(0, first * stride - before), min(height, (stop - 1) * stride - before + kh)
        for s, reach in reaches:
            if reach and bottom > top:
                source = x[:, :, top:bottom, reach[0]].transpose(0, 2, 1, 3, 4)
                calls.append((np.copyto, (buffer[:, : bottom - top, s, :, reach[1]], source)))
        for row in range(first, stop):
            at = row * stride - before
            taps = slice(max(0, -at), max(0, -at, min(kh, height - at)))
            seen = buffer[:, max(0, at + taps.start - top) :][:, : taps.stop - taps.start]
            yield _Piece(tuple(calls), slice(row, row + 1), taps, seen.reshape(g, seen.shape[1] * kw * c, out[1] * n, copy=False))
            calls = []


def _clear_outside(part: Array, axis: int, inside: slice) -> list[Call]:
    """Zero what a copy to `inside` of `axis` leaves untouched."""
    lead = (slice(None),) * axis
    edges = (part[(*lead, slice(0, inside.start))], part[(*lead, slice(inside.stop, None))])
    return [(edge.fill, (0,)) for edge in edges if edge.size]


def _tap_pieces(device: Binder, window: Window, x: Array, out: tuple[int, int]) -> Iterator[_Piece]:
    g, c, height, width, n = x.shape
    kh, kw = window.kernel
    row_size = g * kh * kw * c * out[1] * n
    block = max(1, min(out[0], _BUFFER // (row_size * x.itemsize)))
    memory = device.scratch((row_size * block,), dtype_of(x.dtype))
    taps = window.taps((height, width), out)
    for first in range(0, out[0], block):
        rows = slice(first, min(out[0], first + block))
        count = rows.stop - first
        buffer = memory[: row_size * count].reshape(g, kh, kw, c, count, out[1], n)
        calls: list[Call] = [(buffer.fill, (0,))] if any(window.padding[0] + window.padding[1]) else []
        for tap in taps:
            low, high = max(first, tap.target[0].start), min(rows.stop, tap.target[0].stop)
            if low < high:
                start = tap.source[0].start + (low - tap.target[0].start) * window.strides[0]
                lines = slice(start, start + (high - low - 1) * window.strides[0] + 1, window.strides[0])
                calls.append((np.copyto, (buffer[:, *tap.at, :, low - first : high - first, tap.target[1]], x[:, :, lines, tap.source[1]])))
        yield _Piece(tuple(calls), rows, slice(0, kh), buffer.reshape(g, kh * kw * c, count * out[1] * n))


def _gemm_weights(device: Binder, w: Array, groups: int, *, flip: bool = False) -> tuple[Array, list[Call]]:
    """w as [g, o, r, s, c] for a GEMM; flipped in both senses, [g, c, -r, -s, o], it makes of `forward` the input gradient of stride 1."""
    lifted = w[:, :, None] if w.ndim == 3 else w
    grouped = _split(lifted, groups)
    source = grouped[..., ::-1, ::-1].transpose(0, 2, 3, 4, 1) if flip else grouped.transpose(0, 1, 3, 4, 2)
    weights = device.scratch(source.shape, dtype_of(w.dtype))
    return weights, [(np.copyto, (weights, source))]


def _of_taps(weights: Array, taps: slice) -> Array:
    """[g, o, r, s, c] for some kernel rows, as [g, o, (r s c)]: a view."""
    g, o, _, kw, c = weights.shape
    return weights.reshape(g, o, -1)[:, :, taps.start * kw * c : taps.stop * kw * c]


def _sums(device: Binder, window: Window, x: Array, weights: Array, y: Array) -> list[Call]:
    """y [g,o,h,w,n] = weights times what windows see of x [g,c,h,w,n]."""
    calls: list[Call] = []
    for piece in _pieces(device, window, x, y.shape[2:4]):
        calls += piece.calls
        target = _flat(y[:, :, piece.rows])
        if piece.taps.start == piece.taps.stop:
            calls.append((target.fill, (0,)))
        else:
            calls.append((np.matmul, (_of_taps(weights, piece.taps), piece.columns, target)))
    return calls


def bind_forward(window: Window, groups: int, algorithm: str, device: Binder, x: Array, w: Array, y: Array) -> list[Call] | None:
    """The calls of y = conv(x, w); None where only the plain kernel will do."""
    if not takes(device, window, (x, w, y)):
        return None
    source, before = load(device, x)
    target, after = store(device, y)
    if algorithm != "direct":
        return before + winograd.forward(window, _outputs(algorithm), device, source, w, target) + after
    weights, prepared = _gemm_weights(device, w, groups)
    return before + prepared + _sums(device, lift(window), _split(source, groups), weights, _split(target, groups)) + after


def _outputs(algorithm: str) -> int:
    """Outputs per tile and axis: winograd2 -> 2."""
    return int(algorithm.removeprefix("winograd"))


def _reversed(window: Window) -> Window | None:
    """The window through which dy is seen from dx, if the stride is 1 and its padding is not negative."""
    pads = tuple(
        (spread(k, d) - 1 - before, spread(k, d) - 1 - after)
        for k, d, (before, after) in zip(window.kernel, window.dilations, window.padding, strict=True)
    )
    fits = set(window.strides) == {1} and all(min(pair) >= 0 for pair in pads)
    return Window(window.kernel, window.strides, pads, window.dilations) if fits else None


def bind_grad_input(window: Window, groups: int, algorithm: str, device: Binder, dy: Array, w: Array, dx: Array) -> list[Call] | None:
    """The calls of dx; None where only the plain kernel will do."""
    if not takes(device, window, (dy, w, dx)):
        return None
    source, before = load(device, dy)
    target, after = store(device, dx)
    mirror = _reversed(lift(window))
    if algorithm != "direct" and mirror:
        return before + winograd.grad_input(mirror, _outputs(algorithm), device, source, w, target) + after
    weights, prepared = _gemm_weights(device, w, groups, flip=mirror is not None)
    grouped = _split(source, groups), weights, _split(target, groups)
    sums = _sums(device, mirror, *grouped) if mirror else _scatter(device, lift(window), *grouped)
    return before + prepared + sums + after


def _scatter(device: Binder, window: Window, dy: Array, weights: Array, dx: Array) -> list[Call]:
    """dx = 0; for some rows of dy at a time, one GEMM gives all taps' products, and each is added where the tap reads."""
    g, o, height, width, n = dy.shape
    kh, kw, c = weights.shape[2:]
    row_size = g * kh * kw * c * width * n
    block = max(1, min(height, _BUFFER // (row_size * dy.itemsize)))
    memory = device.scratch((row_size * block,), dtype_of(dy.dtype))
    columns = weights.reshape(g, o, -1).transpose(0, 2, 1)
    calls: list[Call] = [(dx.fill, (0,))]
    for first in range(0, height, block):
        rows = slice(first, min(height, first + block))
        count = rows.stop - first
        product = memory[: row_size * count].reshape(g, kh, kw, c, count, width, n)
        calls.append((np.matmul, (columns, _flat(dy[:, :, rows]), product.reshape(g, kh * kw * c, -1))))
        for tap in window.taps(dx.shape[2:4], (height, width)):
            low, high = max(first, tap.target[0].start), min(rows.stop, tap.target[0].stop)
            if low < high:
                start = tap.source[0].start + (low - tap.target[0].start) * window.strides[0]
                part = dx[:, :, start : start + (high - low - 1) * window.strides[0] + 1 : window.strides[0], tap.source[1]]
                calls.append((np.add, (part, product[:, *tap.at, :, low - first : high - first, tap.target[1]], part)))
    return calls


def bind_grad_weight(window: Window, groups: int, algorithm: str, device: Binder, x: Array, dy: Array, dw: Array) -> list[Call] | None:
    """The calls of dw; None where only the plain kernel will do."""
    if not takes(device, window, (x, dy, dw)):
        return None
    source, first = load(device, x)
    other, second = load(device, dy)
    if algorithm != "direct":
        return first + second + winograd.grad_weight(window, _outputs(algorithm), device, source, other, dw)
    lifted = dw[:, :, None] if dw.ndim == 3 else dw
    grouped = _split(lifted, groups).transpose(0, 1, 3, 4, 2)
    total = device.scratch(grouped.shape, dtype_of(dw.dtype))
    calls = first + second + _products(device, lift(window), _split(source, groups), _split(other, groups), total)
    return [*calls, (np.copyto, (grouped, total))]


def _products(device: Binder, window: Window, x: Array, dy: Array, total: Array) -> list[Call]:
    """total [g,o,r,s,c] = sum over pieces of dy times what windows see of x."""
    calls: list[Call] = []
    memory: Any = None
    for i, piece in enumerate(_pieces(device, window, x, dy.shape[2:4])):
        calls += piece.calls
        part = _of_taps(total, piece.taps)
        if not part.size:
            continue
        operands = _flat(dy[:, :, piece.rows]), piece.columns.transpose(0, 2, 1)
        if i == 0 and part.shape[2] == math.prod(total.shape[2:]):
            calls.append((np.matmul, (*operands, part)))
            continue
        if memory is None:
            memory = device.scratch((total.size,), dtype_of(total.dtype))
            if i == 0:
                calls.append((total.fill, (0,)))
        product = memory[: part.size].reshape(part.shape)
        calls += [(np.matmul, (*operands, product)), (np.add, (part, product, part))]
    return calls
