"""The modules of a graph: nodes grouped by the parameters that they read.

A graph stores no modules.  A parameter's name contains its module: `net.h.0.fc1.weight` belongs to `net.h.0.fc1`.  A node between the nodes of
two modules belongs to their common ancestor, because a module's nodes are consecutive.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from itertools import takewhile

from jobflow.compiler.layouts.box import Reroute
from jobflow.core.dataclass import dataclass
from jobflow.graph.ir import Graph, Node, Phase, Value
from jobflow.graph.rewrite import consumers
from jobflow.ops.source import Input, ReadVariable

#: The components of a module's name: ("net", "h", "0", "fc1").  () is the program itself.
ModulePath = tuple[str, ...]


@dataclass(eq=False)
class Band:
    """Consecutive nodes of one module in the forward pass, with the nodes of the other phases that belong to them.

    The nodes of the backward pass compute the gradients of the band; the nodes of the update write its variables.
    """

    path: ModulePath
    nodes: dict[Phase, list[Node]] = field(default_factory=lambda: {"forward": [], "backward": [], "update": []})


def bands(graph: Graph) -> list[Band]:
    """Return the bands of a graph in the order of the forward pass.

    Nodes that belong to several bands are in one more band, the last one.
    """
    readers = consumers(graph)
    forward = [node for node in graph.nodes if node.phase == "forward"]
    result: list[Band] = []
    band_of: dict[Node, Band] = {}
    for node, path in zip(forward, _paths(forward, readers), strict=True):
        if not result or result[-1].path != path:
            result.append(Band(path))
        result[-1].nodes["forward"].append(node)
        band_of[node] = result[-1]
    last = Band(())
    named = {name: band for node, band in reversed(band_of.items()) for name in (node.name, *(value.name for value in node.outputs))}
    for node in graph.nodes:
        if node.phase == "backward":
            band_of[node] = _derived(node, named) or next((band_of[value.node] for value in node.inputs if value.node in band_of), last)
    written = {value.node: named.get(name) for name, value in graph.updates.items()}
    for node in reversed(graph.nodes):
        if node.phase == "update":
            after = {band_of[reader] for value in node.outputs for reader in readers[value]}
            band_of[node] = written.get(node) or (after.pop() if len(after) == 1 else last)
    for node in graph.nodes:
        if node.phase != "forward":
            band_of[node].nodes[node.phase].append(node)
    return [*result, last] if any(last.nodes.values()) else result


def _derived(node: Node, named: Mapping[str, Band]) -> Band | None:
    """Return the band of the forward node whose gradient the node computes: its name starts with the name of that node."""
    name = node.name.partition(":")[0]
    while name not in named and "." in name:
        name = name.rpartition(".")[0]
    return named.get(name)


def _paths(forward: Sequence[Node], readers: Mapping[Value, Sequence[Node]]) -> list[ModulePath]:
    """Return the module of each node of the forward pass."""
    modules = {module_of(node.op.key) for node in forward if isinstance(node.op, ReadVariable)}
    known: list[ModulePath | None] = [_own(node, modules, readers) for node in forward]
    after: list[ModulePath] = []
    following: ModulePath = ()
    for path in reversed(known):
        following = following if path is None else path
        after.append(following)
    result: list[ModulePath] = []
    before: ModulePath = ()
    for path, following in zip(known, reversed(after), strict=True):
        before = before if path is None else path
        result.append(_common(before, following) if path is None else path)
    return result


def _own(node: Node, modules: set[ModulePath], readers: Mapping[Value, Sequence[Node]]) -> ModulePath | None:
    """Return the module that the node's variables or name state, or None."""
    if isinstance(node.op, Input):
        return ()
    if isinstance(node.op, ReadVariable):
        return module_of(node.op.key)
    if isinstance(node.op, Reroute):
        return None  # its name is the name of its input, perhaps of an earlier module
    for value in node.inputs:
        if isinstance(value.node.op, ReadVariable) and len(readers[value]) == 1:
            return module_of(value.node.op.key)
    named = module_of(node.name)
    return named if named and named in modules else None


def module_of(variable: str) -> ModulePath:
    """Return the path of the module that owns a variable: all components of its name except the last.

    >>> module_of("net.h.0.fc1.weight")
    ('net', 'h', '0', 'fc1')
    """
    return tuple(part for part in re.split(r"[./-]", variable)[:-1] if part)


def _common(a: ModulePath, b: ModulePath) -> ModulePath:
    return tuple(part for part, _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))
