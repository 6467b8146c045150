"""Tensors after the end of their session: they remain usable in the next session, and a graph raises because its ranks have ended."""

from __future__ import annotations

from typing import Any

import numpy as np

import jobflow as flow
import jobflow.typing as tp
from jobflow import nn
from jobflow.errors import JobError

P = flow.placement.all("cpu")
B, S0 = flow.sbp.broadcast, flow.sbp.split(0)


class TrainGraph(nn.Graph):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(flow.optim.Adam(model.parameters(), lr=0.1))

    def build(self, x: Any) -> Any:
        loss = self.model(x).square().mean()
        loss.backward()
        return loss


def again() -> None:
    """Return the input from a job in a new session."""
    flow.clear_default_session()

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
        return x * 2

    assert job(np.ones(4, np.float32)).tolist() == [2] * 4


flow.manual_seed(3)
x = flow.randn(4, 3, placement=P, sbp=S0)
expected, following = x.sum().item(), flow.randn(4, placement=P, sbp=S0).numpy().tolist()
flow.manual_seed(3)
step = TrainGraph(nn.Linear(3, 2).to_global(P, B))
flow.manual_seed(3)
x = flow.randn(4, 3, placement=P, sbp=S0)
first = step(x).item()
again()
assert flow.randn(4, placement=P, sbp=S0).numpy().tolist() == following, "random numbers go on"
assert x.sum().item() == expected and (x + x).numpy().shape == (4, 3)
try:
    step(x)
except JobError as error:
    assert "ended.py:" in str(error) and "clear_default_session" in str(error) and "state_dict()" in str(error)
else:
    raise AssertionError("the graph ran on ranks that are gone")
other = TrainGraph(nn.Linear(3, 2).to_global(P, B))
other.load_state_dict(step.state_dict())
assert other(x).item() < first
again()
assert x.sum().item() == expected
print("right")
