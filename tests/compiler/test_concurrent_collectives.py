"""Collectives on a communication stream: where gradients are reduced, where ranks wait for the sums, and the memory in between."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from traced import distribute, first, trace, type_, variable

from jobflow.compiler.compile import ordered_program
from jobflow.compiler.front.trace import Tracer
from jobflow.compiler.layouts import bucket as bucketing
from jobflow.compiler.layouts.box import Reroute
from jobflow.compiler.rank.local import Collect, LocalInstruction, LocalValue, WaitFor
from jobflow.compiler.rank.memory import plan_memory
from jobflow.compiler.rank.order import Ordered
from jobflow.core.errors import PlanError
from jobflow.core.layout import B, S
from jobflow.kernels.target import Checks, target_of
from jobflow.ops.activation import Relu, relu
from jobflow.ops.layout_ops import to_layout
from jobflow.ops.matmul import MatMul, bias_add, matmul
from jobflow.ops.optimizer_updates import SgdUpdate
from jobflow.plan.plan import Collective, Completion, Compute, Plan
from jobflow.plan.storage import RankMemory, place_variables

GPU = target_of("gpu", "numpy")
#: bytes of the weight and the bias of a layer
LAYER = 80


def network(tracer: Tracer) -> Any:
    """Return the output of three layers with a weight and a bias each."""
    x = tracer.input("x", type_(6, 4))
    for i in range(3):
        x = relu(bias_add(matmul(x, variable(tracer, f"w{i}", 4, 4)), variable(tracer, f"b{i}", 4)))
    return x


def used_first_created_last(tracer: Tracer) -> Any:
    """Return the output of three layers; the weight of the first one is the last variable."""
    x = tracer.input("x", type_(6, 4))
    w1, w2, w0 = (variable(tracer, f"w{i}", 4, 4) for i in (1, 2, 0))
    for weight in (w0, w1, w2):
        x = relu(matmul(x, weight))
    return x


def stored_split(tracer: Tracer) -> Any:
    """Return the output of three layers whose weights are read whole and stored split."""
    x = tracer.input("x", type_(6, 4))
    for i in range(3):
        x = relu(matmul(x, to_layout(variable(tracer, f"w{i}", 4, 4, sbp=S(0)), B)))
    return x


def ordered(body: Any, limit: int, monkeypatch: pytest.MonkeyPatch, target: Any = GPU) -> Ordered:
    monkeypatch.setattr(bucketing, "STREAM_LIMIT", limit)
    graph = trace(body, first(2), train=True)
    slots, _ = place_variables(graph.variables.values(), 0)
    return ordered_program(distribute(graph, target), RankMemory(0, slots), target)


def plan_of(body: Any, limit: int, monkeypatch: pytest.MonkeyPatch, target: Any = GPU) -> Plan:
    return plan_memory(ordered(body, limit, monkeypatch, target))


def words(plan: Plan) -> list[str]:
    """Return one word per product, update, collective and wait."""
    result = []
    for instruction in plan.instructions:
        if isinstance(instruction, Collective | Completion):
            result.append(f"{'start' if isinstance(instruction, Collective) else 'wait'} {instruction.order}")
        elif isinstance(instruction, Compute) and isinstance(instruction.op, MatMul | SgdUpdate):
            result.append("update" if instruction.op.alias else "product")
    return result


def test_gradients_are_reduced_when_computed_and_awaited_by_their_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(network, LAYER, monkeypatch)
    forward = ["product"] * 3
    backward = ["product", "product", "start 0", "product", "product", "start 1", "product", "start 2"]
    assert words(plan) == [*forward, *backward, *(word for order in range(3) for word in (f"wait {order}", "update"))]
    collectives = [instruction for instruction in plan.body if isinstance(instruction, Collective)]
    assert all(each.concurrent and each.input.buffer == each.output.buffer and each.input.offset == each.output.offset for each in collectives)


def test_sums_are_complete_before_a_search_for_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(network, LAYER, monkeypatch, target_of("gpu", "numpy", checks=Checks(anomalies=True)))
    assert [each.concurrent for each in plan.instructions if isinstance(each, Collective | Completion)] == [False] * 3


def test_plans_of_cpus_reduce_gradients_after_the_last_product(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(network, LAYER, monkeypatch, target_of("cpu", "numpy"))
    assert words(plan) == [*["product"] * 8, "start 0", "update"]


@pytest.mark.parametrize(
    ("body", "limit", "expected"),
    [
        (network, 2 * LAYER, ["w1 b1 w2 b2", "w0 b0"]),
        (network, 3 * LAYER, ["w0 b0 w1 b1 w2 b2"]),
        (network, 1, ["b2", "w2", "b1", "w1", "b0", "w0"]),
        (used_first_created_last, 192, ["w1 w2 w0"]),
        (used_first_created_last, 31, ["w2", "w1", "w0"]),
    ],
)
def test_buckets_begin_at_the_last_variable(body: Any, limit: int, expected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert reduced(body, limit, monkeypatch) == expected


def test_gradients_computed_at_distant_times_are_in_different_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Expect no bucket of the last variable, whose gradient is complete last, and of the variable before, whose gradient is complete first."""
    monkeypatch.setattr(bucketing, "_nbytes", lambda node: 1)
    assert reduced(many_layers, 4, monkeypatch) == ["w6 w7 w8 w9", "w2 w3 w4 w5", "w1", "w0"]


