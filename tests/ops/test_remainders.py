"""Quotients and remainders equal those of NumPy to the last bit and the sign of zero, even without exact functions of the array module."""

from __future__ import annotations

import numpy as np
import pytest

from jobflow.expressions.on_arrays import functions
from jobflow.ops import remainders

AWKWARD = [0.0, -0.0, 1.0, -1.0, 0.1, -0.1, 0.3, 3.0, -3.0, 0.5, 7.5, 1e17, 5e-324, 1e-300, 1e300, -1e300, np.inf, -np.inf, np.nan]
NAMES = ("floor_divide", "remainder", "fmod")


def pairs(values: np.ndarray, nonzero: bool = False) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.meshgrid(values, values[values != 0] if nonzero else values)
    return x.copy(), y.copy()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", NAMES)
def test_floats(name: str, dtype: type) -> None:
    random = np.random.default_rng(0)
    with np.errstate(all="ignore"):
        x, y = pairs(np.concatenate([AWKWARD, random.normal(size=100), random.integers(-50, 50, 100) * 0.1]).astype(dtype))
        ours, theirs = getattr(remainders, name)(functions(np), x, y), getattr(np, name)(x, y)
    same = (ours == theirs) & (np.signbit(ours) == np.signbit(theirs)) | (np.isnan(ours) & np.isnan(theirs))
    assert same.all(), [(a, b, c, d) for a, b, c, d in zip(x[~same], y[~same], ours[~same], theirs[~same], strict=True)][:5]


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.int8, np.uint8])
@pytest.mark.parametrize("name", NAMES)
def test_integers(name: str, dtype: type) -> None:
    """Includes values beyond 2^53, which double precision cannot represent."""
    ends = np.iinfo(dtype)
    random = np.random.default_rng(0).integers(ends.min, ends.max, 200, dtype=dtype)
    x, y = pairs(np.concatenate([[ends.min, ends.max, ends.min + 1, ends.max - 1, 1, 2, 3], random]).astype(dtype), nonzero=True)
    with np.errstate(over="ignore"):  # the smallest integer divided by -1
        ours, theirs = getattr(remainders, name)(functions(np), x, y), getattr(np, name)(x, y)
    assert np.array_equal(ours, theirs)
