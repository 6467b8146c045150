"""Ctrl-C while a step writes variables: a program that catches it has the values of whole steps, and continues."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from parts import Rows, X, declare, normal, sgd, values

import jobflow as flow
import jobflow.typing as tp
from jobflow import nn
from jobflow.engine.session import current_session
from jobflow.program.commands import executors_of
from jobflow.runtime.interrupts import held

STEPS = 3


@pytest.fixture(autouse=True)
def hears() -> Iterator[None]:
    """Install Python's handler, as in a terminal: processes that a shell starts in the background ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def in_the_epilogue(executor: Any) -> None:
    """Interrupt after the first write."""
    executor.epilogue.insert(1, (interrupt, ()))


def by_job(interrupted: bool, devices: int = 1) -> list[Any]:
    def body(x: tp.Numpy) -> Any:
        hidden = flow.layers.dense(x, 5, kernel_initializer=normal(), name="hidden")
        loss = flow.nn.dropout(flow.layers.dense(hidden, 2, kernel_initializer=normal(), name="output"), 0.5, name="drop")
        sgd(0.1, momentum=0.9).minimize(loss)
        return loss

    flow.clear_default_session()
    flow.config.cpu_device_num(devices)
    step = declare(body, Rows, type="train")
    step(X)
    if interrupted:
        world = current_session().world
        assert world is not None
        in_the_epilogue(next(iter(executors_of(world.ranks[0]).values())))
    many(lambda: step(X), interrupted)
    return [*values().values()]


def by_tensors(interrupted: bool) -> list[Any]:
    flow.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 2))
    optimizer = flow.optim.Adam(model.parameters(), lr=0.1)
    if interrupted:
        update = optimizer._step

        def updates(here: Any, p: Any, *rest: Any) -> None:
            update(here, p, *rest)
            if p is model[0].weight:
                interrupt()

        optimizer._step = updates  # type: ignore[method-assign]
    model(flow.tensor(X)).square().sum().backward()
    many(optimizer.step, interrupted)
    return [p.detach().numpy() for p in model.parameters()] + [state["step"] for state in optimizer.state.values()]


def by_graph(interrupted: bool) -> list[Any]:
    flow.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.Linear(5, 2))

    class TrainGraph(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(flow.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))

        def build(self, x: Any) -> Any:
            loss = self.model(x).sum()
            loss.backward()
            return loss

    step = TrainGraph()
    step(flow.tensor(X))
    if interrupted:
        in_the_epilogue(step._bound.executor)  # type: ignore[union-attr]
    many(lambda: step(flow.tensor(X)), interrupted)
    return [p.detach().numpy() for p in model.parameters()]


def many(step: Callable[[], Any], interrupted: bool) -> None:
    for _ in range(STEPS):
        if interrupted:
            with pytest.raises(KeyboardInterrupt):
                step()
        else:
            step()


@pytest.mark.parametrize("way", [by_job, partial(by_job, devices=2), by_tensors, by_graph], ids=["job", "two devices", "tensors", "graph"])
def test_steps_are_whole(way: Callable[[bool], list[Any]], fresh: None) -> None:
    for expected, result in zip(way(False), way(True), strict=True):
        np.testing.assert_array_equal(result, expected)


def test_a_second_interrupt_stops_the_step() -> None:
    handler, heard = signal.getsignal(signal.SIGINT), list[str]()
    with pytest.raises(KeyboardInterrupt), held():
        interrupt()
        heard.append("goes on")
        interrupt()
        heard.append("is not reached")
    with pytest.raises(KeyboardInterrupt) as caught, held():
        interrupt()
        raise ValueError("of the step")
    assert isinstance(caught.value.__context__, ValueError)
    assert heard == ["goes on"] and signal.getsignal(signal.SIGINT) is handler


def test_ranks_on_threads_can_be_interrupted_repeatedly(fresh: None) -> None:
    """Ranks stop at once if nothing is written, and can be called afterwards."""
    flow.config.cpu_device_num(2)
    world = current_session().start()

    def meets(rank: Any, argument: Any) -> int:
        if rank.index == 0:
            interrupt()
            interrupt()
        rank.comm.barrier()
        rank.comm.barrier()
        return int(rank.index)

    start = world._workers[1].start  # type: ignore[attr-defined]
    for begin in (start, start, lambda round: (interrupt(), start(round))[1]):  # the last time when one rank has begun, and the other has not
        world._workers[1].start = begin  # type: ignore[attr-defined]
        with pytest.raises(KeyboardInterrupt):
            world.call(meets)
    world._workers[1].start = start  # type: ignore[attr-defined]
    assert world.call(lambda rank, argument: rank.comm.barrier() or rank.index) == [0, 1]
