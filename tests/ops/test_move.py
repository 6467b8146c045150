"""Rolls and paddings against NumPy, and pooling to sizes against its definition."""

from __future__ import annotations

import laws
import numpy as np
import pytest

from jobflow import scope
from jobflow.core.errors import ShapeError
from jobflow.ops.adaptive_pool import adaptive_avg_pool, adaptive_max_pool
from jobflow.ops.move import Mode, pad_edges, roll

X = np.arange(24.0).reshape(2, 3, 4)


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
def test_padding_by_edge_elements_equals_numpy(mode: Mode) -> None:
    with scope.using(interpreter=laws.Immediate()):
        np.testing.assert_array_equal(pad_edges(laws.Result(X), [(0, 0), (1, 2), (3, 0)], mode).array, np.pad(X, [(0, 0), (1, 2), (3, 0)], mode))


def test_padding_beyond_the_available_elements_raises() -> None:
    with scope.using(interpreter=laws.Immediate()):
        with pytest.raises(ShapeError, match=r"reflect: the padding \(0, 4\) of axis 2 .* exceeds the maximum 3"):
            pad_edges(laws.Result(X), [(0, 0), (0, 0), (0, 4)], "reflect")
        with pytest.raises(ShapeError, match=r"wrap: the padding \(5, 0\) of axis 2 .* exceeds the maximum 4"):
            pad_edges(laws.Result(X), [(0, 0), (0, 0), (5, 0)], "wrap")


def test_rolling() -> None:
    with scope.using(interpreter=laws.Immediate()):
        np.testing.assert_array_equal(roll(laws.Result(X), [1, -5], [0, -1]).array, np.roll(X, (1, -5), (0, 2)))


@pytest.mark.parametrize(("n", "m"), [(7, 3), (5, 5), (6, 2), (3, 5), (4, 1)])
def test_pooling_to_sizes(n: int, m: int) -> None:
    x = np.random.default_rng(1).normal(size=(2, 3, n))
    expected = np.stack([x[..., int(np.floor(i * n / m)) : int(np.ceil((i + 1) * n / m))].mean(-1) for i in range(m)], -1)
    with scope.using(interpreter=laws.Immediate()):
        np.testing.assert_allclose(adaptive_avg_pool(laws.Result(x), [m]).array, expected, rtol=1e-12)


def test_maxima_of_windows_that_divide_the_image() -> None:
    with scope.using(interpreter=laws.Immediate()):
        np.testing.assert_array_equal(adaptive_max_pool(laws.Result(X), [2]).array, X[..., 1::2])
        with pytest.raises(ShapeError, match=r"\[3\] do not divide"):
            adaptive_max_pool(laws.Result(X), [3])
