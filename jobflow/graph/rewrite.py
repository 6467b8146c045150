"""Rewriting graphs: a pass walks a graph and builds a new one.

A pass is a `Rewriter` whose `take` says what stands for the outputs of a node:

    class Doubling(Rewriter):
        def take(self, node, inputs):
            made = self.keep(node, inputs)                                       # the node, on what its inputs are now
            return self.keep(node, inputs, name="again") if wanted else made     # or another one, several, or none

    graph = Doubling(graph).run()
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from jobflow.core.layout import Placement
from jobflow.graph.ir import Graph, Node, Origin, Output, Value
from jobflow.ops.op import Op

#: What stands for the outputs of a node, given what stands for its inputs.
Take = Callable[[Node, tuple[Value, ...]], Sequence[Value]]


def made_by(node: Node) -> tuple[Output, ...]:
    """What a node makes."""
    return tuple([(value.tensor_type, value.name, value.local) for value in node.outputs])


def changed(
    node: Node,
    inputs: tuple[Value, ...],
    *,
    op: Op | None = None,
    makes: Sequence[Output] | None = None,
    name: str | None = None,
    placement: Placement | None = None,
    origin: Origin | None = None,
) -> Node:
    """The application of a node on other inputs, with another op, other outputs, another name, place or origin, where given.

    The node itself if nothing is another.
    """
    same = op is None and makes is None and name is None and placement is None and origin is None
    if same and inputs == node.inputs:
        return node
    return Node(
        op or node.op,
        inputs,
        made_by(node) if makes is None else makes,
        name or node.name,
        placement or node.placement,
        origin or node.origin,
    )


class Rewriter:
    """Builds a graph from another one."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        #: those of the new graph
        self.nodes: list[Node] = []
        #: what stands for each value of the graph that is walked
        self.now: dict[Value, Value] = {}

    def take(self, node: Node, inputs: tuple[Value, ...]) -> Sequence[Value]:
        """What stands for the outputs of a node, given what stands for its inputs."""
        return self.keep(node, inputs)

    def keep(self, node: Node, inputs: tuple[Value, ...], **changes: Any) -> tuple[Value, ...]:
        """The node on these inputs, with the changes that `changed` takes; its outputs."""
        return self.add(changed(node, inputs, **changes) if changes or inputs != node.inputs else node)

    def add(self, node: Node) -> tuple[Value, ...]:
        """One more node; its outputs."""
        self.nodes.append(node)
        return node.outputs

    def walk(self, nodes: Iterable[Node]) -> None:
        """Take some nodes of the graph, one after another."""
        walk(nodes, self.take, self.now)

    def stay(self, nodes: Iterable[Node]) -> None:
        """Some nodes of the graph as they are, reading what stays too."""
        for node in nodes:
            self.nodes.append(node)
            self.now.update(zip(node.outputs, node.outputs, strict=True))

    def run(self) -> Graph:
        """The new graph."""
        self.walk(self.graph.nodes)
        return self.rebuilt()

    def rebuilt(self) -> Graph:
        """The graph of the nodes there are, its inputs, outputs, reads and updates being what stands for them."""
        return with_values(self.graph, self.nodes, self.now)


def walk(nodes: Iterable[Node], take: Take, now: dict[Value, Value]) -> None:
    """Enter into `now` what `take` says stands for the outputs of nodes."""
    for node in nodes:
        now.update(zip(node.outputs, take(node, tuple([now[value] for value in node.inputs])), strict=True))


def with_values(graph: Graph, nodes: Sequence[Node], now: Mapping[Value, Value]) -> Graph:
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
