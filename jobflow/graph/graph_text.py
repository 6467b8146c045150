"""Graphs as text: one line per node, which ends in a comment with the user's line.  Tests of compiler passes compare this text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest

from jobflow.graph.ir import Graph, Node, Physical, Sharded, Value


def graph_text(graph: Graph) -> str:
    """Return the text of a logical program."""
    return _text(graph, lambda value: str(value.tensor_type))


def sharded_text(sharded: Sharded) -> str:
    """Return the text of a logical program with the layout of every value."""
    return _text(sharded.graph, lambda value: f"{value.tensor_type} {sharded.layouts[value]}")


def physical_text(physical: Physical) -> str:
    """Return the text of a program with every layout change as a node."""
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
    """Return a line of a program text without its end, the comment with the user's line."""
    return line.partition("  # ")[0].strip()


def first_difference(one: Sequence[str], other: Sequence[str]) -> tuple[str, str]:
    """Return the first pair of lines in which two different program texts differ, apart from user lines.

    If only user lines differ, return the first pair with different user lines.  A text that ends early continues with "nothing more".
    """
    pairs = [(a.strip(), b.strip()) for a, b in zip_longest(one, other, fillvalue="nothing more") if a.strip() != b.strip()]
    return next((pair for pair in pairs if bare(pair[0]) != bare(pair[1])), pairs[0])
