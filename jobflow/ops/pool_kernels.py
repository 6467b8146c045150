"""Pooling on the CPU as prepared NumPy calls, on images in the order c,h,w,n (see `memory_order`), some channels at a time.

Maxima and sums are taken along rows first and then along columns, kh + kw passes instead of kh * kw.  The gradient of the maximum makes,
per tap, a mask of the windows that found their first maximum there, and ANDs it with the bits of dy: exact, infinities included, and much
faster than `where`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from jobflow.core.types import Array, Xp, bool_, dtype_of
from jobflow.ops.memory_order import lift, load, store, takes
from jobflow.ops.op import Binder, Call
from jobflow.ops.windows import Window

#: elements of the pooled image to work on at a time, so that the images' parts and the masks stay in the cache
_BLOCK = 1 << 15


def counts(xp: Xp, window: Window, spatial: Sequence[int], out: Sequence[int], dtype: Any) -> Array:
    """How many positions of each window lie inside the image, shaped like the output's spatial axes."""
    count = xp.ones((1,) * len(out), dtype)
    for a, k in enumerate(window.kernel):
        along = np.zeros(out[a])
        for reach in (window.reach(a, tap, spatial[a], out[a]) for tap in range(k)):
            if reach is not None:
                along[reach[1]] += 1
        count = count * xp.asarray(along, dtype).reshape(tuple(-1 if i == a else 1 for i in range(len(out))))
    return count


def _maximum(a: Array, b: Array, out: Array) -> None:
    np.maximum(a, b, out=out)


