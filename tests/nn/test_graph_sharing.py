"""Replicated parameters of a graph share one storage, and each rank reads and writes them like private parameters."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from ranks import on_ranks

import jobflow as flow
from jobflow.core.errors import DivergedError
from jobflow.engine.placements import placement, sbp
from jobflow.engine.session import current_session
from jobflow.nn.graph import Graph
from jobflow.nn.modules.module import Module
from jobflow.optim.optimizers import Adam

ROWS, STEPS = 8, 3
DRAW = np.random.RandomState(3).standard_normal
W, V = DRAW((5, 64)).astype(np.float32), DRAW((64, 3)).astype(np.float32)
X, Y = DRAW((STEPS, ROWS, 5)).astype(np.float32), DRAW((STEPS, ROWS, 3)).astype(np.float32)


class Model(Module):
    def __init__(self, where: placement) -> None:
        super().__init__()
        self.w = flow.nn.Parameter(flow.tensor(W, placement=where, sbp=sbp.broadcast))
        self.v = flow.nn.Parameter(flow.tensor(V, placement=where, sbp=sbp.broadcast))

    def forward(self, x: Any) -> Any:
        return flow.matmul(flow.matmul(x, self.w).tanh(), self.v)


class Train(Graph):
    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(Adam(model.parameters(), 0.01))

    def build(self, x: Any, y: Any) -> Any:
        loss = (self.model(x) - y).square().mean()
        loss.backward()
        return loss


class Look(Graph):
    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def build(self, x: Any) -> Any:
        return self.model(x)


def nothing(model: Model) -> Any:
    return None


def in_place(model: Model) -> Any:
    with flow.no_grad():
        model.w.mul_(0.5)
        model.v[0] = 1.0


def by_data(model: Model) -> Any:
    data = model.w.data
    model.w.data.mul_(0.5)
    return data.numpy().tolist()


def through_views(model: Model) -> Any:
    """Write through views of two parameters, and return their values."""
    with flow.no_grad():
        row, detached = model.w[1], model.w.detach()
        detached.mul_(2.0)
        model.v.to_local().mul_(0.5)
        return [row.numpy().tolist(), model.v.numpy().tolist()]


def by_optimizer(model: Model) -> Any:
    chosen = Adam(model.parameters(), 0.1)
    model(flow.tensor(X[0], placement=model.w.placement, sbp=sbp.broadcast)).sum().backward()
    chosen.step()
    chosen.zero_grad()


def by_state(model: Model) -> Any:
    state = model.state_dict()
    halved = {name: (x * 0.5).detach() for name, x in state.items()}
    model.load_state_dict(halved)
    return [x.numpy().tolist() for x in state.values()]  # what a state_dict shows are the module's own tensors


def copied(model: Model) -> Any:
    other, again = copy.deepcopy(model), pickle.loads(pickle.dumps(model.w))
    with flow.no_grad():
        other.w.add_(1.0)
        again.add_(1.0)
    return [other.w.numpy().tolist(), again.numpy().tolist()]


BETWEEN = [nothing, in_place, by_data, through_views, by_optimizer, by_state, copied]


def program(rank: int, n: int, between: Any, share: bool) -> Any:
    current_session().settings.share_variables = share
    where = placement("cpu", range(n))
    model = Model(where)
    train, evaluate = Train(model), Look(model)
    results: list[Any] = []
    for x, y in zip(X, Y, strict=True):
        batch = (flow.tensor(array, placement=where, sbp=sbp.split(0)) for array in (x, y))
        results.append(train(*batch).numpy().tolist())
        at = model.w.array.ctypes.data, model.v.array.ctypes.data
        results.append(between(model))
        results.append(evaluate(flow.tensor(X[0], placement=where, sbp=sbp.broadcast)).numpy().tolist())
        assert str(model.w.layout) == str(model.v.layout) == f"cpu[{f'0-{n - 1}' if n > 1 else 0}]:B"
        results.append([model.w.numpy().tolist(), model.v.to_local().numpy().tolist(), model.state_dict()["w"].numpy().tolist()])
    return results, at


def flat_values(nested: Any) -> list[float]:
    """Return the values of all parameters, in order."""
    return [n for one in nested for n in flat_values(one)] if isinstance(nested, list) else [] if nested is None else [nested]


@pytest.mark.parametrize("between", BETWEEN, ids=lambda f: f.__name__)
def test_shared_parameters_behave_as_private_ones(between: Any) -> None:
    expected = flat_values(on_ranks(1, program, 1, between, True)[0][0])
    for n, share in ((2, True), (4, True), (2, False)):
        got = on_ranks(n, program, n, between, share)
        for results, _ in got:
            np.testing.assert_allclose(flat_values(results), expected, rtol=2e-5, atol=2e-6)
        assert len({at for _, at in got}) == (1 if share else n)


def test_a_write_on_one_rank_raises_on_all() -> None:
    def alone(rank: int) -> str:
        where = placement("cpu", range(2))
        model = Model(where)
        train = Train(model)
        x, y = (flow.tensor(array[0], placement=where, sbp=sbp.split(0)) for array in (X, Y))
        train(x, y)
        if rank == 0:
            model.w.to_local().data.mul_(2.0)
        with pytest.raises(DivergedError) as caught:
            train(x, y)
        return str(caught.value)

    first, second = on_ranks(2, alone)
    assert first == second
    assert "a call of Train_0 at" in first
    assert "after model.w had been written to outside of it" in first


class Everywhere(Graph):
    """A model on two of four ranks with results on all four ranks."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def build(self, x: Any) -> Any:
        return self.model(x).to_global(placement=placement("cpu", range(4)), sbp=sbp.broadcast)


def test_graphs_on_other_ranks_read_the_shared_values() -> None:
    """A graph of four ranks stores the values of two ranks elsewhere; the graph of two ranks copies them back at its next run."""

    def program(rank: int, n: int) -> Any:
        where = placement("cpu", range(min(n, 2)))
        model = Model(where)
        train = Train(model)
        evaluate = Everywhere(model) if n == 4 else Look(model)
        x, y = (flow.tensor(array[0], placement=where, sbp=sbp.broadcast) for array in (X, Y))
        return [results for _ in range(3) for results in (train(x, y).numpy().tolist(), evaluate(x).numpy().tolist())]

    expected = on_ranks(1, program, 1)[0]
    for got in on_ranks(4, program, 4):
        np.testing.assert_allclose(flat_values(got), flat_values(expected), rtol=2e-5, atol=2e-6)
