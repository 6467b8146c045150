"""Physical graph -> the program of one rank: local types, localized ops, and the instructions of every reroute.

Every rank iterates over the same global program in the same order, and numbers every communication of all ranks.
The order of communication is therefore total, and fixed before any rank reorders its own computation.  Blocking
operations in that order cannot deadlock.
"""

from __future__ import annotations

from dataclasses import field, replace

from jobflow.compiler.layouts.argument_views import argument_of
from jobflow.compiler.layouts.box import Reroute
from jobflow.compiler.layouts.paths import changed, changes, row
from jobflow.compiler.layouts.transfers import exchange_steps, exchanges, put_together, row_exchanges, shifted, take, transfers
from jobflow.compiler.rank.local import Argument, Builder, Collect, Join, LocalValue, RankProgram, Receive, Send, on_rank
from jobflow.core.dataclass import dataclass
from jobflow.core.layout import Box, FlatPieces, Layout, Local, Partial, Reduction, whole_box
from jobflow.core.types import DType, TensorType, contiguous_strides
from jobflow.graph.ir import Node, Physical, Value
from jobflow.kernels.target import CPU, Target
from jobflow.ops.host_operation import as_host_operation
from jobflow.ops.layout_ops import SliceBox, ToLocal
from jobflow.ops.parts import PutPart
from jobflow.ops.rows import Rows
from jobflow.ops.scalar import Cast
from jobflow.ops.source import Input, ReadVariable
from jobflow.ops.update import Updated
from jobflow.plan.plan import Announced, Kind, Slot, consecutive_offsets, line_cut
from jobflow.plan.storage import RankMemory


def lower(physical: Physical, memory: RankMemory, target: Target = CPU) -> RankProgram:
    """Return the program of the rank that owns `memory`."""
    return _Lowering(physical, memory, target).run()


