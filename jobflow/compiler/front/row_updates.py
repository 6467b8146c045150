"""Graph -> graph in which tables are updated only at the rows that were read.

The gradient of a table with row lookups is a sum of rows by index: as large as the table, and zero nearly everywhere.
If only an optimizer's update reads the gradient, the update takes the rows and their indices instead:

    g = UnsortedSegmentSum(rows, ids);  w' = AdamUpdate(w, m, v, g, ...)   ->   w' = RowUpdate(AdamUpdate)(w, m, v, rows, ids, ...)

Operations in between (the loss scale, a layout, to_global) are applied to the rows.  Several lookups of one table are concatenated.
Ranks then exchange the rows instead of tables.  The decision precedes the choice of layouts and depends on sizes of logical tensors, so
it is the same on all ranks.  The gradient stays dense if it has other terms, or other readers such as a norm, a regularizer or `watch_diff`.
The gradient also stays dense if the table is small or many of its rows are read.

A program may request that unread rows stay unchanged under any optimizer (`lazily` names such variables).  Sizes are ignored then.
"""

from __future__ import annotations

from collections.abc import Collection

from jobflow.compiler.front.simplify import drop_dead
from jobflow.core.layout import P, S
from jobflow.core.types import bool_, float32
from jobflow.graph.ir import Graph, Node, Value
from jobflow.graph.rewrite import Rewriter, consumers
from jobflow.ops.arithmetic import Add, Where
from jobflow.ops.axes import Reshape
from jobflow.ops.index import UnsortedSegmentSum
from jobflow.ops.layout_ops import Copy, ToGlobal, ToLayout
from jobflow.ops.op import Op, types_tuple
from jobflow.ops.optimizer_updates import OptimizerUpdate
from jobflow.ops.row_update import RowUpdate
from jobflow.ops.scalar import Cast, FillLike, Scale
from jobflow.ops.slices import Concat

#: a table is updated by rows if at most 1 / SPARSE of its rows are read
SPARSE = 4
#: least number of elements: for smaller tables, a pass over the gradient costs less than sorting
LEAST = 64 * 1024

#: pairs of gradients of rows and the indices of these rows
Lookups = list[tuple[Value, Value]]


def update_rows(graph: Graph, lazily: Collection[str] = ()) -> Graph:
    """Update tables by rows if few rows are read, or if `lazily` names the table."""
    updater = _RowUpdater(graph, {value.node for name, value in graph.updates.items() if name in lazily})
    return drop_dead(updater.run()) if updater.updates else graph


