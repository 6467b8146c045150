"""Element types: what a Python number becomes beside a tensor of one."""

import math

import numpy as np
import pytest

from jobflow.core.types import float16, float32, float64, int8, int32


def test_scalars_with_floats() -> None:
    assert float32.number(3) == 3.0 and type(float32.number(3)) is float
    assert float32.number(0.1) == 0.1, "rounding is left to the one who stores it"
    assert float32.number(np.float32(2)) == 2.0 and type(float32.number(np.float64(2))) is float
    assert math.isnan(float64.number(math.nan)) and float32.number(-math.inf) == -math.inf


def test_floats_out_of_reach_are_infinite() -> None:
    assert float16.number(1e5) == math.inf and float16.number(65504) == 65504
    assert float32.number(-1e50) == -math.inf and float64.number(-1e50) == -1e50


def test_scalars_with_integers() -> None:
    assert int32.number(2.0) == 2 and type(int32.number(2.0)) is int
    assert int8.number(np.int64(-3)) == -3
    for value in (0.5, math.inf, -math.inf, math.nan):
        with pytest.raises(ValueError, match="is not an integer"):
            int32.number(value)
