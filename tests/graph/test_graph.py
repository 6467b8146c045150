"""Graphs: how they print, how they are rewritten, and how they travel between processes."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from traced import distribute, first, text, trace, type_, variable

from jobflow.compiler.front.trace import Tracer
from jobflow.compiler.layouts.shard import shard
from jobflow.core.layout import S
from jobflow.graph.ir import Node, Value
from jobflow.graph.rewrite import consumers, copy_node, needed_nodes, rebuild
from jobflow.graph.text import graph_text, physical_text, sharded_text
from jobflow.graph.wire import graph_from_wire, graph_to_wire, physical_from_wire, physical_to_wire
from jobflow.ops.activation import relu, tanh
from jobflow.ops.arithmetic import add
from jobflow.ops.linalg import matmul


def body(tracer: Tracer) -> Any:
    x = tracer.input("x", type_(6, 4))
    return relu(matmul(x, variable(tracer, "w", 4, 2, sbp=S(1)))), tanh(x)


# -------------------------------------------------------------------- text


def test_a_line_is_a_node_with_the_users_line() -> None:
    line = body.__code__.co_firstlineno
    assert graph_text(trace(body, first(2))).splitlines()[3:] == [
        f"  %matmul_0: float32[6,2] = MatMul()(%x, %w)  # test_graph.py:{line + 2}",
        f"  %relu_0: float32[6,2] = Relu()(%matmul_0)  # test_graph.py:{line + 2}",
        f"  %tanh_0: float32[6,4] = Tanh()(%x)  # test_graph.py:{line + 2}",
        "  return %relu_0, %tanh_0",
    ]


def test_layouts_stand_behind_types() -> None:
    graph = trace(body, first(2))
    assert "  %matmul_0: float32[6,2] cpu[0-1]:S(1) = MatMul()(%x, %w)  #" in sharded_text(shard(graph))
    assert "  %x:B: float32[6,4] cpu[0-1]:B = all_gather[cpu[0-1]:S(0) -> cpu[0-1]:B](%x)  #" in physical_text(distribute(graph))


# -------------------------------------------------------------------- values


def test_values_are_compared_by_identity() -> None:
    """Also while a job is traced, where handles compare elements."""
    seen: list[bool] = []

    def comparing(tracer: Tracer) -> Any:
        a, b = body(tracer)
        seen.extend((a == a, a == b, a != b, a in (b, a)))
        return a, b

    a, b = trace(comparing, first(2)).outputs
    assert seen == [True, False, True, True]
    assert a == a and a != b and len({a, b}) == 2
    assert (str(a), repr(a)) == ("%relu_0", "<tensor relu_0 float32[6,2]>")


# -------------------------------------------------------------------- rewriting


def test_rebuilding_leaves_the_graph_it_was_given() -> None:
    graph = trace(lambda t: body(t)[0], first(2), train=True)
    before, nodes = text(graph), graph.nodes
    again = rebuild(graph, lambda node, inputs: None)
    assert text(again) == before == text(graph)
    assert graph.nodes is nodes and not set(again.nodes) & set(nodes)
    assert set(again.values()).isdisjoint(graph.values())


def test_nodes_may_be_replaced_by_values() -> None:
    """Without its relu, the graph returns what the relu read."""

    def drop(node: Node, inputs: tuple[Value, ...]) -> tuple[Value, ...] | None:
        return inputs if node.op.word() == "relu" else None

    assert text(rebuild(trace(body), drop)).endswith("  return %matmul_0, %tanh_0\n")


def test_readers_and_needs() -> None:
    graph = trace(lambda t: add(*2 * (relu(t.input("x", type_(2))),)))
    x, y, z = (node.outputs[0] for node in graph.nodes)
    assert {value.name: [n.name for n in nodes] for value, nodes in consumers(graph).items()} == {"x": ["relu_0"], "relu_0": ["add_0"], "add_0": []}
    assert needed_nodes([y]) == {x.node, y.node} and needed_nodes([z]) == set(graph.nodes)


def test_a_copied_node_has_values_of_its_own() -> None:
    node = trace(body).nodes[-1]
    fresh = copy_node(node, node.inputs)
    assert (str(fresh), fresh.where, fresh.phase) == (str(node), node.where, node.phase)
    assert fresh.outputs[0] is not node.outputs[0] and fresh.outputs[0].node is fresh


# -------------------------------------------------------------------- between processes


@pytest.mark.parametrize("train", [False, True])
def test_a_graph_travels(train: bool) -> None:
    graph = trace(body if not train else lambda t: body(t)[0], first(2), train=train)
    back = graph_from_wire(pickle.loads(pickle.dumps(graph_to_wire(graph))))
    assert graph_text(back) == graph_text(graph)
    assert back.variables == graph.variables
    assert (list(back.reads), [v.name for v in back.inputs]) == (list(graph.reads), [v.name for v in graph.inputs])


def test_a_physical_graph_travels() -> None:
    physical = distribute(trace(lambda t: body(t)[0], first(2), train=True))
    assert physical_text(physical_from_wire(pickle.loads(pickle.dumps(physical_to_wire(physical))))) == physical_text(physical)


def test_a_long_chain_travels() -> None:
    """As a table, not as a recursion along the chain."""

    def chain(tracer: Tracer) -> Any:
        x = tracer.input("x", type_(2))
        for i in range(3000):
            x = relu(x) if i % 2 else tanh(x)
        return x

    graph = trace(chain)
    assert len(graph_from_wire(pickle.loads(pickle.dumps(graph_to_wire(graph)))).nodes) == 3001
