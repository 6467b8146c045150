"""Collectives on local tensors of a group of ranks, by default all ranks, expressed as changes of layout.

The tensor of each rank is its piece of a global tensor; the result of the collective is the piece in another layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jobflow.core.errors import ArgumentError, user_line
from jobflow.core.layout import MAX, MIN, SUM, B, Layout, Partial, Placement, Reduction, S, Sbp
from jobflow.core.types import Array, TensorType, type_of
from jobflow.tensors.convert import convert_array
from jobflow.tensors.gpus import as_numpy, gpu_of, in_rows
from jobflow.tensors.state import EagerState
from jobflow.tensors.tensor import TensorBase

if TYPE_CHECKING:
    from jobflow.tensors.gpu_collectives import NcclCollectives

REDUCTIONS = {"sum": SUM, "max": MAX, "min": MIN}
#: reductions that a rank computes from the arrays of all ranks
FOLDS: dict[str, Any] = {"product": np.multiply, "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor}


def collectives_of(here: EagerState, what: str, ranks: Sequence[int], tensors: Sequence[TensorBase]) -> HostCollectives | NcclCollectives:
    """Return the collectives `what` of a group of ranks for tensors like these local ones: through NCCL for tensors on GPUs, if it is possible.

    All ranks of the group must call this function with tensors of the same type of device.
    """
    ranks = tuple(ranks)
    if len(ranks) == 1 or not any(map(_is_on_gpu, tensors)) or list(ranks) != sorted(ranks):
        return HostCollectives(here, what, ranks)
    from jobflow.tensors.gpu_collectives import chosen_collectives  # programs on CPUs need no NCCL

    return chosen_collectives(here, what, ranks, [x.array for x in tensors])


def _is_on_gpu(x: TensorBase) -> bool:
    """Return True for a tensor of the device "cuda", also if this rank has no GPU."""
    return gpu_of(x.array) is not None or (x._device is not None and x._device.type == "cuda")


class HostCollectives:
    """The collectives `what` of a group of ranks through the memory of the hosts.  Results are new arrays."""

    __slots__ = ("here", "ranks", "what")

    def __init__(self, here: EagerState, what: str, ranks: tuple[int, ...]) -> None:
        self.here, self.what, self.ranks = here, what, ranks

    def reduced(self, array: Array, reduce: Reduction, provenance: int = 0) -> Array:
        """Return the elementwise sum, maximum or minimum (`reduce`) of the arrays of all ranks.

        Raises: DivergedError on all ranks if `provenance` differs.
        """
        return reduced(self.here, array, reduce, self.what, provenance, self.ranks)

    def scattered(self, rows: Array, reduce: Reduction) -> Array:
        """Return row i of the elementwise reduction of all ranks' rows on the i-th rank; the result has one row."""
        return scattered(self.here, rows, reduce, self.what, self.ranks)

    def stacked(self, array: Array) -> Array:
        """Return the concatenation of the arrays of all ranks along axis 0."""
        return stacked(self.here, array, self.what, self.ranks)

    def swapped(self, array: Array) -> Array:
        """Send part i of the array along axis 0 to the i-th rank, and return the parts received from all ranks."""
        return swapped(self.here, array, self.what, self.ranks)

    def spread(self, array: Array, source: int) -> Array:
        """Return the array of rank `source`."""
        return spread(self.here, array, source, self.what, self.ranks)

    def carried(self, array: Array | None, type: TensorType, source: int, target: int) -> Array:
        """Return the array of rank `source` on rank `target`, which passes None."""
        return carried(self.here, array, type, source, target, "send and recv")

    def empty(self, shape: Sequence[int], dtype: Any) -> Array:
        """Return an array of this shape."""
        return np.empty(tuple(shape), dtype)

    def rows(self, arrays: Sequence[Array]) -> Array:
        """Return equal arrays along a new first axis."""
        return np.stack([as_numpy(array) for array in arrays])

    def folded(self, rows: Array, op: str) -> Array:
        """Combine the rows by the operation `op` of FOLDS."""
        result: Array = FOLDS[op].reduce(rows, 0, rows.dtype)
        return result

    def divided(self, array: Array) -> Array:
        """Return an array of floats divided by the number of ranks."""
        return np.divide(array, len(self.ranks)).astype(array.dtype, copy=False)


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
    check_parts(array, n, what)
    rows = piece.with_shape((n, n, array.shape[0] // n, *array.shape[1:]))  # axis 0: sending rank, axis 1: receiving rank
    parts = in_rows(as_numpy(array)).reshape(1, *rows.shape[1:])
    result = convert_array(here, parts, rows, *layouts, what)
    return result.reshape(array.shape)


def check_parts(array: Array, n: int, what: str) -> None:
    """Raise ArgumentError unless axis 0 has n equal parts."""
    if array.shape[0] % n:
        raise ArgumentError(
            f"{what} at {user_line()}: axis 0 has {array.shape[0]} elements, not divisible into {n} equal parts; pad the tensor to a multiple of {n}"
        )


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
