"""Pooling on CPUs, a few channels at a time.

Maxima and sums are computed along one axis of the window after the other, in kh + kw passes instead of kh * kw.  For the gradient of the maximum,
each tap has a mask of the windows whose first maximum is there.  The mask is ANDed with the bits of dy, which is exact, including infinities, and
much faster than `where`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from jobflow.core.types import Array, bool_, dtype_of
from jobflow.kernels.cpu.images import is_innermost, load, refused, store
from jobflow.kernels.registry import implements
from jobflow.ops.op import Binder, Call, Op
from jobflow.ops.pool import AvgPool, AvgPoolGrad, MaxPool, MaxPoolGrad, counts
from jobflow.ops.windows import Window

#: elements of the pooled image per block, so that the images' parts and the masks stay in the cache
_BLOCK = 1 << 15
#: fewest samples for which plain images are copied to batch-innermost order: longer runs are worth two copies
_RUN = 8


def _maximum(a: Array, b: Array, out: Array) -> None:
    np.maximum(a, b, out=out)


def _refused(op: Op, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
    return refused((*inputs, *outputs))


def planes(device: Binder, inputs: Sequence[Array], output: Array) -> tuple[list[Array], list[Call], list[Call]]:
    """Return inputs and output as dense images [planes, *spatial, m], the calls that copy the inputs, and the calls that copy the output.

    An array whose view in this form is contiguous is not copied.
    """
    innermost = is_innermost(inputs[0]) or inputs[0].shape[0] >= _RUN
    loaded = [load(device, array, innermost, dense=True) for array in inputs]
    target, after = store(device, output, innermost, dense=True)
    images = [image.reshape(-1, *image.shape[2:], copy=False) for image in (*(image for image, _ in loaded), target)]
    return images, [call for _, calls in loaded for call in calls], after


def _blocks(pooled: Array) -> Iterator[slice]:
    """Yield slices of a few planes of [planes, *spatial, m]."""
    each = max(1, _BLOCK // (pooled.size // pooled.shape[0]))
    return (slice(first, min(first + each, pooled.shape[0])) for first in range(0, pooled.shape[0], each))


def _at(image: Array, axis: int, where: slice) -> Array:
    return image[(slice(None),) * axis + (where,)]


def _reaches(window: Window, a: int, size: int, out: int) -> list[tuple[slice, slice]]:
    """Return a pair of slices for each tap along spatial axis `a`: the tap's input positions and the corresponding output positions.

    `size` and `out` are the lengths of the input and the output.  Taps that read no element of the image are omitted.
    """
    reaches = (window.reach(a, k, size, out) for k in range(window.kernel[a]))
    return [reach for reach in reaches if reach is not None]


def _combine(window: Window, a: int, function: Callable[..., Any], identity: float, source: Array, target: Array) -> list[Call]:
    """Return the calls for target = `function` over the window's taps along spatial axis a of source."""
    axis, out = a + 1, target.shape[a + 1]
    reaches = sorted(_reaches(window, a, source.shape[axis], out), key=lambda reach: reach[1] != slice(0, out))
    whole = [_at(source, axis, reach[0]) for reach in reaches if reach[1] == slice(0, out)][:2]
    calls: list[Call] = [
        (target.fill, (identity,)) if not whole else (np.copyto, (target, *whole)) if len(whole) == 1 else (function, (*whole, target))
    ]
    for inside, served in reaches[len(whole) :]:
        part = _at(target, axis, served)
        calls.append((function, (part, _at(source, axis, inside), part)))
    return calls


def _steps(device: Binder, few: Array, many: Array) -> list[tuple[Array, Array]]:
    """Return one pair of images per spatial axis, from `many` through scratch images to `few`.

    The first image of a pair has one more unpooled axis than the second.  Scratch images have room for one block of planes.
    """
    each = next(_blocks(few)).stop
    images = [many]
    for a in range(1, few.ndim - 2):
        shape = (each, *few.shape[1 : a + 1], *many.shape[a + 1 :])
        images.append(device.scratch(shape, dtype_of(few.dtype)))
    return list(pairwise([*images, few]))


def _cut(image: Array, block: slice, *whole: Array) -> Array:
    """Return the part of an image that belongs to a block of planes.

    The images in `whole` have all planes.  Any other image is scratch, in which the block begins at index 0.
    """
    return image[block] if any(image is each for each in whole) else image[: block.stop - block.start]


def _pool(window: Window, function: Callable[..., Any], identity: float, device: Binder, x: Array, y: Array) -> list[Call]:
    """Return the calls for y = `function` over the axes of windows."""
    steps = _steps(device, y, x)
    return [
        call
        for block in _blocks(y)
        for a, (source, target) in enumerate(steps)
        for call in _combine(window, a, function, identity, _cut(source, block, x), _cut(target, block, y))
    ]


