"""Graphs as text: one line a node, the user's line behind it.  Passes are tested by comparing it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest

from jobflow.graph.ir import Graph, Node, Physical, Sharded, Value


def graph_text(graph: Graph) -> str:
    """The logical program."""
    return _text(graph, lambda value: str(value.tensor_type))


def sharded_text(sharded: Sharded) -> str:
    """The logical program with the layout of every value."""
    return _text(sharded.graph, lambda value: f"{value.tensor_type} {sharded.layouts[value]}")


def physical_text(physical: Physical) -> str:
    """The program with every change of layout as a node."""
    return _text(physical.graph, lambda value: f"{value.tensor_type} {physical.layouts[value]}")


def _text(graph: Graph, describe: Callable[[Value], str]) -> str:
    lines = [f"job {graph.name} on {graph.placement}"]
    lines.extend(f"  {_line(node, describe)}" for node in graph.nodes)
    if graph.outputs:
        lines.append(f"  return {', '.join(map(str, graph.outputs))}")
    lines.extend(f"  {name} <- {value}" for name, value in graph.updates.items())
    return "\n".join(lines)


def _line(node: Node, describe: Callable[[Value], str]) -> str:
    outputs = ", ".join(f"{value}: {describe(value)}" for value in node.outputs)
    return f"{outputs} = {node.op}({', '.join(map(str, node.inputs))})  # {node.where}"


def bare(line: str) -> str:
    """A step of a program without the line that asked for it."""
    return line.partition("  # ")[0].strip()


def first_difference(one: Sequence[str], other: Sequence[str]) -> tuple[str, str]:
    """The first steps in which the texts of two programs differ; if in none, the first lines of users that asked for them."""
    pairs = [(a.strip(), b.strip()) for a, b in zip_longest(one, other, fillvalue="nothing more") if a.strip() != b.strip()]
    return next((pair for pair in pairs if bare(pair[0]) != bare(pair[1])), pairs[0])
