"""Reductions over microbatches in graphs: the values of one pass, or an error that names the line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

import numpy as np
import pytest

import jobflow as flow
import jobflow.nn.functional as F
from jobflow.core.errors import JobError
from jobflow.optim.optimizers import SGD

ROWS = 8
EXACT = 1e-6

#: by name, a loss of y [rows, 3], labels and weights; False: refused
LOSSES: Mapping[str, tuple[Callable[[Any, Any, Any], Any], bool]] = {
    "mean": (lambda y, t, w: y.square().mean(), True),
    "sum": (lambda y, t, w: y.square().sum(), True),
    "sum / rows": (lambda y, t, w: y.square().sum() / y.shape[0], True),
    "mean of a number of the batch": (lambda y, t, w: y.square().sum() / ROWS, True),
    "cross entropy": (lambda y, t, w: F.cross_entropy(y, t), True),
    "cross entropy of some labels": (lambda y, t, w: F.cross_entropy(y, t, ignore_index=1), True),
    "sum of cross entropies": (lambda y, t, w: F.cross_entropy(y, t, reduction="sum"), True),
    "weighted mean": (lambda y, t, w: (y.sum(1) * t.float()).sum() / t.float().sum(), True),
    "mean and penalty": (lambda y, t, w: y.square().mean() + 0.1 * w.square().sum(), True),
    "norm": (lambda y, t, w: y.norm(), False),
    "maximum": (lambda y, t, w: y.max(), False),
    "logsumexp": (lambda y, t, w: y.logsumexp(0).sum(), False),
    "standard deviation": (lambda y, t, w: y.std(), False),
    "normalised rows": (lambda y, t, w: (y - y.mean(0)).square().mean(), False),
}
#: by name, a result of x, y and weights; False: refused
RESULTS: Mapping[str, tuple[Callable[[Any, Any, Any], Any], bool]] = {
    "rows": (lambda x, y, w: y, True),
    "transposed": (lambda x, y, w: y.transpose(0, 1), True),
    "mean": (lambda x, y, w: y.mean(), True),
    "sum of columns": (lambda x, y, w: y.sum(0), True),
    "largest": (lambda x, y, w: y.max(), True),
    "smallest of columns": (lambda x, y, w: y.amin(0), True),
    "weights": (lambda x, y, w: w + 1, True),
    "dropped across": (lambda x, y, w: F.dropout(x.transpose(0, 1), 0.5), True),
    "positions": (lambda x, y, w: flow.arange(x.shape[0]), True),
    "norm": (lambda x, y, w: y.norm(), False),
    "sorted": (lambda x, y, w: y.sort(0)[0], False),
}
SPLITS = (2, 3, 4)


class Train(flow.nn.Graph):
    def __init__(self, count: int, loss: Any, result: Any) -> None:
        super().__init__()
        flow.manual_seed(3)
        self.loss, self.result = loss, result
        self.model = flow.nn.Linear(5, 3)
        self.add_optimizer(SGD(self.model.parameters(), 0.1))
        self.config.set_gradient_accumulation_steps(count)

    def build(self, x: Any, labels: Any) -> Any:
        y = self.model(x)
        loss = self.loss(y, labels, self.model.weight)
        loss.backward()
        return self.result(x, y, self.model.weight), loss


def step(count: int, loss: Any, result: Any) -> tuple[Any, ...]:
    """Return the results of one step, and the weights after it."""
    random = np.random.default_rng(1)
    graph = Train(count, loss, result)
    x, labels = flow.tensor(random.normal(size=(ROWS, 5)).astype(np.float32)), flow.tensor(np.array([0, 1, 2, 2, 1, 1, 0, 2]))
    tensors = graph(x, labels)
    return *(tensor.numpy() for tensor in tensors), graph.model.to(flow.nn.Module).weight.numpy()


def by_turns(*dimensions: Any) -> list[Any]:
    """Return all combinations, with the mark full unless a combination has a value for the first time."""
    chosen = [tuple(list(values)[i % len(values)] for values in dimensions) for i in range(max(map(len, dimensions)))]
    return [*chosen, *(pytest.param(*one, marks=pytest.mark.full) for one in product(*dimensions) if one not in chosen)]


@pytest.mark.parametrize(("loss", "result", "count"), by_turns(LOSSES, RESULTS, SPLITS))
def test_every_reduction_equals_one_pass_or_raises(loss: str, result: str, count: int) -> None:
    (lost, exact), (shown, combines) = LOSSES[loss], RESULTS[result]
    for formula, of_result, fine in ((lost, RESULTS["rows"][0], exact), (LOSSES["mean"][0], shown, combines)):
        if not fine:
            with pytest.raises(JobError, match=rf"\w+ at test_accumulated_reductions\.py:\d+: .* the {count} microbatches requested at"):
                step(count, formula, of_result)
            continue
        for actual, value in zip(step(count, formula, of_result), step(1, formula, of_result), strict=True):
            assert actual.shape == value.shape
            np.testing.assert_allclose(actual, value, rtol=EXACT, atol=EXACT)


#: losses with a tensor that `build` creates, and whether it is the same for a microbatch as for the batch
CREATED = {
    "number": (lambda y: y.sum() / flow.tensor(float(ROWS)), True),
    "length": (lambda y: y.sum() / flow.tensor(float(len(y))), False),
    "length of new_tensor": (lambda y: (y * y.new_tensor(1.0 / len(y))).sum(), False),
    "rows": (lambda y: (y[:, 0] * flow.tensor(np.arange(len(y), dtype=np.float32))).sum(), False),
    "length of full": (lambda y: y.sum() / flow.full((), float(len(y))), True),
}


@pytest.mark.parametrize("loss", CREATED)
def test_a_tensor_that_depends_on_the_batch_length_is_right_or_raises(loss: str) -> None:
    formula, same = CREATED[loss]

    def trained(count: int) -> tuple[float, list[list[float]]]:
        model = flow.nn.Linear(3, 1)
        flow.nn.init.ones_(model.weight)
        optimizer = flow.optim.SGD(model.parameters(), lr=0.1)

        class TrainGraph(flow.nn.Graph):
            def __init__(self) -> None:
                super().__init__()
                self.model = model
                self.add_optimizer(optimizer)
                self.config.set_gradient_accumulation_steps(count)

            def build(self, x: Any) -> Any:
                loss = formula(self.model(x))
                loss.backward()
                return loss

        return TrainGraph()(flow.ones(ROWS, 3)).item(), model.weight.tolist()

    if same:
        assert trained(2)[1] == trained(1)[1]
    else:
        with pytest.raises(JobError, match=r"build creates different tensors here for a microbatch .* use one microbatch"):
            trained(2)
