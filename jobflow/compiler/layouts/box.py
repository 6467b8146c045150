"""Sharded graph -> physical graph: a `Reroute` node wherever producer and consumer have different layouts.

A reroute is one hop of the cheapest path (`paths`): a row of the route table, an exchange, a move between placements, or a
relabel, which does nothing.  A value that several nodes want in the same layout is rerouted once.  Nothing moves without such a
node, so the list of them, with bytes and the user's line, is the whole communication of a job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jobflow.compiler.layouts.paths import Hop, changed, direct, path, sent
from jobflow.core.errors import SbpError
from jobflow.core.layout import B, Layout, Local, Partial, Rule
from jobflow.core.types import TensorType
from jobflow.graph.ir import Node, Origin, Physical, Sharded, Value
from jobflow.graph.rewrite import Rewriter
from jobflow.ops.op import Op, Types
from jobflow.plan.plan import consecutive_offsets
from jobflow.plan.traffic import handed


class Reroute(Op):
    """The same tensors in another layout.  Several tensors travel as one flat array (all_reduce only)."""

    source: Layout
    target: Layout
    #: the route's name in the table, or "exchange", "move" or "relabel"; "" is the one hop there is
    name: str = ""
    #: of several tensors whose layouts are not the same: (source, target) of each
    each: tuple[tuple[Layout, Layout], ...] = ()

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", direct(self.source, self.target))

    def infer(self, *x: TensorType) -> Types:
        return x

    def rule(self, *x: TensorType) -> Rule:
        raise SbpError("the layouts of a reroute are given, not inferred")

    def kernel(self, *arrays: object) -> None:
        raise SbpError("a reroute is lowered to the steps of a route before it runs")

    def sent(self, *types: TensorType) -> dict[int, int]:
        """Bytes that each rank which communicates hands to others, for tensors of these logical types; exact, alignment in joins included."""
        if len(types) == 1:
            return dict(sent(self.name, self.source, self.target, types[0]))
        found: dict[int, int] = {}
        for ranks in self.source.placement.along(changed(self.source, self.target)):
            size = consecutive_offsets(self.joined_types(types, ranks[0]))[1] // types[0].dtype.itemsize
            for i, rank in enumerate(ranks):
                found[rank] = handed("all_reduce", (size,), i, len(ranks)) * types[0].dtype.itemsize
        return found

    def bytes_per_rank(self, *types: TensorType) -> int:
        """Bytes that the busiest rank hands to others."""
        return max(self.sent(*types).values(), default=0)

    def joined_types(self, types: Sequence[TensorType], rank: int) -> list[TensorType]:
        """What `rank` holds of the tensors that travel together."""
        layouts = [source for source, _ in self.each] or [self.source] * len(types)
        return [layout.local_type(type, rank) for layout, type in zip(layouts, types, strict=True)]

    def __str__(self) -> str:
        return f"{self.name}[{self.source} -> {self.target}]"


def rerouted(value: Value, op: Reroute, origin: Origin) -> Node:
    """The node that brings a value into another layout."""
    name = f"{value.name}:{','.join(map(str, op.target.sbp))}"
    return Node(op, (value,), ((value.tensor_type, name, False),), f"{value.name}:{op.target}", op.target.placement, origin)


def box(sharded: Sharded) -> Physical:
    """Insert the reroutes."""
    return _Boxing(sharded).boxed()


class _Boxing(Rewriter):
    def __init__(self, sharded: Sharded) -> None:
        super().__init__(sharded.graph)
        self.sharded = sharded
        self.layouts: dict[Value, Layout | Local] = {}
        self.rerouted: dict[tuple[Value, Layout, object], Value] = {}

    def boxed(self) -> Physical:
        graph = self.graph
        self.walk(graph.nodes)
        outputs = tuple(self._result(value) for value in graph.outputs)
        updates = {name: self.bring(self.now[value], graph.variables[name].layout, value.node) for name, value in graph.updates.items()}
        return Physical(replace(self.rebuilt(), outputs=outputs, updates=updates), self.layouts)

    def take(self, node: Node, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
        read = tuple([self.bring(value, layout, node) for value, layout in zip(inputs, self.sharded.wanted[node], strict=True)])
        made = self.keep(node, read)
        for before, after in zip(node.outputs, made, strict=True):
            self.layouts[after] = self.sharded.layouts[before]
        return made

    def _result(self, value: Value) -> Value:
        """An output, which leaves as B or S."""
        here, layout = self.now[value], self.layouts[self.now[value]]
        if isinstance(layout, Layout) and layout.is_partial:
            whole = replace(layout, sbp=tuple(B if isinstance(sbp, Partial) else sbp for sbp in layout.sbp))
            return self.bring(here, whole, value.node)
        return here

    def bring(self, value: Value, target: Layout | Local, node: Node) -> Value:
        """`value` as `node` reads it."""
        here = self.layouts[value]
        if here == target:
            return value
        asked = f'{node.op.word()} at {node.where} (layer "{node.name}"): {value.name} {value.tensor_type} lies {here} but is read {target}'
        if isinstance(here, Local) or isinstance(target, Local):
            raise SbpError(f"{asked}; convert between the views with to_local or to_global")
        try:
            hops = path(here, target, value.tensor_type)
        except SbpError as error:
            raise SbpError(f"{asked}: {error}") from None
        for hop in hops:
            value = self._reroute(value, hop, node)
        return value

    def _reroute(self, value: Value, hop: Hop, node: Node) -> Value:
        key = (value, hop.target, _repetition(hop, node))
        if key not in self.rerouted:
            source = self.layouts[value]
            assert isinstance(source, Layout)
            (output,) = self.add(rerouted(value, Reroute(source, hop.target, hop.name), node.origin))
            self.layouts[output] = hop.target
            self.rerouted[key] = output
        return self.rerouted[key]


def _repetition(hop: Hop, node: Node) -> object:
    """Nodes with the same share what they are brought.

    What a region reads is brought once for each microbatch, and once more for the nodes that make its values again: it is not kept between them.
    But what other ranks hand over, as from one stage of a pipeline to the next, is kept where it arrives.
    """
    region, microbatch = node.origin.region, node.origin.microbatch
    if region is None or hop.name == "move":
        return None
    return microbatch if region >= 0 else (region, microbatch)
