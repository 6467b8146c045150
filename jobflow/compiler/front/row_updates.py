"""Graph -> graph in which tables are updated by the rows that were read.

The gradient of a table of which rows are looked up is the sum of rows by their numbers: as large as the table, and zero nearly everywhere.
Where nothing but an optimizer's update reads it, the update takes the rows and their numbers instead:

    g = UnsortedSegmentSum(rows, ids);  w' = AdamUpdate(w, m, v, g, ...)   ->   w' = RowUpdate(AdamUpdate)(w, m, v, rows, ids, ...)

What lies between (the loss scale, a layout, the step out of the mirrored view) is done to the rows; several look-ups of one table are
put together.  Ranks then hand each other the rows that they have read, not tables.  This is decided before layouts are chosen, by sizes
of whole tensors, and so the same for all ranks.  A gradient that something else reads (clipping by a norm, a regularizer, a watch) or that
other terms are added to is made whole, as it is where the table is small or many of its rows are read.
"""

from __future__ import annotations

from jobflow.compiler.front.simplify import drop_dead
from jobflow.core.layout import P, S
from jobflow.graph.ir import Graph, Node, Value
from jobflow.graph.rewrite import Rewriter, consumers
from jobflow.ops.arithmetic import Add
from jobflow.ops.axes import Reshape
from jobflow.ops.index import UnsortedSegmentSum
from jobflow.ops.layout_ops import ToGlobal, ToLayout
from jobflow.ops.op import Op, types_tuple
from jobflow.ops.optimizer_updates import OptimizerUpdate
from jobflow.ops.row_update import RowUpdate
from jobflow.ops.scalar import Scale
from jobflow.ops.slices import Concat

#: a table is updated by rows if at most one of so many is read
SPARSE = 4
#: elements of a table; a pass over the gradient of a smaller one costs less than sorting
LEAST = 64 * 1024

#: look-ups: the gradients of rows, and their numbers
Lookups = list[tuple[Value, Value]]


def update_rows(graph: Graph) -> Graph:
    """Have tables updated by the rows that were read, where these are few."""
    finding = _Updating(graph)
    return drop_dead(finding.run()) if finding.found else graph


class _Updating(Rewriter):
    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.readers, self.shown = consumers(graph), set(graph.outputs)
        self.found = {node for node in graph.nodes if isinstance(node.op, OptimizerUpdate) and self._is_sparse(node, node.op)}

    def _is_sparse(self, node: Node, op: OptimizerUpdate) -> bool:
        """True if an update runs along a gradient of few rows."""
        table = node.inputs[0].type
        if not (op.flat and op.elementwise and table.ndim) or table.dtype.is_half or table.size < LEAST:
            return False
        sums = self._sums(node.inputs[op.count], node)
        read = sum(each.inputs[1].type.size * (node.placement.size if each.outputs[0].local else 1) for each in sums)
        alike = len({each.inputs[1].type.dtype for each in sums}) == 1
        return alike and SPARSE * read <= table.shape[0]

    def _sums(self, gradient: Value, reader: Node) -> list[Node]:
        """The sums of rows that a gradient consists of; none if it is made of anything else, or read by others."""
        node = gradient.node
        if self.readers[gradient] != [reader] or gradient in self.shown or node.placement != reader.placement:
            return []
        if isinstance(node.op, UnsortedSegmentSum):
            rows, ids = node.inputs
            return [node] if node.op.axis == 0 and ids.type.ndim and not (rows.local and self.graph.rows) else []
        if isinstance(node.op, Add):
            terms = [self._sums(value, node) for value in node.inputs]
            return [each for term in terms for each in term] if all(terms) and node.inputs[0].type == node.inputs[1].type else []
        addends = isinstance(node.op, ToGlobal) and all(sbp == P for sbp in node.op.sbp)
        return self._sums(node.inputs[0], node) if addends or isinstance(node.op, Scale | ToLayout) else []

    def take(self, node: Node, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
        if node not in self.found:
            return self.keep(node, inputs)
        assert isinstance(node.op, OptimizerUpdate)
        n = node.op.count
        rows, ids = self._together(self._lookups(node.inputs[n], node), node)
        return self.keep(node, (*inputs[:n], rows, ids, *inputs[n + 1 :]), op=RowUpdate(node.op))

    def _lookups(self, gradient: Value, update: Node) -> Lookups:
        """What is to be summed, and by which numbers, with all that is done to the sum done to the rows."""
        node = gradient.node
        op = node.op
        if isinstance(op, UnsortedSegmentSum):
            rows, ids = node.inputs
            return [(self.now[rows], self.now[ids])]
        found = [pair for value in node.inputs for pair in self._lookups(value, update)]
        if isinstance(op, Scale):
            return [(self._made(op, (rows,), update), ids) for rows, ids in found]
        if isinstance(op, ToGlobal):
            whole = ToGlobal((S(0),) * len(op.sbp), node.placement.size)
            return [(self._made(whole, (rows,), update), self._made(whole, (ids,), update)) for rows, ids in found]
        return found

    def _together(self, found: Lookups, update: Node) -> tuple[Value, Value]:
        """Several look-ups of one table as one."""
        if len(found) == 1:
            return found[0]
        parts: list[list[Value]] = [[], []]
        for rows, ids in found:
            count, row = ids.type.size, rows.type.shape[ids.type.ndim :]
            parts[0].append(self._made(Reshape((count, *row)), (rows,), update))
            parts[1].append(self._made(Reshape((count,)), (ids,), update))
        rows, ids = (self._made(Concat(0), tuple(each), update) for each in parts)
        return rows, ids

    def _made(self, op: Op, inputs: tuple[Value, ...], update: Node) -> Value:
        (type,) = types_tuple(op.infer(*(value.type for value in inputs)))
        name = f"{update.name}.{op.word()}_{len(self.nodes)}"
        (value,) = self.add(Node(op, inputs, [(type, name, inputs[0].local and not isinstance(op, ToGlobal))], name, update.placement, update.origin))
        return value
