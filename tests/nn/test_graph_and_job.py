"""Job functions, graphs and eager training are equal for equal formulas.

These are plain SGD, momentum without decay at a constant rate, and Adam with bias correction except for the place of epsilon.  Clipping by
the norm of all gradients (except for its 1e-6), falling rates and gradient accumulation are equal too.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from ranks import on_ranks

import jobflow as flow
import jobflow.typing as tp
from jobflow import optimizer as legacy
from jobflow.engine.placements import placement, sbp
from jobflow.nn.modules.module import Module
from jobflow.optim.lr_scheduler import MultiStepLR
from jobflow.optim.optimizers import SGD, Adam

STEPS, ROWS = 8, 6
DRAW = np.random.RandomState(0).standard_normal
W0, W1 = DRAW((5, 8)).astype(np.float32), DRAW((8, 3)).astype(np.float32)
BATCHES = [(DRAW((ROWS, 5)).astype(np.float32), DRAW((ROWS, 3)).astype(np.float32)) for _ in range(STEPS)]


def constant(rate: float) -> Any:
    return legacy.PiecewiseConstantScheduler([], [rate])


#: per case: the job's optimizer, ours, its schedule, and in how many parts the batch passes
CASES: dict[str, tuple[Any, Any, Any, int]] = {
    "sgd": (lambda: legacy.SGD(constant(0.1), momentum=0), lambda p: SGD(p, 0.1), None, 1),
    "momentum": (lambda: legacy.SGD(constant(0.1), momentum=0.9), lambda p: SGD(p, 0.1, momentum=0.9), None, 1),
    "adam": (lambda: legacy.Adam(constant(0.01), do_bias_correction=True), lambda p: Adam(p, 0.01), None, 1),
    "falling": (
        lambda: legacy.SGD(legacy.PiecewiseConstantScheduler([2, 5], [0.1, 0.05, 0.025]), momentum=0),
        lambda p: SGD(p, 0.1),
        lambda o: MultiStepLR(o, [3, 6], 0.5),
        1,
    ),
    "clipped": (
        lambda: legacy.SGD(constant(0.1), momentum=0, grad_clipping=legacy.grad_clipping.by_global_norm(0.2)),
        lambda p: SGD([{"params": p, "lr": 0.1, "clip_grad_max_norm": 0.2}]),
        None,
        1,
    ),
    "in parts": (lambda: legacy.SGD(constant(0.1), momentum=0.9), lambda p: SGD(p, 0.1, momentum=0.9), None, 3),
}


@cache
def as_job(case: str) -> list[float]:
    optimizer, _, _, parts = CASES[case]
    config = flow.function_config()
    if parts > 1:
        config.train.num_gradient_accumulation_steps(parts)

    @flow.global_function(type="train", function_config=config)
    def job(x: tp.Numpy.Placeholder((ROWS, 5)), y: tp.Numpy.Placeholder((ROWS, 3))) -> tp.Numpy:  # type: ignore[valid-type]
        w0, w1 = (flow.get_variable(name, w.shape, initializer=flow.zeros_initializer()) for name, w in (("w0", W0), ("w1", W1)))
        prediction = flow.math.tanh(flow.matmul(flow.math.tanh(flow.matmul(x, w0)), w1))
        loss = flow.math.reduce_mean(flow.math.square(flow.math.subtract(prediction, y)))
        optimizer().minimize(loss)
        return loss

    flow.load_variables({"w0": W0, "w1": W1})
    losses = [float(np.mean(job(x, y))) for x, y in BATCHES]
    flow.clear_default_session()
    return losses


class Model(Module):
    def __init__(self, where: placement) -> None:
        super().__init__()
        self.w0 = flow.nn.Parameter(flow.tensor(W0, placement=where, sbp=sbp.broadcast))
        self.w1 = flow.nn.Parameter(flow.tensor(W1, placement=where, sbp=sbp.split(1)))

    def forward(self, x: Any, y: Any) -> Any:
        d = flow.tanh(flow.matmul(flow.tanh(flow.matmul(x, self.w0)), self.w1)) - y
        return (d * d).mean()


def trained(rank: int, n: int, case: str, as_graph: bool) -> list[float]:
    _, optimizer_of, schedule_of, parts = CASES[case]
    where = placement("cpu", range(n))
    model = Model(where)
    optimizer = optimizer_of(model.parameters())
    schedule = None if schedule_of is None else schedule_of(optimizer)

    class Train(flow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(optimizer, lr_sch=schedule)
            self.config.set_gradient_accumulation_steps(parts)

        def build(self, x: Any, y: Any) -> Any:
            loss = self.model(x, y)
            loss.backward()
            return loss

    graph, losses = Train(), []
    for batch in BATCHES:
        x, y = (flow.tensor(a, placement=where, sbp=sbp.split(0)) for a in batch)
        if as_graph:
            losses.append(float(graph(x, y).numpy().mean()))
            continue
        loss = model(x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("case", list(CASES))
def test_a_graph_trains_as_a_job_does(case: str) -> None:
    for n in (1, 2):
        for losses in on_ranks(n, trained, n, case, True):
            np.testing.assert_allclose(losses, as_job(case), rtol=2e-5)


@pytest.mark.parametrize("case", [case for case in CASES if case != "clipped"])
def test_eager_training_equals_a_job(case: str) -> None:
    for losses in on_ranks(2, trained, 2, case, False):
        np.testing.assert_allclose(losses, as_job(case), rtol=2e-5)
