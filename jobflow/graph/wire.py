"""Conversion of graphs to tables of nodes, which pickle without recursion, and back."""

from __future__ import annotations

from typing import Any

from jobflow.graph.ir import Graph, Node, Physical, Value
from jobflow.graph.rewrite import outputs_of

Wire = tuple[Any, ...]


def graph_to_wire(graph: Graph) -> Wire:
    """Return the graph as a tuple of its fields; nodes refer to values by number, counted over all outputs in program order."""
    number = {value: i for i, value in enumerate(graph.values())}
    nodes = [
        (
            node.op,
            tuple(number[v] for v in node.inputs),
            outputs_of(node),
            node.name,
            node.placement,
            node.provenance,
        )
        for node in graph.nodes
    ]
    return (
        graph.name,
        graph.placement,
        nodes,
        [number[v] for v in graph.inputs],
        [number[v] for v in graph.outputs],
        dict(graph.variables),
        {name: number[v] for name, v in graph.reads.items()},
        {name: number[v] for name, v in graph.updates.items()},
        graph.rows,
    )


def graph_from_wire(wire: Wire) -> Graph:
    """Return the graph that `graph_to_wire` converted to `wire`."""
    name, placement, rows, inputs, outputs, variables, reads, updates, lengths = wire
    nodes: list[Node] = []
    values: list[Value] = []
    for op, sources, specs, label, placed, provenance in rows:
        node = Node(op, tuple(values[i] for i in sources), specs, label, placed, provenance)
        values.extend(node.outputs)
        nodes.append(node)
    return Graph(
        name,
        placement,
        tuple(nodes),
        tuple(values[i] for i in inputs),
        tuple(values[i] for i in outputs),
        variables,
        {key: values[i] for key, i in reads.items()},
        {key: values[i] for key, i in updates.items()},
        rows=lengths,
    )


def physical_to_wire(physical: Physical) -> Wire:
    return graph_to_wire(physical.graph), [physical.layouts[value] for value in physical.graph.values()]


def physical_from_wire(wire: Wire) -> Physical:
    graph = graph_from_wire(wire[0])
    return Physical(graph, dict(zip(graph.values(), wire[1], strict=True)))
