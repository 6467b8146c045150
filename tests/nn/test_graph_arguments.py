"""Arguments that a graph cuts into microbatches: arguments with the length of the batch; all others are passed whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jobflow as flow
from jobflow import nn
from jobflow.core.errors import JobError, ShapeError

ROWS = 8


def step(k: int, extra: list[np.ndarray], weight: Callable[..., Any], first: bool = False) -> tuple[float, np.ndarray]:
    """Return the loss and the weights after one step with k microbatches; the `extra` arguments precede or follow the batch."""
    flow.manual_seed(0)
    model = nn.Linear(3, 4)

    class Train(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(flow.optim.SGD(model.parameters(), lr=0.1))
            self.config.set_gradient_accumulation_steps(k)

        def build(self, *arguments: Any) -> Any:
            (*others, x, y) = arguments if first else (*arguments[2:], *arguments[:2])
            loss = (nn.functional.cross_entropy(self.model(x), y, reduction="none") * weight(y, *others)).mean()
            loss.backward()
            return loss

    x, y = np.random.default_rng(0).random((ROWS, 3), np.float32), np.arange(ROWS) % 4
    batch, others = [flow.tensor(x), flow.tensor(y)], [flow.tensor(each) for each in extra]
    loss = Train()(*(others + batch if first else batch + others))
    return float(loss.numpy()), model.weight.numpy()


CLASSES = np.arange(1, 5, dtype=np.float32)
#: the arguments beside the batch, and a weight per row computed from the labels and these
CASES: dict[str, tuple[list[np.ndarray], Callable[..., Any]]] = {
    "a table whose length k divides": ([CLASSES], lambda y, table: table[y]),
    "a table of another length": ([np.arange(1, 6, dtype=np.float32)], lambda y, table: table[y]),
    "a row": ([CLASSES[:1]], lambda y, row: row),
    "a number": ([CLASSES[0]], lambda y, number: number),
    "another batch": ([np.arange(ROWS, dtype=np.float32)], lambda y, weight: weight),
    "a longer argument": ([np.arange(2 * ROWS, dtype=np.float32)], lambda y, long: long.mean()),
}


@pytest.mark.parametrize("k", [2, 3, pytest.param(4, marks=pytest.mark.full)])
@pytest.mark.parametrize("name", CASES)
def test_arguments_without_a_batch_axis_pass_whole(name: str, k: int) -> None:
    (loss, weights), (expected_loss, expected) = (step(count, *CASES[name]) for count in (k, 1))
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    np.testing.assert_allclose(weights, expected, rtol=1e-5, atol=1e-6)


def test_the_first_argument_states_the_batch() -> None:
    text = r"gather at test_graph_arguments.py:\d+: the loss of graph Train_\d+ combines rows .*\(microbatches divide the rows of input0\)"
    with pytest.raises(JobError, match=text):
        step(2, [CLASSES], lambda y, table: table[y], first=True)


def test_an_error_of_a_body_names_the_arguments_that_are_cut() -> None:
    with pytest.raises(ShapeError, match=r"\(the body was traced for a microbatch of 4 of the 8 rows of the batch \(input0, input1\), because 2"):
        step(2, [np.arange(2 * ROWS, dtype=np.float32)], lambda y, long: long[:ROWS])
