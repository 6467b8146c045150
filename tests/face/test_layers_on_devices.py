"""Layers and casts compute equal results on any number of devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jobflow as flow
import jobflow.typing as tp
from jobflow.distribute import with_distribute

ROWS, CLASSES = 6, 5
IMAGES = np.random.default_rng(0).standard_normal((ROWS, 2, 6, 6)).astype(np.float32)
LABELS = np.arange(ROWS, dtype=np.int32) % CLASSES
normal = flow.random_normal_initializer(stddev=0.1)


def network(images: Any, labels: Any) -> Any:
    """Apply a convolution, both norms, dropout, and an output layer whose classes are split over the devices."""
    x = flow.layers.conv2d(images, 4, 3, padding="SAME", activation=flow.nn.relu, name="conv")
    x = flow.layers.batch_normalization(x, axis=1, momentum=0.5, name="bn")
    x = flow.flatten(flow.nn.avg_pool2d(x, 3, 2, "SAME"), 1)
    x = flow.nn.dropout(flow.layers.layer_norm(x, name="ln"), 0.3)
    x = flow.parallel_cast(x, distribute=flow.distribute.split(0), gradient_distribute=flow.distribute.broadcast())
    split = flow.distribute.split
    logits = flow.layers.dense(x, CLASSES, kernel_initializer=normal, model_distribute=split(0), name="out")
    return flow.nn.sparse_softmax_cross_entropy_with_logits(labels, with_distribute(logits, split(1)))


def train(devices: int, steps: int = 4) -> tuple[list[Any], dict[str, Any], Any]:
    """Return the losses of a train job, the variables after it, and the result of a predict job."""
    flow.clear_default_session()
    flow.config.cpu_device_num(devices)

    @flow.global_function(type="train")
    def train_job(
        images: tp.Numpy.Placeholder(IMAGES.shape),  # type: ignore[valid-type]
        labels: tp.Numpy.Placeholder(LABELS.shape, dtype=flow.int32),  # type: ignore[valid-type]
    ) -> tp.Numpy:
        loss = network(images, labels)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0).minimize(loss)
        return loss

    @flow.global_function(type="predict")
    def predict_job(
        images: tp.Numpy.Placeholder(IMAGES.shape),  # type: ignore[valid-type]
        labels: tp.Numpy.Placeholder(LABELS.shape, dtype=flow.int32),  # type: ignore[valid-type]
    ) -> tp.Numpy:
        return network(images, labels)

    losses = [train_job(IMAGES, LABELS) for _ in range(steps)]
    state = {name: variable.numpy() for name, variable in flow.get_all_variables().items()}
    return losses, state, predict_job(IMAGES, LABELS)


@pytest.fixture(scope="module")
def alone() -> tuple[list[Any], dict[str, Any], Any]:
    result = train(1)
    flow.clear_default_session()
    return result


@pytest.mark.parametrize("devices", [2, 3])
def test_training_gives_the_same_numbers(devices: int, alone: Any) -> None:
    (losses, state, predicted), (alone_losses, alone_state, alone_predicted) = train(devices), alone
    np.testing.assert_allclose(losses, alone_losses, rtol=1e-5)
    assert state.keys() == alone_state.keys()
    for name, value in state.items():
        np.testing.assert_allclose(value, alone_state[name], rtol=1e-4, atol=1e-6, err_msg=name)
    np.testing.assert_allclose(predicted, alone_predicted, rtol=1e-5)


def test_a_predict_job_shares_variables_and_does_not_drop(alone: Any) -> None:
    losses, state, predicted = alone
    assert np.mean(losses[-1]) < np.mean(losses[0]) and not np.allclose(predicted, losses[-1])
    assert (state["bn-moving_variance"] != 1).all() and (state["bn-moving_mean"] != 0).all()


def mirrored(devices: int, body: Callable[[Any], Any], x: Any) -> list[Any]:
    flow.clear_default_session()
    flow.config.cpu_device_num(devices)
    config = flow.function_config()
    config.default_logical_view(flow.scope.mirrored_view())

    @flow.global_function(type="train", function_config=config)
    def job(x: tp.ListNumpy.Placeholder((len(x) // devices, *x.shape[1:]))) -> tp.ListNumpy:  # type: ignore[valid-type]
        y = body(x)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.0]), momentum=0).minimize(y)
        return y

    return job(list(x.reshape(devices, -1, *x.shape[1:])))


def test_batch_norm_of_the_mirrored_view_keeps_each_device_s_own_statistics() -> None:
    x = np.arange(16, dtype=np.float32).reshape(8, 2) ** 2
    parts = mirrored(2, lambda t: flow.layers.batch_normalization(t, momentum=0.0, epsilon=0.0), x)
    halves = x.reshape(2, 4, 2)
    for part, half in zip(parts, halves, strict=True):
        np.testing.assert_allclose(part, (half - half.mean(0)) / half.std(0), rtol=1e-4, atol=1e-5)
    state = flow.get_all_variables()
    np.testing.assert_allclose(state["BatchNorm-moving_mean"].numpy(), halves.mean(1).mean(0), rtol=1e-5)
    np.testing.assert_allclose(state["BatchNorm-moving_variance"].numpy(), halves.var(1, ddof=1).mean(0), rtol=1e-5)
