"""Large inputs of a graph are read in place on every rank; the results equal those for copies of the inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ranks import on_ranks

import jobflow as flow
from jobflow.engine.placements import placement, sbp
from jobflow.nn.graph import Graph
from jobflow.nn.modules.module import Module
from jobflow.optim.optimizers import SGD
from jobflow.program.program import LARGE

WIDTH = 256
ROWS = 2 * LARGE // (4 * WIDTH)
DRAW = np.random.RandomState(2).standard_normal
X = [DRAW((ROWS, WIDTH)).astype(np.float32) for _ in range(3)]


class Model(Module):
    def __init__(self, where: placement) -> None:
        super().__init__()
        self.w = flow.nn.Parameter(flow.tensor(X[0][:WIDTH, :4], placement=where, sbp=sbp.broadcast))
        self.scale = flow.nn.Parameter(flow.tensor(X[2], placement=where, sbp=sbp.split(0)))

    def forward(self, x: Any) -> Any:
        return flow.matmul(x, self.w).tanh()


class TrainGraph(Graph):
    """A training graph that also returns its input, and a view of the input."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(SGD(model.parameters(), 0.1))

    def build(self, x: Any) -> Any:
        loss = (self.model(x) * (x + self.model.scale).mean(1, keepdim=True)).square().mean()
        loss.backward()
        return loss, x.reshape(-1)[:5], x


def program(rank: int, n: int, copies: bool) -> Any:
    where = placement("cpu", range(n))
    model = Model(where)
    step = TrainGraph(model)
    a, b = (flow.tensor(x, placement=where, sbp=sbp.split(0)) for x in X[:2])
    turned = flow.tensor(np.ascontiguousarray(X[1].T), placement=where, sbp=sbp.split(1)).transpose(0, 1)
    values: list[float] = []
    for x in (a, b, b, turned, None, a, None):
        if x is b:
            with flow.no_grad():
                b.mul_(0.5)  # what was read where it lies is read anew
        x = model.scale.detach() if x is None else x  # memory that the graph writes to
        argument = x.clone() if copies else x
        loss, few, whole = step(argument)
        values += [loss.numpy().item(), *few.numpy().tolist(), float(whole.sum().numpy())]
        with flow.no_grad():
            whole.zero_()  # what a graph gives is no window on what it took
    return [*values, float(model.w.sum().numpy()), float(model.scale.sum().numpy())]


@pytest.mark.parametrize("n", [1, 2])
def test_the_storage_of_an_input_does_not_change_results(n: int) -> None:
    plain, copied = on_ranks(n, program, n, False), on_ranks(n, program, n, True)
    assert plain == copied
