"""Collectives on local tensors of a group of ranks, by default all ranks, expressed as changes of layout.

The tensor of each rank is its piece of a global tensor; the result of the collective is the piece in another layout.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jobflow.core.errors import ArgumentError, user_line
from jobflow.core.layout import MAX, MIN, SUM, B, Layout, Partial, Placement, Reduction, S, Sbp
from jobflow.core.types import Array, TensorType, type_of
from jobflow.tensors.convert import convert_array
from jobflow.tensors.gpus import as_numpy, in_rows
from jobflow.tensors.state import EagerState

REDUCTIONS = {"sum": SUM, "max": MAX, "min": MIN}


def everywhere(here: EagerState, sbp: Sbp, ranks: Sequence[int] | None = None) -> Layout:
    """Return the layout of a tensor on the group as a mesh of one dimension, with this sbp."""
    return Layout(Placement("cpu", tuple(range(here.rank.size)) if ranks is None else tuple(ranks)), (sbp,))


def on(rank: int) -> Layout:
    """Return the layout of a tensor that only `rank` stores."""
    return Layout(Placement("cpu", (rank,)), (B,))


def reduced(here: EagerState, array: Array, reduce: Reduction, what: str, provenance: int = 0, ranks: Sequence[int] | None = None) -> Array:
    """Return the elementwise sum, maximum or minimum (`reduce`) of the arrays of all ranks, on all ranks.

    Raises: DivergedError on all ranks if `provenance` differs.
    """
    layouts = everywhere(here, Partial(reduce), ranks), everywhere(here, B, ranks)
    return convert_array(here, in_rows(as_numpy(array)), type_of(array), *layouts, what, provenance)


def scattered(here: EagerState, array: Array, reduce: Reduction, what: str, ranks: Sequence[int] | None = None) -> Array:
    """Return this rank's piece of the elementwise sum, maximum or minimum (`reduce`) of all ranks' arrays, split along axis 0."""
    layouts = everywhere(here, Partial(reduce), ranks), everywhere(here, S(0), ranks)
    return convert_array(here, in_rows(as_numpy(array)), type_of(array), *layouts, what)


def stacked(here: EagerState, array: Array, what: str, ranks: Sequence[int] | None = None) -> Array:
    """Concatenate the arrays of all ranks along axis 0, and return the result on all ranks; the arrays have the same type."""
    layouts = everywhere(here, S(0), ranks), everywhere(here, B, ranks)
    return convert_array(here, in_rows(as_numpy(array)), _times(array, len(layouts[0].placement.ranks)), *layouts, what)


def swapped(here: EagerState, array: Array, what: str, ranks: Sequence[int] | None = None) -> Array:
    """Send part i of this rank's array to rank i, and return the parts received from all ranks.

    Axis 0 is split into one part per rank.  Raises: ArgumentError if the parts are not equal.
    """
    layouts = everywhere(here, S(0), ranks), everywhere(here, S(1), ranks)
    n, piece = len(layouts[0].placement.ranks), type_of(array)
    if array.shape[0] % n:
        raise ArgumentError(
            f"{what} at {user_line()}: axis 0 has {array.shape[0]} elements, not divisible into {n} equal parts; pad the tensor to a multiple of {n}"
        )
    rows = piece.with_shape((n, n, array.shape[0] // n, *array.shape[1:]))  # axis 0: sending rank, axis 1: receiving rank
    parts = in_rows(as_numpy(array)).reshape(1, *rows.shape[1:])
    result = convert_array(here, parts, rows, *layouts, what)
    return result.reshape(array.shape)


def spread(here: EagerState, array: Array, source: int, what: str, ranks: Sequence[int] | None = None) -> Array:
    """Broadcast the array of rank `source` to all ranks; the arrays of all ranks have the same type."""
    return convert_array(here, in_rows(as_numpy(array)), type_of(array), on(source), everywhere(here, B, ranks), what)


def carried(here: EagerState, array: Array | None, type: TensorType, source: int, target: int, what: str) -> Array:
    """Return the array of rank `source` on rank `target`, and an empty array of type `type` on other ranks.

    Both ranks must call this function; `array` is None on ranks other than `source`.
    """
    piece = in_rows(as_numpy(array)) if array is not None else np.empty((0,) * type.ndim, type.dtype.numpy)
    return convert_array(here, piece, type, on(source), on(target), what)


def _times(array: Array, n: int) -> TensorType:
    return type_of(array).with_shape((array.shape[0] * n, *array.shape[1:]))
