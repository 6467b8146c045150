"""Behaviour beyond signatures: scopes on other devices, variables that train jobs share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jobflow as flow
import jobflow.typing as tp
from jobflow.engine.session import current_session

pytestmark = pytest.mark.usefixtures("session")


def rate() -> Any:
    return flow.optimizer.PiecewiseConstantScheduler([], [0.1])


def test_data_on_the_cpu_and_the_net_on_the_gpu_in_the_mirrored_view(capfd: pytest.CaptureFixture[str]) -> None:
    """Scopes on the same ranks leave each device's tensors in place."""
    flow.config.gpu_device_num(2)
    config = flow.function_config()
    config.default_logical_view(flow.scope.mirrored_view())

    @flow.global_function(type="train", function_config=config)
    def job(x: tp.Numpy.Placeholder((4, 3))) -> tp.ListNumpy:  # type: ignore[valid-type]
        with flow.scope.placement("cpu", "0:0-1"):
            doubled = x * 2
            w = flow.get_variable("w", (3,), initializer=flow.ones_initializer())
        with flow.scope.placement("gpu", "0:0-1"):
            loss = flow.math.reduce_sum(doubled * w, 1)
            flow.optimizer.SGD(rate(), momentum=0).minimize(loss)
        return loss

    first, second = job(np.ones((4, 3), np.float32)), job(np.ones((4, 3), np.float32))
    assert [each.tolist() for each in first] == [[6, 6]] * 2
    np.testing.assert_allclose(second, np.full((2, 2), 6 * (1 - 0.1 * 2)), rtol=1e-6)


def test_train_jobs_share_variables_and_slots() -> None:
    """Train a generator and a discriminator: each job trains variables that the other reads, and a third job trains both."""

    def loss_of(x: Any, trained: str, optimizer: Any) -> Any:
        g, d = (flow.get_variable(name, (3,), initializer=flow.ones_initializer(), trainable=name in trained) for name in "gd")
        loss = flow.math.reduce_mean(x * g * d)
        optimizer.minimize(loss)
        return loss

    @flow.global_function(type="train")
    def generator(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:  # type: ignore[valid-type]
        return loss_of(x, "g", flow.optimizer.SGD(rate(), momentum=0.9))

    @flow.global_function(type="train")
    def discriminator(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:  # type: ignore[valid-type]
        return loss_of(x, "d", flow.optimizer.SGD(rate(), momentum=0.9))

    @flow.global_function(type="train")
    def both(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:  # type: ignore[valid-type]
        return loss_of(x, "gd", flow.optimizer.SGD(rate(), momentum=0.9))

    g, d, momentum = 1.0, 1.0, {"g": 0.0, "d": 0.0}
    for job, trained in ((generator, "g"), (discriminator, "d"), (both, "gd"), (generator, "g")):
        assert job(np.ones((2, 3), np.float32))[0] == pytest.approx(g * d, rel=1e-6)
        slopes = {"g": d / 3, "d": g / 3}
        for name in trained:
            momentum[name] = 0.9 * momentum[name] - 0.1 * slopes[name]
        g, d = (value + momentum[name] * (name in trained) for name, value in (("g", g), ("d", d)))
    names = set(flow.get_all_variables())
    assert {"g", "d", "g-momentum", "d-momentum"} < names and sum(name.startswith("System-Train") for name in names) == 3


@pytest.mark.parametrize(
    ("options", "layout"), [({}, "B"), ({"mode": "non_distributed"}, "S(0)"), ({"mode": "distributed_split", "threshold": 65}, "B")]
)
def test_optimizer_states_are_split_over_the_ranks(options: dict[str, Any], layout: str) -> None:
    """Values do not change; variables with fewer elements than the threshold stay whole."""
    flow.config.cpu_device_num(2)
    config = flow.function_config()
    for option, value in {"threshold": 64, **options}.items():
        getattr(config.train, f"optimizer_placement_optimization_{option}")(value)

    @flow.global_function(type="train", function_config=config)
    def job(x: tp.Numpy.Placeholder((4, 8))) -> tp.Numpy:  # type: ignore[valid-type]
        loss = flow.math.reduce_sum(flow.matmul(x, flow.get_variable("w", (8, 8), initializer=flow.ones_initializer())), 1)
        flow.optimizer.Adam(rate()).minimize(loss)
        return loss

    ones = np.ones((4, 8), np.float32)
    np.testing.assert_allclose([job(ones)[0], job(ones)[0]], [64, 64 * (1 - 0.1 * 0.1 / 0.001**0.5)], rtol=1e-4)
    assert str(current_session().variables["w"].sbp[0]) == layout


@pytest.mark.parametrize("view", [flow.scope.consistent_view(), flow.scope.mirrored_view()])
def test_a_batch_that_the_body_draws_passes_several_times(view: Any) -> None:
    """Train on synthetic data: each microbatch draws its own rows, and variables are updated once."""
    flow.config.cpu_device_num(2)
    config = flow.function_config()
    config.default_logical_view(view)
    config.train.num_gradient_accumulation_steps(3)

    @flow.global_function(type="train", function_config=config)
    def job() -> tuple[tp.Numpy, tp.Numpy]:
        x = flow.data.decode_random((5,), flow.float32, 4)
        loss = flow.math.reduce_sum(x * flow.get_variable("w", (5,), initializer=flow.ones_initializer()), 1)
        flow.optimizer.SGD(rate(), momentum=0).minimize(loss)
        return x, loss

    x, loss = job()
    assert len(x) == 3 * 4 * (2 if isinstance(view, flow.scope.mirrored_view) else 1) and len(np.unique(x)) == x.size
    np.testing.assert_allclose(loss, x.sum(1), rtol=1e-5)
    np.testing.assert_allclose(flow.get_all_variables()["w"].numpy(), 1 - 0.1 * x.mean(0), rtol=1e-5)
