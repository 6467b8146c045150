"""Arrays over the slots of a plan."""

from __future__ import annotations

import numpy as np

from jobflow.core.types import Array, Xp
from jobflow.plan.plan import Slot


def window(xp: Xp, buffer: Array, slot: Slot) -> Array:
    """The strided view of a uint8 buffer that a slot describes."""
    shape, dtype = slot.type.shape, slot.type.dtype.numpy
    if 0 in shape:
        return xp.empty(shape, dtype)
    if xp is np:
        return np.ndarray(shape, dtype, buffer, slot.offset, slot.strides)
    return xp.ndarray(shape, dtype, memptr=buffer.data + slot.offset, strides=slot.strides)
