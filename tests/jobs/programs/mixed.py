"""A model of two stages - data parallel, then model parallel - as a training program.

    mpiexec -n 4 python mixed.py OUT WAY ...      trains it in these of `WAYS` and writes {way: losses and weights} to OUT

One rank runs both stages, and nothing is split.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import jobflow as flow
from jobflow import nn

S0, S1, B = flow.sbp.split(0), flow.sbp.split(1), flow.sbp.broadcast
ROWS, STEPS = 8, 6


@dataclass(frozen=True)
class Way:
    """Options of a training run."""

    graph: bool = False
    #: how the batch goes in, and how what is to come out
    x: Any = S0
    y: Any = B
    parts: int = 1
    schedule: str | None = None
    #: norm that gradients are clipped to
    clip: float | None = None


WAYS = {
    "at once": Way(),
    "at once, accumulated": Way(parts=4),
    "graph": Way(True),
    "graph, accumulated": Way(True, parts=4),
    "graph, accumulated, split outputs": Way(True, B, S0, parts=2),
    "graph, accumulated, features": Way(True, S1, S1, parts=4),
    "graph, pipelined": Way(True, parts=4, schedule="1f1b"),
    "graph, pipelined, all forward first": Way(True, S0, S0, parts=4, schedule="gpipe"),
}
WAYS |= {f"{name}, clipped": Way(way.graph, way.x, way.y, way.parts, way.schedule, 0.1) for name, way in WAYS.items() if way.parts != 2}


class Stage(nn.Module):
    """A product x w and a nonlinearity."""

    def __init__(self, w: Any, placement: Any, sbp: Any) -> None:
        super().__init__()
        self.w = nn.Parameter(flow.tensor(w, dtype=flow.float64, placement=placement, sbp=sbp))

    def forward(self, x: Any) -> Any:
        return flow.tanh(flow.matmul(x, self.w))


class Model(nn.Module):
    """The first stage on the first half of the ranks with copies of its weight, the second on the others, split by columns."""

    def __init__(self, ranks: int) -> None:
        super().__init__()
        half = max(ranks // 2, 1)
        self.places = flow.placement("cpu", list(range(half))), flow.placement("cpu", list(range(ranks - half, ranks)))
        draw = np.random.RandomState(0).standard_normal
        self.m_stage0 = Stage(0.5 * draw((5, 8)), self.places[0], B)
        self.m_stage1 = Stage(0.5 * draw((8, 3)), self.places[1], S1)

    def forward(self, x: Any) -> Any:
        return self.m_stage1(self.m_stage0(x).to_global(placement=self.places[1], sbp=B))


def distance(a: Any, b: Any) -> Any:
    return ((a - b) ** 2).mean()


class Train(nn.Graph):
    def __init__(self, model: Model, optimizer: Any, schedule: Any, way: Way) -> None:
        super().__init__()
        self.model = model
        self.model.m_stage0.to(nn.graph.GraphModule).set_stage(stage_id=0, placement=model.places[0])
        self.model.m_stage1.to(nn.graph.GraphModule).set_stage(stage_id=1, placement=model.places[1])
        self.config.set_gradient_accumulation_steps(way.parts)
        if way.schedule is not None:
            self.config.set_pipeline_schedule(way.schedule)
        self.add_optimizer(optimizer, lr_sch=schedule)

    def build(self, x: Any, y: Any) -> Any:
        loss = distance(self.model(x), y)
        loss.backward()
        return loss


def train(ranks: int, way: Way) -> dict[str, Any]:
    """Return the loss of every step, and the final weights."""
    model = Model(ranks)
    optimizer: Any = flow.optim.AdamW(model.parameters(), lr=0.1)
    if way.clip is not None:
        optimizer = flow.optim.SGD([{"params": list(model.parameters()), "clip_grad_max_norm": way.clip}], lr=0.5, momentum=0.9)
    schedule = flow.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
    graph = Train(model, optimizer, schedule, way) if way.graph else None
    losses = []
    random = np.random.RandomState(1)
    for _ in range(STEPS):
        x = random.standard_normal((ROWS, 5))
        y = np.sin(2 * x[:, :3])
        if graph is not None:
            losses.append(float(graph(tensor_of(x, model.places[0], way.x), tensor_of(y, model.places[1], way.y)).numpy().mean()))
            continue
        optimizer.zero_grad()
        total = 0.0
        for part_x, part_y in zip(np.split(x, way.parts), np.split(y, way.parts), strict=True):
            loss = distance(model(tensor_of(part_x, model.places[0], way.x)), tensor_of(part_y, model.places[1], way.y)) / way.parts
            loss.backward()
            total += loss.item()
        optimizer.clip_grad()
        optimizer.step()
        schedule.step()
        losses.append(total)
    return {"losses": losses, "weights": [p.numpy().tolist() for p in model.parameters()]}


def tensor_of(array: Any, placement: Any, sbp: Any) -> Any:
    return flow.tensor(array, dtype=flow.float64, placement=placement, sbp=sbp)


def main() -> None:
    out, *names = sys.argv[1:]
    results = {name: train(flow.env.get_world_size(), WAYS[name]) for name in names}
    Path(f"{out}.{flow.env.get_rank()}").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
