"""Normalizations against their formulas, the gradient through batch statistics, and arrays of several blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import laws
import numpy as np
import pytest

from jobflow import scope
from jobflow.core.errors import ShapeError
from jobflow.core.types import type_of
from jobflow.kernels import registry
from jobflow.kernels.target import CPU
from jobflow.ops import batch_norm as bn
from jobflow.ops import norm
from jobflow.ops.op import Op, types_tuple

Array = np.ndarray[Any, Any]


def at_once(function: Callable[..., Any], *arrays: Array | None, **options: Any) -> Any:
    """Run a function of tensors on arrays."""
    with scope.using(interpreter=laws.Immediate()):
        result = function(*(None if a is None else laws.Result(a) for a in arrays), **options)
        return tuple(r.array for r in result) if isinstance(result, tuple) else result.array


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def test_layer_norm_with_and_without_parameters() -> None:
    x, gamma, beta = random(4, 3, 5), random(5), random(5, seed=1)
    rows = x.reshape(4, 15)
    plain = ((rows - rows.mean(1, keepdims=True)) / np.sqrt(rows.var(1, keepdims=True) + 1e-5)).reshape(x.shape)
    np.testing.assert_allclose(at_once(norm.layer_norm, x), plain, rtol=1e-12)
    np.testing.assert_allclose(at_once(norm.layer_norm, x, gamma, beta), plain * gamma + beta, rtol=1e-12)
    np.testing.assert_allclose(at_once(norm.layer_norm, x, gamma), plain * gamma, rtol=1e-12)
    np.testing.assert_allclose(at_once(norm.layer_norm, x, None, beta), plain + beta, rtol=1e-12)
    wide = random(3, 5, seed=2)
    np.testing.assert_allclose(at_once(norm.layer_norm, x, gamma, wide), plain * gamma + wide, rtol=1e-12)
    np.testing.assert_allclose(at_once(norm.layer_norm, x, wide, beta), plain * wide + beta, rtol=1e-12)


def test_layer_norm_parameter_of_the_wrong_shape() -> None:
    with pytest.raises(ShapeError, match=r"gamma float64\[4\] must have the shape \[5\] of a row of x float64\[2,5\]"):
        laws.run(norm.LayerNorm(1), [random(2, 5), random(4), random(5)])


def test_batch_norm() -> None:
    x, gamma, beta = random(6, 3, 4, 4) * 2 + 5, random(3), random(3, seed=1)
    y, mean, variance = at_once(bn.batch_norm_train, x, gamma, beta, epsilon=1e-3)
    np.testing.assert_allclose(mean, x.mean((0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(variance, x.var((0, 2, 3)), rtol=1e-12)
    wide = [v[:, None, None] for v in (mean, variance, gamma, beta)]
    expected = (x - wide[0]) / np.sqrt(wide[1] + 1e-3) * wide[2] + wide[3]
    np.testing.assert_allclose(y, expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(at_once(bn.batch_norm_infer, x, gamma, beta, mean, variance, epsilon=1e-3), y, rtol=1e-12)


def test_gradient_goes_through_the_batch_statistics() -> None:
    """The gradient of BatchNormalize is that of the whole batch_norm_train, which the laws cannot check."""
    x, gamma, beta, dy = random(5, 3, 2), random(3), random(3, seed=1), random(5, 3, 2, seed=2)

    def loss(x: Array) -> float:
        return float((at_once(bn.batch_norm_train, x, gamma, beta, epsilon=1e-3)[0] * dy).sum())

    y, mean, variance = at_once(bn.batch_norm_train, x, gamma, beta, epsilon=1e-3)
    with scope.using(interpreter=laws.Immediate()):
        tensors = map(laws.Result, (x, mean, variance, gamma, beta, y, dy))
        dx, dmean, dvariance, _, _ = bn.BatchNormalize(1, 1e-3).grad(*tensors)  # type: ignore[arg-type]
    assert dmean is None and dvariance is None
    for at in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[at] = 1e-6
        assert abs(dx.array[at] - (loss(x + step) - loss(x - step)) / 2e-6) < 1e-7  # type: ignore[union-attr]


def in_order(shape: tuple[int, ...], order: tuple[int, ...]) -> Array:
    """Return an array of `shape` whose axes have this order in memory."""
    return random(*(shape[i] for i in order)).transpose(np.argsort(order))


LARGE = [((40, 8, 30, 30), (0, 1, 2, 3)), ((40, 8, 30, 30), (1, 2, 3, 0)), ((3000, 70), (0, 1)), ((2, 3, 300, 301), (0, 1, 2, 3))]
CHANNEL_OPS: list[tuple[Op, str]] = [
    (bn.CenteredSums(1), "tc"),
    (bn.Normalize(1, 1e-3), "tcpcc"),
    (bn.BatchNormalize(1, 1e-3), "tcpcc"),
    (bn.NormalizeSums(1, 1e-3), "ttcp"),
    (bn.BatchNormalizeSums(1, 1e-3), "ttcp"),
    (bn.BatchNormalizeGrad(1, 1e-3, 1000), "ttcpcccc"),
]


@pytest.mark.parametrize("case", LARGE, ids=str)
@pytest.mark.parametrize("op", CHANNEL_OPS, ids=lambda op: str(op[0]))
def test_large_arrays_in_blocks(op: tuple[Op, str], case: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    """t is a tensor, c a vector per channel, p a positive vector."""
    (shape, order), (it, marks) = case, op
    inputs = [in_order(shape, order) + i if mark == "t" else random(shape[1], seed=i) for i, mark in enumerate(marks)]
    inputs = [abs(a) + 0.5 if mark == "p" else a for a, mark in zip(inputs, marks, strict=True)]
    check_bind(it, inputs, order)


@pytest.mark.parametrize("rows", [1, 1000, 1023])
def test_layer_norm_in_blocks(rows: int) -> None:
    x, gamma, beta, dy = random(rows, 300), random(300), random(300, seed=1), random(rows, 300, seed=2)
    check_bind(norm.LayerNorm(1), [x, gamma, beta], (0, 1))
    _, mean, inv_std = laws.run(norm.LayerNorm(1), [x, gamma, beta])
    check_bind(norm.LayerNormGrad(1), [dy, x, gamma, mean, inv_std], (0, 1))


def check_bind(op: Op, inputs: list[Array], order: tuple[int, ...]) -> None:
    """Compare bound calls, run twice, with the kernel."""
    expected = laws.run(op, inputs)
    types = types_tuple(op.infer(*map(type_of, inputs)))
    outputs = [in_order(t.shape, order) if t.ndim == len(order) else np.full(t.shape, np.nan) for t in types]
    calls = registry.bind(op, CPU, laws.Bench(), inputs, outputs)
    for function, arguments in calls * 2:
        function(*arguments)
    for ours, theirs in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9 * abs(theirs).max())


def test_l2_normalize() -> None:
    x = random(4, 6)
    y = at_once(norm.l2_normalize, x, axis=-1)
    np.testing.assert_allclose((y * y).sum(1), 1, rtol=1e-12)
    np.testing.assert_allclose(at_once(norm.l2_normalize, x, axis=0, epsilon=100.0), x / 10, rtol=1e-12)
