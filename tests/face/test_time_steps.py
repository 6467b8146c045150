"""Slices of a batch that pass through the body of a job one after another: unpack, repeat, pack, acc."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jobflow as flow
import jobflow.typing as tp

X = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)


@pytest.mark.parametrize("view", ["consistent", "mirrored"])
@pytest.mark.parametrize("devices", [1, 2])
def test_a_batch_in_parts(devices: int, view: str) -> None:
    """Compare the product, its sum over the steps and the gradient of a repeated variable; dropout differs at each step."""
    flow.clear_default_session()
    flow.config.cpu_device_num(devices)
    config = flow.function_config()
    config.default_logical_view(flow.scope.consistent_view() if view == "consistent" else flow.scope.mirrored_view())
    gradients: dict[str, Any] = {}

    @flow.global_function("train", config)
    def job(x: tp.Numpy.Placeholder(X.shape)) -> tp.Bundle[tp.Numpy]:  # type: ignore[valid-type]
        w = flow.get_variable("w", (3, 2), initializer=flow.random_normal_initializer(), random_seed=1)
        flow.watch_diff(w, lambda dw: gradients.update(dw=dw.numpy()))
        y = flow.matmul(flow.unpack(x, 4), flow.repeat(w, 4), name="product")
        loss = flow.pack(flow.math.reduce_sum(y * y, axis=1), 4)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.0]), momentum=0).minimize(loss)
        dropped = flow.nn.dropout(flow.unpack(flow.ones_like(x), 2), 0.5)
        return y, flow.pack(y, 2), flow.acc(y, 4), flow.repeat(flow.unpack(x, 2), 2), loss, dropped, w

    y, halves, total, repeated, loss, dropped, w = job(X)
    ours = [part for half in np.split(X, devices) for part in ([half] if view == "mirrored" else [])] or [X]  # what each device cuts
    expected = np.concatenate([part @ w for part in ours])
    np.testing.assert_allclose(halves, expected, rtol=1e-5)
    np.testing.assert_allclose(y, expected, rtol=1e-5)
    np.testing.assert_allclose(total, np.concatenate([(part @ w).reshape(4, -1, 2).sum(0) for part in ours]), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(repeated, np.concatenate([part.reshape(2, -1, 3).repeat(2, 0).reshape(-1, 3) for part in ours]))
    np.testing.assert_allclose(loss, (expected**2).sum(1), rtol=1e-4)
    np.testing.assert_allclose(gradients["dw"], 2 * X.T @ X @ w, rtol=1e-4)
    assert (dropped[:4] != dropped[4:]).any()
    flow.clear_default_session()


def test_a_loss_of_steps_counts_once_for_each() -> None:
    """Compare with the gradient of the sum of the steps' means."""
    flow.clear_default_session()

    @flow.global_function("train")
    def job(x: tp.Numpy.Placeholder((8,))) -> tp.Numpy:  # type: ignore[valid-type]
        w = flow.get_variable("w", (1,), initializer=flow.ones_initializer())
        loss = flow.unpack(x, 2) * w
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0).minimize(loss)
        return flow.pack(loss, 2)

    x = np.arange(8, dtype=np.float32)
    np.testing.assert_allclose(job(x), x)
    np.testing.assert_allclose(flow.get_all_variables()["w"].numpy(), [1 - x[:4].mean() - x[4:].mean()])
    flow.clear_default_session()


WRONG = {
    "rows that do not divide": (lambda x: flow.unpack(x, 3), "must be divisible by unpack_num 3"),
    "no steps": (lambda x: flow.pack(x, 2), "the 1 time steps of"),
    "steps of two numbers": (lambda x: flow.unpack(x, 2) + flow.unpack(x, 4), "2 and 4 time steps"),
    "a number that is none": (lambda x: flow.acc(x, 0), "positive int"),
    "an assignment of steps": (lambda x: flow.assign(flow.get_variable("v", (4, 3), initializer=flow.ones_initializer()), flow.unpack(x, 2)), "pack"),
}


@pytest.mark.parametrize(("body", "message"), WRONG.values(), ids=list(WRONG))
def test_wrong_arguments_raise(body: Any, message: str) -> None:
    flow.clear_default_session()

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder(X.shape)) -> tp.Bundle[tp.Numpy]:  # type: ignore[valid-type]
        body(x)
        return x

    with pytest.raises(flow.JobflowError, match=message):
        job(X)
    flow.clear_default_session()
