"""Random hints of a strategy change where tensors are, and never a number: losses, parameters and buffers are those of one layout."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import pytest

import jobflow as flow
import jobflow.typing as tp
from jobflow import nn
from jobflow.graph.ir import Value
from jobflow.graph.traced import Traced
from jobflow.layout import B, P, S
from jobflow.strategies import Hints, Strategy

ROWS, WIDTH = 4, 6


@dataclass(frozen=True)
class RandomHints(Strategy):
    """Layouts drawn for a share of the values, gradients and variables of a program."""

    size: int | None = None
    seed: int = 0

    def hints(self, program: Traced, n: int, split: dict[str, set[int]]) -> Hints:
        draw = random.Random(self.seed)
        share = draw.choice([0.05, 0.3, 1.0])

        def layout(value: Value) -> object:
            return draw.choice([B, B, *map(S, range(value.tensor_type.ndim)), *([P] if value.dtype.is_float else [])])

        outputs = [value for node in program.nodes for value in node.outputs]
        values = {value: layout(value) for value in outputs if draw.random() < share}
        gradients = {value: layout(value) for value in outputs if draw.random() < share / 2}
        stored = {name: draw.choice([B, *map(S, range(v.type.ndim))]) for name, v in program.variables.items() if draw.random() < share}
        return Hints(values=values, gradients=gradients, stored=stored, read=draw.choice([None, {}]), cuts_arguments=draw.random() < 0.6)  # type: ignore[arg-type]


@dataclass(frozen=True)
class MovingAverageCopies(Strategy):
    """Updated moving averages as copies: one hint on the new value of a buffer."""

    size: int | None = None

    def hints(self, program: Traced, n: int, split: dict[str, set[int]]) -> Hints:
        values = {value: B for node in program.nodes for value in node.outputs if "moving" in value.name}
        return Hints(values=values, read=None, cuts_arguments=True)


def network(seed: int) -> nn.Sequential:
    """Layers with buffers and without; in some networks one layer is called twice."""
    draw = random.Random(seed)
    flow.manual_seed(seed)
    makers = (lambda: nn.BatchNorm1d(WIDTH), lambda: nn.BatchNorm1d(WIDTH), lambda: nn.LayerNorm(WIDTH), nn.ReLU, lambda: nn.Linear(WIDTH, WIDTH))
    layers = [draw.choice(makers)() for _ in range(draw.randint(1, 3))]
    again = layers[:1] if draw.random() < 0.3 else []
    return nn.Sequential(nn.Linear(5, WIDTH), nn.BatchNorm1d(WIDTH), *layers, *again, nn.Linear(WIDTH, 3))


def trained(seed: int, devices: int, strategy: Strategy | None, guarded: bool) -> list[np.ndarray]:
    """The losses of three steps, and the state of the network after them."""
    flow.clear_default_session()
    flow.config.cpu_device_num(devices)
    model, config = network(seed), flow.function_config()
    if strategy is not None:
        config.strategy(strategy)
    scale = {"loss_scale_policy": flow.optimizer.loss_scale.dynamic_loss_scale(increment_period=2)} if guarded else {}

    @flow.global_function("train", config)
    def train(x: tp.Numpy.Placeholder((ROWS, 5))) -> tp.Numpy:  # type: ignore[valid-type]
        loss = flow.math.square(model(x))
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0.9, **scale).minimize(loss)
        return loss

    losses = [train(np.random.default_rng(step).random((ROWS, 5), np.float32)) for step in range(3)]
    return [*losses, *(value.numpy() for value in model.state_dict().values())]


@pytest.mark.parametrize("seed", [*range(6), 39, 42, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(100, 140))])
def test_random_hints_change_no_value(seed: int) -> None:
    devices, guarded = 2 + seed % 2, seed % 3 == 0
    alone, ours = trained(seed, 1, None, guarded), trained(seed, devices, RandomHints(seed=seed), guarded)
    for i, (one, many) in enumerate(zip(alone, ours, strict=True)):
        np.testing.assert_allclose(many, one, rtol=2e-3, atol=2e-4, err_msg=f"seed {seed}, result {i}")


@pytest.mark.parametrize("guarded", [False, True])
def test_a_hint_on_the_new_value_of_a_buffer_trains(guarded: bool) -> None:
    for one, many in zip(trained(1, 1, None, guarded), trained(1, 2, MovingAverageCopies(), guarded), strict=True):
        np.testing.assert_allclose(many, one, rtol=1e-4, atol=1e-5)
