"""Norms of nearly equal elements: the gradient does not magnify the rounding of the mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ranks import on_ranks

import jobflow as flow
import jobflow.nn.functional as F
from jobflow import typing as tp

#: norms of x, [samples, channels, places], with a weight for each channel
NORMS: dict[str, Callable[[Any, Any], Any]] = {
    "layer_norm": lambda x, w: F.layer_norm(x, x.shape[2:]) * w.reshape(-1, 1),
    "batch_norm": lambda x, w: F.batch_norm(x, None, None, w, None, True),
    "group_norm": lambda x, w: F.group_norm(x, 2, w),
    "instance_norm": lambda x, w: F.instance_norm(x, None, None, w),
    "rms_norm": lambda x, w: F.rms_norm(x, x.shape[2:], eps=1e-5) * w.reshape(-1, 1),
}
CENTRED = sorted(NORMS.keys() - {"rms_norm"})
LARGEST_INV_STD = 1 / np.sqrt(1e-5)


def nearly_equal(base: float, *shape: int) -> Any:
    """Return elements at most two float32 steps from `base`."""
    steps = np.random.default_rng(0).integers(-2, 3, shape)
    return (base + steps * np.spacing(np.float32(base))).astype(np.float32)


class Loss(flow.nn.Module):
    """The sum of slope times the norm of x + shift, where shift is a parameter of zeros."""

    def __init__(self, norm: str, shape: Any, dtype: Any, **layout: Any) -> None:
        super().__init__()
        self.norm = norm
        self.shift = flow.nn.Parameter(flow.zeros(*shape, dtype=dtype, **layout))

    def forward(self, x: Any, slope: Any, weight: Any) -> Any:
        return (NORMS[self.norm](x + self.shift, weight) * slope).sum()


class Training(flow.nn.Graph):
    """One step of SGD, which subtracts the gradient from the shift."""

    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self.loss = loss
        self.add_optimizer(flow.optim.SGD(loss.parameters(), 1.0))

    def build(self, *tensors: Any) -> Any:
        loss = self.loss(*tensors)
        loss.backward()
        return loss


def gradient(norm: str, x: Any, slope: Any, weight: Any, dtype: Any = flow.float32, ranks: int = 0, graph: bool = False) -> Any:
    """Return the gradient of x, eager or in a graph, on local tensors or with the samples split among ranks."""
    where = flow.placement("cpu", list(range(ranks))) if ranks else None
    split, whole = ({"placement": where, "sbp": sbp} if ranks else {} for sbp in (flow.sbp.split(0), flow.sbp.broadcast))
    loss = Loss(norm, x.shape, dtype, **split)
    tensors = [flow.tensor(a, dtype=dtype, **layout) for a, layout in ((x, split), (slope, split), (weight, whole))]
    if graph:
        Training(loss)(*tensors)
        return -loss.shift.detach().numpy()
    loss(*tensors).backward()
    return loss.shift.grad.numpy()


@pytest.mark.parametrize("norm", CENTRED)
@pytest.mark.parametrize("base", [1.0, 3.3, 100.0, 1000.0])
def test_gradients_of_sums_of_nearly_equal_elements_are_zero(norm: str, base: float) -> None:
    for places in (5, 64):
        x = nearly_equal(base, 4, 6, places)
        for graph in (False, True):
            result = gradient(norm, x, np.ones(x.shape), np.ones(6), graph=graph)
            assert np.abs(result).max() < 1e-7 * LARGEST_INV_STD, f"{places} places, graph {graph}"


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("base", "tolerance"), [(0.0, 1e-6), (100.0, 1e-4), (1000.0, 2e-3)])
def test_float32_gradients_of_nearly_equal_elements_are_near_float64_ones(norm: str, base: float, tolerance: float) -> None:
    rng = np.random.default_rng(1)
    x = (base + 1e-3 * rng.standard_normal((4, 6, 25))).astype(np.float32)
    slope, weight = rng.standard_normal(x.shape) + 3, rng.standard_normal(6)
    for graph in (False, True):
        result, exact = (gradient(norm, x, slope, weight, dtype, graph=graph) for dtype in (flow.float32, flow.float64))
        np.testing.assert_allclose(result, exact, rtol=0, atol=tolerance * np.abs(exact).max())


@pytest.mark.parametrize("norm", CENTRED)
@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
def test_gradients_of_split_samples_correct_the_mean_of_the_whole_batch(norm: str, graph: bool) -> None:
    x = nearly_equal(1000.0, 5, 6, 7)
    slope, weight = np.random.default_rng(2).standard_normal(x.shape) + 3, np.ones(6)

    def program(rank: int, slope: Any) -> Any:
        return gradient(norm, x, slope, weight, ranks=2, graph=graph)

    alone = gradient(norm, x, slope, weight)
    for zero, result in zip(on_ranks(2, program, np.ones(x.shape)), on_ranks(2, program, slope), strict=True):
        assert np.abs(zero).max() < 1e-7 * LARGEST_INV_STD
        np.testing.assert_allclose(result, alone, rtol=0, atol=1e-3 * np.abs(alone).max())


LAYERS: dict[str, Callable[[Any], Any]] = {
    "batch_norm": lambda x: flow.layers.batch_normalization(x, axis=1, epsilon=1e-5),
    "group_norm": lambda x: flow.nn.GroupNorm(x, 2),
    "instance_norm": lambda x: flow.nn.InstanceNorm1d(x),
    "layer_norm": lambda x: flow.layers.layer_norm(x, begin_norm_axis=2),
}


@pytest.mark.parametrize("norm", LAYERS)
@pytest.mark.parametrize("devices", [1, 2])
def test_jobs_do_not_move_nearly_equal_elements(norm: str, devices: int) -> None:
    x = nearly_equal(1000.0, 4, 6, 7)
    flow.clear_default_session()
    flow.config.cpu_device_num(devices)

    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder(x.shape)) -> tp.Numpy:  # type: ignore[valid-type]
        shift = flow.get_variable("shift", x.shape, initializer=flow.zeros_initializer(), distribute=flow.distribute.split(0))
        loss = flow.math.reduce_sum(LAYERS[norm](x + shift))
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0).minimize(loss)
        return loss

    job(x)
    assert np.abs(flow.get_all_variables()["shift"].numpy()).max() < 1e-7 * LARGEST_INV_STD
