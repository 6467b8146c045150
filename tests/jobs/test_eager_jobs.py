"""Eager jobs: the body runs at every call, its tensors have values, and results equal compiled jobs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from parts import declare

import jobflow as flow
import jobflow.typing as tp
from jobflow.core.errors import ArgumentError, JobError

X = np.arange(12, dtype=np.float32).reshape(4, 3) / 3
Y = np.array([0, 1, 2, 1], np.int32)


@pytest.fixture
def eager(devices: int) -> int:
    flow.enable_eager_execution()
    return devices


def steps(count: int, gradients: list[Any]) -> list[Any]:
    """Run `count` steps of a small net with dropout; append the gradient of its result to `gradients`."""

    def note(value: tp.Numpy) -> None:
        gradients.append(value)

    @flow.global_function(type="train")
    def net(x: tp.Numpy.Placeholder((4, 3)), y: tp.Numpy.Placeholder((4,), dtype=flow.int32)) -> tp.Numpy:
        initial = flow.random_uniform_initializer(-1, 1)
        hidden = flow.layers.dense(x, 5, name="hidden", kernel_initializer=initial, activation=flow.math.tanh)
        if flow.eager_execution_enabled():
            assert hidden.numpy().shape == (4, 5) and 0 < np.abs(hidden.numpy()).max() < 1
        result = flow.layers.dense(flow.nn.dropout(hidden, 0.5), 3, name="result", kernel_initializer=initial)
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, result)
        flow.watch_diff(result, note)
        flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)
        return loss

    return [net(X, Y) for _ in range(count)]


def test_eager_jobs_compute_the_values_of_compiled_jobs(devices: int) -> None:
    runs = []
    for eager in (False, True):
        flow.clear_default_session()
        flow.config.cpu_device_num(devices)
        flow.enable_eager_execution(eager)
        assert flow.eager_execution_enabled() is eager
        gradients: list[Any] = []
        losses = steps(3, gradients)
        runs.append([*losses, *gradients, *[variable.numpy() for variable in flow.get_all_variables().values()]])
    assert len(runs[0]) == 3 + 3 + 13
    for compiled, at_once in zip(*runs, strict=True):
        np.testing.assert_array_equal(compiled, at_once)


def test_the_body_may_branch_on_values(eager: int) -> None:
    events: list[Any] = []

    def show(value: tp.Numpy) -> None:
        events.append(value.sum())

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 2))) -> tp.Numpy:
        total = flow.math.reduce_sum(x)
        flow.watch(total, show)
        events.append("after it")
        return x / total if total.numpy().item() > 1 else x

    for x in (np.ones((2, 2), np.float32), np.full((2, 2), 0.1, np.float32), np.full((2, 2), 2, np.float32)):
        np.testing.assert_array_equal(job(x), x / x.sum() if x.sum() > 1 else x)
    assert events[0] == 4 and events[1::2] == ["after it"] * 3


def test_jobs_of_one_name_may_be_declared_again_and_share_variables(eager: int) -> None:
    def count(by: float) -> Any:
        @flow.global_function()
        def counting() -> tp.Numpy:
            n = flow.get_variable("n", (2,), initializer=flow.zeros_initializer())
            flow.assign(n, n + by)
            return n

        return counting()

    assert [count(by)[0] for by in (1, 1, 2, 1, 0)] == [0, 1, 2, 4, 5]
    assert list(flow.get_all_variables()) == ["n"]


def test_tensors_of_devices_have_one_array_each(fresh: None) -> None:
    flow.config.cpu_device_num(2)
    flow.enable_eager_execution()
    arrays: list[Any] = []

    @flow.global_function()
    def job(x: tp.ListNumpy.Placeholder((2, 2))) -> tp.ListNumpy:
        arrays.append((x * 2).numpy_list())
        return x

    job([np.ones((2, 2), np.float32), np.zeros((2, 2), np.float32)])
    assert [part.sum() for part in arrays[0]] == [8, 0]
    with pytest.raises(JobError, match=r"values of .* differ in length between devices; return the tensor"):
        job([np.ones((2, 2), np.float32), np.zeros((1, 2), np.float32)])


def test_eager_jobs_raise_for_unsupported_features(eager: int) -> None:
    job = declare(lambda x: x, tp.Numpy.Placeholder((2,)))
    with pytest.raises(ArgumentError, match=r'argument "x" is float64\[2\].*An eager job does not convert arguments; pass x.astype\(np.float32\)'):
        job(np.ones(2))
    with pytest.raises(JobError, match="a job is already declared; call it before the first job"):
        flow.enable_eager_execution(False)

    config = flow.function_config()
    config.train.num_gradient_accumulation_steps(2)

    @flow.global_function("train", config)
    def training(x: tp.Numpy.Placeholder((4, 3))) -> None:
        x.numpy()

    with pytest.raises(JobError, match=r"belong to one of 2 microbatches; omit train\.num_gradient_accumulation_steps"):
        training(X)
