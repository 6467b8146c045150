"""Walking graphs and building changed ones.  Nothing here mutates a graph it is given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from jobflow.graph.ir import Graph, Node, Value

#: What to use instead of a node, given its rewritten inputs; None keeps the node.
Rewrite = Callable[[Node, tuple[Value, ...]], Sequence[Value] | None]


def copy_node(node: Node, inputs: tuple[Value, ...]) -> Node:
    """The same application on other inputs, with values of its own."""
    fresh = Node(node.op, inputs, (), node.name, node.placement, node.origin)
    fresh.outputs = tuple(Value(v.type, fresh, v.index, v.name, v.local) for v in node.outputs)
    return fresh


def rebuild(graph: Graph, rewrite: Rewrite, made: Callable[[Node], None] = lambda node: None) -> Graph:
    """A copy of the graph in which `rewrite` has replaced nodes; `made` sees every node that is kept."""
    now: dict[Value, Value] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        inputs = tuple(now[value] for value in node.inputs)
        outputs = rewrite(node, inputs)
        if outputs is None:
            fresh = copy_node(node, inputs)
            nodes.append(fresh)
            made(fresh)
            outputs = fresh.outputs
        now.update(zip(node.outputs, outputs, strict=True))
    return with_values(graph, nodes, now)


def with_values(graph: Graph, nodes: Sequence[Node], now: dict[Value, Value]) -> Graph:
    """The graph with other nodes, its inputs, outputs, reads and updates mapped to what they are `now`."""
    return replace(
        graph,
        nodes=tuple(nodes),
        inputs=tuple(now[value] for value in graph.inputs),
        outputs=tuple(now[value] for value in graph.outputs),
        reads={name: now[value] for name, value in graph.reads.items()},
        updates={name: now[value] for name, value in graph.updates.items()},
    )


def needed_nodes(roots: Iterable[Any]) -> set[Node]:
    """Every node some root depends on."""
    alive: set[Node] = set()
    stack = [value.node for value in roots]
    while stack:
        node = stack.pop()
        if node not in alive:
            alive.add(node)
            stack.extend(value.node for value in node.inputs)
    return alive


def consumers(graph: Graph) -> dict[Value, list[Node]]:
    """Who reads each value, in program order."""
    found: dict[Value, list[Node]] = {value: [] for value in graph.values()}
    for node in graph.nodes:
        for value in dict.fromkeys(node.inputs):
            found[value].append(node)
    return found