def reduced(body: Any, limit: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return, per all_reduce, the variables whose gradients it sums."""
    monkeypatch.setattr(bucketing, "STREAM_LIMIT", limit)
    nodes = distribute(trace(body, first(2), train=True), GPU).graph.nodes
    of = {node.inputs[1]: node.inputs[0].name for node in nodes if node.op.alias and len(node.inputs) > 1}
    return [" ".join(of[value] for value in node.outputs) for node in nodes if isinstance(node.op, Reroute)]


def many_layers(tracer: Tracer) -> Any:
    """Return the output of ten layers; the weight of the first one is the last variable."""
    x = tracer.input("x", type_(6, 4))
    weights = [variable(tracer, f"w{i}", 4, 4) for i in (*range(1, 10), 0)]
    for weight in (weights[-1], *weights[:-1]):
        x = relu(matmul(x, weight))
    return x


def test_gathers_overlap_with_the_layer_before_and_sums_of_pieces_with_the_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    sequence = words(plan_of(stored_split, LAYER, monkeypatch))
    assert sequence[:8] == ["start 0", "start 1", "wait 0", "product", "start 2", "wait 1", "product", "wait 2"]
    assert sequence[8:].count("product") == 6 and sequence.index("start 3") < len(sequence) - 1 - sequence[::-1].index("product")


# -------------------------------------------------------------------- memory in transit


@pytest.mark.parametrize(
    ("reads", "message"),
    [("joined", "but another value has overwritten it"), ("partial", "but another value has overwritten it")],
    ids=["input", "output"],
)
def test_plans_that_access_memory_in_transit_raise(reads: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = ordered(network, LAYER, monkeypatch)
    at = next(i for i, step in enumerate(program.body) if isinstance(step.action, Collect))
    step = program.body[at]
    value = step.inputs[0] if reads == "joined" else step.outputs[0]
    reader = LocalInstruction(Relu(), (value,), (LocalValue(value.type, "early"),), "early")
    with pytest.raises(PlanError, match=message):
        plan_memory(replace(program, body=(*program.body[: at + 1], reader, *program.body[at + 1 :])))


def test_plans_without_a_wait_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    program = ordered(network, LAYER, monkeypatch)
    gone = next(step for step in program.epilogue if isinstance(step.action, WaitFor))
    steps = tuple(
        replace(step, inputs=tuple(gone.inputs[-1] if value is gone.outputs[0] else value for value in step.inputs))
        for step in program.epilogue
        if step is not gone
    )
    with pytest.raises(PlanError, match=r"another value has overwritten it|has no wait for its completion"):
        plan_memory(replace(program, epilogue=steps))
