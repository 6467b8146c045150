"""Wrong arguments and bodies under mpiexec raise before any rank begins; the program catches them and calls again."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import jobflow as flow
import jobflow.typing as tp

flow.env.client(sys.argv[1])


@flow.global_function(type="train")
def train_job(images: tp.Numpy.Placeholder((4, 6)), labels: tp.Numpy.Placeholder((4,), dtype=flow.int32)) -> tp.Numpy:
    logits = flow.layers.dense(images, 3, kernel_initializer=flow.truncated_normal(0.1), name="fc")
    loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.5]), momentum=0).minimize(loss)
    return loss


def wrong_body() -> Any:
    @flow.global_function()
    def wrong(images: tp.Numpy.Placeholder((4, 6))) -> tp.Numpy:
        return flow.matmul(images, images)

    return wrong(x)


x = np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6)
y = np.array([0, 1, 2, 0], np.int32)
wrong_calls = [
    lambda: train_job(x[:3], y),
    lambda: train_job(x),
    lambda: train_job(np.full((4, 6), "a"), y),
    lambda: train_job(x, np.array([0, 1, 2, 3])),
    lambda: train_job([x, x], y),
    wrong_body,
    lambda: flow.load_variables({"fc-weight": np.zeros((7, 7), np.float32)}),
]
losses = [train_job(x, y).mean()]
refused = 0
for wrong_call in wrong_calls:
    try:
        wrong_call()
    except (AssertionError, ValueError):
        refused += 1
    losses.append(train_job(x, y).mean())
assert all(after < before for before, after in zip(losses, losses[1:])), losses  # noqa: B905 - one shorter on purpose
print(f"refused {refused} times, trained {len(losses)} steps")