def _channels(pooled: Array) -> Iterator[slice]:
    """Blocks of channels of [c,h,w,n]."""
    each = max(1, _BLOCK // (pooled.size // pooled.shape[0]))
    return (slice(first, first + each) for first in range(0, pooled.shape[0], each))


def _at(image: Array, axis: int, where: slice) -> Array:
    return image[(slice(None),) * axis + (where,)]


def _reaches(window: Window, a: int, size: int, out: int) -> list[tuple[slice, slice]]:
    """(input positions, output positions) of each tap along spatial axis a."""
    found = (window.reach(a, k, size, out) for k in range(window.kernel[a]))
    return [reach for reach in found if reach is not None]


def _combine(window: Window, a: int, function: Callable[..., Any], identity: float, source: Array, target: Array) -> list[Call]:
    """target = `function` over the window's taps along spatial axis a of source; both [c,h,w,n]."""
    axis, out = a + 1, target.shape[a + 1]
    reaches = sorted(_reaches(window, a, source.shape[axis], out), key=lambda reach: reach[1] != slice(0, out))
    whole = [_at(source, axis, reach[0]) for reach in reaches if reach[1] == slice(0, out)][:2]
    calls: list[Call] = [
        (target.fill, (identity,)) if not whole else (np.copyto, (target, *whole)) if len(whole) == 1 else (function, (*whole, target))
    ]
    for seen, served in reaches[len(whole) :]:
        part = _at(target, axis, served)
        calls.append((function, (part, _at(source, axis, seen), part)))
    return calls


def _pool(window: Window, function: Callable[..., Any], identity: float, device: Binder, x: Array, y: Array) -> list[Call]:
    """y = `function` over rows and columns of windows."""
    each = next(_channels(y)).stop
    rows = device.scratch((min(each, y.shape[0]), y.shape[1], x.shape[2], x.shape[3]), dtype_of(x.dtype))
    calls: list[Call] = []
    for block in _channels(y):
        half = rows[: y[block].shape[0]]
        calls += _combine(window, 0, function, identity, x[block], half)
        calls += _combine(window, 1, function, identity, half, y[block])
    return calls


def bind_max(window: Window, device: Binder, x: Array, y: Array) -> list[Call] | None:
    """The calls of max pooling; None where only the plain kernel will do."""
    if not takes(device, window, (x, y)):
        return None
    source, before = load(device, x)
    target, after = store(device, y)
    return before + _pool(lift(window), _maximum, -np.inf, device, source, target) + after


def _shares(window: Window, x: Array, y: Array) -> Array:
    """1 / count of each window of y [c,h,w,n], as [h,w,1], or [1,1,1] if all are equal."""
    count = counts(np, window, x.shape[1:3], y.shape[1:3], x.dtype)[:, :, None]
    return 1 / (count[:1, :1] if (count == count[0, 0, 0]).all() else count)


def bind_avg(window: Window, device: Binder, x: Array, y: Array) -> list[Call] | None:
    """The calls of average pooling; None where only the plain kernel will do."""
    if not takes(device, window, (x, y)):
        return None
    window = lift(window)
    source, before = load(device, x)
    target, after = store(device, y)
    scale: Call = (np.multiply, (target, _shares(window, source, target), target))
    return [*before, *_pool(window, np.add, 0.0, device, source, target), scale, *after]


def _spread(window: Window, a: int, source: Array, target: Array) -> list[Call]:
    """The adjoint of a sum along spatial axis a: each element of source goes to the positions of its window in target."""
    axis = a + 1
    reaches = _reaches(window, a, target.shape[axis], source.shape[axis])
    calls: list[Call] = [] if _covers(window, a, target.shape[axis], source.shape[axis]) else [(target.fill, (0,))]
    for seen, served in reaches:
        part, given = _at(target, axis, seen), _at(source, axis, served)
        calls.append((np.copyto, (part, given)) if _apart(window, a) else (np.add, (part, given, part)))
    return calls


def _apart(window: Window, a: int) -> bool:
    """Whether no two windows share a position along spatial axis a."""
    return window.strides[a] >= window.kernel[a]


def _covers(window: Window, a: int, size: int, out: int) -> bool:
    """Whether windows lie side by side and leave no position of spatial axis a out, so that writing needs no zeroing before."""
    return window.strides[a] == window.kernel[a] and out * window.strides[a] - window.padding[a][0] >= size


def bind_avg_grad(window: Window, device: Binder, dy: Array, dx: Array) -> list[Call] | None:
    """The calls of average pooling's gradient; None where only the plain kernel will do."""
    if not takes(device, window, (dy, dx)):
        return None
    window = lift(window)
    source, before = load(device, dy)
    target, after = store(device, dx)
    each = min(next(_channels(source)).stop, source.shape[0])
    share = _shares(window, target, source)
    scaled = device.scratch((each, *source.shape[1:]), dtype_of(dy.dtype))
    rows = device.scratch((each, source.shape[1], target.shape[2], target.shape[3]), dtype_of(dy.dtype))
    calls: list[Call] = []
    for block in _channels(source):
        given = source[block]
        one, half = scaled[: given.shape[0]], rows[: given.shape[0]]
        calls += [(np.multiply, (given, share, one)), *_spread(window, 1, one, half), *_spread(window, 0, half, target[block])]
    return before + calls + after


def bind_max_grad(window: Window, device: Binder, x: Array, y: Array, dy: Array, dx: Array) -> list[Call] | None:
    """The calls of max pooling's gradient; None where only the plain kernel will do."""
    if not takes(device, window, (x, y, dy, dx)):
        return None
    (seen, first), (found, second), (given, third) = (load(device, array) for array in (x, y, dy))
    target, after = store(device, dx)
    return first + second + third + _first_maxima(lift(window), device, seen, found, given, target) + after


def _first_maxima(window: Window, device: Binder, x: Array, y: Array, dy: Array, dx: Array) -> list[Call]:
    """dx [c,h,w,n]: per tap, mask = (x == y) and not taken before; dx gets dy under the mask."""
    shape = (min(next(_channels(y)).stop, y.shape[0]), *y.shape[1:])
    hit, taken = device.scratch(shape, bool_), device.scratch(shape, bool_)
    kept = device.scratch(shape, dtype_of(dy.dtype)).view(f"i{dy.itemsize}")
    taps = window.taps(x.shape[1:3], y.shape[1:3])
    apart = all(_apart(window, a) for a in (0, 1))
    covers = all(_covers(window, a, x.shape[a + 1], y.shape[a + 1]) for a in (0, 1))
    calls: list[Call] = [] if covers else [(dx.fill, (0,))]
    for block in _channels(y):
        count = y[block].shape[0]
        calls.append((taken[:count].fill, (False,)))
        for tap in taps:
            at, seen = (slice(None), *tap.target), (slice(None), *tap.source)
            scratch = hit[:count][at], taken[:count][at], kept[:count][at]
            calls += _one_tap(x[block][seen], y[block][at], dy[block][at], dx[block][seen], scratch, apart)
    return calls


def _one_tap(x: Array, y: Array, dy: Array, dx: Array, scratch: tuple[Array, Array, Array], apart: bool) -> list[Call]:
    """dx gets dy where x == y and not taken; all arguments are this tap's views.  True as -1 is all bits set, False as 0 none."""
    hit, taken, kept = scratch
    calls: list[Call] = [
        (np.equal, (x, y, hit)),
        (np.greater, (hit, taken, hit)),
        (np.logical_or, (taken, hit, taken)),
        (np.negative, (hit.view(np.int8), kept)),
    ]
    if apart:
        return [*calls, (np.bitwise_and, (dy.view(kept.dtype), kept, dx.view(kept.dtype)))]
    return [*calls, (np.bitwise_and, (dy.view(kept.dtype), kept, kept)), (np.add, (dx, kept.view(dx.dtype), dx))]
