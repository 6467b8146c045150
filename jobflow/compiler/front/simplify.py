"""Graph -> smaller graph: equal nodes are merged, and unused nodes and markers of user-defined gradients are removed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jobflow.core.types import Tensor
from jobflow.graph.ir import Graph, Node, Value
from jobflow.graph.rewrite import Rewriter, needed_nodes
from jobflow.ops.user_gradient import UserGradient


def simplify(graph: Graph) -> Graph:
    """Merge common subexpressions, then drop dead nodes."""
    return drop_dead(_Merging(graph).run())


class _Merging(Rewriter):
    """Common-subexpression elimination: nodes with equal ops, inputs and placements are replaced by the first."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.merged: dict[Any, tuple[Value, ...]] = {}

    def take(self, node: Node, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
        if isinstance(node.op, UserGradient):
            return tuple(node.op.results(inputs))
        if not node.op.pure or node.op.alias or node.op.external:
            return self.keep(node, inputs)
        key = _key(node, inputs)
        if key not in self.merged:
            self.merged[key] = self.keep(node, inputs)
        return self.merged[key]


def _key(node: Node, inputs: tuple[Value, ...]) -> Any:
    # repr distinguishes equal ops that contain zeros of different sign
    provenance = node.provenance
    attributes = (node.placement, provenance.stage, provenance.microbatch, provenance.region)
    return node.op, repr(node.op), inputs, attributes, node.outputs[0].local, node.outputs[0].tensor_type


def drop_dead(graph: Graph) -> Graph:
    """Remove nodes on which no output or update depends, except reads of written variables, which name the target of the write."""
    roots: list[Tensor] = [*graph.outputs, *graph.updates.values(), *(graph.reads[name] for name in graph.updates)]
    alive = needed_nodes(roots)
    inputs = tuple(value for value in graph.inputs if value.node in alive)
    reads = {name: value for name, value in graph.reads.items() if value.node in alive}
    return replace(graph, nodes=tuple(node for node in graph.nodes if node in alive), inputs=inputs, reads=reads)