class _RowUpdater(Rewriter):
    def __init__(self, graph: Graph, lazy: set[Node]) -> None:
        super().__init__(graph)
        self.readers, self.shown, self.lazy = consumers(graph), set(graph.outputs), lazy
        self.updates = {node for node in graph.nodes if isinstance(node.op, OptimizerUpdate) and self._is_sparse(node, node.op)}

    def _is_sparse(self, node: Node, op: OptimizerUpdate) -> bool:
        """Return True for an elementwise update of a large table with a gradient of few rows; lazy updates accept any sizes."""
        table, lazy = node.inputs[0].tensor_type, node in self.lazy
        if not (op.flat and op.elementwise and table.ndim) or table.dtype.is_half or (table.size < LEAST and not lazy):
            return False
        sums = self._sums(node.inputs[op.count], node, lazy)
        read = sum(each.inputs[1].tensor_type.size * (node.placement.size if each.outputs[0].local else 1) for each in sums)
        alike = len({each.inputs[1].tensor_type.dtype for each in sums}) == 1
        return alike and (lazy or SPARSE * read <= table.shape[0])

    def _has_dynamic_rows(self, rows: Value) -> bool:
        """Return True if the number of rows differs among ranks, so that the rows do not form a logical tensor."""
        return rows.local and bool(self.graph.rows)

    def _sums(self, gradient: Value, reader: Node, dynamic: bool) -> list[Node]:
        """Return the nodes that sum rows into a gradient; an empty list if the gradient has other terms, other readers or another placement.

        With `dynamic`, ranks may have different numbers of rows.
        """
        node = gradient.node
        if self.readers[gradient] != [reader] or gradient in self.shown or node.placement != reader.placement:
            return []
        if isinstance(node.op, UnsortedSegmentSum):
            rows, ids = node.inputs
            return [node] if node.op.axis == 0 and ids.tensor_type.ndim and (dynamic or not self._has_dynamic_rows(rows)) else []
        if isinstance(node.op, Add):
            terms = [self._sums(value, node, dynamic) for value in node.inputs]
            return [each for term in terms for each in term] if all(terms) and node.inputs[0].tensor_type == node.inputs[1].tensor_type else []
        addends = isinstance(node.op, ToGlobal) and all(sbp == P for sbp in node.op.sbp)
        return self._sums(node.inputs[0], node, dynamic) if addends or isinstance(node.op, Scale | ToLayout) else []

    def take(self, node: Node, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
        if node not in self.updates:
            return self.keep(node, inputs)
        assert isinstance(node.op, OptimizerUpdate)
        n = node.op.count
        if any(self._has_dynamic_rows(each.inputs[0]) for each in self._sums(node.inputs[n], node, node in self.lazy)):
            return self._where_read(node, inputs)
        rows, ids = self._together(self._lookups(node.inputs[n], node), node)
        return self.keep(node, (*inputs[:n], rows, ids, *inputs[n + 1 :]), op=RowUpdate(node.op, lazy=node in self.lazy))

    def _lookups(self, gradient: Value, update: Node) -> Lookups:
        """Return a pair (rows, indices) for each lookup of the table; the gradient is the sum of all rows by index.

        Operations on the sum are applied to the rows.
        """
        node = gradient.node
        op = node.op
        if isinstance(op, UnsortedSegmentSum):
            rows, ids = node.inputs
            return [(self.now[rows], self.now[ids])]
        lookups = [pair for value in node.inputs for pair in self._lookups(value, update)]
        if isinstance(op, Scale):
            return [(self._added(op, (rows,), update), ids) for rows, ids in lookups]
        if isinstance(op, ToGlobal):
            whole = ToGlobal((S(0),) * len(op.sbp), node.placement.size)
            return [(self._added(whole, (rows,), update), self._added(whole, (ids,), update)) for rows, ids in lookups]
        return lookups

    def _where_read(self, update: Node, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
        """Record an update with a dense gradient, restore the values of unread rows, and return the outputs."""
        assert isinstance(update.op, OptimizerUpdate)
        table, n = inputs[0].tensor_type, update.op.count
        updated = self.keep(update, (*[self._added(Copy(), (value,), update) for value in inputs[:n]], *inputs[n:]))
        read = self._added(Cast(bool_), (self._times_read(update.inputs[n], update),), update)
        read = self._added(Reshape((table.shape[0], *[1] * (table.ndim - 1))), (read,), update)
        return tuple([self._added(Where(), (read, new, old), update) for new, old in zip(updated, inputs, strict=False)])

    def _times_read(self, gradient: Value, update: Node) -> Value:
        """Return a tensor with the number of times that each row of the table was read, computed by the operations of its gradient."""
        node = gradient.node
        op = node.op
        if isinstance(op, UnsortedSegmentSum):
            ids = self.now[node.inputs[1]]
            return self._added(op, (self._added(FillLike(1.0, float32), (ids,), update), ids), update)
        counts = [self._times_read(value, update) for value in node.inputs]
        return self._added(op, tuple(counts), update) if isinstance(op, Add | ToGlobal) else counts[0]

    def _together(self, lookups: Lookups, update: Node) -> tuple[Value, Value]:
        """Concatenate several lookups of one table."""
        if len(lookups) == 1:
            return lookups[0]
        parts: list[list[Value]] = [[], []]
        for rows, ids in lookups:
            count, row = ids.tensor_type.size, rows.tensor_type.shape[ids.tensor_type.ndim :]
            parts[0].append(self._added(Reshape((count, *row)), (rows,), update))
            parts[1].append(self._added(Reshape((count,)), (ids,), update))
        rows, ids = (self._added(Concat(0), tuple(each), update) for each in parts)
        return rows, ids

    def _added(self, op: Op, inputs: tuple[Value, ...], update: Node) -> Value:
        (type,) = types_tuple(op.infer(*(value.tensor_type for value in inputs)))
        name = f"{update.name}.{op.word()}_{len(self.nodes)}"
        (value,) = self.add(
            Node(op, inputs, [(type, name, inputs[0].local and not isinstance(op, ToGlobal))], name, update.placement, update.provenance)
        )
        return value
