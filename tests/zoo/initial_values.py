"""The values that every parameter of the zoo starts from, here and in PyTorch: a function of its name and shape."""

from __future__ import annotations

import math
import zlib
from typing import Any

import numpy as np


def initial_value(name: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Normal numbers: around 1 for the factors of normalisations, of variance 1 / inputs for weights, small for biases and tables."""
    draws = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape).astype(np.float32)
    if name.endswith("gamma"):
        return np.float32(1) + np.float32(0.1) * draws
    inputs = math.prod(shape[1:]) if len(shape) > 1 and "embedding" not in name else 100
    return draws / np.float32(math.sqrt(inputs))
