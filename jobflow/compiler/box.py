"""Sharded graph -> physical graph: where producer and reader differ in layout, a `Reroute` node stands between them.

A reroute is one row of the route table (one mesh dimension, one placement), or a move between placements.  A value that
several nodes want in the same layout is rerouted once.  Nothing moves without such a node, so the list of them, with bytes
and the user's line, is the whole communication of a job.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from jobflow.compiler.routes import ROUTES, moves, path
from jobflow.errors import SbpError
from jobflow.graph.ir import Node, Physical, Sharded, Value
from jobflow.graph.rewrite import copy_node, with_values
from jobflow.layout import B, Layout, Local, Partial, Rule
from jobflow.ops.base import Op, Types
from jobflow.types import TensorType


@dataclass(frozen=True)
class Reroute(Op):
    """The same tensors in another layout.  Several tensors travel as one flat array (all_reduce only)."""

    source: Layout
    target: Layout

    def infer(self, *x: TensorType) -> Types:
        return x

    def rule(self, *x: TensorType) -> Rule:
        raise SbpError("the layouts of a reroute are given, not inferred")

    def kernel(self, *arrays: object) -> None:
        raise SbpError("a reroute is lowered to the steps of a route before it runs")

    @property
    def name(self) -> str:
        """The route's name in the table, or "move" between placements."""
        if self.source.placement.ranks != self.target.placement.ranks:
            return "move"
        return ROUTES[type(self.source.sbp[0]), type(self.target.sbp[0])].name

    def bytes_per_rank(self, type: TensorType) -> float:
        """Bytes the busiest rank sends for one tensor of this logical type."""
        n = self.source.placement.size
        if self.name != "move":
            return ROUTES[self.source.sbp[0].__class__, self.target.sbp[0].__class__].bytes(type.nbytes, n)
        sent: dict[int, int] = {}
        for move in moves(self.source, self.target, type.shape):
            if move.source != move.target:
                sent[move.source] = sent.get(move.source, 0) + type.with_shape(move.box.shape).nbytes
        return float(max(sent.values(), default=0))

    def __str__(self) -> str:
        return f"{self.name}[{self.source} -> {self.target}]"


def box(sharded: Sharded) -> Physical:
    """Insert the reroutes."""
    return _Boxing(sharded).run()


class _Boxing:
    def __init__(self, sharded: Sharded) -> None:
        self.sharded = sharded
        self.nodes: list[Node] = []
        self.now: dict[Value, Value] = {}
        self.layouts: dict[Value, Layout | Local] = {}
        self.rerouted: dict[tuple[Value, Layout], Value] = {}

    def run(self) -> Physical:
        graph = self.sharded.graph
        for node in graph.nodes:
            wanted = self.sharded.wanted[node]
            inputs = tuple(self.bring(self.now[v], layout, node) for v, layout in zip(node.inputs, wanted, strict=True))
            fresh = copy_node(node, inputs)
            self.nodes.append(fresh)
            for before, after in zip(node.outputs, fresh.outputs, strict=True):
                self.now[before] = after
                self.layouts[after] = self.sharded.layouts[before]
        outputs = tuple(self._result(value) for value in graph.outputs)
        updates = {name: self.bring(self.now[value], graph.variables[name].layout, value.node) for name, value in graph.updates.items()}
        return Physical(replace(with_values(graph, self.nodes, self.now), outputs=outputs, updates=updates), self.layouts)

    def _result(self, value: Value) -> Value:
        """An output, which leaves as B or S."""
        here, layout = self.now[value], self.layouts[self.now[value]]
        if isinstance(layout, Layout) and layout.is_partial:
            return self.bring(here, Layout(layout.placement, (B,) * len(layout.sbp)), value.node)
        return here

    def bring(self, value: Value, target: Layout | Local, node: Node) -> Value:
        """`value` as `node` reads it."""
        here = self.layouts[value]
        if here == target:
            return value
        if isinstance(here, Local) or isinstance(target, Local):
            raise SbpError(f"{node.op} at {node.where}: {value} lies {here} but is read {target}; cross between the views with to_local or to_global")
        for layout in self._route(here, target, value, node):
            value = self._reroute(value, layout, node)
        return value

    @staticmethod
    def _route(here: Layout, target: Layout, value: Value, node: Node) -> tuple[Layout, ...]:
        try:
            return tuple(route(here, target, value.type))
        except SbpError as error:
            raise SbpError(f'{node.op.word()} at {node.where} (layer "{node.name}"): {value.name} {value.type}: {error}') from None

    def _reroute(self, value: Value, target: Layout, node: Node) -> Value:
        key = (value, target)
        if key not in self.rerouted:
            source = self.layouts[value]
            assert isinstance(source, Layout)
            fresh = Node(Reroute(source, target), (value,), (), f"{value.name}:{target}", target.placement, node.origin)
            output = Value(value.type, fresh, 0, f"{value.name}:{','.join(map(str, target.sbp))}")
            fresh.outputs = (output,)
            self.nodes.append(fresh)
            self.layouts[output] = target
            self.rerouted[key] = output
        return self.rerouted[key]


def route(source: Layout, target: Layout, type: TensorType) -> Iterator[Layout]:
    """The layouts on the way from `source` (excluded) to `target`."""
    if source.placement.ranks == target.placement.ranks:
        yield from _same_ranks(source, target, type)
        return
    here = source
    if source.is_partial:
        here = replace(source, sbp=tuple(B if isinstance(sbp, Partial) else sbp for sbp in source.sbp))
        yield from _same_ranks(source, here, type)
    there = replace(target, sbp=tuple(B if isinstance(sbp, Partial) else sbp for sbp in target.sbp))
    yield there
    if there != target:
        yield from _same_ranks(there, target, type)


def _same_ranks(source: Layout, target: Layout, type: TensorType) -> Iterator[Layout]:
    if len(source.sbp) > 1 or len(target.sbp) > 1:
        raise SbpError(
            f"there is no way yet from {source} to {target}: layouts change on meshes of one dimension only; use a placement without hierarchy"
        )
    for sbp in path(source.sbp[0], target.sbp[0], type.nbytes, source.placement.size):
        yield Layout(target.placement, (sbp,))
