"""The exponential function of float32 on CPUs."""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from jobflow.kernels.cpu.numpy_formulas import is_vectorized


@cache
def fastest_exponential() -> tuple[np.ufunc, float]:
    """Return NumPy's fastest (f, c) with exp(x) = f(c x) in float32; its exp2 takes half the time of exp if both are vectorized."""
    return (np.exp2, math.log2(math.e)) if is_vectorized("exp2") else (np.exp, 1.0)
