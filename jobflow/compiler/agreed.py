"""Facts that all ranks must know alike although each compiles alone; computed from the physical graph.

Ranks that rework how they communicate (`zero_copy_feeds`, `factors`, `divide`) must all do so, or none.  The program of a rank does not show
that another one sends a value elsewhere, or has one sample more and stores matrices in another order.
"""

from __future__ import annotations

from collections.abc import Collection

from jobflow.compiler.layouts.box import Reroute
from jobflow.core.layout import Layout, Local, Split
from jobflow.graph.ir import Node, Physical, Value
from jobflow.graph.rewrite import consumers
from jobflow.ops.op import ViewOp
from jobflow.ops.parts import Part
from jobflow.ops.rows import Rows
from jobflow.ops.source import ReadVariable
from jobflow.ops.update import Updated

#: changes of layout in which every rank takes the same steps
EQUAL = frozenset({"all_gather", "all_to_all", "all_reduce", "reduce_scatter", "slice", "relabel"})


class Readers:
    """Who reads what, on any rank."""

    def __init__(self, physical: Physical) -> None:
        self._graph = physical.graph
        self._consumers = consumers(physical.graph)
        self._outputs = set(physical.graph.outputs)

    def alone(self, value: Value) -> Node | None:
        """The only node that reads a value; None if there are several, or none, or it is returned."""
        readers = self._consumers[value]
        return readers[0] if len(readers) == 1 and value not in self._outputs else None

    def only_update(self, value: Value, ranks: tuple[int, ...]) -> bool:
        """True if a value is read by elementwise updates only, which `ranks` make, and of which nothing is read in this run."""
        if value in self._outputs:
            return False
        for node in self._consumers[value]:
            if isinstance(node.op, ViewOp) and node.placement.ranks == ranks and self.only_update(node.outputs[0], ranks):
                continue
            if not isinstance(node.op, Updated) or not node.op.flat or node.placement.ranks != ranks or any(map(self._is_read, node.outputs)):
                return False
        return True

    def rereads(self, variables: Collection[str]) -> bool:
        """True if what an update has made of one of these variables is read in the same run."""
        for node in self._graph.nodes:
            for output, source in node.op.alias.items():
                op = node.inputs[source].node.op
                if isinstance(op, ReadVariable) and op.key in variables and self._is_read(node.outputs[output]):
                    return True
        return False

    def _is_read(self, value: Value) -> bool:
        return bool(self._consumers[value]) or value in self._outputs


def alike(physical: Physical) -> bool:
    """True if the ranks' programs differ in nothing but where their pieces begin, so that what is decided by shapes all decide alike."""
    graph = physical.graph
    ranks = graph.placement.ranks
    even = all(_is_even(layout, value.shape) for value, layout in physical.layouts.items())
    return even and not graph.rows and all(node.placement.ranks == ranks and _is_equal(node) for node in graph.nodes)


def _is_equal(node: Node) -> bool:
    """True if all ranks do the same for a node."""
    return node.op.name in EQUAL if isinstance(node.op, Reroute) else not isinstance(node.op, Rows | Part)


def _is_even(layout: Layout | Local, shape: tuple[int, ...]) -> bool:
    """True if every rank has a piece of the same shape."""
    if isinstance(layout, Local):
        return True
    pieces = dict.fromkeys(range(len(shape)), 1)
    for sbp, n in zip(layout.sbp, layout.placement.mesh, strict=True):
        if isinstance(sbp, Split):
            pieces[sbp.axis] *= n
    return all(shape[axis] % n == 0 for axis, n in pieces.items())
