"""Precision of sums: functions of two-byte floats compute in float32, and long sums keep small addends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from doors import modes

import jobflow as flow
import jobflow.nn.functional as F
from jobflow import typing as tp

DRAWN = np.random.default_rng(0)
#: far from 0, and with squares and sums beyond float16
X = (300 * DRAWN.normal(size=(8, 16, 32)) + 500).astype(np.float16)
WIDE = X.astype(np.float64)
ONES = np.ones(200_000, np.float16)


def _norm(x: Any, axis: int) -> Any:
    return np.sqrt((x * x).sum(axis, keepdims=True))


def _normal(x: Any, axes: Any, eps: float) -> Any:
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)


HALVES: dict[str, tuple[Callable[..., Any], Any]] = {
    "mean": (lambda x: x.mean(1), WIDE.mean(1)),
    "mean of all": (lambda x: x.mean(), WIDE.mean()),
    "mean of many": (lambda x: x.flatten().repeat(50).mean(), WIDE.mean()),
    "norm": (lambda x: x.norm(dim=1), _norm(WIDE, 1)[:, 0]),
    "norm of order 3": (lambda x: x.norm(3, dim=1), (abs(WIDE) ** 3).sum(1) ** (1 / 3)),
    "std": (lambda x: x.std(2), WIDE.std(2, ddof=1)),
    "var of what is small": (lambda x: (x / 100).var(2), (WIDE / 100).var(2, ddof=1)),
    "logsumexp": (lambda x: (x / 100).logsumexp(1), np.log(np.exp(WIDE / 100).sum(1))),
    "rms_norm": (lambda x: F.rms_norm(x, (32,)), WIDE / np.sqrt((WIDE**2).mean(-1, keepdims=True))),
    "normalize": (lambda x: F.normalize(x, dim=1), WIDE / _norm(WIDE, 1)),
    "layer_norm": (lambda x: F.layer_norm(x, (32,)), _normal(WIDE, -1, 1e-5)),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, training=True), _normal(WIDE, (0, 2), 1e-5)),
    "group_norm": (lambda x: F.group_norm(x, 1), _normal(WIDE, (1, 2), 1e-5)),
    "instance_norm": (lambda x: F.instance_norm(x), _normal(WIDE, 2, 1e-5)),
    "cosine_similarity": (lambda x: F.cosine_similarity(x, x.flip(2), dim=2), (WIDE * WIDE[..., ::-1]).sum(2) / _norm(WIDE, 2)[..., 0] ** 2),
    "softmax": (lambda x: F.softmax(x / 100, 1), np.exp(WIDE / 100) / np.exp(WIDE / 100).sum(1, keepdims=True)),
    "mse_loss": (lambda x: F.mse_loss(x / 10, x / 20), ((WIDE / 20) ** 2).mean()),
    "cross_entropy": (
        lambda x: F.cross_entropy((x / 100).reshape(128, 32), flow.zeros_like(x[:, :, 0], dtype=flow.int64).reshape(128)),
        (np.log(np.exp(WIDE / 100).sum(2)) - WIDE[:, :, 0] / 100).mean(),
    ),
    "addcmul": (lambda x: flow.addcmul(-x, x / 8, x / 8, value=0.125), -WIDE + 0.125 * (WIDE / 8) ** 2),
}


@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_functions_of_halves(name: str, dtype: str) -> None:
    function, expected = HALVES[name]
    bits = {"float16": 10, "bfloat16": 7}[dtype]
    half = getattr(flow, dtype)
    inexact = 8 if name in ("layer_norm", "batch_norm", "group_norm", "instance_norm", "addcmul") or dtype == "bfloat16" else 3
    for mode, run in modes(lambda x: function(x.to(half)), X):
        output = run()
        assert output.dtype is half, mode
        error = np.abs(output.float().numpy() - expected).max() / np.abs(expected).max()
        assert error < inexact * 2.0**-bits, f"{mode}: {error:.2g}"


@pytest.mark.parametrize(
    "norm", [lambda x: F.layer_norm(x, (32,)), lambda x: F.batch_norm(x, None, None, training=True), lambda x: F.rms_norm(x, (32,))]
)
def test_gradients_of_normalised_halves(norm: Callable[..., Any]) -> None:
    weights = DRAWN.normal(size=X.shape)
    results = []
    for dtype in (flow.float16, flow.float64):
        x = flow.tensor(X).to(dtype).requires_grad_()
        (norm(x) * flow.tensor(weights).to(dtype)).sum().backward()
        results.append(x.grad.double().numpy())
    assert np.abs(results[0] - results[1]).max() < 5e-3 * np.abs(results[1]).max()


def test_running_statistics_of_halves() -> None:
    module = flow.nn.BatchNorm1d(16)
    wide = flow.nn.BatchNorm1d(16)
    mean = flow.zeros(16)
    F.batch_norm(flow.tensor(X), mean, flow.ones(16), None, None, True, 1.0)
    np.testing.assert_allclose(mean.numpy(), WIDE.mean((0, 2)), rtol=1e-3)
    wide(flow.tensor(WIDE.astype(np.float32)))
    output = module.half()(flow.tensor(X))
    assert output.dtype is flow.float16 and module.running_mean.dtype is flow.float16
    np.testing.assert_allclose(module.running_mean.float().numpy(), wide.running_mean.numpy(), rtol=2e-3)


def test_means_of_halves_in_a_job() -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((8, 16, 32), dtype=flow.float16)) -> tp.Numpy:
        parts = [flow.math.reduce_mean(x, 1), flow.math.reduce_euclidean_norm(x, 1), flow.math.reduce_std(x, 1)]
        return flow.stack(parts, axis=0)

    expected = np.stack([WIDE.mean(1), _norm(WIDE, 1)[:, 0], WIDE.std(1)])
    np.testing.assert_allclose(job(X).astype(np.float64), expected, rtol=2e-3)


# Long sums ----------------------------------------------------------------------------------------------------------

TENTH = float(np.float32(0.1))


def test_the_gradient_of_a_bias_over_many_rows() -> None:
    """30,000 times 0.1 is 3000, not 3000.1."""
    for columns in (1, 5, 64):
        x, b = flow.tensor(np.ones((30_000, columns), np.float32)), flow.zeros(columns, requires_grad=True)
        ((x + b) * 0.1).sum().backward()
        np.testing.assert_allclose(b.grad.numpy(), 30_000 * TENTH, rtol=2e-6)

    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((30_000, 4))) -> tp.Numpy:
        y = flow.layers.dense(x, 3, kernel_initializer=flow.ones_initializer(), name="d")
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0).minimize(0.1 * y)
        return y

    job(np.ones((30_000, 4), np.float32))
    np.testing.assert_allclose(flow.get_all_variables()["d-bias"].numpy(), -TENTH / 3, rtol=1e-6)


def test_long_sums() -> None:
    many = np.full(3_000_001, 0.1, np.float32)
    exact = many.size * TENTH

    def sums(x: Any) -> Any:
        return x.sum(), x.mean(), x.cumsum(0)[-1], x.norm(), x.reshape(-1, 1).sum(0), x[:3_000_000].reshape(3, -1).sum(1)

    for _, run in modes(sums, many):
        total, mean, last, norm, column, rows = (each.numpy().astype(np.float64) for each in run())
        np.testing.assert_allclose([total, last, column[0]], exact, rtol=1e-6)
        np.testing.assert_allclose([mean, norm / np.sqrt(many.size)], TENTH, rtol=1e-6)
        np.testing.assert_allclose(rows, 1e6 * TENTH, rtol=2e-6)
    parameter = flow.zeros(many.size, requires_grad=True)
    (parameter * 0.1).sum().backward()
    norm = flow.nn.utils.clip_grad_norm_([parameter], 1e9)
    np.testing.assert_allclose(float(norm), TENTH * np.sqrt(many.size), rtol=1e-6)


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e4])
def test_the_gradient_of_layer_norm_far_from_zero(offset: float) -> None:
    """Rounding of the values moves the mean by half a unit of their last place; no other precision is lost."""
    values = (DRAWN.normal(size=(64, 256)) + offset).astype(np.float32)
    weights = DRAWN.normal(size=values.shape)
    results = []
    for dtype in (flow.float32, flow.float64):
        x, gamma, beta = (flow.tensor(a).to(dtype).requires_grad_() for a in (values, np.linspace(0.5, 2, 256), np.zeros(256)))
        (F.layer_norm(x, (256,), gamma, beta) * flow.tensor(weights).to(dtype)).sum().backward()
        results.append([x.grad.numpy(), gamma.grad.numpy(), beta.grad.numpy()])
    for ours, right in zip(*results, strict=True):
        assert np.abs(ours - right).max() < (2e-6 + 1.5e-7 * offset) * np.abs(right).max()


# Learning rates -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["SGD", "Momentum", "Adam", "AdamW", "RMSprop", "Adagrad"])
def test_rates_are_as_precise_as_the_parameters(optimizer: str) -> None:
    """The first step along a slope of 1 is 0.1, not the nearest float32; eager and in a graph."""
    make = {"Momentum": lambda ps: flow.optim.SGD(ps, lr=0.1, momentum=0.9)}.get(optimizer, lambda ps: getattr(flow.optim, optimizer)(ps, lr=0.1))
    step = {"Adam": 1 / (1 + 1e-8), "AdamW": 1 / (1 + 1e-8), "RMSprop": 1 / (0.1 + 1e-8), "Adagrad": 1 / (1 + 1e-10)}.get(optimizer, 1.0)

    class Slope(flow.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.w = flow.nn.Parameter(flow.zeros(1, dtype=flow.float64))

        def forward(self, x: Any) -> Any:
            return (self.w * x).sum()

    x = flow.ones(1, dtype=flow.float64)
    at_once = Slope()
    chosen = make(list(at_once.parameters()))
    at_once(x).backward()
    chosen.step()
    in_graph = Slope()

    class Training(flow.nn.Graph):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = in_graph
            self.add_optimizer(make(list(in_graph.parameters())))

        def build(self, x: Any) -> Any:
            loss = self.model(x)
            loss.backward()
            return loss

    Training()(x)
    for w in (at_once.w, in_graph.w):
        np.testing.assert_allclose(w.detach().numpy(), -0.1 * step, rtol=1e-13)


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "LARS", "RMSProp"])
def test_rates_are_as_precise_as_the_variables(optimizer: str) -> None:
    schedule = flow.optimizer.CosineScheduler(0.1, 10)
    make = {"SGD": lambda: flow.optimizer.SGD(schedule, momentum=0.0), "LARS": lambda: flow.optimizer.LARS(schedule)}
    step = {"Adam": (1 - 0.9) / (np.sqrt(1 - 0.999) + 1e-8), "RMSProp": 1 / np.sqrt(0.01 + 1e-8)}.get(optimizer, 1.0)

    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((1,), dtype=flow.float64)) -> tp.Numpy:
        w = flow.get_variable("w", (1,), dtype=flow.float64, initializer=flow.constant_initializer(0.0))
        own = make.get(optimizer, lambda: getattr(flow.optimizer, optimizer)(schedule))()
        loss = w * x
        own.minimize(loss)
        return loss

    job(np.ones(1))
    np.testing.assert_allclose(flow.get_all_variables()["w"].numpy(), -0.1 * step, rtol=1e-13)


# Losses that are means over millions of elements, in float16 ------------------------------------------------------------

ROWS = 2000  # the loss has ROWS^2 elements: 1 / 4e6 is four times the smallest float16, and another number there


@pytest.mark.parametrize("scale", ["none", "static", "dynamic", "mean", "microbatches"])
def test_the_slope_of_a_large_loss_in_a_job_of_mixed_precision(scale: str) -> None:
    config = flow.function_config()
    config.enable_auto_mixed_precision(True)
    if scale == "microbatches":
        config.train.num_gradient_accumulation_steps(2)
    policy = {"static": flow.optimizer.loss_scale.static_loss_scale(8.0), "dynamic": flow.optimizer.loss_scale.dynamic_loss_scale(16.0)}.get(scale)

    @flow.global_function(type="train", function_config=config)
    def job(x: tp.Numpy.Placeholder((ROWS, 1))) -> tp.Numpy:
        w = flow.get_variable("w", (1, ROWS), initializer=flow.constant_initializer(1.0))
        loss = flow.math.tanh(flow.matmul(x, w))
        loss = flow.math.reduce_mean(loss) if scale == "mean" else loss
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0, loss_scale_policy=policy).minimize(loss)
        return flow.math.reduce_mean(loss)

    job(np.full((ROWS, 1), 0.25, np.float32))
    slope = 0.25 * (1 - np.tanh(0.25) ** 2) / ROWS  # of each w, summed over the rows: below float16, too
    np.testing.assert_allclose(1 - flow.get_all_variables()["w"].numpy().astype(np.float64), slope, rtol=5e-3)


def test_the_slope_of_a_large_loss_in_a_graph_of_mixed_precision() -> None:
    layer = flow.nn.Linear(1, ROWS, bias=False)
    with flow.no_grad():
        layer.weight.fill_(1.0)

    class Training(flow.nn.Graph):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer
            self.config.enable_amp(True)
            self.add_optimizer(flow.optim.SGD(layer.parameters(), lr=1.0))

        def build(self, x: Any) -> Any:
            loss = self.layer(x).tanh().mean()
            loss.backward()
            return loss

    Training()(flow.full((ROWS, 1), 0.25))
    slope = 0.25 * (1 - np.tanh(0.25) ** 2) / ROWS
    np.testing.assert_allclose(1 - layer.weight.detach().numpy().astype(np.float64), slope, rtol=5e-3)


def test_a_dynamic_scale_of_a_loss_that_is_half_itself() -> None:
    """1 / N is nearly too small for float16; its product with the scale is not."""

    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((4_000_000,), dtype=flow.float16)) -> tp.Numpy:
        w = flow.get_variable("w", (1,), dtype=flow.float16, initializer=flow.constant_initializer(1.0))
        loss = x * w
        policy = flow.optimizer.loss_scale.dynamic_loss_scale(2.0**12)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.25]), momentum=0, loss_scale_policy=policy).minimize(loss)
        return loss

    job(np.ones(4_000_000, np.float16))
    assert flow.get_all_variables()["w"].numpy().tolist() == [0.75]
