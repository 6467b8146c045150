"""Gradients travel together, in the order of their variables, behind everything else."""

from __future__ import annotations

from typing import Any

import pytest
from traced import distribute, first, trace, type_, variable

from jobflow.compiler import bucket as bucketing
from jobflow.compiler.box import Reroute
from jobflow.compiler.trace import Tracer
from jobflow.graph.ir import Graph
from jobflow.layout import S
from jobflow.ops.activation import relu
from jobflow.ops.linalg import bias_add, matmul
from jobflow.ops.reduce import reduce_sum
from jobflow.types import float64


def network(tracer: Tracer, widths: tuple[int, ...] = (4, 3, 5, 2)) -> Any:
    x = tracer.input("x", type_(6, widths[0]))
    for i, (inside, outside) in enumerate(zip(widths, widths[1:], strict=False)):
        x = relu(bias_add(matmul(x, variable(tracer, f"w{i}", inside, outside)), variable(tracer, f"b{i}", outside)))
    return x


def reduced(graph: Graph) -> list[list[str]]:
    """Per all_reduce, the variables whose gradients travel in it."""
    physical = distribute(graph)
    of = {value: node.inputs[0].name for node in physical.graph.nodes if node.op.alias for value in node.inputs}
    return [[of.get(value, value.name) for value in node.outputs] for node in physical.graph.nodes if isinstance(node.op, Reroute)]


def test_small_gradients_are_one_bucket_in_the_order_of_the_variables() -> None:
    assert reduced(trace(network, first(2), train=True)) == [["w0", "b0", "w1", "b1", "w2", "b2"]]


def test_buckets_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """48 + 12, 60 + 20, 40 + 8 bytes."""
    monkeypatch.setattr(bucketing, "LIMIT", 80)
    assert reduced(trace(network, first(2), train=True)) == [["w0", "b0"], ["w1", "b1"], ["w2", "b2"]]


def test_a_gradient_above_the_limit_travels_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucketing, "LIMIT", 30)
    assert reduced(trace(network, first(2), train=True)) == [["w0"], ["b0"], ["w1"], ["b1"], ["w2"], ["b2"]]


def test_element_types_do_not_mix() -> None:
    def body(tracer: Tracer) -> Any:
        x, y = tracer.input("x", type_(6, 4)), tracer.input("y", type_(6, 4, dtype=float64))
        product = relu(matmul(x, variable(tracer, "w", 4, 3)))
        return reduce_sum(product), matmul(y, variable(tracer, "v", 4, 3, dtype=float64))

    graph = trace(lambda t: body(t)[0], first(2), train=True)
    assert reduced(graph)[-1] == ["w"]


def test_split_variables_are_not_in_buckets() -> None:
    def body(tracer: Tracer) -> Any:
        x = relu(matmul(tracer.input("x", type_(6, 4)), variable(tracer, "w", 4, 4)))
        return matmul(x, variable(tracer, "v", 4, 2, sbp=S(1)))

    physical = distribute(trace(body, first(2), train=True))
    kinds = {node.op.name: [value.name for value in node.outputs] for node in physical.graph.nodes if isinstance(node.op, Reroute)}
    assert "reduce_scatter" in kinds and len(kinds["all_reduce"]) == 1


def test_sums_that_the_forward_pass_needs_stay_where_they_are() -> None:
    """A partial loss is summed for its reader, before the gradients exist."""

    def body(tracer: Tracer) -> Any:
        return relu(reduce_sum(network(tracer)))

    physical = distribute(trace(body, first(2), train=True))
    nodes = physical.graph.nodes
    sums = [(i, node) for i, node in enumerate(nodes) if isinstance(node.op, Reroute)]
    forward = next(i for i, node in enumerate(nodes) if node.op.word() == "relu" and node.outputs[0].type.shape == ())
    assert [len(node.inputs) for _, node in sums] == [1, 6]
    assert sums[0][0] < forward < sums[1][0]


def test_every_input_comes_before_its_use() -> None:
    seen = set()
    for node in distribute(trace(network, first(4), train=True)).graph.nodes:
        assert all(value in seen for value in node.inputs), node
        seen.update(node.outputs)


def test_one_rank_has_none() -> None:
    assert reduced(trace(network, first(1), train=True)) == []
