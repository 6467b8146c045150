"""A program in half precision with a dynamic loss scale and regions; rank 0 writes the results to the file of its argument."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import jobflow as flow
import jobflow.typing as tp


def run(devices: int | None = None) -> dict[str, Any]:
    """Run five steps, the third of which has an infinity."""
    if devices is not None:
        flow.clear_default_session()
        flow.config.cpu_device_num(devices)
    config = flow.function_config()
    config.mixed_precision(flow.bfloat16)
    random = np.random.default_rng(0)
    x, y = random.normal(size=(8, 6)).astype(np.float32), random.integers(0, 4, 8).astype(np.int32)
    bad = np.where(np.arange(8)[:, None] == 7, np.float32(np.inf), x)

    @flow.checkpointed
    def block(x: Any, name: str) -> Any:
        init = flow.random_normal_initializer(stddev=0.3)
        return flow.layers.dense(flow.layers.dense(x, 6, flow.math.tanh, kernel_initializer=init, name=f"{name}1"), 6, name=f"{name}2")

    @flow.global_function(type="train", function_config=config)
    def train(x: tp.Numpy.Placeholder((8, 6)), y: tp.Numpy.Placeholder((8,), dtype=flow.int32)) -> tp.Numpy:
        weight = flow.get_variable("weight", (6, 4), initializer=flow.ones_initializer(), distribute=flow.distribute.split(0))
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, flow.matmul(block(block(x, "a"), "b"), weight))
        rate = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
        scale = flow.optimizer.loss_scale.dynamic_loss_scale(256.0)
        flow.optimizer.SGD(rate, loss_scale_policy=scale, grad_clipping=flow.optimizer.grad_clipping.by_global_norm(1.0)).minimize(loss)
        return loss

    losses = [train(bad if i == 2 else x, y) for i in range(5)]
    variables = {name: stored.numpy() for name, stored in flow.get_all_variables().items()}
    return {
        "losses": np.array([losses[i] for i in (0, 1, 3, 4)]),
        "weight": variables["weight"],
        "scale": variables["System-Train-DynamicLossScale-train-LossScale"],
        "step": variables["System-Train-TrainStep-train"],
    }


if __name__ == "__main__":
    np.savez(sys.argv[1], **run())
