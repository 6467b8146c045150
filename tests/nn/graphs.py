"""Helpers of the tests of nn.Graph, with a model of two stages that is trained eagerly and as a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jobflow.core.layout import Sbp
from jobflow.engine.placements import placement, sbp
from jobflow.functional.binary_functions import matmul
from jobflow.functional.creation import tensor
from jobflow.functional.reductions import mean
from jobflow.functional.tensor_class import Tensor
from jobflow.functional.unary_functions import square
from jobflow.nn.graph import Graph, GraphModule
from jobflow.nn.modules.module import Module
from jobflow.nn.parameter import Parameter

ROWS = 8
S1 = sbp.split(1)
Setting = Callable[[Any], None]


def tensor_of(array: Any, where: placement, how: Any) -> Tensor:
    """Return a global float32 tensor of an array with equal elements on all ranks."""
    return tensor(np.asarray(array, np.float32), placement=where, sbp=how)


class Stage(Module):
    """A product x w, followed by an activation."""

    def __init__(self, w: Any, where: placement, how: Sbp) -> None:
        super().__init__()
        self.w = Parameter(tensor_of(w, where, how))

    def forward(self, x: Tensor) -> Tensor:
        return matmul(x, self.w).tanh()


class Model(Module):
    """A model of two stages, each on separate ranks if there are enough ranks."""

    def __init__(self, n: int, first: Sbp = sbp.broadcast, second: Sbp = S1) -> None:
        super().__init__()
        self.places = places(n)
        draw = np.random.RandomState(0).standard_normal
        self.m_stage0 = Stage(draw((5, 8)), self.places[0], first)
        self.m_stage1 = Stage(draw((8, 3)), self.places[1], second)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a = self.m_stage0(x)
        return a, self.m_stage1(a.to_global(placement=self.places[1], sbp=sbp.broadcast))


def places(n: int) -> tuple[placement, placement]:
    """Return the placements of the stages on n ranks."""
    half = max(n // 2, 1)
    return placement("cpu", range(half)), placement("cpu", range(n - half, n))


class Trained(Graph):
    """A training graph of a model, its stages and its optimizers."""

    def __init__(self, model: Model, optimizers: Sequence[Any], schedule: Any, setting: Setting) -> None:
        super().__init__()
        self.model = model
        self.model.m_stage0.to(GraphModule).set_stage(0, model.places[0])
        self.model.m_stage1.to(GraphModule).set_stage(1, model.places[1])
        for optimizer in optimizers:
            self.add_optimizer(optimizer, lr_sch=schedule)
        setting(self)

    def build(self, x: Tensor, y: Tensor) -> Tensor:
        loss = distance(self.model(x)[1], y)
        loss.backward()
        return loss


class Forward(Graph):
    """A graph that runs the forward pass of the model only."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def build(self, *x: Tensor) -> Any:
        return self.model(*x)


def graph_of(function: Any) -> Graph:
    """A graph whose build is a function."""

    class Plain(Graph):
        def build(self, *args: Any, **options: Any) -> Any:
            return function(*args, **options)

    return Plain()


def distance(a: Tensor, b: Tensor) -> Tensor:
    return mean(square(a - b))


def batches(steps: int) -> Any:
    """Return the batch of every step, as inputs and targets."""
    draw = np.random.RandomState(1).standard_normal
    return [(draw((ROWS, 5)), draw((ROWS, 3))) for _ in range(steps)]


def usual(graph: Any) -> None:
    """Configure no options."""


def at_once(model: Model, optimizer: Any, schedule: Any, how: tuple[Any, Any], steps: int) -> list[float]:
    """Return the losses of eager training, step by step."""
    losses = []
    for x, y in batches(steps):
        optimizer.zero_grad()
        loss = distance(model(tensor_of(x, model.places[0], how[0]))[1], tensor_of(y, model.places[1], how[1]))
        loss.backward()
        clip(model, optimizer.param_groups[0]["clip_grad_max_norm"])
        optimizer.step()
        if schedule is not None:
            schedule.step()
        losses.append(loss.item())
    return losses


def clip(model: Model, most: float | None) -> None:
    """Clip the gradients of a model on one rank by their common norm."""
    if most is not None:
        gradients = [p.grad.array for p in model.parameters()]
        norm = np.sqrt(sum((g**2).sum() for g in gradients))
        for g in gradients:
            g *= min(1.0, most / (norm + 1e-6))


def as_graph(graph: Any, places: Sequence[placement], how: tuple[Any, Any], steps: int, skip: int = 0) -> list[float]:
    """Return the losses of calls of a graph, averaged if a call returns several losses."""
    return [float(graph(tensor_of(x, places[0], how[0]), tensor_of(y, places[1], how[1])).numpy().mean()) for x, y in batches(steps)[skip:]]


def weights(model: Model) -> list[Any]:
    return [np.array(p.numpy()) for p in model.parameters()]
