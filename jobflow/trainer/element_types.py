"""Conversion of values to the element type of a variable."""

from __future__ import annotations

from typing import Any

import numpy as np

from jobflow.core.types import Array


def converted(source: Array, dtype: Any) -> tuple[Array, float | None]:
    """Return an array as `dtype`, and its first finite value that became infinite; None without such a value."""
    with np.errstate(over="ignore"):
        array = source.astype(dtype, copy=False)
    if array is source or np.can_cast(source.dtype, dtype) or array.dtype.kind in "biu":
        return array, None
    beyond = np.flatnonzero(np.isinf(array) & ~np.isinf(source))
    return array, float(source.reshape(-1)[beyond[0]]) if beyond.size else None
