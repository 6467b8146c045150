"""Memory orders of arrays in the laws."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any


def plain(a: Array) -> Array:
    return np.array(a, order="C")


def innermost(a: Array) -> Array:
    """Return the array with the first axis innermost in memory."""
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(a, 0, -1)), -1, 0) if a.ndim > 1 else a.copy()


def strided(a: Array) -> Array:
    """Return every second element of a larger array along every axis."""
    large = np.full(tuple(2 * n + 1 for n in a.shape), 77).astype(a.dtype)
    window = large[(*(slice(1, None, 2) for _ in a.shape), ...)]
    window[...] = a
    return window


ORDERS = ((plain, plain), (innermost, innermost), (strided, strided), (plain, strided), (strided, plain), (innermost, plain), (plain, innermost))
