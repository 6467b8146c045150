"""Layouts as blocks, one per rank.  The coloured area is the shard of the rank; it is hatched if the rank stores a summand.

The first split axis is drawn from top to bottom if it is axis 0, otherwise from left to right.  A second split axis has the other direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from jobflow.core.layout import Layout, Split


class Block(NamedTuple):
    """The shard of a rank in a square of side 1: position and size of a rectangle."""

    rank: int
    x: float
    y: float
    width: float
    height: float
    partial: bool


def blocks(layout: Layout, shape: Sequence[int]) -> list[Block]:
    """Return the block of every rank, in placement order, for a tensor of logical `shape`."""
    axes = list(dict.fromkeys(sbp.axis for sbp in layout.sbp if isinstance(sbp, Split)))
    down, across = _directions(axes)
    result = []
    for rank, box in layout.boxes(shape).items():
        spans = [(start / n, stop / n) if n else (0.0, 0.0) for (start, stop), n in zip(box.spans, shape, strict=True)]
        top, bottom = spans[down] if down is not None else (0.0, 1.0)
        left, right = spans[across] if across is not None else (0.0, 1.0)
        result.append(Block(rank, left, top, right - left, bottom - top, layout.is_partial))
    return result


def _directions(axes: Sequence[int]) -> tuple[int | None, int | None]:
    """Return the axis drawn from top to bottom and the axis drawn from left to right."""
    if len(axes) < 2:
        return (axes[0], None) if axes and axes[0] == 0 else (None, axes[0] if axes else None)
    return min(axes[:2]), max(axes[:2])
