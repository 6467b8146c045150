"""Tables updated by the rows that were read: results equal the dense formula, without a gradient as large as the table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jobflow as flow
from jobflow import nn

ROWS, WIDTH = 8192, 16
IDS = np.array([[3, ROWS - 1, 3, 0], [77, 3, 4096, 77]])


class Table(nn.Module):
    """A module that looks up rows, once or twice, and returns a loss."""

    def __init__(self, looks: int = 1) -> None:
        super().__init__()
        self.table, self.looks = nn.Embedding(ROWS, WIDTH), looks
        self.scale = nn.Parameter(flow.ones(WIDTH))

    def forward(self, ids: Any) -> Any:
        y = self.table(ids)
        for i in range(1, self.looks):
            y = y + self.table(ids + i) * 0.5
        return flow.mean(flow.square(y * self.scale - 1.0))


class TrainGraph(nn.Graph):
    def __init__(self, module: Any, optimizer: Any) -> None:
        super().__init__()
        self.module = module
        self.add_optimizer(optimizer)

    def build(self, ids: Any) -> Any:
        loss = self.module(ids)
        loss.backward()
        return loss


def table_module(looks: int = 1) -> Any:
    """Return a table with this number of lookups; 0 selects `Turned`."""
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
    """A table whose row gradients are not contiguous."""

    def forward(self, ids: Any) -> Any:
        y = self.table(ids).transpose(1, 2)
        return flow.mean(flow.square(flow.matmul(y, flow.ones(IDS.shape[1], 3)) + self.scale.reshape(WIDTH, 1)))


def close(a: Any, b: Any) -> None:
    np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=2e-6, atol=2e-7)


@pytest.mark.parametrize("looks", [0, 1, 2])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_row_updates_equal_the_dense_formula(name: str, looks: int) -> None:
    """Compare with eager mode, in which gradients are whole tensors."""
    dense, sparse = table_module(looks), table_module(looks)
    optimizer = OPTIMIZERS[name](dense.parameters())
    graph = TrainGraph(sparse, OPTIMIZERS[name](sparse.parameters()))
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


def test_indices_out_of_range_raise() -> None:
    module = table_module()
    graph = TrainGraph(module, OPTIMIZERS["adam"](module.parameters()))
    before = module.table.weight.numpy().copy()
    with pytest.raises(flow.ArgumentError, match=rf"row {ROWS} at \[0, 3\]"):
        graph(flow.tensor(np.where(IDS == 0, ROWS, IDS)))
    np.testing.assert_array_equal(module.table.weight.numpy(), before)


def test_gradients_with_other_readers_are_dense() -> None:
    module = table_module()
    parameters = [{"params": list(module.parameters()), "clip_grad_max_norm": 0.1, "clip_grad_norm_type": 2.0}]
    graph = TrainGraph(module, flow.optim.SGD(parameters, lr=0.5))
    graph(flow.tensor(IDS))
    assert "RowUpdate" not in str(graph)


def test_gradients_are_dense_if_many_rows_are_read() -> None:
    module = table_module()
    graph = TrainGraph(module, OPTIMIZERS["sgd"](module.parameters()))
    graph(flow.tensor(np.arange(ROWS // 4 + 1)))
    assert "RowUpdate" not in str(graph)
