"""Every optimizer moves the variables of a job alike on any number of ranks, with whole and with split variables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jobflow as flow
import jobflow.typing as tp
from jobflow import optimizer as opt
from jobflow.core.errors import JobError

SCHEDULE = opt.CosineScheduler(0.1, 10, warmup=opt.warmup.linear(3, 0.1))
CLIP = opt.grad_clipping.by_global_norm(0.3)
OPTIMIZERS = {
    "sgd": opt.SGD(SCHEDULE, grad_clipping=CLIP),
    "sgdw": opt.SGDW(SCHEDULE, momentum=0.0, weight_decay=0.1),
    "adamw": opt.AdamW(SCHEDULE, weight_decay=0.1, weight_decay_excludes="bias", do_bias_correction=True, grad_clipping=CLIP),
    "rmsprop": opt.RMSProp(SCHEDULE, epsilon=1e-3, centered=True),
    "lars": opt.LARS(SCHEDULE, lars_coefficient=0.1, weight_decay=0.1),
    "lamb": opt.LAMB(SCHEDULE, weight_decay=0.1, grad_clipping=CLIP),
    "combined": opt.CombinedOptimizer(
        [opt.SGD(SCHEDULE, variables=["a-weight", "a-bias"], grad_clipping=CLIP), opt.Adam(SCHEDULE, variables=["b-weight", "b-bias"])],
        loss_scale_factor=64.0,
    ),
}
RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(8, 4)), RANDOM.integers(0, 5, 8)


def trained(optimizer: Any, ranks: int, distribute: Any) -> dict[str, Any]:
    """All variables after some steps, and the losses on the way."""
    flow.clear_default_session()
    flow.config.gpu_device_num(0)
    flow.config.cpu_device_num(ranks)

    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((8, 4)), y: tp.Numpy.Placeholder((8,), dtype=flow.int32)) -> tp.Numpy:
        init = flow.random_normal_initializer(stddev=0.3)
        hidden = flow.layers.dense(x, 6, activation=flow.nn.relu, kernel_initializer=init, name="a")
        logits = flow.layers.dense(hidden, 5, kernel_initializer=init, name="b", model_distribute=distribute)
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
        optimizer.minimize(loss)
        return loss

    losses = [job(X, Y) for _ in range(6)]
    return {"losses": np.array(losses), **{name: stored.numpy() for name, stored in flow.get_all_variables().items()}}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_any_number_of_ranks_and_any_layout(name: str) -> None:
    whole = trained(OPTIMIZERS[name], 1, flow.distribute.broadcast())
    assert whole["losses"][-1].mean() < whole["losses"][0].mean()
    for ranks in (2, 3):
        for distribute in (flow.distribute.broadcast(), flow.distribute.split(0)):
            parts = trained(OPTIMIZERS[name], ranks, distribute)
            assert parts.keys() == whole.keys()
            for key, value in whole.items():
                np.testing.assert_allclose(parts[key], value, rtol=1e-5, atol=1e-6, err_msg=f"{key} on {ranks} ranks, {distribute}")


def moved_by_names(named: bool, devices: int, mirrored: bool = False, combined: bool = False, rate_name: str = "rate/out") -> list[Any]:
    """A variable before each of four steps, whose rates and numbers are tensors of the job, or not."""
    flow.clear_default_session()
    flow.config.cpu_device_num(devices)
    config = flow.function_config()
    config.default_logical_view(flow.scope.mirrored_view() if mirrored else flow.scope.consistent_view())

    @flow.global_function("train", config)
    def job(x: tp.Numpy.Placeholder((4, 3)), lr: tp.Numpy.Placeholder((1,)), n: tp.Numpy.Placeholder((1,), dtype=flow.int64)) -> tp.Numpy:
        w = flow.get_variable("w", (2, 3), initializer=flow.ones_initializer())
        rate, step = flow.math.multiply(lr, 2.0, name="rate"), flow.identity(n, name="step")
        assert (rate.logical_blob_name, step.logical_blob_name) == ("rate/out", "step/out")
        schedule = opt.CustomScheduler(rate_name) if named else opt.PiecewiseConstantScheduler([0, 1], [0.2, 0.4, 0.8])
        lbn = "step/out" if named else None
        adam = opt.Adam(schedule, do_bias_correction=True, train_step_lbn=None if combined else lbn)
        one = opt.CombinedOptimizer([adam], train_step_lbn=lbn) if combined else adam
        one.minimize(flow.math.square(flow.matmul(x, w, transpose_b=True)))
        return flow.identity(w)

    x = np.linspace(0, 1, 12, dtype=np.float32).reshape(4, 3)
    return [job(x, np.array([rate], np.float32), np.array([n]))[:2] for n, rate in enumerate((0.1, 0.2, 0.4, 0.4))]


@pytest.mark.parametrize(("devices", "mirrored", "combined"), [(1, False, False), (2, True, False), (2, False, True)])
def test_rate_and_step_may_be_tensors_of_the_job(fresh: None, devices: int, mirrored: bool, combined: bool) -> None:
    expected = moved_by_names(False, 1)
    np.testing.assert_allclose(moved_by_names(True, devices, mirrored, combined), expected, rtol=0, atol=2e-7)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rats/out", r'no op of the job so far computes a tensor "rats/out"; did you mean "rate/out"\?'),
        ("w/out", r"is float32\[2,3\]; it must be one"),
    ],
)
def test_a_rate_must_be_a_tensor_of_the_job_with_one_number(fresh: None, name: str, text: str) -> None:
    with pytest.raises(JobError, match=text):
        moved_by_names(True, 1, rate_name=name)
