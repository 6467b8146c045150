"""Tables that are updated by the rows that were read: the numbers of the dense formula, without a gradient as large as the table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jobflow as flow
from jobflow import nn

ROWS, WIDTH = 8192, 16
IDS = np.array([[3, ROWS - 1, 3, 0], [77, 3, 4096, 77]])


class Table(nn.Module):
    """Looks rows up, in one or two ways, and gives a loss."""

    def __init__(self, looks: int = 1) -> None:
        super().__init__()
        self.table, self.looks = nn.Embedding(ROWS, WIDTH), looks
        self.scale = nn.Parameter(flow.ones(WIDTH))

    def forward(self, ids: Any) -> Any:
        y = self.table(ids)
        for i in range(1, self.looks):
            y = y + self.table(ids + i) * 0.5
        return flow.mean(flow.square(y * self.scale - 1.0))


class LocalInstruction(nn.Graph):
    def __init__(self, module: Any, optimizer: Any) -> None:
        super().__init__()
        self.module = module
        self.add_optimizer(optimizer)

    def build(self, ids: Any) -> Any:
        loss = self.module(ids)
        loss.backward()
        return loss


def made(looks: int = 1) -> Any:
    """`looks` of 0: a `Turned` one."""
    module = Table(looks) if looks else Turned()
    with flow.no_grad():
        module.table.weight.copy_(flow.tensor(np.random.RandomState(5).randn(ROWS, WIDTH).astype(np.float32)))
    return module


OPTIMIZERS = {
    "sgd": lambda p: flow.optim.SGD(p, lr=0.5),
    "sgd with decay": lambda p: flow.optim.SGD(p, lr=0.5, weight_decay=0.1),
    "momentum": lambda p: flow.optim.SGD(p, lr=0.5, momentum=0.9, nesterov=True),
    "adam": lambda p: flow.optim.Adam(p, lr=0.1),
    "adam, largest": lambda p: flow.optim.Adam(p, lr=0.1, amsgrad=True, weight_decay=0.1),
    "adamw": lambda p: flow.optim.AdamW(p, lr=0.1, weight_decay=0.1),
    "adagrad": lambda p: flow.optim.Adagrad(p, lr=0.1),
    "rmsprop": lambda p: flow.optim.RMSprop(p, lr=0.01, momentum=0.5),
}


class Turned(Table):
    """The gradient of its rows does not lie in one piece."""

    def forward(self, ids: Any) -> Any:
        y = self.table(ids).transpose(1, 2)
        return flow.mean(flow.square(flow.matmul(y, flow.ones(IDS.shape[1], 3)) + self.scale.reshape(WIDTH, 1)))


def close(a: Any, b: Any) -> None:
    np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=2e-6, atol=2e-7)


@pytest.mark.parametrize("looks", [0, 1, 2])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_graph_does_what_the_dense_formula_does(name: str, looks: int) -> None:
    """At once gradients are whole tensors."""
    dense, sparse = made(looks), made(looks)
    optimizer = OPTIMIZERS[name](dense.parameters())
    graph = LocalInstruction(sparse, OPTIMIZERS[name](sparse.parameters()))
    for step in range(3):
        ids = flow.tensor((IDS + step) % (ROWS - 1))
        optimizer.zero_grad()
        loss = dense(ids)
        loss.backward()
        optimizer.step()
        close(graph(ids), loss)
    assert "RowUpdate" in str(graph)
    close(sparse.table.weight, dense.table.weight)
    close(sparse.scale, dense.scale)


def test_numbers_out_of_range_are_errors() -> None:
    module = made()
    graph = LocalInstruction(module, OPTIMIZERS["adam"](module.parameters()))
    before = module.table.weight.numpy().copy()
    with pytest.raises(flow.ArgumentError, match=rf"row {ROWS} at \[0, 3\]"):
        graph(flow.tensor(np.where(IDS == 0, ROWS, IDS)))
    np.testing.assert_array_equal(module.table.weight.numpy(), before)


def test_gradients_that_others_read_are_whole() -> None:
    module = made()
    parameters = [{"params": list(module.parameters()), "clip_grad_max_norm": 0.1, "clip_grad_norm_type": 2.0}]
    graph = LocalInstruction(module, flow.optim.SGD(parameters, lr=0.5))
    graph(flow.tensor(IDS))
    assert "RowUpdate" not in str(graph)


def test_where_many_rows_are_read_gradients_are_whole() -> None:
    module = made()
    graph = LocalInstruction(module, OPTIMIZERS["sgd"](module.parameters()))
    graph(flow.tensor(np.arange(ROWS // 4 + 1)))
    assert "RowUpdate" not in str(graph)
