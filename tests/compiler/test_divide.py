"""Variables that ranks store once: who writes what, what travels for it, and that the numbers are those of a copy each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from traced import first, trace, type_, variable

import jobflow as flow
import jobflow.typing as tp
from jobflow.compiler.compile import distribute, plan_rank
from jobflow.compiler.front.trace import Tracer
from jobflow.engine.session import current_session
from jobflow.kernels.target import CPU
from jobflow.ops.elementwise import add
from jobflow.ops.matmul import matmul
from jobflow.ops.op import apply
from jobflow.ops.update import Assign
from jobflow.plan.plan import Collective, Compute, Plan
from jobflow.plan.storage import RankMemory, is_common, place_variables


def plans(body: Any, n: int, train: bool = True) -> list[Plan]:
    """The plans of n ranks that have memory in common."""
    physical = distribute(trace(body, first(n), train=train))
    variables = physical.graph.variables.values()
    return [plan_rank(physical, RankMemory(rank, place_variables(variables, rank, 0, tuple(range(n)))[0]), CPU) for rank in range(n)]


def written(plan: Plan) -> list[tuple[int, int]]:
    """The bytes of what is stored once that a rank writes."""
    slots = [slot for i in plan.epilogue if isinstance(i, Compute) for slot in i.outputs]
    return [(slot.offset, slot.stop) for slot in slots if is_common(slot.buffer)]


def layer(tracer: Tracer) -> Any:
    x = tracer.input("x", type_(6, 50))
    return add(matmul(x, variable(tracer, "w", 50, 20)), variable(tracer, "b", 20))


@pytest.mark.parametrize("n", [2, 3, 4])
def test_each_rank_receives_and_writes_its_piece(n: int) -> None:
    found = plans(layer, n)
    stretches = sorted(stretch for plan in found for stretch in written(plan))
    assert stretches[0][0] == 0 and stretches[-1][1] >= 4 * (50 * 20 + 20)
    assert all(a[1] == b[0] and a[1] % 64 == 0 for a, b in zip(stretches, stretches[1:], strict=False))
    kinds = [i.kind for i in found[0].instructions if isinstance(i, Collective)]
    assert kinds == ["reduce_scatter"]
    assert len({plan.schedule for plan in found}) == 1 and found[0].schedule[0].what == "reduce_scatter"


def test_other_writes_are_shared_out() -> None:
    def body(tracer: Tracer) -> Any:
        for name in "abc":
            old = variable(tracer, name, 4, 4, trainable=False)
            tracer.assign(name, apply(Assign(), old, tracer.input(f"new {name}", type_(4, 4), split=False)))
        return tracer.input("x", type_(2))

    found = plans(body, 2, train=False)
    assert sorted(stretch for plan in found for stretch in written(plan))[0][0] == 0
    assert all(written(plan) for plan in found)


# -------------------------------------------------------------------- numbers


X = np.random.RandomState(0).standard_normal((8, 12, 33)).astype(np.float32)
LABELS = np.random.RandomState(1).randint(0, 7, (8, 12)).astype(np.int32)
RATE = flow.optimizer.PiecewiseConstantScheduler([], [0.05])
OPTIMIZERS = {
    "sgd": lambda: flow.optimizer.SGD(RATE, momentum=0),
    "momentum": lambda: flow.optimizer.SGD(RATE, momentum=0.9),
    "clipped": lambda: flow.optimizer.AdamW(RATE, weight_decay=0.1, grad_clipping=flow.optimizer.grad_clipping.by_global_norm(0.5)),
    "lamb": lambda: flow.optimizer.LAMB(RATE),
    "lars": lambda: flow.optimizer.LARS(RATE),
}


def trained(devices: int, optimizer: str, share: bool) -> tuple[list[float], dict[str, Any], bool]:
    """Losses, variables, and whether anything was stored once."""
    flow.clear_default_session()
    flow.config.cpu_device_num(devices)
    flow.config.share_variables(share)

    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((12, 33)), labels: tp.Numpy.Placeholder((12,), dtype=flow.int32)) -> tp.Numpy:
        initializer = flow.random_normal_initializer(stddev=0.2)
        x = flow.layers.dense(x, 65, activation=flow.nn.relu, kernel_initializer=initializer, name="a")
        x = flow.layers.batch_normalization(x, axis=1, name="norm")
        x = flow.layers.dense(x, 7, kernel_initializer=initializer, name="b")
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, x)
        OPTIMIZERS[optimizer]().minimize(loss)
        return loss

    losses = [float(job(x, labels).mean()) for x, labels in zip(X, LABELS, strict=True)]
    world = current_session().world
    assert world is not None
    common = any(is_common(name) for name in world.ranks[0].memory["state"].buffers)
    return losses, {name: value.numpy() for name, value in flow.get_all_variables().items()}, common


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_numbers_are_those_of_a_copy_each(optimizer: str, fresh: None) -> None:
    alone, expected, common = trained(3, optimizer, share=False)
    assert not common
    losses, variables, common = trained(3, optimizer, share=True)
    assert common
    np.testing.assert_allclose(losses, alone, rtol=1e-6)
    for name, value in variables.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-7, err_msg=name)


def test_variables_are_written_and_exchanged(fresh: None) -> None:
    flow.config.cpu_device_num(3)

    @flow.global_function()
    def swap() -> tp.Numpy:
        a = flow.get_variable("a", (5, 7), initializer=flow.constant_initializer(1))
        b = flow.get_variable("b", (5, 7), initializer=flow.constant_initializer(2))
        flow.assign(a, b)
        flow.assign(b, a)
        return a

    for before in (1, 2, 1):
        np.testing.assert_array_equal(swap(), np.full((5, 7), before, np.float32))
    flow.load_variables({"a": np.full((5, 7), 9, np.float32)})
    np.testing.assert_array_equal(swap(), np.full((5, 7), 9, np.float32))
    values = {name: value.numpy()[0, 0] for name, value in flow.get_all_variables().items()}
    assert values == {"a": 1, "b": 9}
