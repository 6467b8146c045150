"""Winograd's matrices, and its convolutions against the direct sum: exactly in float64, within recorded bounds in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from bound_ops import CpuDevice, batch_innermost

from jobflow.kernels import registry
from jobflow.kernels.cpu import winograd
from jobflow.kernels.target import CPU
from jobflow.ops.conv import Conv


def run(name: str, op: Any, *arrays: Any, output: Any) -> Any:
    """Run the implementation whose name starts with `name`."""
    (implementation,) = (one for one in registry.candidates(type(op), CPU) if one.name.startswith(name))
    for function, arguments in implementation.bind(op, CpuDevice(), arrays, (output,)):
        function(*arguments)
    return output


def all_three(op: Conv, x_shape: tuple[int, ...], w_shape: tuple[int, ...]) -> list[tuple[Any, tuple[Any, ...], Any]]:
    """Return (op, inputs, expected output) for the convolution and its gradients, in float64 by the plain kernels."""
    rng = np.random.default_rng(11)
    x, w = rng.standard_normal(x_shape), rng.standard_normal(w_shape)
    y = np.empty((x_shape[0], w_shape[0], *op.window(w_shape[2:]).out_sizes("conv", x_shape[2:])))
    dy = rng.standard_normal(y.shape)
    cases: list[tuple[Any, tuple[Any, ...], Any]] = [
        (op, (x, w), y),
        (op._input_gradient(x_shape[2:]), (dy, w), np.empty_like(x)),
        (op._weight_gradient(w_shape[2:]), (x, dy), np.empty_like(w)),
    ]
    for one, inputs, output in cases:
        one.kernel(np, *inputs, output)
    return cases


@pytest.mark.parametrize(("m", "r"), [(2, 3), (4, 3), (2, 5), (3, 5), (4, 5)])
def test_winograd_matrices_give_the_correlation(m: int, r: int) -> None:
    at, g, bt = winograd.matrices(m, r)
    rng = np.random.default_rng(0)
    d, w = rng.standard_normal(m + r - 1), rng.standard_normal(r)
    np.testing.assert_allclose(at @ ((g @ w) * (bt @ d)), np.correlate(d, w, "valid"), rtol=1e-12, atol=1e-12)


def test_band_repeats_a_matrix_per_tile() -> None:
    matrix = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    expected = [[1, 2, 3, 0, 0], [0, 0, 1, 2, 3], [4, 5, 6, 0, 0], [0, 0, 4, 5, 6]]
    np.testing.assert_array_equal(winograd.band(matrix, 2, 2, slice(0, 5)), expected)
    np.testing.assert_array_equal(winograd.band(matrix, 2, 2, slice(1, 4)), np.array(expected)[:, 1:4])


_SHAPES = [
    # r, padding, x
    (3, ((1, 1), (1, 1)), (4, 3, 8, 8)),
    (3, ((0, 0), (0, 0)), (4, 3, 9, 7)),
    (3, ((2, 1), (0, 2)), (3, 2, 7, 31)),
    (3, ((1, 1), (1, 1)), (2, 5, 5, 61)),
    (5, ((2, 2), (2, 2)), (5, 3, 14, 14)),
    (5, ((0, 0), (4, 4)), (2, 3, 11, 6)),
    (5, ((2, 2), (2, 2)), (1, 2, 3, 2)),
    (3, ((1, 1),), (3, 2, 61)),
    (5, ((4, 0),), (2, 3, 9)),
]


@pytest.mark.parametrize(("m", "case"), [(m, case) for case in _SHAPES for m in (2, 3, 4) if (m, case[0]) != (3, 3)], ids=str)
@pytest.mark.parametrize("order", ["plain", "batch_innermost"])
def test_float64_equals_the_direct_sum(m: int, case: Any, order: str) -> None:
    r, padding, x_shape = case
    dims = len(padding)
    arranged = np.array if order == "plain" else batch_innermost
    for op, inputs, expected in all_three(Conv((1,) * dims, padding, (1,) * dims), x_shape, (4, x_shape[1], *(r,) * dims)):
        actual = run(f"Winograd, {m}", op, *(arranged(a) for a in inputs), output=arranged(np.full_like(expected, np.nan)))
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-11 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("way", "r", "bound"),
    [
        ("im2col", 5, 2e-6),
        ("Winograd, 2", 3, 1e-6),
        ("Winograd, 2", 5, 4e-6),
        ("Winograd, 4", 3, 3e-6),
        ("Winograd, 3", 5, 5e-6),
        ("Winograd, 4", 5, 1e-5),
    ],
)
def test_float32_error_relative_to_the_largest_element(way: str, r: int, bound: float) -> None:
    pad = r // 2
    for one, inputs, expected in all_three(Conv((1, 1), ((pad, pad), (pad, pad)), (1, 1)), (20, 32, 14, 14), (64, 32, r, r)):
        actual = run(way, one, *(batch_innermost(a.astype(np.float32)) for a in inputs), output=np.empty(expected.shape, np.float32))
        error = np.abs(actual - expected).max() / np.abs(expected).max()
        assert 0 < error < bound, f"{one.word()} by {way}: {error:.1e}"
