"""Physical graph -> the same graph with the updates of shared variables divided among the ranks that share them.

Variables that all ranks of a node hold whole are stored once (`plan.storage`).  Readers have them as B without a transfer.  For an update
they are split: each rank writes a piece, and all ranks read the result as B, because the memory is shared.  In the graph:

    part              B -> a piece   of a variable: in place; of another tensor: a view
    reduce_scatter    P -> a piece   of the gradient, instead of an all_reduce that only updates read: half the bytes
    broadcast_view    a piece -> B   no data moves

An elementwise update runs on pieces: consecutive ranges of the variables of a bucket, beginning on cache lines.  Every other write is
assigned to one rank, the one with the least work so far.  If a node reads a value written in the same run (for example an average
of new values), the first rank writes all variables.

The gradient of a weight is a product summed over the batch, and each rank has a part of the batch.  The same product can be computed by
rows instead of addends, if the ranks exchange its factors.  The choice depends on the node's signatures and their cost, as for any node.

Example, two ranks, x float32[50,784] and dy float32[50,512] on each.  `reduce_scatter dy^T x` sends 0.8 MB.  Instead, `all_to_all dy`
sends 0.05 MB.  The x of both ranks costs nothing in the shared I/O buffers (`view_shared_arguments`).

A weight that is updated by rows can also be multiplied by rows.  Each rank then multiplies all samples with its own rows, which are in
its core's cache.  Otherwise, it multiplies its own samples with all rows and fetches rows that other ranks wrote.  Multiplication by
rows is also a signature with a cost: in the example, `all_to_all x w^T`, 0.05 MB, instead of reading 0.8 MB written by others.

The decisions are made on the graph that all ranks have, before communication is numbered.  The executor lets ranks write only after
all have finished their bodies, and begins the next run only after all have written.  In its epilogue, a rank must not read memory that
another rank writes, so such inputs are copied in the body.  `plan_checks` verifies these rules.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from jobflow.compiler.layouts.argument_views import is_contiguous
from jobflow.compiler.layouts.box import Reroute, rerouted
from jobflow.compiler.layouts.paths import changed, path, price
from jobflow.core.errors import PlanError
from jobflow.core.layout import B, FlatPieces, Layout, Local, P, Placement, S, Sbp, Signature, Span
from jobflow.core.types import TensorType
from jobflow.graph.ir import Node, Physical, Value
from jobflow.graph.rewrite import Rewriter, consumers
from jobflow.ops.layout_ops import Copy
from jobflow.ops.op import ViewOp
from jobflow.ops.source import ReadVariable
from jobflow.ops.update import Updated
from jobflow.plan.plan import consecutive_offsets, line_cut

#: factor by which exchanging the factors of a product must be cheaper than summing the product
CHEAPER = 2
#: the same factor, compared to reading pieces that other ranks write: a read needs no synchronization and fills the cache for all readers
FAR_CHEAPER = 4


def divide_updates(physical: Physical, shared: Collection[str], io_buffers: bool) -> Physical:
    """Divide the updates of the variables named in `shared`; with `io_buffers`, arguments are in the shared I/O buffers."""
    dividing = _UpdateDivision(physical, shared, io_buffers)
    return dividing.divided() if dividing.writers or dividing.assigned else physical


class _Sum(NamedTuple):
    """A sum over ranks: its value in the original graph, its addends in the new graph, and the layouts of addends and sum."""

    value: Value
    x: Value
    source: Layout
    target: Layout


def _is_sum(node: Node) -> bool:
    """Return True for an all_reduce of addends among all ranks of a placement."""
    op = node.op
    if not isinstance(op, Reroute) or op.name != "all_reduce" or len(_groups(op)) > 1:
        return False
    return op.source.sbp[changed(op.source, op.target)[0]] == P and op.target.is_whole


def _groups(op: Reroute) -> tuple[tuple[int, ...], ...]:
    return op.source.placement.along(changed(op.source, op.target))


class _UpdateDivision(Rewriter):
    """A rewriter that assigns each write of a shared variable to one rank, or in pieces to all ranks."""

    def __init__(self, physical: Physical, shared: Collection[str], io_buffers: bool) -> None:
        super().__init__(physical.graph)
        self.physical, self.shared, self.io_buffers = physical, shared, io_buffers
        self.layouts: dict[Value, Layout | Local] = {}
        self.redistributed: dict[tuple[Value, Layout], Value] = {}
        self.readers = consumers(self.graph)
        self.writers = [node for node in self.graph.nodes if any(self._is_stored(node.inputs[i]) for i in node.op.alias.values())]
        self.assigned = [name for name, value in self.graph.updates.items() if name in shared and not self._writes_itself(name, value)]
        #: the nodes of the epilogue, in which variables are written
        self.late = self._dependents(node for node in self.graph.nodes if node.op.alias)
        #: update -> layout of its pieces; any other writer, or a node that depends on it -> the rank that runs it
        self.pieces: dict[Node, Layout] = {}
        self.owners: dict[Node, int] = {}
        #: sum -> the signature that computes its rows instead; other sums that only updates read -> their pieces; producers of the rows
        self.rows: dict[Value, Signature] = {}
        self.scattered: dict[Value, FlatPieces] = {}
        self.products: set[Node] = set()
        #: reader of a weight that is updated by rows -> its signature with only the rank's own rows
        self.own_rows: dict[Node, Signature] = {}

    # ---------------------------------------------------------------- assignment of writes

    def divided(self) -> Physical:
        names = [*(self._variable(node, i) for node in self.writers for i in node.op.alias.values()), *self.assigned]
        self.placement = self.graph.variables[names[0]].placement
        self.ranks = self.placement.ranks
        if self._new_values_are_read():
            self.owners = dict.fromkeys(self._dependents(self.writers), self.ranks[0])
        else:
            self._cut()
            self._choose_readers()
        self._choose_owners()
        self._check_others()
        self.walk(self.graph.nodes)
        graph = self.rebuilt()
        for name, rank in self.assigners.items():
            graph.updates[name] = self._held_by(graph.updates[name], rank, graph.updates[name].node)
        return Physical(replace(graph, nodes=tuple(self.nodes)), self.layouts)

    def _is_stored(self, value: Value) -> bool:
        """Return True if a value is a shared variable or a view of one."""
        while isinstance(value.node.op, ViewOp | Reroute):
            value = value.node.inputs[0]
        return isinstance(value.node.op, ReadVariable) and value.node.op.key in self.shared

    def _variable(self, node: Node, i: int) -> str:
        """Return the shared variable that a node updates through its input i; raise PlanError if the input is not a shared variable."""
        op = node.inputs[i].node.op
        if not isinstance(op, ReadVariable) or op.key not in self.shared:
            raise PlanError(
                f"{node.op} at {node.where}: it updates shared variables together with {node.inputs[i].name}, which is not a shared variable; "
                f"set config.share_variables(False)"
            )
        return op.key

    def _writes_itself(self, name: str, value: Value) -> bool:
        over = value.node.op.alias.get(value.index)
        return over is not None and value.node.inputs[over] is self.graph.reads[name]

    def _dependents(self, nodes: Iterable[Node]) -> dict[Node, None]:
        """Return these nodes and all nodes that depend on them, in program order."""
        dependents = dict.fromkeys(nodes)
        return {node: None for node in self.graph.nodes if node in dependents or self._joins(dependents, node)}

    @staticmethod
    def _joins(dependents: dict[Node, None], node: Node) -> bool:
        depends = any(value.node in dependents for value in node.inputs)
        if depends:
            dependents[node] = None
        return depends

    def _new_values_are_read(self) -> bool:
        """Return True if a value written by this run is read by a node, is an output, or is assigned to another variable."""
        written = {value for node in self.writers for value in node.outputs}
        assigned = (value for name, value in self.graph.updates.items() if not self._writes_itself(name, value))
        return any(self.readers[value] for value in written) or not written.isdisjoint(self.graph.outputs) or not written.isdisjoint(assigned)

    def _check_others(self) -> None:
        """Raise PlanError if a variable that ranks do not share is assigned a value that only one rank computes."""
        for name, value in self.graph.updates.items():
            if name not in self.shared and value.node in self.owners:
                raise self._needed_by_all(name, value.node)

    def _choose_owners(self) -> None:
        """Assign every write that is not divided to the rank with the least work so far."""
        load = dict.fromkeys(self.ranks, 0)

        def least(types: Iterable[TensorType]) -> int:
            rank = min(self.ranks, key=lambda r: (load[r], r))
            load[rank] += sum(type.nbytes for type in types)
            return rank

        again = bool(self.owners)
        for node in self.writers:
            if node not in self.pieces and node not in self.owners:
                self.owners[node] = least(value.tensor_type for value in node.outputs)
        types = {name: self.graph.variables[name].type for name in self.assigned}
        self.assigners = {name: self.ranks[0] if again else least([type]) for name, type in types.items()}

    # ---------------------------------------------------------------- how updates are cut

    def _cut(self) -> None:
        """Choose the pieces of all elementwise updates."""
        flat = dict.fromkeys(node for node in self.writers if self._is_elementwise(node))
        for node in self.graph.nodes:
            if _is_sum(node):
                self._cut_like(node, flat)
        others = [node for node in flat if node not in self.pieces]
        placement = Placement(self.placement.tag, self.ranks)
        self.pieces.update(zip(others, flat_pieces([node.outputs[0].tensor_type for node in others], placement), strict=True))

    def _cut_like(self, sums: Node, flat: Collection[Node]) -> None:
        """Choose the pieces of the updates that are the only readers of these sums.

        The pieces are rows if the gradient is computed by rows, otherwise ranges of all gradients as one flat array.
        """
        assert isinstance(sums.op, Reroute)
        cut: dict[Value, list[Node]] = {}
        for value, source in zip(sums.outputs, sums.inputs, strict=True):
            updates = self._updates_of(value, flat)
            signature = self._row_signature(source, updates)
            if signature is not None:
                self.rows[value] = signature
                self.products.add(source.node)
                self.pieces[updates[0]] = Layout(source.node.placement, (S(0),))
            elif updates:
                cut[value] = updates
        (ranks,) = _groups(sums.op)
        layouts = flat_pieces([value.tensor_type for value in cut], Placement(sums.op.source.placement.tag, ranks))
        self.scattered.update(zip(cut, layouts, strict=True))
        for layout, updates in zip(layouts, cut.values(), strict=True):
            self.pieces.update(dict.fromkeys(updates, layout))

    def _is_elementwise(self, node: Node) -> bool:
        """Return True if each rank can update a range of the variables from the same range of whole tensors."""
        op = node.op
        if not isinstance(op, Updated) or not op.flat or dict(op.alias) != {i: i for i in range(op.count)}:
            return False
        shapes = {value.shape for value in node.inputs[: op.count + op.like]}
        return len(shapes) == 1 and all(self._is_whole(value) for value in (*node.inputs, *node.outputs))

    def _is_whole(self, value: Value) -> bool:
        """Return True if all ranks that share variables hold a value whole."""
        layout = self.physical.layouts[value]
        return isinstance(layout, Layout) and layout.is_whole and set(layout.placement.ranks) == set(self.ranks)

    def _layout(self, value: Value, layouts: Mapping[Value, Layout | Local]) -> Layout:
        """Return the layout of a value, which must be in the consistent view."""
        layout = layouts[value]
        assert isinstance(layout, Layout)
        return layout

    def _updates_of(self, value: Value, flat: Collection[Node]) -> list[Node]:
        """Return the updates that read a sum as their only tensor; an empty list if the sum has other readers."""
        readers = self.readers[value]
        alone = value not in self.graph.outputs and value not in self.graph.updates.values() and all(node in flat for node in readers)
        return readers if alone and all(_only_tensor(node) is value for node in readers) else []

    # ---------------------------------------------------------------- products in rows

    def _choose_readers(self) -> None:
        """Let readers of weights that are updated by rows read only their rank's rows, if that is cheaper than reading all rows."""
        for update, layout in self.pieces.items():
            if isinstance(layout, FlatPieces):
                continue
            for weight in (update.inputs[i] for i in update.op.alias.values()):
                candidates = [self._own_row_signature(node, weight, layout) for node in self.readers[weight] if node is not update]
                known = [each for each in candidates if each is not None]
                ranks = layout.placement.size
                read_from_others = weight.tensor_type.nbytes * (ranks - 1) // ranks
                if known and len(known) == len(candidates) and FAR_CHEAPER * sum(paid for paid, _, _ in known) <= read_from_others:
                    self.own_rows.update((node, signature) for _, node, signature in known)

    def _own_row_signature(self, node: Node, weight: Value, layout: Layout) -> tuple[int, Node, Signature] | None:
        """Return the cost, the node, and its signature that reads only the rank's rows of a weight; None if no signature does.

        The cost is the price of redistributing the other inputs and the outputs.
        """
        others = [value for value in (*node.inputs, *node.outputs) if value is not weight]
        same_placement = all(isinstance(here := self.physical.layouts[value], Layout) and here.placement == layout.placement for value in others)
        if not same_placement or isinstance(node.op, Reroute | ViewOp) or node in self.own_rows or node in self.late:
            return None
        prices: list[tuple[int, Signature]] = []
        for signature in node.op.rule(*(value.tensor_type for value in node.inputs)).signatures():
            weight_layouts = [sbp for value, sbp in zip(node.inputs, signature.inputs, strict=True) if value is weight]
            if set(weight_layouts) == set(layout.sbp) and signature.legal(layout.placement.size):
                rest = [(value, sbp) for value, sbp in zip(node.inputs, signature.inputs, strict=True) if value is not weight]
                paid = sum(self._price(value, layout.placement, sbp) for value, sbp in rest)
                for value, sbp in zip(node.outputs, signature.outputs, strict=True):
                    paid += price(Layout(layout.placement, (sbp,)), self._layout(value, self.physical.layouts), value.tensor_type)
                prices.append((paid, signature))
        best = min(prices, key=lambda pair: pair[0], default=None)
        return best and (best[0], node, best[1])

    def _row_signature(self, source: Value, updates: Sequence[Node]) -> Signature | None:
        """Return the signature with which the producer of a gradient computes its rows instead of addends; None if that is not cheaper."""
        node, here = source.node, self.physical.layouts[source]
        if (
            source in self.graph.outputs
            or len(updates) != 1
            or len(self.readers[source]) != 1
            or len(node.outputs) != 1
            or isinstance(node.op, Reroute | ViewOp)
        ):
            return None
        if not isinstance(here, Layout) or here.sbp != (P,) or not source.shape or source.shape[0] < here.placement.size:
            return None
        prices: list[tuple[int, Signature]] = []
        for signature in node.op.rule(*(value.tensor_type for value in node.inputs)).signatures():
            if signature.outputs == (S(0),) and signature.legal(here.placement.size):
                paid = [self._price(value, here.placement, sbp) for value, sbp in zip(node.inputs, signature.inputs, strict=True)]
                prices.append((sum(paid), signature))
        best = min(prices, key=lambda pair: pair[0], default=None)
        alone = price(here, Layout(here.placement, (S(0),)), source.tensor_type)
        return best[1] if best is not None and CHEAPER * best[0] <= alone else None

    def _price(self, value: Value, placement: Placement, sbp: Sbp) -> int:
        """Return the cost of redistributing a factor of a product; 0 if all ranks read the factor in the shared I/O buffers."""
        return 0 if self._is_contiguous(value) else price(self._layout(value, self.physical.layouts), Layout(placement, (sbp,)), value.tensor_type)

    def _is_contiguous(self, value: Value) -> bool:
        return self.io_buffers and is_contiguous(value, self.physical.layouts, self.readers)

    # ---------------------------------------------------------------- the walk

    def take(self, node: Node, inputs: tuple[Value, ...]) -> Sequence[Value]:
        if node in self.products:
            return node.outputs  # each reader computes the product
        if not self.rows.keys().isdisjoint(node.outputs) or not self.scattered.keys().isdisjoint(node.outputs):
            return self._gradient_sums(node, inputs)
        if node in self.late:
            inputs = tuple(value if i in node.op.alias.values() else self._epilogue_input(value, node) for i, value in enumerate(inputs))
        if node in self.owners:
            return self._on_owner(node, inputs, self.owners[node])
        if node in self.pieces:
            return self._updated_pieces(node, inputs, self.pieces[node])
        if node in self.own_rows:
            return self._with_own_rows(node, self.own_rows[node])
        outputs = self.keep(node, inputs)
        self.layouts.update(zip(outputs, [self.physical.layouts[value] for value in node.outputs], strict=True))
        return outputs

    def _epilogue_input(self, value: Value, node: Node) -> Value:
        """Return the value that a node of the epilogue reads: a copy if `value` is a shared variable, otherwise `value`."""
        if not self._is_stored(value):
            return value
        copy = Node(
            Copy(), (value,), ((value.tensor_type, f"{value.name}:before", False),), f"{value.name}:before", value.node.placement, node.provenance
        )
        return self._added(copy, self.layouts[value])

    def _added(self, node: Node, layout: Layout | Local) -> Value:
        (value,) = self.add(node)
        self.layouts[value] = layout
        return value

    def _rerouted(self, value: Value, target: Layout, name: str, node: Node) -> Value:
        """Return `value` in the layout `target`, by the route `name`; nodes that read the value in this layout share the result."""
        key = value, target
        if key not in self.redistributed:
            here = self._layout(value, self.layouts)
            self.redistributed[key] = value if here == target else self._added(rerouted(value, Reroute(here, target, name), node.provenance), target)
        return self.redistributed[key]

    def _updated_pieces(self, node: Node, inputs: tuple[Value, ...], layout: Layout) -> list[Value]:
        """Record an update of pieces; return views of the whole results."""
        assert isinstance(node.op, Updated)
        tensors = node.op.count + node.op.like
        parts = [self._rerouted(value, layout, "part", node) for value in inputs[:tensors]]
        outputs = self.keep(node, (*parts, *inputs[tensors:]))
        self.layouts.update(dict.fromkeys(outputs, layout))
        return [
            self._rerouted(value, self._layout(before, self.physical.layouts), "broadcast_view", node)
            for value, before in zip(outputs, node.outputs, strict=True)
        ]

    def _on_owner(self, node: Node, inputs: tuple[Value, ...], rank: int) -> tuple[Value, ...]:
        """Record a node on one rank only; raise PlanError if all ranks need the node."""
        if isinstance(node.op, Reroute) or node.outputs[0].local or (node.op.alias and node not in self.writers):
            raise self._needed_by_all(str(node.op), node)
        outputs = self.keep(node, tuple(self._held_by(value, rank, node) for value in inputs), placement=Placement(self.placement.tag, (rank,)))
        self.layouts.update(dict.fromkeys(outputs, Layout(outputs[0].node.placement, (B,))))
        return outputs

    def _held_by(self, value: Value, rank: int, node: Node) -> Value:
        """Return a value on the one rank that runs the node; raise PlanError unless the rank holds it whole."""
        layout = self.layouts[value]
        if not isinstance(layout, Layout) or not layout.is_whole or rank not in layout.placement.ranks:
            raise self._needed_by_all(value.name, node)
        return self._rerouted(value, Layout(Placement(self.placement.tag, (rank,)), (B,)), "part", node)

    @staticmethod
    def _needed_by_all(what: str, node: Node) -> PlanError:
        return PlanError(
            f"{what} at {node.where}: it reads the new value of a variable that the ranks share, and another "
            f"variable or rank depends on the result; set config.share_variables(False)"
        )

    # ---------------------------------------------------------------- gradients

    def _gradient_sums(self, node: Node, inputs: tuple[Value, ...]) -> list[Value]:
        """Return the replacements of the sums that an all_reduce computes: rows of products, pieces of sums, or whole sums."""
        assert isinstance(node.op, Reroute)
        ends = node.op.each or ((node.op.source, node.op.target),) * len(inputs)
        result: dict[Value, Value] = {}
        scattered: list[_Sum] = []
        whole: list[_Sum] = []
        for value, product, x, (source, target) in zip(node.outputs, node.inputs, inputs, ends, strict=True):
            if value in self.rows:
                result[value] = self._product_rows(product.node, self.rows[value])
            elif value in self.scattered:
                scattered.append(_Sum(value, x, source, self.scattered[value]))
            else:
                whole.append(_Sum(value, x, source, target))
        for name, sums in (("reduce_scatter", scattered), ("all_reduce", whole)):
            if sums:
                result.update(self._merged_sums(node, name, sums))
        return [result[value] for value in node.outputs]

    def _merged_sums(self, node: Node, route: str, sums: Sequence[_Sum]) -> dict[Value, Value]:
        """Merge these sums of a node into one collective; return the new value of each."""
        ends = tuple((one.source, one.target) for one in sums)
        op = Reroute(*ends[0], route, ends if len(set(ends)) > 1 else ())
        makes = [(one.value.tensor_type, one.value.name, False) for one in sums]
        name = sums[0].x.name if len(sums) == 1 else f"{sums[0].x.name}..{sums[-1].x.name}"
        outputs = self.add(Node(op, tuple(one.x for one in sums), makes, name, node.placement, node.provenance))
        self.layouts.update(zip(outputs, (one.target for one in sums), strict=True))
        return dict(zip((one.value for one in sums), outputs, strict=True))

    def _product_rows(self, node: Node, signature: Signature) -> Value:
        """Return each rank's rows of a product, computed from factors that the ranks exchange."""
        (rows,) = self._with_signature(node, signature)
        return rows

    def _with_own_rows(self, node: Node, signature: Signature) -> list[Value]:
        """Record a node on the rank's own rows and redistribute its outputs to the layouts that readers expect."""
        outputs = self._with_signature(node, signature)
        return [
            self._redistributed(value, self._layout(before, self.physical.layouts), node) for value, before in zip(outputs, node.outputs, strict=True)
        ]

    def _with_signature(self, node: Node, signature: Signature) -> tuple[Value, ...]:
        """Record a node with its inputs in the layouts of a signature."""
        factors: list[Value] = []
        for value, sbp in zip(node.inputs, signature.inputs, strict=True):
            x, target = self.now[value], Layout(node.placement, (sbp,))
            if self._is_stored(value) and self._layout(x, self.layouts).is_whole and sbp != B:
                factors.append(self._rerouted(x, target, "part", node))
                continue
            x = self._redistributed(x, Layout(node.placement, (B,)), node) if self._is_contiguous(value) else x
            factors.append(self._redistributed(x, target, node))
        outputs = tuple(self.keep(node, tuple(factors)))
        self.layouts.update(zip(outputs, (Layout(node.placement, (sbp,)) for sbp in signature.outputs), strict=True))
        return outputs

    def _redistributed(self, x: Value, target: Layout, node: Node) -> Value:
        """Redistribute a value along the cheapest path."""
        for hop in path(self._layout(x, self.layouts), target, x.tensor_type):
            x = self._rerouted(x, hop.target, hop.name, node)
        return x


def _only_tensor(node: Node) -> Value | None:
    """Return the only tensor with which a node updates variables; None if it reads several tensors, or one tensor twice."""
    op = node.op
    alone = isinstance(op, Updated) and op.like == 1 and node.inputs.count(node.inputs[op.count]) == 1
    return node.inputs[op.count] if alone and isinstance(op, Updated) else None


def flat_pieces(types: Sequence[TensorType], placement: Placement) -> list[FlatPieces]:
    """Return the layouts that divide contiguous tensors among ranks as one array, in pieces that begin on cache lines."""
    offsets, nbytes = consecutive_offsets(types)
    return [
        FlatPieces(placement, (S(0),), tuple(_clipped(type, start - offset, stop - offset) for start, stop in line_cut(nbytes, placement.size)))
        for type, offset in zip(types, offsets, strict=True)
    ]


def _clipped(type: TensorType, start: int, stop: int) -> Span:
    """Return the range of elements of a tensor between two byte offsets, clipped to the tensor."""
    begin, end = (min(max(byte, 0), type.nbytes) // type.dtype.itemsize for byte in (start, stop))
    return begin, end