@dataclass
class _Lowering:
    physical: Physical
    memory: RankMemory
    target: Target
    local_values: dict[Value, LocalValue] = field(default_factory=dict)
    arguments: list[Argument] = field(default_factory=list)
    reads: dict[str, LocalValue] = field(default_factory=dict)
    schedule: list[Announced] = field(default_factory=list)

    def run(self) -> RankProgram:
        graph, self.rank = self.physical.graph, self.memory.rank
        self.build = Builder(self.rank)
        # True if operations on "cpu" run on the host; graphs without GPUs are compiled for GPUs as a whole
        self.mixed = self.target.kind == "cuda" and any(node.placement.tag == "gpu" for node in graph.nodes)
        self.viewed_arguments = {
            argument_of(node.inputs[0]) for node in graph.nodes if isinstance(node.op, Reroute) and node.op.name == "broadcast_view"
        }
        for node in graph.nodes:
            self.build.name, self.build.where, self.build.phase = node.outputs[0].name, node.where, node.phase
            self.build.microbatch = node.provenance.microbatch
            if isinstance(node.op, Reroute):
                self._reroute(node)
            elif isinstance(node.op, Rows):
                self._rows(node, node.op)
            elif self.rank in node.placement.ranks:
                self._node(node)
        fetches = tuple((i, self.local_values[value]) for i, value in enumerate(graph.outputs) if self._returns(value))
        updates = {name: self.local_values[value] for name, value in graph.updates.items() if value in self.local_values}
        results = tuple(self.local_values[value] for value in graph.outputs if value in self.local_values)
        return RankProgram(
            graph.name,
            self.rank,
            tuple(self.build.steps),
            tuple(self.arguments),
            fetches,
            self.reads,
            updates,
            tuple(self.schedule),
            results,
            target=self.target,
        )

    def _returns(self, value: Value) -> bool:
        """Return True if this rank returns its part of an output; without `memory.copies`, only the first rank returns whole outputs."""
        layout = self.physical.layouts[value]
        returns = self.memory.copies or isinstance(layout, Local) or not layout.is_whole or layout.placement.ranks[0] == self.rank
        return returns and value in self.local_values

    # ---------------------------------------------------------------- ordinary nodes

    def box(self, value: Value) -> Box:
        """Return the box of a value on this rank; a local tensor is a piece of the concatenation over all ranks."""
        layout = self.physical.layouts[value]
        if isinstance(layout, Layout):
            return layout.box(value.shape, self.rank)
        return local_box(value.shape, layout, self.rank, self.physical.graph.rows)

    def local_type(self, value: Value) -> TensorType:
        return value.tensor_type.with_shape(self.box(value).shape)

    def _node(self, node: Node) -> None:
        op = node.op
        if isinstance(op, ReadVariable):
            (value,) = node.outputs
            local = LocalValue(self.local_type(value), value.name, slot=self.memory.slots[op.key])
            self.local_values[value] = self.reads[op.key] = local
            return
        if isinstance(op, Input):
            (value,) = node.outputs
            local = LocalValue(self.local_type(value), value.name, slot=self.memory.places[op.key] if value in self.viewed_arguments else None)
            self.local_values[value] = local
            box = whole_box(value.shape) if value.local else self.box(value)
            self.arguments.append(Argument(op.key, local, box))
            return
        if isinstance(op, PutPart) and self.rank not in op.single.ranks:
            (value,) = node.outputs
            self.local_values[value] = self.build.compute(op.elsewhere(self.box(value), value.tensor_type), name=value.name)
            return
        if isinstance(op, Updated) and self.box(node.outputs[0]).is_empty:
            return
        input_pieces, output_pieces = ([(value.tensor_type, self.box(value)) for value in values] for values in (node.inputs, node.outputs))
        cuts = not node.outputs[0].local or op.by_position or isinstance(op, ToLocal)
        op, types = on_rank(op, self.rank, input_pieces, output_pieces, cuts=cuts, where=f" at {node.where}")
        inputs = tuple(self.local_values[value] for value in node.inputs)
        outputs = tuple([LocalValue(type, value.name) for value, type in zip(node.outputs, types, strict=True)])
        self.build.append(as_host_operation(op) if self.mixed and node.placement.tag == "cpu" else op, inputs, outputs)
        self.local_values.update(zip(node.outputs, outputs, strict=True))

    # ---------------------------------------------------------------- changes of layout

    def _reroute(self, node: Node) -> None:
        op = node.op
        assert isinstance(op, Reroute)
        if len(node.inputs) > 1 or (op.name == "reduce_scatter" and isinstance(op.target, FlatPieces)):
            self._together(node, op)
            return
        (value,), (output,) = node.inputs, node.outputs
        if op.name == "move":
            self._move(value, output, op)
        elif op.name == "exchange":
            self._exchange(value, output, op)
        elif op.name in ("part", "broadcast_view"):
            if self.rank in op.target.placement.ranks:
                (self._part if op.name == "part" else self._broadcast_view)(value, output, op.target)
        elif op.name == "relabel":
            if value in self.local_values:
                self.local_values[output] = self.local_values[value]
        else:
            self._along(value, output, op)

    def _announce(self, what: str, name: str, ranks: tuple[int, ...], nbytes: int) -> int:
        """Append a communication to the global schedule; return its number."""
        self.schedule.append(Announced(what, name, ranks, nbytes))
        return len(self.schedule) - 1

    def _along(self, value: Value, output: Value, op: Reroute) -> None:
        """Append the instructions of a row of the route table, for the group of ranks that contains this rank."""
        route = row(op.source, op.target)
        type = value.tensor_type if op.reduce_dtype is None else TensorType(value.shape, op.reduce_dtype)
        for group in changes(op.source, op.target, type):
            first = group[0]
            order = -1 if route.kind is None else self._announce(op.name, output.name, first.ranks, first.type.nbytes)
            if self.rank in first.ranks:
                mine = replace(group[first.ranks.index(self.rank)], order=order)
                result = route.steps(self.build, self._cast(self.local_values[value], type.dtype), mine)
                self.local_values[output] = self._cast(result, value.dtype)

    def _cast(self, x: LocalValue, dtype: DType) -> LocalValue:
        return x if x.type.dtype is dtype else self.build.compute(Cast(dtype), x, name=f"{x.name}.{dtype.name}")

    def _exchange(self, value: Value, output: Value, op: Reroute) -> None:
        for exchange in exchanges(op.source, op.target, value.shape):
            sizes = sum(move.size for move in exchange.transfers)
            order = self._announce(op.name, output.name, exchange.ranks, sizes * value.dtype.itemsize) if len(exchange.ranks) > 1 else -1
            if self.rank in exchange.ranks:
                held, needed = op.source.box(value.shape, self.rank), op.target.box(value.shape, self.rank)
                self.local_values[output] = exchange_steps(self.build, self.local_values[value], held, needed, exchange, order)

    def _rows(self, node: Node, op: Rows) -> None:
        """Select rows of a value and keep its layout; ranks exchange the rows that change their rank."""
        (value,), (output,) = node.inputs, node.outputs
        layout = self.physical.layouts[value]
        assert isinstance(layout, Layout), "rows are selected across ranks from a global tensor only"
        for exchange in row_exchanges(layout, value.shape, op.start, op.stop):
            sizes = sum(move.size for move in exchange.transfers)
            order = self._announce("exchange", output.name, exchange.ranks, sizes * value.dtype.itemsize) if len(exchange.ranks) > 1 else -1
            if self.rank in exchange.ranks:
                needed = shifted(layout.box(output.shape, self.rank), op.start, value.shape)
                self.local_values[output] = exchange_steps(
                    self.build, self.local_values[value], layout.box(value.shape, self.rank), needed, exchange, order
                )

    def _together(self, node: Node, op: Reroute) -> None:
        """Sum several tensors as one flat array with aligned offsets; each rank receives the whole sum or one piece of the sum."""
        dtype, scatters = node.inputs[0].dtype, op.name == "reduce_scatter"
        for ranks in (op.target.placement.ranks,) if scatters else op.source.placement.along(changed(op.source, op.target)):
            offsets, total = consecutive_offsets(op.joined_types([value.tensor_type for value in node.inputs], ranks[0]))
            sum_dtype = op.reduce_dtype or dtype
            order = self._announce(op.name, node.outputs[0].name, ranks, total // dtype.itemsize * sum_dtype.itemsize)
            if self.rank not in ranks:
                continue
            cuts = line_cut(total, len(ranks) if scatters else 1)
            first, last = cuts[ranks.index(self.rank) if scatters else 0]
            counts = tuple((stop - start) // dtype.itemsize for start, stop in cuts)
            joined = LocalValue(TensorType((total // dtype.itemsize,), dtype), f"{node.name}:parts")
            summed = LocalValue(TensorType(((last - first) // dtype.itemsize,), sum_dtype), f"{node.name}:sum")
            held = [self.local_values[value] for value in node.inputs]
            self.build.append(Join(tuple(offsets)), tuple(self.build.flatten(local) for local in held), (joined,))
            kind: Kind = "reduce_scatter" if scatters else "all_reduce"
            self.build.append(Collect(kind, ranks, counts, (), _reduction(op), order), (self._cast(joined, sum_dtype),), (summed,))
            summed = self._cast(summed, dtype)
            for value, local, offset in zip(node.outputs, held, offsets, strict=True):
                begin, stop = (min(max(byte, offset), offset + local.type.nbytes) - first for byte in (first, last))
                if begin < stop or not scatters:
                    cut = SliceBox((begin // dtype.itemsize,), (stop // dtype.itemsize,))
                    piece = self.build.compute(cut, summed, name=f"{value.name}.flat")
                    self.build.name = value.name
                    self.local_values[value] = piece if scatters else self.build.unflatten(piece, local.type.shape)

    def _part(self, value: Value, output: Value, layout: Layout) -> None:
        """Select this rank's part of a whole value; the part of a variable is a view."""
        x, box = self.local_values[value], layout.box(value.shape, self.rank)
        if box == whole_box(value.shape):
            self.local_values[output] = x
        elif x.slot is None:
            flat = self.build.flatten(x) if isinstance(layout, FlatPieces) else x
            self.local_values[output] = self.build.compute(SliceBox(box.start, tuple(stop for _, stop in box.spans)), flat)
        elif isinstance(layout, FlatPieces):
            self.local_values[output] = _dense_at(x.slot, _elements_before(box), x.type.with_shape(box.shape), f"{x.name}:part")
        else:
            type, before = x.type.with_shape(box.shape), sum(start * stride for start, stride in zip(box.start, x.slot.strides, strict=True))
            self.local_values[output] = LocalValue(type, f"{x.name}:part", slot=replace(x.slot, offset=x.slot.offset + before, type=type))

    def _broadcast_view(self, value: Value, output: Value, layout: Layout) -> None:
        """View pieces in shared memory as a whole argument; new values of variables need no view, because the rank does not read them."""
        op = argument_of(value).node.op
        if isinstance(op, Input):
            before = _elements_before(self.box(argument_of(value)))
            self.local_values[output] = _dense_at(self.memory.places[op.key], -before, output.tensor_type, output.name)

    def _move(self, value: Value, output: Value, op: Reroute) -> None:
        received: list[tuple[Box, LocalValue]] = []
        held = op.source.box(value.shape, self.rank) if self.rank in op.source.placement.ranks else None
        for move in transfers(op.source, op.target, value.shape):
            if move.source == move.target:
                if self.rank == move.source and held is not None:
                    received.append((move.box, take(self.build, self.local_values[value], held, move.box)))
                continue
            order = self._announce("move", value.name, (move.source, move.target), move.size * value.dtype.itemsize)
            if self.rank == move.source and held is not None:
                part = take(self.build, self.local_values[value], held, move.box)
                self.build.append(Send(move.target, order), (self.build.flatten(part),), ())
            elif self.rank == move.target:
                flat = LocalValue(value.tensor_type.with_shape((move.size,)), output.name)
                self.build.append(Receive(move.source, order), (), (flat,))
                received.append((move.box, self.build.unflatten(flat, move.box.shape)))
        if self.rank in op.target.placement.ranks:
            self.local_values[output] = put_together(self.build, op.target.box(value.shape, self.rank), received, output.tensor_type)


def _elements_before(box: Box) -> int:
    """Return the offset, in elements, of a contiguous box in its tensor."""
    return sum(start * stride for start, stride in zip(box.start, contiguous_strides(box.whole, 1), strict=True))


def _dense_at(slot: Slot, elements: int, type: TensorType, name: str) -> LocalValue:
    """Return a dense value at an offset, in elements, from the start of a slot."""
    itemsize = type.dtype.itemsize
    return LocalValue(type, name, slot=Slot(slot.buffer, slot.offset + elements * itemsize, type, contiguous_strides(type.shape, itemsize)))


def _reduction(op: Reroute) -> Reduction:
    """Return the reduction of the first partial dimension that a reroute changes."""
    dimensions = range(len(op.source.sbp)) if isinstance(op.target, FlatPieces) else changed(op.source, op.target)
    return next(sbp.reduce for d in dimensions if isinstance(sbp := op.source.sbp[d], Partial))


def local_box(shape: tuple[int, ...], layout: Local, rank: int, rows: tuple[int, ...] = ()) -> Box:
    """Return the box of a rank's local tensor in the concatenation of all ranks' tensors along axis 0.

    If the ranks' arguments have different `rows`, the length of a tensor computed from them is a multiple of a rank's rows.  The factor
    is equal on all ranks.
    """
    if not shape:
        return whole_box(shape)
    i, n, own = layout.placement.ranks.index(rank), layout.placement.size, shape[0]
    if rows and own % (rows[i] or own + 1) == 0:
        each = tuple(own // (rows[i] or 1) * length for length in rows)
    else:
        each = (own,) * n
    start = sum(each[:i])
    return Box(((start, start + own), *((0, m) for m in shape[1:])), (sum(each), *shape[1:]))
