"""Gradients that are formed from gathered factors: which, what travels for them, and that the numbers stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from traced import first, trace, type_, variable

import jobflow as flow
import jobflow.typing as tp
from jobflow.compiler.compile import distribute, plan_rank
from jobflow.compiler.front.trace import Tracer
from jobflow.engine.commands import executors_of
from jobflow.engine.session import current_session
from jobflow.kernels.target import CPU
from jobflow.ops.arithmetic import add
from jobflow.ops.matmul import matmul
from jobflow.plan.plan import Collective, Compute, Plan
from jobflow.plan.storage import RankMemory, is_common, place_variables


def plans(rows: int, n: int) -> list[Plan]:
    """Of a dense layer 300 -> 200 on n ranks that have its variables in common."""

    def layer(tracer: Tracer) -> Any:
        x = tracer.input("x", type_(rows, 300))
        return add(matmul(x, variable(tracer, "w", 300, 200)), variable(tracer, "b", 200))

    physical = distribute(trace(layer, first(n), train=True))
    variables = physical.graph.variables.values()
    return [plan_rank(physical, RankMemory(rank, place_variables(variables, rank, 0, tuple(range(n)))[0]), CPU) for rank in range(n)]


def kinds(plan: Plan) -> list[str]:
    return [i.kind for i in plan.instructions if isinstance(i, Collective)]


@pytest.mark.parametrize("n", [2, 3, 4])
def test_few_samples_travel_instead_of_the_product(n: int) -> None:
    found = plans(10, n)
    assert {tuple(kinds(plan)) for plan in found} == {("all_gather", "all_gather", "reduce_scatter")}
    assert len({plan.schedule for plan in found}) == 1
    assert [line.nbytes for line in found[0].schedule] == [10 * 300 * 4, 10 * 200 * 4, 832]
    written = [slot for plan in found for i in plan.epilogue if isinstance(i, Compute) for slot in i.outputs if is_common(slot.buffer)]
    stretches = sorted((slot.offset, slot.stop) for slot in written)
    assert stretches[0][0] == 0 and all(a[1] <= b[0] for a, b in zip(stretches, stretches[1:], strict=False))
    assert sum(stop - start for start, stop in stretches) >= 4 * (300 * 200 + 200)


def test_many_samples_do_not() -> None:
    assert kinds(plans(100, 2)[0]) == ["reduce_scatter"]


X = np.random.RandomState(0).standard_normal((4, 13, 200)).astype(np.float32)
LABELS = np.random.RandomState(1).randint(0, 7, (4, 13)).astype(np.int32)
RATE = flow.optimizer.PiecewiseConstantScheduler([], [0.05])
OPTIMIZERS = {
    "sgd": lambda: flow.optimizer.SGD(RATE, momentum=0),
    "momentum": lambda: flow.optimizer.SGD(RATE, momentum=0.9),
    "adamw": lambda: flow.optimizer.AdamW(RATE, epsilon=0.1, weight_decay=0.1),  # rounding of tiny gradients is not blown up
    "clipped": lambda: flow.optimizer.SGD(RATE, momentum=0, grad_clipping=flow.optimizer.grad_clipping.by_global_norm(0.5)),
}


def trained(optimizer: str, share: bool) -> tuple[list[float], dict[str, Any], list[str]]:
    """Losses and variables, and the communication of a step."""
    flow.clear_default_session()
    flow.config.cpu_device_num(3)
    flow.config.share_variables(share)

    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((13, 200)), labels: tp.Numpy.Placeholder((13,), dtype=flow.int32)) -> tp.Numpy:
        initializer = flow.random_normal_initializer(stddev=0.1)
        x = flow.layers.dense(x, 301, activation=flow.nn.relu, kernel_initializer=initializer, name="a")
        x = flow.layers.dense(x, 203, activation=flow.nn.relu, kernel_initializer=initializer, name="b")
        x = flow.layers.dense(x, 7, kernel_initializer=initializer, name="c")
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, x)
        OPTIMIZERS[optimizer]().minimize(loss)
        return loss

    losses = [float(job(x, labels).mean()) for x, labels in zip(X, LABELS, strict=True)]
    world = current_session().world
    assert world is not None
    (executor,) = executors_of(world.ranks[0]).values()
    return losses, {name: value.numpy() for name, value in flow.get_all_variables().items()}, kinds(executor.plan)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_numbers_are_those_of_a_copy_each(optimizer: str, fresh: None) -> None:
    alone, expected, _ = trained(optimizer, share=False)
    losses, variables, found = trained(optimizer, share=True)
    gathers = [kind for kind in found if kind.startswith("all_") and kind != "all_reduce"]
    # a: its samples lie in shared I/O buffers, its product travels; of b both factors do; where all gradients are measured first, no factor does
    assert len(gathers) == 1 + (0 if optimizer == "clipped" else 3)
    np.testing.assert_allclose(losses, alone, rtol=1e-6)
    for name, value in variables.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_ranks_that_store_matrices_in_other_orders(fresh: None) -> None:
    """255 rows are stored column by column, 256 are not: all ranks must send factors in one order."""

    def losses(share: bool) -> list[Any]:
        flow.clear_default_session()
        flow.config.cpu_device_num(2)
        flow.config.share_variables(share)

        @flow.global_function(type="train")
        def job(x: tp.Numpy.Placeholder((511, 1200))) -> tp.Numpy:
            w = flow.get_variable("w", (1200, 300), initializer=flow.random_normal_initializer(stddev=0.02))
            loss = flow.math.reduce_mean(flow.math.square(flow.nn.relu(flow.matmul(x, w))), axis=[1])
            OPTIMIZERS["sgd"]().minimize(loss)
            return loss

        samples = np.random.default_rng(2).standard_normal((3, 511, 1200)).astype(np.float32)
        found = [job(x) for x in samples]
        world = current_session().world
        assert world is not None
        (executor,) = executors_of(world.ranks[0]).values()
        assert ("all_gather" in kinds(executor.plan)) == share
        return found

    for ours, theirs in zip(losses(True), losses(False), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
