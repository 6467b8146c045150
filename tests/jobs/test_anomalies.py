"""`detect_anomaly` in jobs and graphs: the first instruction with NaN is named, and no variable changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ranks import on_ranks

import jobflow as flow
import jobflow.typing as tp
from jobflow import nn
from jobflow.core.errors import JobError

X = np.arange(1, 9, dtype=np.float32).reshape(4, 2)


def train_job() -> Any:
    @flow.global_function(type="train")
    def train(x: tp.Numpy.Placeholder((4, 2))) -> tp.Numpy:
        hidden = flow.layers.dense(x, 2, use_bias=False, kernel_initializer=flow.ones_initializer(), name="dense")
        root = flow.math.sqrt(hidden)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0).minimize(root)
        return flow.math.reduce_sum(root)

    return train


@pytest.mark.parametrize("devices", [1, 2])
def test_job_names_the_first_instruction_with_nan_and_changes_no_variable(devices: int) -> None:
    flow.config.cpu_device_num(devices)
    train = train_job()
    losses = [train(X)]
    with flow.autograd.detect_anomaly():
        losses.append(train(X))
        before = {name: value.numpy().copy() for name, value in flow.get_all_variables().items()}
        partly = X * np.array([[1], [1], [1], [-1]], np.float32)
        with pytest.raises(JobError, match=r"sqrt\S* at test_anomalies.py:2\d: NaN in the result float32.*, in the forward pass of job train; no"):
            train(partly)
        with pytest.raises(JobError, match=r'argument "x" contains NaN before the run; .* check the data'):
            train(X * np.nan)
        for name, value in flow.get_all_variables().items():
            np.testing.assert_array_equal(value.numpy(), before[name], err_msg=name)
        with pytest.raises(JobError, match=r"NaN in the result .*, in the backward pass of job train; infinity came first from"):
            train(X * 0)
        losses.append(train(X))
    assert losses[0] > losses[1] > losses[2]
    assert np.isnan(train(-X)), "without the check, NaN is a value"


class Training(nn.Graph):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        flow.nn.init.ones_(self.linear.weight)
        flow.nn.init.zeros_(self.linear.bias)
        self.add_optimizer(flow.optim.SGD(self.linear.parameters(), lr=0.1))

    def build(self, x: Any) -> Any:
        loss = self.linear(x).sqrt().sum()
        loss.backward()
        return loss


def test_graph_names_the_first_instruction_with_nan_and_changes_no_tensor() -> None:
    step = Training()
    step(flow.tensor(X))
    with flow.autograd.detect_anomaly():
        step(flow.tensor(X))
        before = step.linear.weight.numpy().copy()
        with pytest.raises(JobError, match=r"sqrt\S* at test_anomalies.py:\d+: NaN in the result float32\[4,2\], in the forward pass of job"):
            step(flow.tensor(-X))
        np.testing.assert_array_equal(step.linear.weight.numpy(), before)
        step(flow.tensor(X))


def test_ranks_raise_the_error_of_the_first_rank_together() -> None:
    def program(rank: int) -> str:
        step = Training()
        step.linear.to_global(flow.placement.all("cpu"), flow.sbp.broadcast)
        sign = flow.tensor(X * (-1 if rank == 1 else 1)).to_global(flow.placement.all("cpu"), flow.sbp.split(0))
        with flow.autograd.detect_anomaly(), pytest.raises(JobError) as raised:
            step(sign)
        return str(raised.value)

    first, second = on_ranks(2, program)
    assert first == second and "NaN in the result float32[4,2]" in first and first.endswith("(on rank 1)")
