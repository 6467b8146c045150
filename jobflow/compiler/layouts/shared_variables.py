"""Physical graph -> the same with the updates of shared variables divided among the ranks that share them.

What all ranks of a node hold whole, they store once (`plan.storage`).  For readers it is B, and nothing moves.  To be updated it is
cut: each rank writes a piece, which all ranks then look at as B, because it is the same memory.  In the graph:

    part              B -> a piece   of a variable: where it lies; of another tensor: a view
    reduce_scatter    P -> a piece   of the gradient, in place of an all_reduce that only updates read: half the bytes
    look              a piece -> B   nothing

An elementwise update runs on pieces: stretches of the variables of a bucket, one after another, that begin on cache lines.  Any other write
is done by one rank, each by the one that has least to do so far.  Where something reads what a write of this run has made (an average
of new values, say), the first rank does all of the writing.

The gradient of a weight is a product summed over the batch, of which each rank has a part.  The same product can be formed in rows instead
of addends, if the ranks exchange its factors: as for any node, it is a question of its signatures and of what they cost.

Example, two ranks, x float32[50,784] and dy float32[50,512] on each: in place of `reduce_scatter dy^T x`, 0.8 MB, `all_to_all dy` (0.05 MB) and
the x of both ranks (nothing, in the shared I/O buffers, see `look_at_arguments`).

A weight that is updated in rows can be multiplied in rows as well: each rank all samples with its own rows, which are in its core's cache, in
place of its own samples with all rows, of which it has to fetch what others have written.  That, too, is a signature and what it costs: in the
example `all_to_all x w^T`, 0.05 MB, in place of a look at 0.8 MB.

All of this is decided here, on the graph that all ranks have, before communication is numbered.  The executor lets no rank write before
all have finished their bodies, and none begin the next run before all have written; so in its epilogue a rank may read nothing that
another one writes, and what it would read there is copied in the body.  `plan_checks` verifies both.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from jobflow.compiler.layouts.box import Reroute, rerouted
from jobflow.compiler.layouts.look import lies_together
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

#: how many times cheaper it must be to exchange the factors of a product than to sum it
CHEAPER = 2
#: and how many times cheaper than to look at what others write: that costs no waiting, and once it is read, it is near for all who read it
FAR_CHEAPER = 4


def divide_updates(physical: Physical, shared: Collection[str], io_buffers: bool) -> Physical:
    """Share out the updates of the variables called in `shared`; with `io_buffers` arguments come through the shared I/O buffers."""
    dividing = _Dividing(physical, shared, io_buffers)
    return dividing.divided() if dividing.writers or dividing.assigned else physical


class _Sum(NamedTuple):
    """A tensor that is summed over ranks: what stands for it in the graph that is walked, its addends, and how these and it lie."""

    value: Value
    x: Value
    source: Layout
    target: Layout


def _is_sum(node: Node) -> bool:
    """True for an all_reduce of addends among all ranks of a placement."""
    op = node.op
    if not isinstance(op, Reroute) or op.name != "all_reduce" or len(_groups(op)) > 1:
        return False
    return op.source.sbp[changed(op.source, op.target)[0]] == P and op.target.is_whole


def _groups(op: Reroute) -> tuple[tuple[int, ...], ...]:
    return op.source.placement.along(changed(op.source, op.target))


class _Dividing(Rewriter):
    """Finds out who writes what, then walks the graph."""

    def __init__(self, physical: Physical, shared: Collection[str], io_buffers: bool) -> None:
        super().__init__(physical.graph)
        self.physical, self.shared, self.io_buffers = physical, shared, io_buffers
        self.layouts: dict[Value, Layout | Local] = {}
        self.brought: dict[tuple[Value, Layout], Value] = {}
        self.readers = consumers(self.graph)
        self.writers = [node for node in self.graph.nodes if any(self._is_stored(node.inputs[i]) for i in node.op.alias.values())]
        self.assigned = [name for name, value in self.graph.updates.items() if name in shared and not self._writes_itself(name, value)]
        #: what runs when variables are written, and after that
        self.late = self._dependents(node for node in self.graph.nodes if node.op.alias)
        #: by update, how its variables are cut; by other writer, and by what depends on it, the rank that does it
        self.pieces: dict[Node, Layout] = {}
        self.owners: dict[Node, int] = {}
        #: by sum, how its maker forms it in rows instead, and those makers; and the pieces of other sums that only updates read
        self.rows: dict[Value, Signature] = {}
        self.scattered: dict[Value, FlatPieces] = {}
        self.products: set[Node] = set()
        #: by reader of a weight that is updated in rows, how it does with its rank's own rows
        self.own_rows: dict[Node, Signature] = {}

    # ---------------------------------------------------------------- who writes what

    def divided(self) -> Physical:
        names = [*(self._variable(node, i) for node in self.writers for i in node.op.alias.values()), *self.assigned]
        self.placement = self.graph.variables[names[0]].placement
        self.ranks = self.placement.ranks
        if self._is_read_again():
            self.owners = dict.fromkeys(self._dependents(self.writers), self.ranks[0])
        else:
            self._cut()
            self._choose_readers()
        self._choose_owners()
        self._check_others()
        self.walk(self.graph.nodes)
        graph = self.rebuilt()
        for name, rank in self.assigners.items():
            graph.updates[name] = self._on_one(graph.updates[name], rank, graph.updates[name].node)
        return Physical(replace(graph, nodes=tuple(self.nodes)), self.layouts)

    def _is_stored(self, value: Value) -> bool:
        """True if a value lies in the memory of a shared variable."""
        while isinstance(value.node.op, ViewOp | Reroute):
            value = value.node.inputs[0]
        return isinstance(value.node.op, ReadVariable) and value.node.op.key in self.shared

    def _variable(self, node: Node, i: int) -> str:
        """The shared variable that a node writes over its input i."""
        op = node.inputs[i].node.op
        if not isinstance(op, ReadVariable) or op.key not in self.shared:
            raise PlanError(
                f"{node.op} at {node.where} writes over variables that ranks share, and over {node.inputs[i].name}, which they do not share; set "
                f"config.share_variables(False)"
            )
        return op.key

    def _writes_itself(self, name: str, value: Value) -> bool:
        over = value.node.op.alias.get(value.index)
        return over is not None and value.node.inputs[over] is self.graph.reads[name]

    def _dependents(self, nodes: Iterable[Node]) -> dict[Node, None]:
        """These nodes and what depends on them, in order."""
        found = dict.fromkeys(nodes)
        return {node: None for node in self.graph.nodes if node in found or self._joins(found, node)}

    @staticmethod
    def _joins(found: dict[Node, None], node: Node) -> bool:
        depends = any(value.node in found for value in node.inputs)
        if depends:
            found[node] = None
        return depends

    def _is_read_again(self) -> bool:
        """True if something reads what a write of this run has made."""
        made = {value for node in self.writers for value in node.outputs}
        given = (value for name, value in self.graph.updates.items() if not self._writes_itself(name, value))
        return any(self.readers[value] for value in made) or not made.isdisjoint(self.graph.outputs) or not made.isdisjoint(given)

    def _check_others(self) -> None:
        """PlanError if a variable that is each rank's own takes what one rank alone makes."""
        for name, value in self.graph.updates.items():
            if name not in self.shared and value.node in self.owners:
                raise self._needed_by_all(name, value.node)

    def _choose_owners(self) -> None:
        """The rank of every write that is not divided: each time the one that has least to do so far."""
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
        """The pieces of all elementwise updates."""
        flat = dict.fromkeys(node for node in self.writers if self._is_elementwise(node))
        for node in self.graph.nodes:
            if _is_sum(node):
                self._cut_like(node, flat)
        others = [node for node in flat if node not in self.pieces]
        placement = Placement(self.placement.tag, self.ranks)
        self.pieces.update(zip(others, flat_pieces([node.outputs[0].tensor_type for node in others], placement), strict=True))

    def _cut_like(self, sums: Node, flat: Collection[Node]) -> None:
        """The pieces of the updates that alone read these sums: rows where the gradient is formed in rows, else pieces of all of them as one."""
        assert isinstance(sums.op, Reroute)
        cut: dict[Value, list[Node]] = {}
        for value, source in zip(sums.outputs, sums.inputs, strict=True):
            updates = self._updates_of(value, flat)
            signature = self._rows_of(source, updates)
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
        """True if each rank can update a stretch of the variables with the same stretch of whole tensors."""
        op = node.op
        if not isinstance(op, Updated) or not op.flat or dict(op.alias) != {i: i for i in range(op.count)}:
            return False
        shapes = {value.shape for value in node.inputs[: op.count + op.like]}
        return len(shapes) == 1 and all(self._is_whole(value) for value in (*node.inputs, *node.outputs))

    def _is_whole(self, value: Value) -> bool:
        """True if all ranks that share variables hold a value whole."""
        layout = self.physical.layouts[value]
        return isinstance(layout, Layout) and layout.is_whole and set(layout.placement.ranks) == set(self.ranks)

    def _laid(self, value: Value, layouts: Mapping[Value, Layout | Local]) -> Layout:
        """How a value of the consistent view lies."""
        layout = layouts[value]
        assert isinstance(layout, Layout)
        return layout

    def _updates_of(self, value: Value, flat: Collection[Node]) -> list[Node]:
        """The updates that read a sum, each as its only tensor; none if anything else reads it."""
        found = self.readers[value]
        alone = value not in self.graph.outputs and value not in self.graph.updates.values() and all(node in flat for node in found)
        return found if alone and all(_only_tensor(node) is value for node in found) else []

    # ---------------------------------------------------------------- products in rows

    def _choose_readers(self) -> None:
        """What reads weights that are updated in rows reads only its rank's own, where that is cheaper than a look at those of others."""
        for update, layout in self.pieces.items():
            if isinstance(layout, FlatPieces):
                continue
            for weight in (update.inputs[i] for i in update.op.alias.values()):
                found = [self._with_rows(node, weight, layout) for node in self.readers[weight] if node is not update]
                known = [each for each in found if each is not None]
                ranks = layout.placement.size
                looked_at = weight.tensor_type.nbytes * (ranks - 1) // ranks
                if known and len(known) == len(found) and FAR_CHEAPER * sum(paid for paid, _, _ in known) <= looked_at:
                    self.own_rows.update((node, signature) for _, node, signature in known)

    def _with_rows(self, node: Node, weight: Value, layout: Layout) -> tuple[int, Node, Signature] | None:
        """How a node does with a rank's own rows of a weight, and what it costs to bring the rest there and the outputs back."""
        beside = [value for value in (*node.inputs, *node.outputs) if value is not weight]
        lain = all(isinstance(here := self.physical.layouts[value], Layout) and here.placement == layout.placement for value in beside)
        if not lain or isinstance(node.op, Reroute | ViewOp) or node in self.own_rows or node in self.late:
            return None
        found: list[tuple[int, Signature]] = []
        for signature in node.op.rule(*(value.tensor_type for value in node.inputs)).signatures():
            wanted = [sbp for value, sbp in zip(node.inputs, signature.inputs, strict=True) if value is weight]
            if set(wanted) == set(layout.sbp) and signature.legal(layout.placement.size):
                rest = [(value, sbp) for value, sbp in zip(node.inputs, signature.inputs, strict=True) if value is not weight]
                paid = sum(self._price(value, layout.placement, sbp) for value, sbp in rest)
                for value, sbp in zip(node.outputs, signature.outputs, strict=True):
                    paid += price(Layout(layout.placement, (sbp,)), self._laid(value, self.physical.layouts), value.tensor_type)
                found.append((paid, signature))
        best = min(found, key=lambda pair: pair[0], default=None)
        return best and (best[0], node, best[1])

    def _rows_of(self, source: Value, updates: Sequence[Node]) -> Signature | None:
        """How the maker of a gradient forms its rows instead of addends; None if that is not cheaper."""
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
        """What it costs to bring a factor into a layout."""
        return 0 if self._lies_together(value) else price(self._laid(value, self.physical.layouts), Layout(placement, (sbp,)), value.tensor_type)

    def _lies_together(self, value: Value) -> bool:
        return self.io_buffers and lies_together(value, self.physical.layouts, self.readers)

    # ---------------------------------------------------------------- the walk

    def take(self, node: Node, inputs: tuple[Value, ...]) -> Sequence[Value]:
        if node in self.products:
            return node.outputs  # it is made where it is read
        if not self.rows.keys().isdisjoint(node.outputs) or not self.scattered.keys().isdisjoint(node.outputs):
            return self._summed(node, inputs)
        if node in self.late:
            inputs = tuple(value if i in node.op.alias.values() else self._before(value, node) for i, value in enumerate(inputs))
        if node in self.owners:
            return self._by_one(node, inputs, self.owners[node])
        if node in self.pieces:
            return self._by_all(node, inputs, self.pieces[node])
        if node in self.own_rows:
            return self._by_rows(node, self.own_rows[node])
        made = self.keep(node, inputs)
        self.layouts.update(zip(made, [self.physical.layouts[value] for value in node.outputs], strict=True))
        return made

    def _before(self, value: Value, node: Node) -> Value:
        """What a node reads while variables are written: of a shared one a copy."""
        if not self._is_stored(value):
            return value
        copy = Node(
            Copy(), (value,), ((value.tensor_type, f"{value.name}:before", False),), f"{value.name}:before", value.node.placement, node.origin
        )
        return self._made(copy, self.layouts[value])

    def _made(self, node: Node, layout: Layout | Local) -> Value:
        (value,) = self.add(node)
        self.layouts[value] = layout
        return value

    def _rerouted(self, value: Value, target: Layout, name: str, node: Node) -> Value:
        """A value that lies otherwise, for a node; the same for all nodes."""
        key = value, target
        if key not in self.brought:
            here = self._laid(value, self.layouts)
            self.brought[key] = value if here == target else self._made(rerouted(value, Reroute(here, target, name), node.origin), target)
        return self.brought[key]

    def _by_all(self, node: Node, inputs: tuple[Value, ...], layout: Layout) -> list[Value]:
        """An update of pieces, at which all ranks look."""
        assert isinstance(node.op, Updated)
        tensors = node.op.count + node.op.like
        parts = [self._rerouted(value, layout, "part", node) for value in inputs[:tensors]]
        made = self.keep(node, (*parts, *inputs[tensors:]))
        self.layouts.update(dict.fromkeys(made, layout))
        return [
            self._rerouted(value, self._laid(before, self.physical.layouts), "look", node) for value, before in zip(made, node.outputs, strict=True)
        ]

    def _by_one(self, node: Node, inputs: tuple[Value, ...], rank: int) -> tuple[Value, ...]:
        """A node that one rank runs."""
        if isinstance(node.op, Reroute) or node.outputs[0].local or (node.op.alias and node not in self.writers):
            raise self._needed_by_all(str(node.op), node)
        made = self.keep(node, tuple(self._on_one(value, rank, node) for value in inputs), placement=Placement(self.placement.tag, (rank,)))
        self.layouts.update(dict.fromkeys(made, Layout(made[0].node.placement, (B,))))
        return made

    def _on_one(self, value: Value, rank: int, node: Node) -> Value:
        """A value that is whole on all ranks, or on this one, for a node that this one runs."""
        layout = self.layouts[value]
        if not isinstance(layout, Layout) or not layout.is_whole or rank not in layout.placement.ranks:
            raise self._needed_by_all(value.name, node)
        return self._rerouted(value, Layout(Placement(self.placement.tag, (rank,)), (B,)), "part", node)

    @staticmethod
    def _needed_by_all(what: str, node: Node) -> PlanError:
        return PlanError(
            f"{what} at {node.where} reads what an update of this run has made of a variable that the ranks share, and another "
            f"variable or rank depends on it; set config.share_variables(False)"
        )

    # ---------------------------------------------------------------- gradients

    def _summed(self, node: Node, inputs: tuple[Value, ...]) -> list[Value]:
        """Sums of gradients: in rows, in pieces, and those that are read whole."""
        assert isinstance(node.op, Reroute)
        ends = node.op.each or ((node.op.source, node.op.target),) * len(inputs)
        found: dict[Value, Value] = {}
        scattered: list[_Sum] = []
        whole: list[_Sum] = []
        for value, product, x, (source, target) in zip(node.outputs, node.inputs, inputs, ends, strict=True):
            if value in self.rows:
                found[value] = self._formed(product.node, self.rows[value])
            elif value in self.scattered:
                scattered.append(_Sum(value, x, source, self.scattered[value]))
            else:
                whole.append(_Sum(value, x, source, target))
        for name, sums in (("reduce_scatter", scattered), ("all_reduce", whole)):
            if sums:
                found.update(self._together(node, name, sums))
        return [found[value] for value in node.outputs]

    def _together(self, node: Node, route: str, sums: Sequence[_Sum]) -> dict[Value, Value]:
        """Sums that travel as one, in place of some of those of a node."""
        ends = tuple((one.source, one.target) for one in sums)
        op = Reroute(*ends[0], route, ends if len(set(ends)) > 1 else ())
        makes = [(one.value.tensor_type, one.value.name, False) for one in sums]
        name = sums[0].x.name if len(sums) == 1 else f"{sums[0].x.name}..{sums[-1].x.name}"
        made = self.add(Node(op, tuple(one.x for one in sums), makes, name, node.placement, node.origin))
        self.layouts.update(zip(made, (one.target for one in sums), strict=True))
        return dict(zip((one.value for one in sums), made, strict=True))

    def _formed(self, node: Node, signature: Signature) -> Value:
        """The rows of a product of each rank, from factors that the ranks exchange."""
        (rows,) = self._by_signature(node, signature)
        return rows

    def _by_rows(self, node: Node, signature: Signature) -> list[Value]:
        """What a node makes of a rank's own rows, brought to where it is read."""
        made = self._by_signature(node, signature)
        return [self._brought(value, self._laid(before, self.physical.layouts), node) for value, before in zip(made, node.outputs, strict=True)]

    def _by_signature(self, node: Node, signature: Signature) -> tuple[Value, ...]:
        """A node with its inputs brought to where a signature has them."""
        factors: list[Value] = []
        for value, sbp in zip(node.inputs, signature.inputs, strict=True):
            x, target = self.now[value], Layout(node.placement, (sbp,))
            if self._is_stored(value) and self._laid(x, self.layouts).is_whole and sbp != B:
                factors.append(self._rerouted(x, target, "part", node))
                continue
            x = self._brought(x, Layout(node.placement, (B,)), node) if self._lies_together(value) else x
            factors.append(self._brought(x, target, node))
        made = tuple(self.keep(node, tuple(factors)))
        self.layouts.update(zip(made, (Layout(node.placement, (sbp,)) for sbp in signature.outputs), strict=True))
        return made

    def _brought(self, x: Value, target: Layout, node: Node) -> Value:
        """A value that lies otherwise, the cheapest way."""
        for hop in path(self._laid(x, self.layouts), target, x.tensor_type):
            x = self._rerouted(x, hop.target, hop.name, node)
        return x


def _only_tensor(node: Node) -> Value | None:
    """The only tensor with which a node updates variables; None if it reads another one besides, or the same one twice."""
    op = node.op
    alone = isinstance(op, Updated) and op.like == 1 and node.inputs.count(node.inputs[op.count]) == 1
    return node.inputs[op.count] if alone and isinstance(op, Updated) else None


def flat_pieces(types: Sequence[TensorType], placement: Placement) -> list[FlatPieces]:
    """Tensors that lie end to end, cut among ranks as if they were one, in pieces that begin on cache lines."""
    offsets, nbytes = consecutive_offsets(types)
    return [
        FlatPieces(placement, (S(0),), tuple(_inside(type, start - offset, stop - offset) for start, stop in line_cut(nbytes, placement.size)))
        for type, offset in zip(types, offsets, strict=True)
    ]


def _inside(type: TensorType, start: int, stop: int) -> Span:
    """The elements of a tensor between two bytes, which may be outside of it."""
    begin, end = (min(max(byte, 0), type.nbytes) // type.dtype.itemsize for byte in (start, stop))
    return begin, end
