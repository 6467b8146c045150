"""Graph -> the same with the values of regions made again where the backward pass needs them, instead of being kept until then.

Policy.  A region is what one `checkpointing` scope of the program holds (`Origin.region`), per microbatch.  Those of its values that
the backward pass reads are made a second time right before the first of these readers, from values that are kept anyway: what the
region reads from outside, results of the job, and what another region starts from.  So between the passes only the inputs of regions
stay, and of one region at a time all of it: for a chain of n equal layers in regions of sqrt(n) layers each, memory for about
2 sqrt(n) of them, at the price of a second forward pass.

Random ops draw the same numbers the second time, for these are a function of keys and the run counter.  What writes a variable is not
repeated.  The copies carry the region's number inverted, so that they are never taken for the nodes they repeat.

Example, one region {a, b} in  x -> a -> b -> loss:  a' = a(x) and, if the gradient of the loss or of b needs it, b' = b(a') stand
before the first of these gradients.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from jobflow.graph.ir import Graph, Node, Value
from jobflow.graph.rewrite import copy_node, with_values

#: A region of one microbatch.
Key = tuple[int, int | None]


@dataclass
class Region:
    """One region as it will be repeated."""

    #: forward nodes that may be repeated, in order
    nodes: list[Node] = field(default_factory=list)
    #: what the backward pass reads of it, and who reads first
    read: list[Value] = field(default_factory=list)
    first: Node | None = None
    #: those of `nodes` that are repeated
    again: list[Node] = field(default_factory=list)


def recompute(graph: Graph) -> Graph:
    """Repeat what must be repeated; a graph without regions stays as it is."""
    regions = _regions(graph)
    _choose(graph, regions)
    starts: dict[Node, list[Region]] = {}
    for region in regions:
        if region.again and region.first is not None:
            starts.setdefault(region.first, []).append(region)
    return _repeated(graph, starts) if starts else graph


def _regions(graph: Graph) -> list[Region]:
    """Every region of which the backward pass reads something, in the order in which it does."""
    found: dict[Key, Region] = {}
    home: dict[Node, Region] = {}
    read: list[Region] = []
    for node in graph.nodes:
        number = node.origin.region
        if node.phase == "forward":
            if number is not None and number >= 0 and not node.op.external and not node.op.alias:
                home[node] = found.setdefault((number, node.origin.microbatch), Region())
                home[node].nodes.append(node)
            continue
        for value in node.inputs:
            region = home.get(value.node)
            if region is None:
                continue
            region.read.append(value)
            if region.first is None:
                region.first = node
                read.append(region)
    return read


def _choose(graph: Graph, regions: Iterable[Region]) -> None:
    """Say of every region which nodes are repeated."""
    kept: set[Value] = {*graph.outputs, *graph.updates.values()}
    for region in regions:
        own = set(region.nodes)
        needed: set[Node] = set()
        stack = [value for value in region.read if value not in kept]
        while stack:
            node = stack.pop().node
            if node not in needed:
                needed.add(node)
                stack.extend(value for value in node.inputs if value.node in own and value not in kept)
        region.again = [node for node in region.nodes if node in needed]
        kept.update(value for node in region.again for value in node.inputs if value.node not in needed)


def _repeated(graph: Graph, starts: Mapping[Node, list[Region]]) -> Graph:
    nodes: list[Node] = []
    now: dict[Value, Value] = {}
    again: dict[Value, Value] = {}

    def repeat(node: Node) -> None:
        fresh = copy_node(node, tuple(again[value] if value in again else now[value] for value in node.inputs))
        assert node.origin.region is not None, "nodes of a region have one"
        fresh.name, fresh.origin = f"{node.name}.again", replace(node.origin, phase="backward", region=~node.origin.region)
        for value, repeated in zip(node.outputs, fresh.outputs, strict=True):
            repeated.name = f"{value.name}.again"
            again[value] = repeated
        nodes.append(fresh)

    for node in graph.nodes:
        for region in starts.get(node, ()):
            for own in region.again:
                repeat(own)
        seen = {} if node.phase == "forward" else again
        fresh = copy_node(node, tuple(seen[value] if value in seen else now[value] for value in node.inputs))
        nodes.append(fresh)
        now.update(zip(node.outputs, fresh.outputs, strict=True))
    return with_values(graph, nodes, now)
