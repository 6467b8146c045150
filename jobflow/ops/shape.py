"""All operations on shapes, joined and split tensors, in one module."""

from __future__ import annotations

from jobflow.ops.axes import ExpandDims, Reshape, Squeeze, Transpose, expand_dims, flatten, reshape, squeeze, tile, transpose
from jobflow.ops.broadcast import BroadcastTo, broadcast_to
from jobflow.ops.slices import Concat, Flip, Pad, Slice, SliceGrad, concat, flip, pad, slice_, split, stack, unstack

__all__ = [
    "BroadcastTo",
    "Concat",
    "ExpandDims",
    "Flip",
    "Pad",
    "Reshape",
    "Slice",
    "SliceGrad",
    "Squeeze",
    "Transpose",
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
