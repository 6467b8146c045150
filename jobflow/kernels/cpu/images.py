"""Layouts of images [n, c, *spatial] on CPUs, as views [b, c, *spatial, m] with n = b m samples.

    batch innermost   b = 1, m = n      a shift by one column is a shift by m elements, so every loop has long contiguous runs
    plain             b = n, m = 1      one image after another

An image has *runs* if the spatial axes and m are contiguous per channel.  All spatial axes and m then form one row of a matrix.
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

#: elements of a padded image up to which one call that zeroes all of it is faster than several for its borders
SMALL = 1 << 14


def is_innermost(array: Array) -> bool:
    """Return True if an image is stored with the batch innermost."""
    return bool(array.shape[0] > 1 and array.strides[0] == array.itemsize)


def image_view(array: Array, innermost: bool) -> Array:
    """View [n, c, *spatial] as [b, c, *spatial, m], with b = 1 if `innermost`, otherwise with m = 1."""
    return np.moveaxis(array, 0, -1)[None] if innermost else array[..., None]


def has_runs(image: Array) -> bool:
    """Return True if the spatial axes and m of [b, c, *spatial, m] are contiguous per channel."""
    expected = image.itemsize
    for size, stride in zip(image.shape[:1:-1], image.strides[:1:-1], strict=True):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True


_COMPUTED = (np.dtype(np.float32), np.dtype(np.float64))


def refused(arrays: Sequence[Array]) -> str | None:
    """Return the reason array functions cannot compute with these images and filters, or None if they can."""
    first = arrays[0].dtype
    if first not in _COMPUTED or any(a.dtype is not first and a.dtype != first for a in arrays):
        return f"element types {', '.join(sorted({str(a.dtype) for a in arrays}))} are not float32 or float64"
    empty = [a.shape for a in arrays if not a.size]
    return f"an image or filter of shape {list(empty[0])} has no elements" if empty else None


def load(device: Binder, array: Array, innermost: bool = True, dense: bool = False) -> tuple[Array, list[Call]]:
    """Return an input as [b, c, *spatial, m], and the call that copies it, if its memory is unsuitable.

    With `dense`, suitable memory is contiguous.  Without `dense`, suitable memory has runs.
    """
    image = image_view(array, innermost)
    if image.flags.c_contiguous if dense else has_runs(image):
        return image, []
    staged = device.scratch(image.shape, dtype_of(image.dtype))
    return staged, [(np.copyto, (staged, image))]


def store(device: Binder, array: Array, innermost: bool = True, dense: bool = False) -> tuple[Array, list[Call]]:
    """Return memory [b, c, *spatial, m] for an output, and the call that copies it to the output, if the output's memory is unsuitable.

    Suitable memory is defined as for `load`.
    """
    staged, copies = load(device, array, innermost, dense)
    return staged, [(function, (image, source)) for function, (source, image) in copies]


def lifted_image(image: Array) -> Array:
    """View [1, c, *spatial, n], with one or two spatial axes, as [c, h, w, n]."""
    return image[0] if image.ndim == 5 else image[0][:, None]


def lifted_window(window: Window) -> Window:
    """Extend a window of one dimension to two, with height 1."""
    if len(window.kernel) == 2:
        return window
    return Window((1, *window.kernel), (1, *window.strides), ((0, 0), *window.padding), (1, *window.dilations), window.ceil)


def mirror(window: Window) -> Window | None:
    """Return the window of the convolution of dy that computes dx; None if a stride is not 1, or if that window would have negative padding."""
    pads = tuple(
        (spread(k, d) - 1 - before, spread(k, d) - 1 - after)
        for k, d, (before, after) in zip(window.kernel, window.dilations, window.padding, strict=True)
    )
    fits = set(window.strides) == {1} and all(min(pair) >= 0 for pair in pads)
    return Window(window.kernel, window.strides, pads, window.dilations) if fits else None


@dataclass(frozen=True)
class PaddedPhases:
    """A padded image, split into `strides` phases per axis: every tap of a window reads a contiguous part of one phase.

    Along one axis with stride 2 and padding 1, position p of the image is element (p + 1) // 2 of phase (p + 1) % 2:

        image     a b c d e        phase 0   0 b d 0        tap 0 reads phase 0 from 0, tap 1 phase 1 from 0,
        padded  0 a b c d e 0      phase 1   a c e          tap 2 phase 0 from 1, ...
    """

    window: Window
    spatial: tuple[int, ...]
    out: tuple[int, ...]

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The length of the phases along each axis."""
        w = self.window
        return tuple((k - 1) * d // s + n for k, d, s, n in zip(w.kernel, w.dilations, w.strides, self.out, strict=True))

    @cached_property
    def is_image(self) -> bool:
        """True if the only phase is the image itself: all strides are 1, and there is no padding."""
        return set(self.window.strides) == {1} and not any(map(any, self.window.padding))

    def shape(self, image: Array) -> tuple[int, ...]:
        """Return the shape [b, c, *strides, *sizes, m] of the phases."""
        return (*image.shape[:2], *self.window.strides, *self.sizes, image.shape[-1])

    def pairs(self, image: Array, phases: Array) -> Iterator[tuple[Array, Array]]:
        """Yield corresponding parts of the image and of each phase, as views of the same shape."""
        return ((image[:, :, *inside], phases[:, :, *phase, *elements]) for phase, inside, elements in self.parts())

    def borders(self, phases: Array) -> Iterator[Array]:
        """Yield the padding of the phases, each element once."""
        filled = {phase: elements for phase, _, elements in self.parts()}
        for indices in product(*map(range, self.window.strides)):
            phase = phases[:, :, *indices]
            if indices not in filled:
                yield phase
                continue
            for axis, elements in enumerate(filled[indices]):
                inside = (slice(None), slice(None), *filled[indices][:axis])
                yield from (phase[*inside, : elements.start], phase[*inside, elements.stop :])

    def parts(self) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...], tuple[slice, ...]]]:
        """Yield the phases that contain elements of the image: the index of the phase, and the elements' positions in the image and in the phase."""
        axes = zip(self.window.strides, self.window.padding, self.spatial, self.sizes, strict=True)
        for parts in product(*(list(_phases(*axis)) for axis in axes)):
            phase, inside, elements = zip(*parts, strict=True)
            yield phase, inside, elements

    def groups(self) -> Iterator[tuple[tuple[slice, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]]:
        """Yield groups of equidistant taps that read one phase: the taps, the phase, the offset of the first tap in the phase, and the distance."""
        axes = zip(self.window.kernel, self.window.strides, self.window.dilations, strict=True)
        for parts in product(*(list(_groups(*axis)) for axis in axes)):
            taps, phase, starts, steps = zip(*parts, strict=True)
            yield taps, phase, starts, steps

    def views(self, phases: Array) -> Iterator[tuple[tuple[slice, ...], Array]]:
        """Yield groups of taps and the elements that they read, as [b, c, *taps, *out, m]."""
        dims = len(self.out)
        along = phases.strides[2 + dims : -1]
        for taps, phase, starts, steps in self.groups():
            first = phases[:, :, *phase, *(slice(start, None) for start in starts)]
            counts = tuple(len(range(*t.indices(k))) for t, k in zip(taps, self.window.kernel, strict=True))
            shape = (*first.shape[:2], *counts, *self.out, first.shape[-1])
            hops = tuple(step * stride for step, stride in zip(steps, along, strict=True))
            yield taps, as_strided(first, shape, (*first.strides[:2], *hops, *along, first.strides[-1]))


def _phases(stride: int, padding: tuple[int, int], size: int, length: int) -> Iterator[tuple[int, slice, slice]]:
    """Yield, along one axis, the phases that contain elements of the image, and the elements' positions in the image and in the phase."""
    before = padding[0]
    for phase in range(stride):
        first = (phase - before) % stride
        start = (first + before) // stride
        count = min(len(range(first, size, stride)), length - start)
        if count > 0:
            yield phase, slice(first, first + (count - 1) * stride + 1, stride), slice(start, start + count)


def _groups(kernel: int, stride: int, dilation: int) -> Iterator[tuple[slice, int, int, int]]:
    period = stride // math.gcd(stride, dilation)
    for first in range(min(period, kernel)):
        at = first * dilation
        yield slice(first, None, period), at % stride, at // stride, period * dilation // stride


def stage(device: Binder, phases: PaddedPhases, image: Array) -> tuple[Array, list[Call]]:
    """Return the phases of an image [b, c, *spatial, m], and the calls that write them.

    There are no calls if the image has runs and is its only phase.
    """
    if phases.is_image and has_runs(image):
        return image.reshape(*image.shape[:2], *phases.window.strides, *image.shape[2:], copy=False), []
    staged = device.scratch(phases.shape(image), dtype_of(image.dtype))
    around = [border for border in phases.borders(staged) if border.size]
    zeros: list[Call] = [(border.fill, (0,)) for border in (around if staged.size > SMALL else [staged] if around else [])]
    return staged, [*zeros, *((np.copyto, (target, part)) for part, target in phases.pairs(image, staged))]
