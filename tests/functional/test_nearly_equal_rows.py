"""layer_norm of nearly equal elements: its gradient does not magnify the rounding of the mean."""

from __future__ import annotations

import numpy as np
import pytest

import jobflow as flow
from jobflow import nn


@pytest.mark.parametrize("base", [1.0, 3.3, 100.0, 1000.0])
@pytest.mark.parametrize("width", [5, 64])
def test_the_gradient_of_a_sum_of_nearly_equal_rows_is_zero(base: float, width: int) -> None:
    steps = np.random.default_rng(0).integers(-2, 3, (4, width))
    x = flow.tensor((base + steps * np.spacing(np.float32(base))).astype(np.float32), requires_grad=True)
    nn.functional.layer_norm(x, (width,)).sum().backward()
    assert np.abs(x.grad.numpy()).max() == 0


@pytest.mark.parametrize("base", [0.0, 100.0])
def test_float32_gradients_of_nearly_equal_rows_are_near_float64_ones(base: float) -> None:
    rng = np.random.default_rng(1)
    x = (base + 1e-3 * rng.standard_normal((4, 32))).astype(np.float32)
    weight, slope = rng.standard_normal(32), rng.standard_normal((4, 32))
    found = []
    for dtype in (flow.float32, flow.float64):
        given = flow.tensor(x, dtype=dtype, requires_grad=True)
        y = nn.functional.layer_norm(given, (32,), flow.tensor(weight, dtype=dtype))
        (y * flow.tensor(slope, dtype=dtype)).sum().backward()
        found.append(given.grad.numpy())
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4, atol=1e-5 * np.abs(found[1]).max())
