"""Graph -> graph with rematerialization: regions are recomputed in the backward pass instead of storing their values.

A region is the contents of one `checkpointing` scope (`Provenance.region`), per microbatch.  Values of a region that the backward pass
reads are recomputed right before the first of these readers.  The computation starts from stored values: inputs of other regions,
results of the job, and values outside of all regions.  Between the passes only the inputs of regions stay in memory, plus all values
of one region at a time.  A chain of n equal layers in regions of sqrt(n) layers needs memory for about 2 sqrt(n) layers, at the price of
a second forward pass.

A region that reads only variables (a parameter that is gathered at its use) stores no activations.  If a recomputed region reads
its values, they are recomputed too.

Random ops sample the same values the second time, because their samples are a function of keys and the run counter.  Writes of variables
are not repeated, and their inputs in the forward pass (batch statistics, for moving averages) are stored.  Copies have the bitwise
complement of the region number, which distinguishes them from the original nodes.

Example, one region {a, b} in  x -> a -> b -> loss.  The copies are a' = a(x), and b' = b(a') if the gradient of the loss or of b needs it.
Both copies precede the first of these gradients.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace

from jobflow.core.dataclass import dataclass
from jobflow.core.layout import Placement
from jobflow.graph.ir import Graph, Node, Value
from jobflow.graph.rewrite import Rewriter, outputs_of
from jobflow.ops.source import ReadVariable

#: Prefix of the names of recomputed nodes and values.
AGAIN = "again:"
#: A region of one microbatch on one set of ranks.  Values received from another stage are stored, so they are sent once.
Key = tuple[int, int | None, Placement]


@dataclass
class RecomputedRegion:
    """A region whose values are recomputed in the backward pass."""

    #: forward nodes that may be recomputed, in order, and the position of the last
    nodes: list[Node] = field(default_factory=list)
    last: int = 0
    #: values read in the backward pass, with the position of the reader
    read: list[tuple[Value, int]] = field(default_factory=list)
    #: True if its only inputs are variables
    of_variables: bool = True
    #: the recomputed nodes, and the position before which they run
    repeated: list[Node] = field(default_factory=list)
    first: int = 0

    def choose(self, stored: set[Value]) -> None:
        """Choose the nodes to recompute and the position of their copies; `stored` values are not recomputed."""
        own = set(self.nodes)
        self.first = min((at for value, at in self.read if value not in stored), default=0)
        needed: set[Node] = set()
        stack = [value for value, _ in self.read if value not in stored]
        while stack:
            node = stack.pop().node
            if node not in needed:
                needed.add(node)
                stack.extend(value for value in node.inputs if value.node in own and value not in stored)
        self.repeated = [node for node in self.nodes if node in needed]


def recompute(graph: Graph) -> Graph:
    """Insert copies of the nodes to recompute; return a graph without regions unchanged."""
    regions, stored = _regions(graph)
    for region in regions:
        if not region.of_variables:
            region.choose(stored)
    region_of = {node: region for region in regions if region.of_variables for node in region.nodes}
    for region in regions:
        for value in (value for node in region.repeated for value in node.inputs):
            if value.node in region_of:
                region_of[value.node].read.append((value, region.first))
    for region in regions:
        if region.of_variables:
            region.choose(stored)
    return _repeated(graph, sorted(regions, key=lambda region: not region.of_variables))


def _regions(graph: Graph) -> tuple[list[RecomputedRegion], set[Value]]:
    """Return all regions, in program order, and the values of regions that stay in memory and are not recomputed."""
    regions: dict[Key, RecomputedRegion] = {}
    region_of: dict[Node, RecomputedRegion] = {}
    inputs: list[Value] = []
    for at, node in enumerate(graph.nodes):
        number = node.provenance.region
        if node.phase != "forward" or number is None or number < 0 or node.op.external or node.op.alias:
            continue
        region = region_of[node] = regions.setdefault((number, node.provenance.microbatch, node.placement), RecomputedRegion())
        region.nodes.append(node)
        region.last = at
        outside = [value for value in node.inputs if region_of.get(value.node) is not region]
        region.of_variables &= all(isinstance(value.node.op, ReadVariable) for value in outside)
        inputs += outside
    stored = {value for value in inputs if value.node in region_of and not region_of[value.node].of_variables}
    for at, node in enumerate(graph.nodes):
        for value in node.inputs if node.phase != "forward" else ():
            if value.node in region_of and at > region_of[value.node].last:
                region_of[value.node].read.append((value, at))
            elif value.node in region_of:
                stored.add(value)
    return list(regions.values()), stored | {*graph.outputs, *graph.updates.values()}


def _repeated(graph: Graph, regions: Iterable[RecomputedRegion]) -> Graph:
    starts: dict[int, list[Node]] = {}
    for region in regions:
        if region.repeated:
            starts.setdefault(region.first, []).extend(region.repeated)
    return _Repeating(graph, starts).run() if starts else graph


class _Repeating(Rewriter):
    """A rewriter that inserts copies of nodes at given positions."""

    def __init__(self, graph: Graph, starts: Mapping[int, Sequence[Node]]) -> None:
        super().__init__(graph)
        self.starts = starts
        #: value -> its copy, for nodes after the forward pass
        self.repeated: dict[Value, Value] = {}

    def run(self) -> Graph:
        for at, node in enumerate(self.graph.nodes):
            for own in self.starts.get(at, ()):
                self._repeat(own)
            self.walk((node,))
        return self.rebuilt()

    def take(self, node: Node, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
        return self.keep(node, inputs if node.phase == "forward" else self._read(node))

    def _read(self, node: Node) -> tuple[Value, ...]:
        return tuple(self.repeated[value] if value in self.repeated else self.now[value] for value in node.inputs)

    def _repeat(self, node: Node) -> None:
        assert node.provenance.region is not None, "a node of a region has a region number"
        provenance = replace(node.provenance, phase="backward", region=~node.provenance.region)
        makes = [(type, f"{AGAIN}{name}", local) for type, name, local in outputs_of(node)]
        repeated = self.keep(node, self._read(node), makes=makes, name=f"{AGAIN}{node.name}", provenance=provenance)
        self.repeated.update(zip(node.outputs, repeated, strict=True))
