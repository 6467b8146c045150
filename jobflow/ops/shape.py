"""The shape family: looking at tensors differently, and putting them together; everything in one place."""

from __future__ import annotations

from jobflow.ops.axes import expand_dims, flatten, reshape, squeeze, tile, transpose
from jobflow.ops.broadcast import broadcast_to
from jobflow.ops.slices import concat, flip, pad, slice_, split, stack, unstack

__all__ = [
    "broadcast_to",
    "concat",
    "expand_dims",
    "flatten",
    "flip",
    "pad",
    "reshape",
    "slice_",
    "split",
    "squeeze",
    "stack",
    "tile",
    "transpose",
    "unstack",
]
