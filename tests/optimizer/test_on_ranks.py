"""Every optimizer moves the variables of a job alike on any number of ranks, with whole and with split variables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jobflow as flow
import jobflow.typing as tp
from jobflow import optimizer as opt

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
