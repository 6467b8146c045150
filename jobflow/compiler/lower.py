"""Physical graph -> the program of one rank: local types, localised ops, and the steps of every reroute.

Every rank walks the same global program in the same order and numbers each communication as it meets it, also those it takes no
part in.  So the order of communication is one total order, fixed before any rank reorders its own compute, and blocking
operations in that order cannot deadlock.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from jobflow.compiler.box import Reroute
from jobflow.compiler.local import Argument, Builder, Collect, Item, Join, Program, Receive, Send
from jobflow.compiler.routes import ROUTES, Change, Move, flatten, moves, unflatten
from jobflow.errors import PlanError
from jobflow.graph.ir import Node, Physical, Value
from jobflow.layout import SUM, Box, Layout, Local, Partial, whole_box
from jobflow.ops.base import types_tuple
from jobflow.ops.layout_ops import Assemble, FillIdentity, SliceBox, ToLocal
from jobflow.ops.source import Input, ReadVariable
from jobflow.plan.plan import ALIGNMENT, Announced, Slot
from jobflow.types import TensorType


def lower(physical: Physical, rank: int, slots: dict[str, Slot]) -> Program:
    """What `rank` does.  `slots` says where its variables are stored."""
    return _Lowering(physical, rank, slots).run()


@dataclass
class _Lowering:
    physical: Physical
    rank: int
    slots: dict[str, Slot]
    items: dict[Value, Item] = field(default_factory=dict)
    arguments: list[Argument] = field(default_factory=list)
    reads: dict[str, Item] = field(default_factory=dict)
    schedule: list[Announced] = field(default_factory=list)

    def run(self) -> Program:
        graph = self.physical.graph
        self.build = Builder(self.rank)
        for node in graph.nodes:
            self.build.name, self.build.where, self.build.phase = node.outputs[0].name, node.where, node.phase
            if isinstance(node.op, Reroute):
                self._reroute(node)
            elif self.rank in node.placement.ranks:
                self._node(node)
        fetches = tuple((i, self.items[value]) for i, value in enumerate(graph.outputs) if self._gives(value))
        updates = {name: self.items[value] for name, value in graph.updates.items() if value in self.items}
        steps = tuple(self.build.steps)
        return Program(graph.name, self.rank, steps, tuple(self.arguments), fetches, self.reads, updates, tuple(self.schedule))

    def _gives(self, value: Value) -> bool:
        """Whether this rank hands out its part of an output; of what all hold whole, the first does."""
        layout = self.physical.layouts[value]
        return value in self.items and (isinstance(layout, Local) or not layout.is_whole or layout.placement.ranks[0] == self.rank)

    # ---------------------------------------------------------------- ordinary nodes

    def box(self, value: Value) -> Box:
        """The part of a value that this rank holds; a local tensor is the rank's piece of all ranks' tensors one after another."""
        layout = self.physical.layouts[value]
        if isinstance(layout, Layout):
            return layout.box(value.shape, self.rank)
        return local_box(value.shape, layout, self.rank, self.physical.graph.rows)

    def local_type(self, value: Value) -> TensorType:
        return value.type.with_shape(self.box(value).shape)

    def _node(self, node: Node) -> None:
        op = node.op
        if isinstance(op, ReadVariable):
            (value,) = node.outputs
            item = Item(self.local_type(value), value.name, slot=self.slots[op.key])
            self.items[value] = self.reads[op.key] = item
            return
        if isinstance(op, Input):
            (value,) = node.outputs
            item = Item(self.local_type(value), value.name)
            self.items[value] = item
            box = whole_box(value.shape) if value.local else self.box(value)
            self.arguments.append(Argument(op.key, item, box))
            return
        if not node.outputs[0].local or op.by_position or isinstance(op, ToLocal):
            op = op.localize(tuple(map(self.box, node.inputs)), tuple(map(self.box, node.outputs)))
        inputs = tuple(self.items[value] for value in node.inputs)
        types = tuple(self.local_type(value) for value in node.outputs)
        inferred = types_tuple(op.infer(*(item.type for item in inputs)))
        if inferred != types:
            raise PlanError(
                f"{node.op} at {node.where}: rank {self.rank} would make {', '.join(map(str, inferred))} but holds {', '.join(map(str, types))}"
            )
        for value, item in zip(node.outputs, self.build.computes(op, inputs, node.name, types), strict=True):
            item.name = value.name
            self.items[value] = item

    # ---------------------------------------------------------------- changes of layout

    def _reroute(self, node: Node) -> None:
        op = node.op
        assert isinstance(op, Reroute)
        if op.name == "move":
            self._move(node, op)
        elif len(node.inputs) > 1:
            self._together(node, op)
        else:
            (value,), (output,) = node.inputs, node.outputs
            order = self._announce(op, node, value.type.nbytes)
            if self.rank in op.source.placement.ranks:
                self.items[output] = ROUTES[type(op.source.sbp[0]), type(op.target.sbp[0])].steps(
                    self.build, self.items[value], self._change(op, value.type, order)
                )

    def _change(self, op: Reroute, type: TensorType, order: int) -> Change:
        ranks = op.source.placement.ranks
        return Change(op.source.sbp[0], op.target.sbp[0], type, ranks, ranks.index(self.rank), order)

    def _announce(self, op: Reroute, node: Node, nbytes: int) -> int:
        """Enter a communication into the global schedule; its number."""
        if op.name not in ("slice", "keep_first", "pad"):
            self.schedule.append(Announced(op.name, node.outputs[0].name, op.source.placement.ranks, nbytes))
        return len(self.schedule) - 1

    def _together(self, node: Node, op: Reroute) -> None:
        """All_reduce several tensors as one flat array in which each begins at a multiple of the alignment."""
        offsets, total = joined_offsets([value.type for value in node.inputs])
        order = self._announce(op, node, total)
        if self.rank not in op.source.placement.ranks:
            return
        dtype = node.inputs[0].dtype
        size = total // dtype.itemsize
        flat = TensorType((size,), dtype)
        joined, summed = Item(flat, f"{node.name}:parts"), Item(flat, f"{node.name}:sum")
        parts = tuple(flatten(self.build, self.items[value]) for value in node.inputs)
        self.build.append(Join(tuple(offsets)), parts, (joined,))
        reduce = op.source.sbp[0].reduce if isinstance(op.source.sbp[0], Partial) else SUM
        self.build.append(Collect("all_reduce", op.source.placement.ranks, (size,), (), reduce, order), (joined,), (summed,))
        for value, offset in zip(node.outputs, offsets, strict=True):
            start = offset // dtype.itemsize
            piece = self.build.compute(SliceBox((start,), (start + value.type.size,)), summed, name=f"{value.name}.flat")
            self.build.name = value.name
            self.items[value] = unflatten(self.build, piece, value.shape)

    def _move(self, node: Node, op: Reroute) -> None:
        (value,), (output,) = node.inputs, node.outputs
        received: list[tuple[Move, Item]] = []
        for move in moves(op.source, op.target, value.shape):
            if move.source == move.target:
                if self.rank == move.source:
                    received.append((move, self._part(value, op.source, move.box)))
                continue
            nbytes = value.type.with_shape(move.box.shape).nbytes
            self.schedule.append(Announced("move", value.name, (move.source, move.target), nbytes))
            order = len(self.schedule) - 1
            if self.rank == move.source:
                part = self._part(value, op.source, move.box)
                self.build.append(Send(move.target, order), (flatten(self.build, part),), ())
            elif self.rank == move.target:
                flat = Item(value.type.with_shape((whole_size(move.box),)), output.name)
                self.build.append(Receive(move.source, order), (), (flat,))
                received.append((move, unflatten(self.build, flat, move.box.shape)))
        if self.rank in op.target.placement.ranks:
            self.items[output] = self._joined(output, op.target.box(value.shape, self.rank), received)

    def _part(self, value: Value, layout: Layout, box: Box) -> Item:
        """`box` of a logical tensor, from what this rank holds of it."""
        held = layout.box(value.shape, self.rank)
        if held.spans == box.spans:
            return self.items[value]
        at = box.within(held)
        return self.build.compute(SliceBox(tuple(s.start for s in at), tuple(s.stop for s in at)), self.items[value])

    def _joined(self, output: Value, box: Box, received: list[tuple[Move, Item]]) -> Item:
        if len(received) == 1 and received[0][0].box.spans == box.spans:
            return received[0][1]
        if not received:
            return self.build.compute(FillIdentity(box.shape, output.dtype))
        boxes = tuple(Box(tuple((s.start, s.stop) for s in move.box.within(box)), box.shape) for move, _ in received)
        return self.build.compute(Assemble(box.shape, boxes), *(item for _, item in received))


def whole_size(box: Box) -> int:
    size = 1
    for n in box.shape:
        size *= n
    return size


def local_box(shape: tuple[int, ...], layout: Local, rank: int, rows: tuple[int, ...] = ()) -> Box:
    """Where a rank's own tensor stands if all ranks' tensors lie one after another along axis 0.

    If the ranks' arguments have different `rows`, a tensor made of them has the same multiple of them on every rank.
    """
    if not shape:
        return whole_box(shape)
    i, n, own = layout.placement.ranks.index(rank), layout.placement.size, shape[0]
    if rows and own % rows[i] == 0:
        each = tuple(own // rows[i] * length for length in rows)
    else:
        each = (own,) * n
    start = sum(each[:i])
    return Box(((start, start + own), *((0, m) for m in shape[1:])), (sum(each), *shape[1:]))


def joined_offsets(types: list[TensorType]) -> tuple[list[int], int]:
    """Byte offsets of tensors laid end to end, each aligned, and the bytes of all."""
    offsets, total = [], 0
    for type in types:
        offsets.append(total)
        total += -(-type.nbytes // ALIGNMENT) * ALIGNMENT
    return offsets, total
