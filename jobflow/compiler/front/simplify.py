"""Graph -> smaller graph with the same meaning: equal nodes become one, and what nobody reads is dropped."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jobflow.core.types import Tensor
from jobflow.graph.ir import Graph, Node, Value
from jobflow.graph.rewrite import needed_nodes, rebuild


def simplify(graph: Graph) -> Graph:
    """Merge common subexpressions, then drop dead nodes."""
    return drop_dead(merge_equal(graph))


def merge_equal(graph: Graph) -> Graph:
    """Nodes with equal ops, equal inputs and equal places compute the same: keep the first."""
    seen: dict[Any, tuple[Value, ...]] = {}

    def rewrite(node: Node, inputs: tuple[Value, ...]) -> tuple[Value, ...] | None:
        return seen.get(_key(node, inputs)) if _mergeable(node) else None

    def made(node: Node) -> None:
        if _mergeable(node):
            seen[_key(node, node.inputs)] = node.outputs

    return rebuild(graph, rewrite, made)


def _mergeable(node: Node) -> bool:
    return node.op.pure and not node.op.alias and not node.op.external


def _key(node: Node, inputs: tuple[Value, ...]) -> Any:
    # ops that are equal but print differently hold zeros of different sign
    origin = node.origin
    place = (node.placement, origin.stage, origin.microbatch, origin.region)
    return node.op, repr(node.op), inputs, place, node.outputs[0].local, node.outputs[0].type


def drop_dead(graph: Graph) -> Graph:
    """Keep what outputs and updates depend on, and the reads of variables that are written: they say where to."""
    roots: list[Tensor] = [*graph.outputs, *graph.updates.values(), *(graph.reads[name] for name in graph.updates)]
    alive = needed_nodes(roots)
    inputs = tuple(value for value in graph.inputs if value.node in alive)
    reads = {name: value for name, value in graph.reads.items() if value.node in alive}
    return replace(graph, nodes=tuple(node for node in graph.nodes if node in alive), inputs=inputs, reads=reads)
