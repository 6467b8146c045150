"""The exponential function of float32 on CPUs."""

from __future__ import annotations

import math
from functools import cache

import numpy as np


@cache
def fastest_exponential() -> tuple[np.ufunc, float]:
    """(f, c) with exp(x) = f(c x) in float32, the fastest that NumPy has: its exp2 takes half the time of its exp where both are vectorised."""
    found = np.lib.introspect.opt_func_info(func_name="^exp2$", signature="float32")
    vectorised = any(not way["current"].startswith("baseline") for ways in found.values() for way in ways.values())
    return (np.exp2, math.log2(math.e)) if vectorised else (np.exp, 1.0)
