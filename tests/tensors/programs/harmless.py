"""Programs that end processes by a signal in the measured system; here both ranks finish and exit normally."""

from __future__ import annotations

from typing import Any

import numpy as np

import jobflow as flow
from jobflow import nn
from jobflow.core.errors import JobflowError

P = flow.placement("cpu", [0, 1])
B, S0, S1, SUM = flow.sbp.broadcast, flow.sbp.split(0), flow.sbp.split(1), flow.sbp.partial_sum


class Train(nn.Graph):
    """Data parallel, then column parallel, with the loss over split classes."""

    def __init__(self, stage: int) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6).to_global(P, B)
        self.last = nn.Linear(6, 8).to_global(P, S0)
        self.add_optimizer(flow.optim.Adam([*self.first.parameters(), *self.last.parameters()], lr=0.1))
        if stage:
            self.config.enable_zero(True, stage=stage, shard_min_size=1)

    def build(self, x: Any, labels: Any) -> Any:
        hidden = self.first(x).relu().to_global(sbp=B)
        loss = nn.functional.cross_entropy(self.last(hidden), labels)
        loss.backward()
        return loss


def refused(make: Any) -> None:
    try:
        make()
    except JobflowError:
        return
    raise AssertionError("it was not refused")


def main() -> None:
    x = flow.ones(4, 4, placement=P, sbp=S0)
    refused(lambda: flow.placement("cpu", [0, 0]))
    refused(lambda: flow.ones(4, placement=P, sbp=[S0, S0]))
    refused(lambda: flow.ones(4, placement=P, sbp=S1))
    refused(lambda: x + np.ones((4, 4)))
    for lies in (B, S1, SUM):
        assert flow.ones(1, 4, placement=P, sbp=lies).to_global(sbp=S0).sum().item() == 4
    assert x.cuda().sum().item() == 16
    losses = []
    for stage in (0, 1, 2):
        flow.manual_seed(1)
        graph = Train(stage)
        labels = flow.tensor([0, 3, 7, 1], placement=P, sbp=B)
        losses.append([float(graph(x, labels)) for _ in range(3)])
    np.testing.assert_allclose(losses, [losses[0]] * 3, rtol=1e-5)
    assert losses[0][2] < losses[0][0]
    print(f"rank {flow.env.get_rank()} came through", flush=True)


main()
