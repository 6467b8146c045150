"""Norms against NumPy."""

from __future__ import annotations

import laws
import numpy as np
import pytest

from jobflow import scope
from jobflow.ops.vector_norm import vector_norm

X = np.array([[3.0, -4.0, 0.5], [1.0, -2.0, 2.0]])


@pytest.mark.parametrize("order", [2.0, 1.0, 3.0, 0.0, np.inf, -np.inf])
def test_norms_equal_numpy(order: float) -> None:
    with scope.using(interpreter=laws.Immediate()):
        np.testing.assert_allclose(vector_norm(laws.Result(X), order, 1).array, np.linalg.norm(X, order, 1), rtol=1e-12)
        whole = vector_norm(laws.Result(X), order, keepdims=True).array
    np.testing.assert_allclose(whole, np.linalg.norm(X.reshape(-1), order).reshape(1, 1), rtol=1e-12)


def test_norm_of_zeros_is_zero() -> None:
    with scope.using(interpreter=laws.Immediate()):
        assert vector_norm(laws.Result(np.zeros((2, 3))), 2.0, 0).array.tolist() == [0.0, 0.0, 0.0]
