"""SparseAdam: the steps of PyTorch's formula on the rows with a gradient, in every layout and kind of program."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ranks import on_ranks

import jobflow as flow

TABLE = np.random.default_rng(1).standard_normal((7, 3))
IDS = [[1, 4, 4], [0, 1, 6], [4, 5, 4]]
OPTIONS: dict[str, Any] = {"lr": 0.125, "betas": (0.8, 0.9), "eps": 1e-4}
WEIGHTS = np.array([1.0, 0.0, -2.0])


def expected(maximize: bool = False) -> np.ndarray[Any, Any]:
    """Return the table after a step on each list of indices: the loss is half the square of the weighted rows, summed."""
    w, m, v = TABLE.copy(), np.zeros_like(TABLE), np.zeros_like(TABLE)
    for t, ids in enumerate(IDS, 1):
        read = np.unique(ids)
        g = np.zeros_like(TABLE)
        np.add.at(g, ids, w[ids] * WEIGHTS)
        d = (-g if maximize else g)[read]
        m[read] += 0.2 * (d - m[read])
        v[read] += (1 - 0.9) * (d * d - v[read])
        w[read] -= 0.125 * np.sqrt(1 - 0.9**t) / (1 - 0.8**t) * m[read] / (np.sqrt(v[read]) + 1e-4)
    return w


def loss_of(table: Any, ids: Any) -> Any:
    rows = flow.nn.functional.embedding(ids, table, sparse=True)
    weights = flow.tensor(WEIGHTS) if not table.is_global else flow.tensor(WEIGHTS, placement=table.placement, sbp=flow.sbp.broadcast)
    return (rows * rows * weights).sum() / 2


def trained(layout: dict[str, Any], maximize: bool = False, compiles: bool = False) -> np.ndarray[Any, Any]:
    table = flow.tensor(TABLE, requires_grad=True, **layout)
    optimizer = flow.optim.SparseAdam([table], maximize=maximize, **OPTIONS)

    def step(ids: Any) -> None:
        optimizer.zero_grad()
        loss_of(table, ids).backward()
        optimizer.step()

    run = flow.compile(step) if compiles else step
    whole = {**layout, "sbp": flow.sbp.broadcast} if layout else {}
    for ids in IDS:
        run(flow.tensor(ids, **whole))
    return np.array(table.detach().numpy())


@pytest.mark.parametrize("maximize", [False, True])
def test_steps_equal_the_formula(maximize: bool) -> None:
    for compiles in (False, True):
        np.testing.assert_allclose(trained({}, maximize, compiles), expected(maximize), rtol=1e-9)


def test_steps_do_not_depend_on_the_layout() -> None:
    def program(rank: int) -> list[Any]:
        here = flow.placement("cpu", range(2))
        return [
            trained({"placement": here, "sbp": sbp}, compiles=compiles)
            for sbp in (flow.sbp.broadcast, flow.sbp.split(0), flow.sbp.split(1))
            for compiles in (False, True)
        ]

    for results in on_ranks(2, program):
        for table in results:
            np.testing.assert_allclose(table, expected(), rtol=1e-9)


def test_graphs_update_rows_with_a_gradient_only() -> None:
    class Training(flow.nn.Graph):
        def __init__(self, module: Any) -> None:
            super().__init__()
            self.module = module
            self.add_optimizer(flow.optim.SparseAdam(module.parameters(), **OPTIONS))

        def build(self, ids: Any) -> Any:
            loss = loss_of(self.module.weight, ids)
            loss.backward()
            return loss

    module = flow.nn.Embedding(7, 3, sparse=True, _weight=flow.tensor(TABLE))
    graph = Training(module)
    for ids in IDS:
        graph(flow.tensor(ids))
    np.testing.assert_allclose(module.weight.detach().numpy(), expected(), rtol=1e-9)


def test_elements_of_a_vector_are_rows() -> None:
    p = flow.ones(3, requires_grad=True)
    p.grad = flow.tensor([1.0, 0.0, -1.0])
    flow.optim.SparseAdam([p], lr=0.5, eps=0.0).step()
    np.testing.assert_allclose(p.detach().numpy(), [0.5, 1.0, 1.5], rtol=1e-6)
