"""Norms of equal elements: the result is exactly the bias, and variances are those of float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ranks import on_ranks

import jobflow as flow
import jobflow.nn.functional as F
from jobflow import typing as tp

#: norms of x, [samples, channels, places], with the axis whose split divides their rows
NORMS: dict[str, tuple[Callable[[Any], Any], int]] = {
    "layer_norm": (lambda x: F.layer_norm(x, x.shape[2:]), 2),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, training=True), 0),
    "group_norm": (lambda x: F.group_norm(x, 2), 2),
    "instance_norm": (lambda x: F.instance_norm(x), 2),
}
BASES = [1000.1, -1e5, 1e5 / 3, 1e-3]
PLACES = [5, 768, 4097]
#: runs after which eager mode has prepared and compiled its operations
RUNS = 34


class Normalized(flow.nn.Graph):
    def __init__(self, norm: Callable[[Any], Any]) -> None:
        super().__init__()
        self.norm = norm

    def build(self, x: Any) -> Any:
        return self.norm(x)


class Accumulated(flow.nn.Graph):
    """A step of SGD in two microbatches."""

    def __init__(self, norm: Callable[[Any], Any]) -> None:
        super().__init__()
        self.norm, self.shift = norm, flow.nn.Parameter(flow.zeros(1))
        self.add_optimizer(flow.optim.SGD([self.shift], 1.0))
        self.config.set_gradient_accumulation_steps(2)

    def build(self, x: Any) -> Any:
        y = self.norm(x + self.shift)
        y.sum().backward()
        return y


def constant(base: float, *shape: int) -> Any:
    return np.full(shape, base, np.float32)


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize("norm", NORMS)
def test_equal_elements_are_normalized_to_zero(norm: str, graph: bool) -> None:
    for places in PLACES:
        function = Normalized(NORMS[norm][0]) if graph else NORMS[norm][0]
        for base in BASES:
            x = flow.tensor(constant(base, 3, 4, places))
            assert not function(x).numpy().any(), f"{places} places of {base}"


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("places", [33, 768])
def test_equal_elements_are_normalized_to_zero_at_every_eager_run(norm: str, places: int) -> None:
    x = flow.tensor(constant(1000.1, 2, 4, places))
    for run in range(RUNS):
        assert not NORMS[norm][0](x).numpy().any(), f"run {run}"


@pytest.mark.parametrize("norm", NORMS)
def test_microbatches_of_equal_elements_are_normalized_to_zero(norm: str) -> None:
    assert not Accumulated(NORMS[norm][0])(flow.tensor(constant(1000.1, 4, 4, 768))).numpy().any()


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize("norm", NORMS)
def test_rows_split_over_ranks_have_one_mean(norm: str, graph: bool) -> None:
    function, axis = NORMS[norm]
    arrays = [constant(base, 3, 4, places) for base in BASES for places in PLACES]

    def program(rank: int) -> list[Any]:
        ranks = flow.placement("cpu", [0, 1])
        results = []
        for each in arrays:
            x = flow.tensor(each, placement=ranks, sbp=flow.sbp.split(axis))
            results.append((Normalized(function) if graph else function)(x).numpy())
        return results

    for results in on_ranks(2, program):
        for x, y in zip(arrays, results, strict=True):
            assert not y.any(), f"{x.shape} of {x.flat[0]}"


def test_layer_norm_of_equal_elements_is_the_bias() -> None:
    bias = np.linspace(-2, 2, 768, dtype=np.float32)
    y = F.layer_norm(flow.tensor(constant(1000.1, 3, 768)), (768,), flow.ones(768), flow.tensor(bias))
    np.testing.assert_array_equal(y.numpy(), np.broadcast_to(bias, (3, 768)))


def test_running_statistics_of_equal_elements() -> None:
    mean, variance = flow.zeros(4), flow.ones(4)
    F.batch_norm(flow.tensor(constant(1000.1, 3, 4, 4097)), mean, variance, training=True, momentum=1.0)
    np.testing.assert_array_equal(mean.numpy(), constant(1000.1, 4))
    assert variance.numpy().max() < 1e-9


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("base", [0.0, 3.3, 1000.1])
def test_float32_norms_of_nearly_equal_elements_are_near_float64_ones(norm: str, base: float) -> None:
    steps = np.random.default_rng(0).integers(-9, 10, (3, 4, 768))
    x = (base + steps * 1e-3).astype(np.float32)
    single, double = (NORMS[norm][0](flow.tensor(x, dtype=dtype)).numpy() for dtype in (flow.float32, flow.float64))
    spacing = np.spacing(np.float32(base)) / double_deviation(x)
    np.testing.assert_allclose(single, double, rtol=1e-5, atol=1e-5 + spacing)


def double_deviation(x: Any) -> float:
    return float(x.astype(np.float64).std())


@pytest.mark.parametrize("function", ["var", "std"])
@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize("length", [8, 768, 4097])
@pytest.mark.parametrize("base", [1000.1, 1e5, 1e-3])
def test_variances_of_nearly_equal_elements(function: str, graph: bool, length: int, base: float) -> None:
    x = constant(base, length)
    x[3] += 2 * np.spacing(x[3])
    spread = Normalized(lambda x: getattr(x, function)()) if graph else getattr(flow, function)
    np.testing.assert_allclose(spread(flow.tensor(x)).numpy(), getattr(x.astype(np.float64), function)(ddof=1), rtol=1e-6)
    assert spread(flow.tensor(constant(base, length))).item() == 0


LAYERS: dict[str, Callable[[Any], Any]] = {
    "batch_norm": lambda x: flow.layers.batch_normalization(x, axis=1, epsilon=1e-5),
    "group_norm": lambda x: flow.nn.GroupNorm(x, 2),
    "instance_norm": lambda x: flow.nn.InstanceNorm1d(x),
    "layer_norm": lambda x: flow.layers.layer_norm(x, begin_norm_axis=2),
    "reduce_variance": lambda x: flow.math.reduce_variance(x, axis=[2]),
}


@pytest.mark.parametrize("norm", LAYERS)
@pytest.mark.parametrize("devices", [1, 2])
def test_jobs_normalize_equal_elements_to_zero(norm: str, devices: int) -> None:
    x = constant(1000.1, 4, 6, 768)
    flow.clear_default_session()
    flow.config.cpu_device_num(devices)

    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder(x.shape)) -> tp.Numpy:  # type: ignore[valid-type]
        shift = flow.get_variable("shift", x.shape, initializer=flow.zeros_initializer(), distribute=flow.distribute.split(0))
        y = LAYERS[norm](x + shift)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0).minimize(flow.math.reduce_sum(y))
        return y

    assert not job(x).any()
