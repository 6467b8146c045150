"""Sliding windows over spatial axes: sizes, padding, and the elements of each window.

Along one axis, output index i and tap k read input index  i * stride + k * dilation - before,  where (before, after) is the
padding.  Indices outside the input are not read, so no padded copy of the input is needed.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ShapeError

Pads = tuple[tuple[int, int], ...]


def spread(kernel: int, dilation: int) -> int:
    """Return the number of input elements from the first to the last of `kernel` dilated taps."""
    return (kernel - 1) * dilation + 1 if kernel else 0


def same_padding(size: int, kernel: int, stride: int = 1, dilation: int = 1, lower: bool = True) -> tuple[int, int]:
    """Return the padding (before, after) for ceil(size / stride) outputs.

    If the total is odd, the larger padding is before with `lower`, else after.
    """
    total = max(0, (-(-size // stride) - 1) * stride + spread(kernel, dilation) - size)
    small, large = total // 2, total - total // 2
    return (large, small) if lower else (small, large)


def axis_values(what: str, name: str, value: int | Sequence[int], ndim: int) -> tuple[int, ...]:
    """Return `value` as a tuple of `ndim` positive ints, one per spatial axis; an int applies to all axes.

    Raises ShapeError for other values, with the names of the function (`what`) and of the argument (`name`).
    """
    values = (int(value),) * ndim if isinstance(value, int | np.integer) else tuple(int(v) for v in value)
    if len(values) != ndim or any(v < 1 for v in values):
        raise ShapeError(f"{what}: {name} {value} must be one positive int, or one for each of the {ndim} spatial axes")
    return values


def explicit_padding(
    what: str,
    padding: str | Sequence[tuple[int, int]],
    spatial: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> Pads:
    """Return (before, after) per spatial axis from `padding`.

    `padding` is "valid", "same" (= "same_lower") or "same_upper", in upper or lower case, or a pair (before, after) per axis.  "same" pads for
    ceil(size / stride) outputs, with the larger padding before the elements; "same_upper" has the larger padding after them.
    """
    if isinstance(padding, str):
        word = padding.lower()
        if word == "valid":
            return ((0, 0),) * len(kernel)
        if word not in ("same", "same_lower", "same_upper"):
            raise ShapeError(
                f'{what}: padding "{padding}" must be "same", "same_lower", "same_upper", "valid", or a pair (before, after) per spatial axis'
            )
        axes = zip(spatial, kernel, strides, dilations, strict=True)
        return tuple(same_padding(n, k, s, d, lower=word != "same_upper") for n, k, s, d in axes)
    pads = tuple((int(before), int(after)) for before, after in padding)
    if len(pads) != len(kernel) or any(min(pair) < 0 for pair in pads):
        raise ShapeError(f"{what}: padding {padding} must be one pair (before, after) of ints >= 0 for each of the {len(kernel)} spatial axes")
    return pads


@dataclass(frozen=True)
class Tap:
    """One element of the kernel, with index `at`: for the outputs `target`, the tap reads the input elements `source`."""

    at: tuple[int, ...]
    source: tuple[slice, ...]
    target: tuple[slice, ...]


@dataclass(frozen=True)
class Window:
    """A sliding window of kernel[a] taps per spatial axis a; `ceil` includes a last window that ends outside the padded input."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    padding: Pads
    dilations: tuple[int, ...]
    ceil: bool = False

    def out_sizes(self, what: str, spatial: tuple[int, ...]) -> tuple[int, ...]:
        """Return the sizes of the output's spatial axes for an input with the sizes `spatial`; `what` is the description of the op in messages.

        Raises ShapeError if the kernel is empty or larger than the padded input.  Also raises ShapeError unless kernel, strides, padding and
        dilations have one entry per axis.
        """
        if not len(spatial) == len(self.kernel) == len(self.strides) == len(self.padding) == len(self.dilations):
            raise ShapeError(
                f"{what}: kernel {self.kernel}, strides {self.strides}, padding {self.padding} and dilations {self.dilations} "
                f"must each have one entry per spatial axis of {list(spatial)}"
            )
        return tuple(self._out_size(what, a, size) for a, size in enumerate(spatial))

    def _out_size(self, what: str, a: int, size: int) -> int:
        stride, (before, after) = self.strides[a], self.padding[a]
        covered = spread(self.kernel[a], self.dilations[a])
        room = size + before + after - covered
        if room < 0 or not self.kernel[a]:
            raise ShapeError(
                f"{what}: a kernel of {self.kernel[a]} (dilation {self.dilations[a]}) spans {covered} elements, "
                f"but spatial axis {a} has {size} elements and padding ({before}, {after})"
            )
        if not self.ceil:
            return room // stride + 1
        count = -(-room // stride) + 1
        return count - 1 if (count - 1) * stride >= size + before else count

    def reach(self, a: int, k: int, size: int, out: int) -> tuple[slice, slice] | None:
        """Return two slices for tap k of axis a: the input elements that the tap reads, and the outputs that read them.

        `size` and `out` are the sizes of input and output along the axis. Returns None if the tap is outside the input for all outputs.
        """
        stride, before = self.strides[a], self.padding[a][0]
        shift = k * self.dilations[a] - before
        first = max(0, -(shift // stride))
        stop = min(out, (size - 1 - shift) // stride + 1)
        if first >= stop:
            return None
        start = first * stride + shift
        return slice(start, start + (stop - first - 1) * stride + 1, stride), slice(first, stop)

    def taps(self, spatial: Sequence[int], out: Sequence[int]) -> list[Tap]:
        """Return the taps that read an input element for at least one output, in row-major order of the kernel.

        `spatial` and `out` are the spatial sizes of input and output.
        """
        reaches = [[(k, self.reach(a, k, spatial[a], out[a])) for k in range(n)] for a, n in enumerate(self.kernel)]
        taps = []
        for combination in itertools.product(*reaches):
            pairs = [pair for _, pair in combination if pair is not None]
            if len(pairs) == len(self.kernel):
                taps.append(Tap(tuple(k for k, _ in combination), tuple(s for s, _ in pairs), tuple(t for _, t in pairs)))
        return taps
