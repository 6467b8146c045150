"""Program -> program in which ranks gather the factors of a gradient instead of adding up gradients, where that sends less.

The gradient of a weight is a product summed over the batch, y[m,n] = sum_k a[k,m] b[k,n], and each rank knows a part of k.  To sum it
over the ranks is to move all of y.  Where a variable is stored once (`plan.storage.COMMON`) and each rank updates its rows of it, a
rank can as well gather the factors, all of b and its columns of a, and form its rows of the whole sum by itself: as many
multiplications, and no partial sums at all.  That pays where the factors are small beside the product: dense layers with few
samples.  An argument that comes through the shared I/O buffers lies there for all ranks, and need not be gathered.

It is done to products of some size whose sum nothing reads but one elementwise update, if the factors have at most half of the
product's bytes.  `divide` leaves such updates as they are; `fuse` lets plain gradient descent subtract the product while it is formed.

Example, two ranks, x float32[50,784] and dy float32[50,512] on each: `w -= lr all_reduce(dy^T x)` moves 1.6 MB;
`all_to_all dy; w[256:] -= lr dy[:, 256:]^T x`, with the x of both ranks in the shared I/O buffers, moves 0.1 MB.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from jobflow.compiler.rank.format import format_items
from jobflow.compiler.rank.local import Builder, Collect, Item, Join, Program, Step, Summed
from jobflow.compiler.rank.views import whole_in_io_buffers, windows
from jobflow.compiler.renumber import renumbered
from jobflow.core.layout import SUM, Box, cut
from jobflow.core.types import TensorType, contiguous_strides
from jobflow.ops.axes import Transpose
from jobflow.ops.layout_ops import PackColumns, PackPieces, SliceBox, UnpackPieces
from jobflow.ops.op import Op
from jobflow.ops.update import Updated
from jobflow.plan.plan import Announced, Kind, Slot, end_to_end
from jobflow.plan.storage import is_common

#: bytes of the smallest tensor in whose place others travel: less is not worth a communication of its own
SMALLEST = 128 << 10
#: how many times fewer bytes these must have
LESS = 2


class Use(NamedTuple):
    """How a part of an all_reduce is made and used; all these steps go."""

    product: Step
    pack: Step
    slice: Step | None
    unpack: Step
    update: Step


@dataclass(frozen=True)
class Factor:
    """A factor of a product, of which this rank has a part along the summed axis."""

    item: Item
    #: the summed axis
    axis: int
    #: how long it is on each rank
    lengths: tuple[int, ...]
    #: the same on all ranks
    name: str
    #: the line of the schedule that gathering it takes the place of
    number: int

    @property
    def rest(self) -> int:
        """Length of the other axis."""
        return self.item.type.shape[1 - self.axis]

    @property
    def total(self) -> int:
        """Length of the summed axis on all ranks together."""
        return sum(self.lengths)


def pays(moved: int, instead: int) -> bool:
    """True if so many bytes should travel in place of a tensor of `instead` bytes."""
    return instead >= SMALLEST and LESS * moved <= instead


def gather_factors(program: Program, ranks: tuple[int, ...]) -> Program:
    """Have each of `ranks`, which share what is stored in common, form its rows of gradients from gathered factors."""
    if not program.summed or program.rank not in ranks or len(ranks) < 2:
        return program
    return _Gathering(program, ranks).run()


@dataclass
class _Gathering:
    program: Program
    ranks: tuple[int, ...]

    def run(self) -> Program:
        program = self.program
        arguments = [argument.item for argument in program.arguments]
        self.windows = windows(program.steps, [*program.reads.values(), *arguments], format_items(program))
        self.makers = {item: step for step in program.steps for item in step.outputs}
        self.readers: dict[Item, list[Step]] = {}
        for step in program.steps:
            for item in dict.fromkeys(step.inputs):
                self.readers.setdefault(item, []).append(step)
        self.kept = set(program.results) | {item for _, item in program.fetches}
        self.me = self.ranks.index(program.rank)
        self.instead: dict[Step, list[Step]] = {}
        self.mine: set[Item] = set()
        self.for_updates = set(program.known.for_updates)
        #: what the schedule has in place of one of its lines; a new step bears the number of that line, and which it is among them
        self.lines: dict[int, list[Announced]] = {}
        self.place: dict[Step, int] = {}
        for step in program.steps:
            if self._is_sum(step):
                self._rework(step)
        if not self.lines:
            return program
        known = replace(program.known, for_updates=frozenset(self.for_updates))
        return replace(renumbered(program, self.instead, self.lines, self.place), mine=frozenset(self.mine), known=known)

    def _is_sum(self, step: Step) -> bool:
        action = step.action
        return isinstance(action, Collect) and action.kind == "all_reduce" and action.reduce is SUM and action.ranks == self.ranks

    # ---------------------------------------------------------------- what qualifies

    def _use(self, collect: Step, flat: Item, offset: int, joined: bool) -> Use | None:
        """How a part of an all_reduce is used, if it is one that is better gathered as factors."""
        pack = self.makers.get(flat)
        if pack is None or not isinstance(pack.action, PackPieces) or pack.inputs[0] not in self.program.summed or len(self.readers[flat]) != 1:
            return None
        (total,) = collect.outputs
        slice = next((s for s in self.readers.get(total, []) if _begins(s, offset, flat)), None) if joined else None
        if (joined and slice is None) or self._only(pack.inputs[0], PackPieces) is None:
            return None
        unpack = self._only(total if slice is None else slice.outputs[0], UnpackPieces)
        update = None if unpack is None else self._only(unpack.outputs[0], Updated)
        if unpack is None or update is None or not self._is_ours(update, unpack.outputs[0]):
            return None
        use = Use(self.makers[pack.inputs[0]], pack, slice, unpack, update)
        return use if self._pays(use) else None

    def _only(self, item: Item, kind: type[Op]) -> Step | None:
        """The step that alone reads an item, if it is of this kind."""
        steps = self.readers.get(item, [])
        return steps[0] if len(steps) == 1 and item not in self.kept and isinstance(steps[0].action, kind) else None

    def _is_ours(self, update: Step, gradient: Item) -> bool:
        """True if the update is elementwise and after all communication, what it writes is stored in common, and nothing reads what it makes.

        The same on all ranks: what they cannot see in their own steps is known.
        """
        op = update.action
        assert isinstance(op, Updated)
        variables, tensors = update.inputs[: op.count], update.inputs[op.count : op.count + op.like]
        stored = all(item.slot is not None and is_common(item.slot.buffer) and item.type == gradient.type for item in variables)
        known = self.program.known
        fits = gradient in known.for_updates and known.late.issuperset(update.outputs) and gradient.type.shape[0] >= len(self.ranks)
        return op.flat and tensors == (gradient,) and stored and fits

    def _pays(self, use: Use) -> bool:
        """The same answer on all ranks: the bytes are those of the whole factors."""
        summed, (product,) = self.program.summed[use.product.outputs[0]], use.product.outputs
        factors = zip(use.product.inputs, summed.axes, strict=True)
        moved = [item.type.shape[1 - axis] * sum(summed.lengths) for item, axis in factors if not self._lies_together(item, axis, summed)]
        return summed.ranks == self.ranks and pays(sum(moved) * product.type.dtype.itemsize, product.type.nbytes)

    def _lies_together(self, item: Item, axis: int, summed: Summed) -> Slot | None:
        """Where the shared I/O buffers hold a factor of all ranks, if it does."""
        whole = item.type.with_shape((sum(summed.lengths), item.type.shape[1]))
        return whole_in_io_buffers(item, whole, self.windows, self.program.together) if axis == 0 else None

    # ---------------------------------------------------------------- what takes its place

    def _rework(self, collect: Step) -> None:
        assert isinstance(collect.action, Collect)
        join = self.makers.get(collect.inputs[0])
        joined = join is not None and isinstance(join.action, Join)
        parts = list(zip(join.inputs, join.action.offsets, strict=True)) if joined else [(collect.inputs[0], 0)]  # type: ignore[union-attr]
        uses = [self._use(collect, flat, offset, joined) for flat, offset in parts]
        found = [use for use in uses if use is not None]
        if not found:
            return
        number = collect.action.order
        build = Builder(self.program.rank, name=collect.name, where=collect.where, phase=collect.phase)
        self.lines[number] = []
        for use in found:
            self._rows(use, build, number)
            self.instead |= {step: self.instead.get(step, []) for step in use if step is not None}
        self.instead[collect] = build.steps
        if joined:
            assert join is not None
            self._rest(collect, join, [flat for (flat, _), use in zip(parts, uses, strict=True) if use is None], build)

    def _rows(self, use: Use, build: Builder, number: int) -> None:
        """Form this rank's rows of a gradient, and update with them."""
        product, update = use.product, use.update
        op = update.action
        assert isinstance(product.action, Op) and isinstance(op, Updated)
        summed = self.program.summed[product.outputs[0]]
        spans = cut(product.outputs[0].type.shape[0], len(self.ranks))
        factors: list[Item] = []
        for i, (item, axis) in enumerate(zip(product.inputs, summed.axes, strict=True)):
            factor = Factor(item, axis, summed.lengths, f"{product.name}.{'ab'[i]}", number)
            slot = self._lies_together(item, axis, summed)
            if slot is None and i == summed.rows and self._by_columns(factor):
                factors.append(self._turned(build, factor, spans))
                continue
            whole = Item(slot.type, f"{item.name}:all", slot=slot) if slot else self._gathered(build, factor)
            factors.append(_stretch(build, whole, 1 - axis, spans[self.me]) if i == summed.rows else whole)
        mine = Builder(self.program.rank, [], product.name, product.where, product.phase, product.microbatch)
        (begin, stop), columns_of = spans[self.me], product.outputs[0].type.shape[1]
        a, b = (_box(item.type.shape) for item in factors)
        local = product.action.localize((a, b), (_box((stop - begin, columns_of)),))
        gradient = mine.compute(local, *factors, name=f"{product.outputs[0].name}:rows")
        mine.name, mine.where, mine.phase, mine.microbatch = update.name, update.where, update.phase, update.microbatch
        variables = tuple(_rows_of(item, begin, stop) for item in update.inputs[: op.count])
        self.mine.update(variables)
        mine.computes(op, (*variables, gradient, *update.inputs[op.count + op.like :]), update.name, tuple(item.type for item in variables))
        self.instead[update] = mine.steps

    def _by_columns(self, factor: Factor) -> bool:
        """True if the summed axis is the inner one in memory, on this rank and all others."""
        strides = self.windows[factor.item].strides
        return self.program.known.alike and strides[factor.axis] < strides[1 - factor.axis]

    def _turned(self, build: Builder, factor: Factor, spans: Sequence[tuple[int, int]]) -> Item:
        """This rank's stretch of the factor that has the rows, summed axis whole: every rank sends each its own."""
        own, rows = factor.lengths[self.me], spans[self.me][1] - spans[self.me][0]
        counts, receives = tuple((b - a) * own for a, b in spans), tuple(rows * n for n in factor.lengths)
        flat = self._collect(build, "all_to_all", factor, factor.axis, counts, receives)
        found = build.compute(UnpackPieces(1, factor.lengths, (rows, factor.total)), flat, name=f"{factor.item.name}:rows")
        return found if factor.axis == 1 else build.compute(Transpose((1, 0)), found)

    def _gathered(self, build: Builder, factor: Factor) -> Item:
        """A factor of all ranks, one behind the other along the summed axis."""
        rest, total = factor.rest, factor.total
        inner = self._by_columns(factor)
        flat = self._collect(build, "all_gather", factor, factor.axis if inner else 1 - factor.axis, tuple(rest * n for n in factor.lengths))
        # in memory: by rows of the other axis if the summed one is the inner one
        shape = (rest, total) if inner else (total, rest)
        found = build.compute(UnpackPieces(int(inner), factor.lengths, shape), flat, name=f"{factor.item.name}:all")
        return found if int(inner) == factor.axis else build.compute(Transpose((1, 0)), found)

    def _collect(self, build: Builder, kind: Kind, factor: Factor, inner: int, counts: tuple[int, ...], receives: tuple[int, ...] = ()) -> Item:
        """What comes of handing on a factor as one axis, in the order in which axis `inner` is the inner one; the schedule says which."""
        op, order = (PackPieces(0, (factor.item.type.shape[0],)), "rows") if inner == 1 else (PackColumns(), "columns")
        flat = build.compute(op, factor.item, name=f"{factor.item.name}.{order}")
        out = Item(flat.type.with_shape((sum(receives or counts),)), f"{flat.name}.{kind}")
        build.append(Collect(kind, self.ranks, counts, receives, SUM, factor.number), (flat,), (out,))
        nbytes = factor.rest * factor.total * flat.type.dtype.itemsize
        self._announce(build.steps[-1], Announced(kind, f"{factor.name} by {order}", self.ranks, nbytes))
        return out

    def _announce(self, step: Step, line: Announced) -> None:
        assert isinstance(step.action, Collect)
        self.place[step] = len(self.lines[step.action.order])
        self.lines[step.action.order].append(line)

    def _rest(self, collect: Step, join: Step, parts: list[Item], build: Builder) -> None:
        """What is left of an all_reduce of several tensors."""
        self.instead[join] = []
        if not parts:
            return
        (total,), dtype = collect.outputs, collect.outputs[0].type.dtype
        assert isinstance(join.action, Join) and isinstance(collect.action, Collect)
        offsets, nbytes = end_to_end([item.type for item in parts])
        flat = TensorType((nbytes // dtype.itemsize,), dtype)
        packed, summed = Item(flat, collect.inputs[0].name), Item(flat, total.name)
        if total in self.for_updates:
            self.for_updates.add(summed)
        build.append(Join(tuple(offsets)), tuple(parts), (packed,))
        build.append(replace(collect.action, counts=flat.shape), (packed,), (summed,))
        line = self.program.schedule[collect.action.order]
        self._announce(build.steps[-1], replace(line, nbytes=nbytes))
        begins = dict(zip(join.inputs, join.action.offsets, strict=True))
        for part, offset in zip(parts, offsets, strict=True):
            start = offset // dtype.itemsize
            for step in self.readers.get(total, []):
                if _begins(step, begins[part], part):
                    self.instead[step] = [replace(step, action=SliceBox((start,), (start + part.type.size,)), inputs=(summed,))]


def _begins(step: Step, offset: int, part: Item) -> bool:
    """True if a step takes out of a joined sum what was joined from `part`, which lies `offset` bytes from its start."""
    start = offset // part.type.dtype.itemsize
    return step.action == SliceBox((start,), (start + part.type.size,))


def _stretch(build: Builder, item: Item, axis: int, span: tuple[int, int]) -> Item:
    """item[begin:stop] along an axis of a matrix."""
    starts, stops = [0, 0], list(item.type.shape)
    starts[axis], stops[axis] = span
    return build.compute(SliceBox(tuple(starts), tuple(stops)), item, name=f"{item.name}:rows")


def _box(shape: tuple[int, ...]) -> Box:
    return Box(tuple((0, n) for n in shape), shape)


def _rows_of(item: Item, begin: int, stop: int) -> Item:
    slot = item.slot
    assert slot is not None
    type = slot.type.with_shape((stop - begin, *slot.type.shape[1:]))
    strides = contiguous_strides(type.shape, type.dtype.itemsize)
    return Item(type, f"{item.name}:rows", slot=Slot(slot.buffer, slot.offset + begin * strides[0], type, strides))
