"""Modules with buffers in mirrored jobs: float buffers become the mean over devices, others the first device's value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jobflow as flow
import jobflow.typing as tp
from jobflow import nn
from jobflow.core.errors import JobError

#: rows of each device
LENGTHS = ((4, 4), (4, 3), (5, 2, 3))


def mirrored(model: Callable[[Any], Any], guarded: bool = False, parts: int = 1) -> Any:
    """Declare a train job of the mirrored view."""
    config = flow.function_config()
    config.default_logical_view(flow.scope.mirrored_view())
    if parts > 1:
        config.train.num_gradient_accumulation_steps(parts)
    scale = {"loss_scale_policy": flow.optimizer.loss_scale.dynamic_loss_scale(increment_period=2)} if guarded else {}

    @flow.global_function("train", config)
    def train(x: tp.ListNumpy.Placeholder((5, 5))) -> tp.ListNumpy:  # type: ignore[valid-type]
        loss = flow.math.reduce_mean(flow.math.square(model(x)), axis=[1])
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0, **scale).minimize(loss)
        return loss

    return train


def batch(lengths: tuple[int, ...], seed: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.random((rows, 5), np.float32) for rows in lengths]


class Tracked(nn.Module):
    """A network with a buffer of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.BatchNorm1d(5), nn.Linear(5, 3)
        self.register_buffer("largest", flow.zeros(5))
        self.register_buffer("samples", flow.zeros((), dtype=flow.int64))
        self.register_buffer("flags", flow.zeros(5, dtype=flow.bool))
        self.register_buffer("decayed", flow.ones(2))

    def forward(self, x: Any) -> Any:
        self.largest = flow.maximum(self.largest, x.max(0)[0])
        self.samples = self.samples + x.shape[0]
        self.flags = x[0] > 0.5
        self.decayed.mul_(0.5)
        return self.out(self.norm(x))


@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_buffers_combine_the_values_of_all_devices(lengths: tuple[int, ...], shared: bool, guarded: bool) -> None:
    flow.config.cpu_device_num(len(lengths))
    flow.config.share_variables(shared)
    model = Tracked()
    train, batches = mirrored(model, guarded=guarded), [batch(lengths, seed) for seed in range(2)]
    for each in batches:
        assert [len(loss) for loss in train(each)] == list(lengths)
    mean, var, largest = np.zeros(5), np.ones(5), np.zeros(5)
    for each in batches:
        mean = 0.9 * mean + 0.1 * np.mean([x.mean(0) for x in each], axis=0)
        var = 0.9 * var + 0.1 * np.mean([x.var(0, ddof=1) for x in each], axis=0)
        largest = np.mean([np.maximum(largest, x.max(0)) for x in each], axis=0)
    expected = {
        "norm.running_mean": mean,
        "norm.running_var": var,
        "norm.num_batches_tracked": 2,
        "largest": largest,
        "samples": 2 * lengths[0],
        "flags": batches[-1][0][0] > 0.5,
        "decayed": [0.25, 0.25],
    }
    state = model.state_dict()
    for name, value in expected.items():
        np.testing.assert_allclose(state[name].numpy(), value, rtol=1e-5, err_msg=name)


def test_microbatches_of_mirrored_modules_update_buffers() -> None:
    flow.config.cpu_device_num(2)
    model = nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 3))
    mirrored(model, parts=2)(batch((4, 4)))
    assert np.isfinite(model.state_dict()["0.running_mean"].numpy()).all()
    assert int(model.state_dict()["0.num_batches_tracked"].numpy()) == 2


class DependsOnLength(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.long, self.short = nn.Linear(5, 3), nn.Linear(5, 3)

    def forward(self, x: Any) -> Any:
        return self.long(x) if x.shape[0] > 3 else self.short(x)


def test_devices_that_use_other_variables_raise_with_their_names() -> None:
    flow.config.cpu_device_num(2)
    train = mirrored(DependsOnLength())
    message = (
        r"job train at .*test_mirrored_modules.py:\d+: the lengths of arguments on the devices are \[4, 3\], and the body records "
        r"different variables for them: long.bias, long.weight on device 0, short.bias, short.weight on device 1; use the same modules and variables"
    )
    with pytest.raises(JobError, match=message):
        train(batch((4, 3)))
