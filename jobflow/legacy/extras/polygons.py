"""Polygons as masks of pixels, by the rule of the COCO data set (its published mask API), to the pixel.

The boundary is walked in fifths of a pixel.  Wherever it crosses the middle of a column of pixels, everything below in that column is turned over:

    mask[y, x] = (number of crossings of column x at or above y) is odd
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from jobflow.core.types import Array

#: steps of the boundary in a pixel
FINE = 5


def painted(corners: Array, height: int, width: int) -> Array:
    """bool[height, width]: the pixels inside of a polygon with these corners (x, y), which may lie outside of the image."""
    x, y = (np.concatenate(each) for each in zip(*_boundary(np.trunc(FINE * corners + 0.5).astype(np.int64)), strict=True))
    crosses = np.flatnonzero(x[1:] != x[:-1])
    lower = np.minimum(x[crosses], x[crosses + 1])
    column = (lower + 0.5) / FINE - 0.5
    row = np.ceil(np.clip((np.minimum(y[crosses], y[crosses + 1]) + 0.5) / FINE - 0.5, 0, height))
    kept = (np.floor(column) == column) & (column >= 0) & (column <= width - 1)
    turned = np.bincount((column[kept] * height + row[kept]).astype(np.int64), minlength=height * width)[: height * width]
    return (np.cumsum(turned) % 2 == 1).reshape(width, height).T


def _boundary(corners: Array) -> Iterator[tuple[Array, Array]]:
    """The points of each edge, in the order in which the boundary is walked; of a steep one a point for each y, of others for each x."""
    for (x, y), (x_end, y_end) in zip(corners.tolist(), np.roll(corners, -1, 0).tolist(), strict=True):
        wide, high = abs(x_end - x), abs(y_end - y)
        back = x > x_end if wide >= high else y > y_end
        (x, y), (x_end, y_end) = ((x_end, y_end), (x, y)) if back else ((x, y), (x_end, y_end))
        steps = np.arange(max(wide, high) + 1)[:: -1 if back else 1]
        if wide >= high:
            yield x + steps, np.trunc(y + (y_end - y) / max(wide, 1) * steps + 0.5).astype(np.int64)
        else:
            yield np.trunc(x + (x_end - x) / high * steps + 0.5).astype(np.int64), y + steps
