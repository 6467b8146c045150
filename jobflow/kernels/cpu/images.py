"""How the CPU looks at images [n, c, *spatial]: as [b, c, *spatial, m], where the samples are b times m.

    batch innermost   b = 1, m = n      a shift by one column is a shift by m elements: every loop runs over long stretches of memory
    plain             b = n, m = 1      each image by itself

An image has *runs* if the spatial axes and m are one stretch of memory per channel; then any number of them is a matrix's row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import product

import numpy as np
from numpy.lib.stride_tricks import as_strided

from jobflow.core.dataclass import dataclass
from jobflow.core.types import Array, dtype_of
from jobflow.ops.op import Binder, Call
from jobflow.ops.windows import Window, spread

#: elements of a padded image up to which one call that lays zeros everywhere is faster than several for its borders
SMALL = 1 << 14


def is_innermost(array: Array) -> bool:
    """Whether an image is stored batch innermost."""
    return bool(array.shape[0] > 1 and array.strides[0] == array.itemsize)


def seen(array: Array, innermost: bool) -> Array:
    """[n, c, *spatial] as [b, c, *spatial, m]."""
    return np.moveaxis(array, 0, -1)[None] if innermost else array[..., None]


def has_runs(image: Array) -> bool:
    """Whether the spatial axes and m of [b, c, *spatial, m] are one run of memory per channel."""
    expected = image.itemsize
    for size, stride in zip(image.shape[:1:-1], image.strides[:1:-1], strict=True):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True


_COMPUTED = (np.dtype(np.float32), np.dtype(np.float64))


def refused(arrays: Sequence[Array]) -> str | None:
    """Why array functions do not compute with these images and filters."""
    first = arrays[0].dtype
    if first not in _COMPUTED or any(a.dtype is not first and a.dtype != first for a in arrays):
        return f"element types {', '.join(sorted({str(a.dtype) for a in arrays}))}; it computes in float32 or float64"
    empty = [a.shape for a in arrays if not a.size]
    return f"no elements in {list(empty[0])}" if empty else None


def load(device: Binder, array: Array, innermost: bool = True, dense: bool = False) -> tuple[Array, list[Call]]:
    """An input as [b, c, *spatial, m] with runs, or dense, and the copy that brings it there if need be."""
    image = seen(array, innermost)
    if image.flags.c_contiguous if dense else has_runs(image):
        return image, []
    staged = device.scratch(image.shape, dtype_of(image.dtype))
    return staged, [(np.copyto, (staged, image))]


def store(device: Binder, array: Array, innermost: bool = True, dense: bool = False) -> tuple[Array, list[Call]]:
    """Where to compute an output likewise, and the copy that takes it to its place if need be."""
    staged, copies = load(device, array, innermost, dense)
    return staged, [(function, (image, made)) for function, (made, image) in copies]


def lifted_image(image: Array) -> Array:
    """[1, c, *spatial, n], one or two spatial axes, as [c, h, w, n]."""
    return image[0] if image.ndim == 5 else image[0][:, None]


def lifted_window(window: Window) -> Window:
    """A window of one dimension as one of two, of height 1."""
    if len(window.kernel) == 2:
        return window
    return Window((1, *window.kernel), (1, *window.strides), ((0, 0), *window.padding), (1, *window.dilations), window.ceil)


def mirror(window: Window) -> Window | None:
    """The window through which dy is seen from dx, if the stride is 1 and its padding is not negative."""
    pads = tuple(
        (spread(k, d) - 1 - before, spread(k, d) - 1 - after)
        for k, d, (before, after) in zip(window.kernel, window.dilations, window.padding, strict=True)
    )
    fits = set(window.strides) == {1} and all(min(pair) >= 0 for pair in pads)
    return Window(window.kernel, window.strides, pads, window.dilations) if fits else None


@dataclass(frozen=True)
class PaddedPhases:
    """An image padded, and cut into `strides` phases per axis: every tap of a window reads a stretch of one phase.

    Along one axis with stride 2 and padding 1, position p of the image lies in phase (p + 1) % 2 at (p + 1) // 2:

        image     a b c d e        phase 0   0 b d 0        tap 0 reads phase 0 from 0, tap 1 phase 1 from 0,
        padded  0 a b c d e 0      phase 1   a c e          tap 2 phase 0 from 1, ...
    """

    window: Window
    spatial: tuple[int, ...]
    out: tuple[int, ...]

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Length of the phases along each axis."""
        w = self.window
        return tuple((k - 1) * d // s + n for k, d, s, n in zip(w.kernel, w.dilations, w.strides, self.out, strict=True))

    @cached_property
    def is_image(self) -> bool:
        """Whether the image is its only phase already."""
        return set(self.window.strides) == {1} and not any(map(any, self.window.padding))

    def shape(self, image: Array) -> tuple[int, ...]:
        """[b, c, *strides, *sizes, m]"""
        return (*image.shape[:2], *self.window.strides, *self.sizes, image.shape[-1])

    def pairs(self, image: Array, phases: Array) -> Iterator[tuple[Array, Array]]:
        """What each phase holds of the image: views of the same shape."""
        return ((image[:, :, *taken], phases[:, :, *numbers, *places]) for numbers, taken, places in self.parts())

    def borders(self, phases: Array) -> Iterator[Array]:
        """What the image does not reach of the phases, each element once."""
        held = {numbers: places for numbers, _, places in self.parts()}
        for numbers in product(*map(range, self.window.strides)):
            phase = phases[:, :, *numbers]
            if numbers not in held:
                yield phase
                continue
            for axis, place in enumerate(held[numbers]):
                inside = (slice(None), slice(None), *held[numbers][:axis])
                yield from (phase[*inside, : place.start], phase[*inside, place.stop :])

    def parts(self) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...], tuple[slice, ...]]]:
        """Phases that hold any of the image: their numbers, which positions of it, and where."""
        axes = zip(self.window.strides, self.window.padding, self.spatial, self.sizes, strict=True)
        for parts in product(*(list(_phases(*axis)) for axis in axes)):
            numbers, taken, places = zip(*parts, strict=True)
            yield numbers, taken, places

    def groups(self) -> Iterator[tuple[tuple[slice, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]]:
        """Taps of one phase at equal distances: which they are, their phase, where in it the first begins, and their distance."""
        axes = zip(self.window.kernel, self.window.strides, self.window.dilations, strict=True)
        for parts in product(*(list(_groups(*axis)) for axis in axes)):
            taps, numbers, starts, steps = zip(*parts, strict=True)
            yield taps, numbers, starts, steps

    def views(self, phases: Array) -> Iterator[tuple[tuple[slice, ...], Array]]:
        """Groups of taps, and what they read as [b, c, *taps, *out, m]."""
        dims = len(self.out)
        along = phases.strides[2 + dims : -1]
        for taps, numbers, starts, steps in self.groups():
            first = phases[:, :, *numbers, *(slice(start, None) for start in starts)]
            counts = tuple(len(range(*t.indices(k))) for t, k in zip(taps, self.window.kernel, strict=True))
            shape = (*first.shape[:2], *counts, *self.out, first.shape[-1])
            hops = tuple(step * stride for step, stride in zip(steps, along, strict=True))
            yield taps, as_strided(first, shape, (*first.strides[:2], *hops, *along, first.strides[-1]))


def _phases(stride: int, padding: tuple[int, int], size: int, length: int) -> Iterator[tuple[int, slice, slice]]:
    """Along one axis: the number of each phase that holds any of the image, which positions, and where."""
    before = padding[0]
    for phase in range(stride):
        first = (phase - before) % stride
        place = (first + before) // stride
        count = min(len(range(first, size, stride)), length - place)
        if count > 0:
            yield phase, slice(first, first + (count - 1) * stride + 1, stride), slice(place, place + count)


def _groups(kernel: int, stride: int, dilation: int) -> Iterator[tuple[slice, int, int, int]]:
    period = stride // math.gcd(stride, dilation)
    for first in range(min(period, kernel)):
        at = first * dilation
        yield slice(first, None, period), at % stride, at // stride, period * dilation // stride


def stage(device: Binder, phases: PaddedPhases, image: Array) -> tuple[Array, list[Call]]:
    """The phases of an image [b, c, *spatial, m], and the calls that bring it there if need be."""
    if phases.is_image and has_runs(image):
        return image.reshape(*image.shape[:2], *phases.window.strides, *image.shape[2:], copy=False), []
    staged = device.scratch(phases.shape(image), dtype_of(image.dtype))
    around = [border for border in phases.borders(staged) if border.size]
    zeros: list[Call] = [(border.fill, (0,)) for border in (around if staged.size > SMALL else [staged] if around else [])]
    return staged, [*zeros, *((np.copyto, (place, part)) for part, place in phases.pairs(image, staged))]
