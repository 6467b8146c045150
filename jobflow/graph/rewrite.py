"""Graph rewriting: a pass walks a graph and builds a new one.

A pass is a `Rewriter` whose `take` returns the replacements of a node's outputs:

    class Doubling(Rewriter):
        def take(self, node, inputs):
            outputs = self.keep(node, inputs)                                          # the node with its new inputs
            return self.keep(node, inputs, name="again") if repeated else outputs     # or other nodes, or none

    graph = Doubling(graph).run()
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from jobflow.core.layout import Placement
from jobflow.graph.ir import Graph, Node, Output, Provenance, Value
from jobflow.ops.op import Op

#: A function from a node and the replacements of its inputs to the replacements of its outputs.
Take = Callable[[Node, tuple[Value, ...]], Sequence[Value]]


def outputs_of(node: Node) -> tuple[Output, ...]:
    """Return type, name and view of each output of a node, in the format of the argument `makes` of `Node`."""
    return tuple([(value.tensor_type, value.name, value.local) for value in node.outputs])


def changed(
    node: Node,
    inputs: tuple[Value, ...],
    *,
    op: Op | None = None,
    makes: Sequence[Output] | None = None,
    name: str | None = None,
    placement: Placement | None = None,
    provenance: Provenance | None = None,
) -> Node:
    """Return a copy of the node with other inputs and, if passed, another op, outputs, name, placement or provenance.

    Return the same node if nothing changes.
    """
    same = op is None and makes is None and name is None and placement is None and provenance is None
    if same and inputs == node.inputs:
        return node
    return Node(
        op or node.op,
        inputs,
        outputs_of(node) if makes is None else makes,
        name or node.name,
        placement or node.placement,
        provenance or node.provenance,
    )


class Rewriter:
    """Base class of passes that build a graph from another one."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        #: the nodes of the new graph
        self.nodes: list[Node] = []
        #: the replacement of each value of the old graph
        self.now: dict[Value, Value] = {}

    def take(self, node: Node, inputs: tuple[Value, ...]) -> Sequence[Value]:
        """Return the replacements of the node's outputs; `inputs` are the replacements of its inputs.

        By default, the new graph has the same node with these inputs.
        """
        return self.keep(node, inputs)

    def keep(self, node: Node, inputs: tuple[Value, ...], **changes: Any) -> tuple[Value, ...]:
        """Add the node with these inputs and the changes that `changed` accepts; return its outputs."""
        return self.add(changed(node, inputs, **changes) if changes or inputs != node.inputs else node)

    def add(self, node: Node) -> tuple[Value, ...]:
        """Add a node to the new graph; return its outputs."""
        self.nodes.append(node)
        return node.outputs

    def walk(self, nodes: Iterable[Node]) -> None:
        """Rewrite these nodes of the graph in order."""
        walk(nodes, self.take, self.now)

    def stay(self, nodes: Iterable[Node]) -> None:
        """Add nodes of the old graph, whose inputs are unchanged, to the new graph."""
        for node in nodes:
            self.nodes.append(node)
            self.now.update(zip(node.outputs, node.outputs, strict=True))

    def run(self) -> Graph:
        """Rewrite all nodes and return the new graph."""
        self.walk(self.graph.nodes)
        return self.rebuilt()

    def rebuilt(self) -> Graph:
        """Return the graph of the new nodes, with inputs, outputs, reads and updates replaced."""
        return with_values(self.graph, self.nodes, self.now)


def walk(nodes: Iterable[Node], take: Take, now: dict[Value, Value]) -> None:
    """Call `take` for each node in order, and record the replacements of its outputs in `now`."""
    for node in nodes:
        now.update(zip(node.outputs, take(node, tuple([now[value] for value in node.inputs])), strict=True))


def with_values(graph: Graph, nodes: Sequence[Node], now: Mapping[Value, Value]) -> Graph:
    """Return a copy of the graph with other `nodes`; `now` maps the values of its inputs, outputs, reads and updates to replacements."""
    return replace(
        graph,
        nodes=tuple(nodes),
        inputs=tuple(now[value] for value in graph.inputs),
        outputs=tuple(now[value] for value in graph.outputs),
        reads={name: now[value] for name, value in graph.reads.items()},
        updates={name: now[value] for name, value in graph.updates.items()},
    )


def needed_nodes(roots: Iterable[Any]) -> set[Node]:
    """Return the producers of the values `roots`, and all nodes that these producers depend on."""
    alive: set[Node] = set()
    stack = [value.node for value in roots]
    while stack:
        node = stack.pop()
        if node not in alive:
            alive.add(node)
            stack.extend(value.node for value in node.inputs)
    return alive


def consumers(graph: Graph) -> dict[Value, list[Node]]:
    """Map each value of the graph to the nodes that read the value, in program order."""
    readers: dict[Value, list[Node]] = {value: [] for value in graph.values()}
    for node in graph.nodes:
        for value in dict.fromkeys(node.inputs):
            readers[value].append(node)
    return readers
