"""Buffers that a graph writes from values of parameters equal those of eager execution, on one rank and on two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ranks import agree

import jobflow as flow
from jobflow import nn


class Writing(nn.Module):
    """A linear map whose output `write` uses to overwrite buffers and to compute a loss."""

    def __init__(self, write: Callable[[Writing, Any], Any]) -> None:
        super().__init__()
        self.weight = nn.Parameter(flow.tensor([[1.0, 2.0], [3.0, 4.0]]))
        self.register_buffer("total", flow.ones(2))
        self.norm = nn.BatchNorm1d(2)
        self.write = write

    def forward(self, x: Any) -> Any:
        return self.write(self, flow.matmul(x, self.weight))


def added(m: Writing, y: Any) -> Any:
    m.total.add_(y.mean(0))
    return (y * y).mean()


def multiplied_twice(m: Writing, y: Any) -> Any:
    m.total.fill_(2.0)
    m.total.mul_(y.mean())
    m.total *= y.max()
    return (y * y).mean()


def added_and_read(m: Writing, y: Any) -> Any:
    m.total.add_(y.mean(0))
    return (y * m.total).mean()


def an_item_and_read(m: Writing, y: Any) -> Any:
    m.total[0] = y.detach().sum()
    return (y * y).mean() + (y * m.total).sum()


def an_item_with_its_gradient(m: Writing, y: Any) -> Any:
    m.total[0] = y.sum()
    return (y * m.total).mean() + m.total.sum()


def an_average_and_read(m: Writing, y: Any) -> Any:
    z = m.norm(y)
    return (z * y).mean() + (m.norm.running_mean * z * y).sum() + m.norm.running_var.sum()


def two_averages(m: Writing, y: Any) -> Any:
    return (m.norm(m.norm(y)) * y * m.norm.running_mean).mean()


CASES = (added, multiplied_twice, added_and_read, an_item_and_read, an_item_with_its_gradient, an_average_and_read, two_averages)


def steps(write: Callable[[Writing, Any], Any], ranks: int, as_graph: bool, trains: bool) -> list[Any]:
    """Return the losses of three steps, and the values of the buffers and the weight after them."""
    where = flow.placement("cpu", list(range(ranks)))
    module = Writing(write)
    module.to_global(placement=where, sbp=flow.sbp.broadcast)
    x = flow.tensor(np.arange(8, dtype=np.float32).reshape(4, 2) / 8, placement=where, sbp=flow.sbp.split(0))
    optimizer = flow.optim.SGD(module.parameters(), lr=0.01)

    class TrainGraph(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.module = module
            if trains:
                self.add_optimizer(optimizer)

        def build(self, x: Any) -> Any:
            loss = self.module(x)
            if trains:
                loss.backward()
            return loss

    def at_once(x: Any) -> Any:
        loss = module(x)
        if trains:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        module.total.detach_()
        return loss

    step = TrainGraph() if as_graph else at_once
    losses = [step(x).numpy() for _ in range(3)]
    held = (module.total, module.norm.running_mean, module.norm.running_var, module.weight)
    return [np.stack(losses).tolist(), *(tensor.detach().numpy().tolist() for tensor in held)]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("write", CASES, ids=lambda write: write.__name__)
def test_buffers_equal_eager_execution(write: Callable[[Writing, Any], Any], trains: bool, ranks: int) -> None:
    def program(rank: int) -> Any:
        return [steps(write, ranks, as_graph, trains) for as_graph in (False, True)]

    once, graph = agree(ranks, program)
    for a, b in zip(once, graph, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6)


NUMBERS: dict[str, Callable[[Any, Any], Any]] = {
    "int": lambda x, n: x * int(n[0] + 0),
    "item": lambda x, n: x * n.max().item(),
    "tolist": lambda x, n: x[n.tolist()],
    "numpy": lambda x, n: x * float(n.numpy()[0]),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_runs_raise_after_changes_of_elements_that_build_read(name: str) -> None:
    class Reading(nn.Graph):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Module()
            self.model.register_buffer("number", flow.tensor([2, 1]))

        def build(self, x: Any) -> Any:
            return NUMBERS[name](x, self.model.number)

    graph, x = Reading(), flow.ones(3)
    np.testing.assert_array_equal(graph(x).numpy(), graph(x).numpy())
    graph.model.number.add_(1)
    with pytest.raises(flow.JobError, match=r"build read the elements of the tensor model\.number int64\[2\] at test_buffers_in_graphs\.py:\d+"):
        graph(x)
