"""The exponential function of float32 on CPUs."""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from jobflow.kernels.cpu.numpy_formulas import vectorised


@cache
def fastest_exponential() -> tuple[np.ufunc, float]:
    """(f, c) with exp(x) = f(c x) in float32, the fastest that NumPy has: its exp2 takes half the time of its exp where both are vectorised."""
    return (np.exp2, math.log2(math.e)) if vectorised("exp2") else (np.exp, 1.0)
