"""Names that NumPy dropped and programs of 2020 use, such as `np.int` and `np.float_`."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np

#: what Python and NumPy call it today
TODAY: dict[str, Any] = {
    **{name: getattr(builtins, name) for name in ("int", "float", "complex", "object", "str")},
    "unicode": str,
    "float_": np.float64,
    "complex_": np.complex128,
    "string_": np.bytes_,
    "unicode_": np.str_,
    "object0": np.object_,
    "Inf": np.inf,
    "Infinity": np.inf,
    "infty": np.inf,
    "PINF": np.inf,
    "NINF": -np.inf,
    "NaN": np.nan,
    "NAN": np.nan,
    "alltrue": np.all,
    "sometrue": np.any,
    "product": np.prod,
    "cumproduct": np.cumprod,
    "row_stack": np.vstack,
    "trapz": np.trapezoid,
    "in1d": np.isin,
    "round_": np.round,
    "asfarray": lambda a, dtype=np.float64: np.asarray(a, dtype),
}


def restore() -> None:
    """Give NumPy those of these names that it lacks, for the rest of the process."""
    for name, value in TODAY.items():
        if not hasattr(np, name):
            setattr(np, name, value)
