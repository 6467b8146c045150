"""A training step that checks its labels, for tests of steps that a failed assertion refuses."""

from __future__ import annotations

from typing import Any

import numpy as np

import jobflow as flow
import jobflow.typing as tp

X, GOOD, BAD = np.arange(12, dtype=np.float32).reshape(4, 3), np.array([0, 1, -1, 0], np.int32), np.array([0, 1, 0, 4], np.int32)
MESSAGE = r"sparse_softmax_cross_entropy at labelled_step.py:\d+: label 5 at \[3\] is outside \[0, 3\)"


def loss_of(x: Any, y: Any) -> Any:
    """Minimize the loss of a layer in the body of a job, and return it."""
    logits = flow.layers.dense(x, 3, kernel_initializer=flow.ones_initializer(), name="dense")
    loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y + 1, logits)
    flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0.9).minimize(loss)
    return loss


def declared() -> Any:
    """Return a job whose calls return futures of the loss."""

    @flow.global_function(type="train")
    def train(x: tp.Numpy.Placeholder((4, 3)), y: tp.Numpy.Placeholder((4,), dtype=flow.int32)):
        return loss_of(x, y)

    return train


def variables() -> dict[str, Any]:
    """Return the values of all variables."""
    return {name: np.array(value.numpy()) for name, value in flow.get_all_variables().items()}
