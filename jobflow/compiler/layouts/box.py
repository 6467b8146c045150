"""Sharded graph -> physical graph: a `Reroute` node wherever producer and consumer have different layouts.

A reroute is one hop of the cheapest path (`paths`).  The hop is a row of the route table, an exchange, a move between placements,
or a relabel, which moves no data.  A value that several nodes read in the same layout is redistributed once.  Reroute nodes contain
all communication of a job, and record the number of bytes and the user's line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jobflow.compiler.layouts.paths import Hop, changed, direct, path, sent
from jobflow.core.errors import SbpError
from jobflow.core.layout import B, Layout, Local, Partial, Rule
from jobflow.core.types import DType, TensorType
from jobflow.graph.ir import Node, Physical, Provenance, Sharded, Value
from jobflow.graph.rewrite import Rewriter
from jobflow.ops.op import Op, Types
from jobflow.plan.plan import consecutive_offsets
from jobflow.plan.traffic import handed


class Reroute(Op):
    """A change of layout of one or more tensors; several tensors are sent as one flat array (all_reduce and reduce_scatter only)."""

    source: Layout
    target: Layout
    #: the route's name in the table, or "exchange", "move", "relabel", "part" or "broadcast_view"; "" selects the single hop between the layouts
    name: str = ""
    #: (source, target) of each tensor, if several tensors have different layouts
    each: tuple[tuple[Layout, Layout], ...] = ()
    #: the element type of the sum, if it differs from the type of the tensors
    reduce_dtype: DType | None = None

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", direct(self.source, self.target))

    def infer(self, *x: TensorType) -> Types:
        return x

    def rule(self, *x: TensorType) -> Rule:
        raise SbpError("Reroute: its layouts are fixed when it is inserted and cannot be inferred; call `infer` for types only")

    def kernel(self, *arrays: object) -> None:
        raise SbpError("Reroute: it has no kernel; lower the program to the instructions of its route first")

    def sent(self, *types: TensorType) -> dict[int, int]:
        """Return the bytes that each communicating rank sends for tensors of these logical types, including the alignment in joins."""
        if self.reduce_dtype is not None:
            size, sum_size = types[0].dtype.itemsize, self.reduce_dtype.itemsize
            return {rank: nbytes * sum_size // size for rank, nbytes in replace(self, reduce_dtype=None).sent(*types).items()}
        if len(types) == 1:
            return dict(sent(self.name, self.source, self.target, types[0]))
        nbytes: dict[int, int] = {}
        for ranks in self.source.placement.along(changed(self.source, self.target)):
            size = consecutive_offsets(self.joined_types(types, ranks[0]))[1] // types[0].dtype.itemsize
            for i, rank in enumerate(ranks):
                nbytes[rank] = handed("all_reduce", (size,), i, len(ranks)) * types[0].dtype.itemsize
        return nbytes

    def bytes_per_rank(self, *types: TensorType) -> int:
        """Return the bytes that the busiest rank sends for tensors of these logical types."""
        return max(self.sent(*types).values(), default=0)

    def joined_types(self, types: Sequence[TensorType], rank: int) -> list[TensorType]:
        """Return the types of the parts of these tensors on `rank`."""
        layouts = [source for source, _ in self.each] or [self.source] * len(types)
        return [layout.local_type(type, rank) for layout, type in zip(layouts, types, strict=True)]

    def __str__(self) -> str:
        return f"{self.name}[{self.source} -> {self.target}{'' if self.reduce_dtype is None else f' in {self.reduce_dtype.name}'}]"


def rerouted(value: Value, op: Reroute, provenance: Provenance) -> Node:
    """Return a node that redistributes the value."""
    name = f"{value.name}:{','.join(map(str, op.target.sbp))}"
    return Node(op, (value,), ((value.tensor_type, name, False),), f"{value.name}:{op.target}", op.target.placement, provenance)


def box(sharded: Sharded) -> Physical:
    """Insert a `Reroute` for every change of layout along the cheapest path."""
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
        read = tuple([self.bring(value, layout, node) for value, layout in zip(inputs, self.sharded.read_layouts[node], strict=True)])
        outputs = self.keep(node, read)
        for before, after in zip(node.outputs, outputs, strict=True):
            self.layouts[after] = self.sharded.layouts[before]
        return outputs

    def _result(self, value: Value) -> Value:
        """Return an output of the job with partial dimensions reduced to B."""
        here, layout = self.now[value], self.layouts[self.now[value]]
        if isinstance(layout, Layout) and layout.is_partial:
            whole = replace(layout, sbp=tuple(B if isinstance(sbp, Partial) else sbp for sbp in layout.sbp))
            return self.bring(here, whole, value.node)
        return here

    def bring(self, value: Value, target: Layout | Local, node: Node) -> Value:
        """Return `value` in the layout in which `node` reads it; raise SbpError if no path leads to this layout."""
        here = self.layouts[value]
        if here == target:
            return value
        problem = (
            f'{node.op.word()} at {node.where} (layer "{node.name}"): {value.name} {value.tensor_type} has layout {here} but is read as {target}'
        )
        if isinstance(here, Local) or isinstance(target, Local):
            raise SbpError(f"{problem}; convert between the views with to_local or to_global")
        try:
            hops = path(here, target, value.tensor_type)
        except SbpError as error:
            raise SbpError(f"{problem}: {error}") from None
        for hop in hops:
            value = self._reroute(value, hop, node)
        return value

    def _reroute(self, value: Value, hop: Hop, node: Node) -> Value:
        key = (value, hop.target, _repetition(hop, node))
        if key not in self.rerouted:
            source = self.layouts[value]
            assert isinstance(source, Layout)
            (output,) = self.add(rerouted(value, Reroute(source, hop.target, hop.name), node.provenance))
            self.layouts[output] = hop.target
            self.rerouted[key] = output
        return self.rerouted[key]


def _repetition(hop: Hop, node: Node) -> object:
    """Return a key that is equal for nodes that share a redistributed value.

    A region's inputs are redistributed once per microbatch, and once more for rematerialization, because the result is not stored in
    between.  A value moved from other ranks, as between pipeline stages, is stored on its new ranks.
    """
    region, microbatch = node.provenance.region, node.provenance.microbatch
    if region is None or hop.name == "move":
        return None
    return microbatch if region >= 0 else (region, microbatch)