@implements(MaxPool, refuses=_refused)
def maxima_by_axes(op: MaxPool, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    (x, y), before, after = planes(device, inputs, outputs[0])
    return [*before, *_pool(op.window, _maximum, -np.inf, device, x, y), *after]


def _shares(window: Window, x: Array, y: Array) -> Array:
    """Return the reciprocal of the number of elements in each window of y, as [*spatial, 1]; a single value if all windows have the same number."""
    count = counts(np, window, x.shape[1:-1], y.shape[1:-1], x.dtype)[..., None]
    return 1 / (count.ravel()[:1] if (count == count.ravel()[0]).all() else count)


@implements(AvgPool, refuses=_refused)
def means_by_axes(op: AvgPool, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    (x, y), before, after = planes(device, inputs, outputs[0])
    scale: Call = (np.multiply, (y, _shares(op.window, x, y), y))
    return [*before, *_pool(op.window, np.add, 0.0, device, x, y), scale, *after]


def _spread(window: Window, a: int, source: Array, target: Array) -> list[Call]:
    """Return the calls for the adjoint of a sum along spatial axis `a`: each source element is added to its window in the target."""
    axis = a + 1
    reaches = _reaches(window, a, target.shape[axis], source.shape[axis])
    calls: list[Call] = [] if _covers(window, a, target.shape[axis], source.shape[axis]) else [(target.fill, (0,))]
    for inside, served in reaches:
        part, values = _at(target, axis, inside), _at(source, axis, served)
        calls.append((np.copyto, (part, values)) if _are_disjoint(window, a) else (np.add, (part, values, part)))
    return calls


def _are_disjoint(window: Window, a: int) -> bool:
    """Return True if windows do not overlap along spatial axis `a`."""
    return window.strides[a] >= window.kernel[a]


def _covers(window: Window, a: int, size: int, out: int) -> bool:
    """Return True if adjacent windows cover every position of spatial axis `a` exactly once, so that the target needs no zeroing."""
    return window.strides[a] == window.kernel[a] and out * window.strides[a] - window.padding[a][0] >= size


@implements(AvgPoolGrad, refuses=_refused)
def shares_by_axes(op: AvgPoolGrad, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    (dy, dx), before, after = planes(device, inputs, outputs[0])
    scaled = device.scratch((next(_blocks(dy)).stop, *dy.shape[1:]), dtype_of(dy.dtype))
    share, steps = _shares(op.window, dx, dy), _steps(device, scaled, dx)
    calls: list[Call] = []
    for block in _blocks(dy):
        calls.append((np.multiply, (dy[block], share, _cut(scaled, block))))
        for a, (target, source) in reversed(list(enumerate(steps))):
            calls += _spread(op.window, a, _cut(source, block), _cut(target, block, dx))
    return [*before, *calls, *after]


@implements(MaxPoolGrad, refuses=_refused)
def first_maxima_by_masks(op: MaxPoolGrad, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    """Compute dx tap by tap: dy is added where x == y, unless an earlier tap of the window matched."""
    (x, y, dy, dx), before, after = planes(device, inputs, outputs[0])
    window, axes = op.window, range(x.ndim - 2)
    shape = (next(_blocks(y)).stop, *y.shape[1:])
    hit, matched = device.scratch(shape, bool_), device.scratch(shape, bool_)
    mask = device.scratch(shape, dtype_of(dy.dtype)).view(f"i{dy.itemsize}")
    taps = window.taps(x.shape[1:-1], y.shape[1:-1])
    disjoint = all(_are_disjoint(window, a) for a in axes)
    covers = all(_covers(window, a, x.shape[a + 1], y.shape[a + 1]) for a in axes)
    calls: list[Call] = [] if covers else [(dx.fill, (0,))]
    for block in _blocks(y):
        calls.append((_cut(matched, block).fill, (False,)))
        for tap in taps:
            at, inside = (slice(None), *tap.target), (slice(None), *tap.source)
            scratch = _cut(hit, block)[at], _cut(matched, block)[at], _cut(mask, block)[at]
            calls += _one_tap(x[block][inside], y[block][at], dy[block][at], dx[block][inside], scratch, disjoint)
    return [*before, *calls, *after]


def _one_tap(x: Array, y: Array, dy: Array, dx: Array, scratch: tuple[Array, Array, Array], disjoint: bool) -> list[Call]:
    """Return the calls that write dy to dx where x == y and no earlier tap matched.

    All arguments are views for one tap.  As an integer, -1 (true) has all bits set and 0 (false) none.
    """
    hit, matched, mask = scratch
    calls: list[Call] = [
        (np.equal, (x, y, hit)),
        (np.greater, (hit, matched, hit)),
        (np.logical_or, (matched, hit, matched)),
        (np.negative, (hit.view(np.int8), mask)),
    ]
    if disjoint:
        return [*calls, (np.bitwise_and, (dy.view(mask.dtype), mask, dx.view(mask.dtype)))]
    return [*calls, (np.bitwise_and, (dy.view(mask.dtype), mask, mask)), (np.add, (dx, mask.view(dx.dtype), dx))]
