"""Graph -> graph with rematerialization: regions are recomputed in the backward pass instead of storing their values.

A region is the contents of one `checkpointing` scope (`Origin.region`), per microbatch.  Values of a region that the backward pass
reads are recomputed right before the first of these readers.  The computation starts from stored values: inputs of other regions,
results of the job, and values outside of all regions.  Between the passes only the inputs of regions stay in memory, plus all values
of one region at a time.  For a chain of n equal layers in regions of sqrt(n) layers, memory for about 2 sqrt(n) layers is needed, at
the price of a second forward pass.

A region that reads only variables (a parameter that is gathered at its use) stores no activations.  It is recomputed for the second
computation of other regions too.

Random ops sample the same values the second time, because these are a function of keys and the run counter.  Writes of variables are
not repeated, and their inputs in the forward pass (batch statistics, for moving averages) are stored.  Copies have the inverted number of
the region, so that they are never confused with the original nodes.

Example, one region {a, b} in  x -> a -> b -> loss:  a' = a(x), and b' = b(a') if the gradient of the loss or of b needs it.  Both
precede the first of these gradients.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace

from jobflow.core.dataclass import dataclass
from jobflow.core.layout import Placement
from jobflow.graph.ir import Graph, Node, Value
from jobflow.graph.rewrite import Rewriter, made_by
from jobflow.ops.source import ReadVariable

#: What the names of repeated nodes and values begin with.
AGAIN = "again:"
#: A region of one microbatch, on one set of ranks: what it hands from a stage to the next is kept there and does not travel twice.
Key = tuple[int, int | None, Placement]


@dataclass
class RecomputedRegion:
    """One region to recompute."""

    #: forward nodes that may be repeated, in order, and the position of the last of them
    nodes: list[Node] = field(default_factory=list)
    last: int = 0
    #: what is read of it a second time, and by the node at which position
    read: list[tuple[Value, int]] = field(default_factory=list)
    #: True if it reads nothing but variables from outside
    of_variables: bool = True
    #: those of `nodes` that are repeated, and before which position
    again: list[Node] = field(default_factory=list)
    first: int = 0

    def choose(self, kept: set[Value]) -> None:
        """Determine the nodes to repeat, and the position of the copies, if these values are stored."""
        own = set(self.nodes)
        self.first = min((at for value, at in self.read if value not in kept), default=0)
        needed: set[Node] = set()
        stack = [value for value, _ in self.read if value not in kept]
        while stack:
            node = stack.pop().node
            if node not in needed:
                needed.add(node)
                stack.extend(value for value in node.inputs if value.node in own and value not in kept)
        self.again = [node for node in self.nodes if node in needed]


def recompute(graph: Graph) -> Graph:
    """Repeat the required nodes; return a graph without regions unchanged."""
    regions, kept = _regions(graph)
    for region in regions:
        if not region.of_variables:
            region.choose(kept)
    home = {node: region for region in regions if region.of_variables for node in region.nodes}
    for region in regions:
        for value in (value for node in region.again for value in node.inputs):
            if value.node in home:
                home[value.node].read.append((value, region.first))
    for region in regions:
        if region.of_variables:
            region.choose(kept)
    return _repeated(graph, sorted(regions, key=lambda region: not region.of_variables))


def _regions(graph: Graph) -> tuple[list[RecomputedRegion], set[Value]]:
    """Return every region, in program order, and the stored values."""
    found: dict[Key, RecomputedRegion] = {}
    home: dict[Node, RecomputedRegion] = {}
    crossing: list[Value] = []
    for at, node in enumerate(graph.nodes):
        number = node.origin.region
        if node.phase != "forward" or number is None or number < 0 or node.op.external or node.op.alias:
            continue
        region = home[node] = found.setdefault((number, node.origin.microbatch, node.placement), RecomputedRegion())
        region.nodes.append(node)
        region.last = at
        outside = [value for value in node.inputs if home.get(value.node) is not region]
        region.of_variables &= all(isinstance(value.node.op, ReadVariable) for value in outside)
        crossing += outside
    kept = {value for value in crossing if value.node in home and not home[value.node].of_variables}
    for at, node in enumerate(graph.nodes):
        for value in node.inputs if node.phase != "forward" else ():
            if value.node in home and at > home[value.node].last:
                home[value.node].read.append((value, at))
            elif value.node in home:
                kept.add(value)
    return list(found.values()), kept | {*graph.outputs, *graph.updates.values()}


def _repeated(graph: Graph, regions: Iterable[RecomputedRegion]) -> Graph:
    starts: dict[int, list[Node]] = {}
    for region in regions:
        if region.again:
            starts.setdefault(region.first, []).extend(region.again)
    return _Repeating(graph, starts).run() if starts else graph


class _Repeating(Rewriter):
    """A rewriter that inserts copies of nodes at given positions."""

    def __init__(self, graph: Graph, starts: Mapping[int, Sequence[Node]]) -> None:
        super().__init__(graph)
        self.starts = starts
        #: what nodes behind the forward pass read in the place of a value
        self.again: dict[Value, Value] = {}

    def run(self) -> Graph:
        for at, node in enumerate(self.graph.nodes):
            for own in self.starts.get(at, ()):
                self._repeat(own)
            self.walk((node,))
        return self.rebuilt()

    def take(self, node: Node, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
        return self.keep(node, inputs if node.phase == "forward" else self._read(node))

    def _read(self, node: Node) -> tuple[Value, ...]:
        return tuple(self.again[value] if value in self.again else self.now[value] for value in node.inputs)

    def _repeat(self, node: Node) -> None:
        assert node.origin.region is not None, "nodes of a region have one"
        origin = replace(node.origin, phase="backward", region=~node.origin.region)
        makes = [(type, f"{AGAIN}{name}", local) for type, name, local in made_by(node)]
        repeated = self.keep(node, self._read(node), makes=makes, name=f"{AGAIN}{node.name}", origin=origin)
        self.again.update(zip(node.outputs, repeated, strict=True))
