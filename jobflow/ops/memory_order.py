"""Images in the order c,h,w,n, "batch innermost", which convolution and pooling compute in on the CPU.

There a shift by one column is a shift by n elements, so every loop runs over long stretches of memory whatever the window.  Values that the
compiler stores that way are used as they are; others are copied to and fro, which costs about a millisecond for 10 MB.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jobflow.core.types import Array, dtype_of
from jobflow.ops.op import Binder, Call
from jobflow.ops.windows import Window


def as_chwn(array: Array) -> Array:
    """[n,c,w] or [n,c,h,w] seen as [c,h,w,n]."""
    flat = array[:, :, None] if array.ndim == 3 else array
    return flat.transpose(1, 2, 3, 0)


def has_runs(image: Array) -> bool:
    """Whether h, w and n of [c,h,w,n] are one run of memory per channel."""
    expected = image.itemsize
    for size, stride in zip(image.shape[:0:-1], image.strides[:0:-1], strict=True):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True


def load(device: Binder, array: Array) -> tuple[Array, list[Call]]:
    """An input as [c,h,w,n] with runs, and the copy that brings it there if need be."""
    image = as_chwn(array)
    if has_runs(image):
        return image, []
    staged = device.scratch(image.shape, dtype_of(image.dtype))
    return staged, [(np.copyto, (staged, image))]


def store(device: Binder, array: Array) -> tuple[Array, list[Call]]:
    """Where to compute an output as [c,h,w,n] with runs, and the copy that takes it to its place if need be."""
    image = as_chwn(array)
    if has_runs(image):
        return image, []
    staged = device.scratch(image.shape, dtype_of(image.dtype))
    return staged, [(np.copyto, (image, staged))]


def lift(window: Window) -> Window:
    """A 1-D window as a 2-D one of height 1."""
    if len(window.kernel) == 2:
        return window
    return Window((1, *window.kernel), (1, *window.strides), ((0, 0), *window.padding), (1, *window.dilations), window.ceil)


def takes(device: Binder, window: Window, arrays: Sequence[Array]) -> bool:
    """Whether the prepared CPU calls apply: NumPy, one or two spatial axes, float32 or float64, nothing empty."""
    one_type = len({a.dtype for a in arrays}) == 1 and arrays[0].dtype in (np.float32, np.float64)
    return device.xp is np and one_type and len(window.kernel) <= 2 and all(a.size for a in arrays)
