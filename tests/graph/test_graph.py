"""Graphs: their text, rewriting, and pickling."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest
from traced import distribute, first, text, trace, type_, variable

from jobflow.compiler.front.trace import Tracer
from jobflow.compiler.layouts.shard import shard
from jobflow.core.layout import S
from jobflow.graph.graph_text import graph_text, physical_text, sharded_text
from jobflow.graph.ir import Node, Value
from jobflow.graph.rewrite import Rewriter, changed, consumers, needed_nodes
from jobflow.graph.wire import graph_from_wire, graph_to_wire, physical_from_wire, physical_to_wire
from jobflow.ops.activation import relu, tanh
from jobflow.ops.arithmetic import add
from jobflow.ops.matmul import matmul


def body(tracer: Tracer) -> Any:
    x = tracer.input("x", type_(6, 4))
    return relu(matmul(x, variable(tracer, "w", 4, 2, sbp=S(1)))), tanh(x)


# -------------------------------------------------------------------- text


def test_graph_text_has_a_line_per_node_with_the_users_line() -> None:
    line = body.__code__.co_firstlineno
    assert graph_text(trace(body, first(2))).splitlines()[3:] == [
        f"  %matmul_0: float32[6,2] = MatMul()(%x, %w)  # test_graph.py:{line + 2}",
        f"  %relu_0: float32[6,2] = Relu()(%matmul_0)  # test_graph.py:{line + 2}",
        f"  %tanh_0: float32[6,4] = Tanh()(%x)  # test_graph.py:{line + 2}",
        "  return %relu_0, %tanh_0",
    ]


def test_sharded_text_prints_layouts_after_types() -> None:
    graph = trace(body, first(2))
    assert "  %matmul_0: float32[6,2] cpu[0-1]:S(1) = MatMul()(%x, %w)  #" in sharded_text(shard(graph))
    assert "  %x:B: float32[6,4] cpu[0-1]:B = all_gather[cpu[0-1]:S(0) -> cpu[0-1]:B](%x)  #" in physical_text(distribute(graph))


# -------------------------------------------------------------------- values


def test_values_are_compared_by_identity() -> None:
    """This also holds during a trace, where `==` of tensors compares elements."""
    comparisons: list[bool] = []

    def comparing(tracer: Tracer) -> Any:
        a, b = body(tracer)
        comparisons.extend((a == a, a == b, a != b, a in (b, a)))
        return a, b

    a, b = trace(comparing, first(2)).outputs
    assert comparisons == [True, False, True, True]
    assert a == a and a != b and len({a, b}) == 2
    assert (str(a), repr(a)) == ("%relu_0", "<tensor relu_0 float32[6,2]>")


# -------------------------------------------------------------------- rewriting


def test_values_and_nodes_are_frozen() -> None:
    (value, _), node = trace(body).outputs, trace(body).nodes[-1]
    for whole in (value, node):
        for each in fields(whole):
            with pytest.raises(FrozenInstanceError, match=each.name):
                setattr(whole, each.name, getattr(whole, each.name))
            with pytest.raises(FrozenInstanceError, match=each.name):
                delattr(whole, each.name)
    assert node.outputs[0].node is node and all(value in value.node.outputs for value in node.inputs)


def test_rewriting_keeps_unchanged_nodes() -> None:
    graph = trace(lambda t: body(t)[0], first(2), train=True)
    again = Rewriter(graph).run()
    assert again is not graph and again == graph


class Dropping(Rewriter):
    """A rewriter that drops one kind of op and renames another."""

    def take(self, node: Node, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
        if node.op.word() == "relu":
            return inputs
        return self.keep(node, inputs, name="product") if node.op.word() == "matmul" else self.keep(node, inputs)


def test_a_rewriter_replaces_nodes() -> None:
    """Without its relu, the graph returns the input of the relu; nodes with unchanged inputs stay the same."""
    graph = trace(body)
    before = text(graph)
    rewritten = Dropping(graph).run()
    assert text(rewritten).endswith("  return %matmul_0, %tanh_0\n") and [node.name for node in rewritten.nodes] == ["x", "w", "product", "tanh_0"]
    assert [node in graph.nodes for node in rewritten.nodes] == [True, True, False, True]
    assert text(graph) == before and graph.nodes[2].name == "matmul_0"


def test_consumers_and_needed_nodes() -> None:
    graph = trace(lambda t: add(*2 * (relu(t.input("x", type_(2))),)))
    x, y, z = (node.outputs[0] for node in graph.nodes)
    assert {value.name: [n.name for n in nodes] for value, nodes in consumers(graph).items()} == {"x": ["relu_0"], "relu_0": ["add_0"], "add_0": []}
    assert needed_nodes([y]) == {x.node, y.node} and needed_nodes([z]) == set(graph.nodes)


def test_a_changed_node_has_new_values() -> None:
    node = trace(body).nodes[-1]
    fresh = changed(node, node.inputs, name="other")
    assert (str(fresh), fresh.where, fresh.phase, fresh.name) == (str(node), node.where, node.phase, "other")
    assert fresh.outputs[0] is not node.outputs[0] and fresh.outputs[0].node is fresh
    assert changed(node, node.inputs) is node


# -------------------------------------------------------------------- between processes


@pytest.mark.parametrize("train", [False, True])
def test_graphs_are_pickled(train: bool) -> None:
    graph = trace(body if not train else lambda t: body(t)[0], first(2), train=train)
    back = graph_from_wire(pickle.loads(pickle.dumps(graph_to_wire(graph))))
    assert graph_text(back) == graph_text(graph)
    assert back.variables == graph.variables
    assert (list(back.reads), [v.name for v in back.inputs]) == (list(graph.reads), [v.name for v in graph.inputs])


def test_physical_graphs_are_pickled() -> None:
    physical = distribute(trace(lambda t: body(t)[0], first(2), train=True))
    assert physical_text(physical_from_wire(pickle.loads(pickle.dumps(physical_to_wire(physical))))) == physical_text(physical)


def test_long_chains_are_pickled() -> None:
    """The graph is pickled as a table, without recursion along the chain."""

    def chain(tracer: Tracer) -> Any:
        x = tracer.input("x", type_(2))
        for i in range(3000):
            x = relu(x) if i % 2 else tanh(x)
        return x

    graph = trace(chain)
    assert len(graph_from_wire(pickle.loads(pickle.dumps(graph_to_wire(graph)))).nodes) == 3001
