"""Program -> program in which the update of a shared variable is divided among the ranks that share it.

In one node, variables that every rank holds whole are stored once (`plan.storage.COMMON`), and each rank writes a part of them:

* An elementwise update runs on this rank's piece.  Where its gradient comes out of an all_reduce that only such updates read,
  the rank asks for its piece of the sum only: a reduce_scatter, half the bytes, and nothing need be gathered afterwards, for
  what the rank has written the others see.
* Any other write is done by one rank, each by the one that has least to do so far.
* Where something reads what such a write has made (an average of new values, say), one rank does all of the writing.

The executor lets no rank write before all have finished their bodies, and none begin the next run before all have written.

Example, two ranks, gradient g of w, both float32[1000]: `all_reduce g; w -= lr g` becomes, on rank 1,
`reduce_scatter g, 496 + 504; w[496:] -= lr g[496:]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from jobflow.compiler.rank.local import Builder, Collect, Item, Program, Step
from jobflow.compiler.rank.views import is_dense, views_of, windows
from jobflow.core.errors import PlanError
from jobflow.core.layout import SUM, cut
from jobflow.core.types import TensorType, contiguous_strides
from jobflow.ops.layout_ops import SliceBox
from jobflow.ops.op import Op, ViewOp
from jobflow.ops.update import Updated
from jobflow.plan.plan import ALIGNMENT, Slot
from jobflow.plan.storage import is_common

#: Begin and end of a piece, in elements.
Span = tuple[int, int]


def divide(program: Program, ranks: tuple[int, ...]) -> Program:
    """Have each of `ranks`, which share what is stored in common, write its part of it."""
    writes = [step for step in program.steps if _writes_common(step) and not program.mine.intersection(step.inputs)]
    return _Division(program, ranks, writes).run() if writes and program.rank in ranks else program


def _writes_common(step: Step) -> bool:
    return isinstance(step.action, Op) and any(_is_common(step.inputs[source]) for source in step.action.alias.values())


def _is_common(item: Item) -> bool:
    return item.slot is not None and is_common(item.slot.buffer)


@dataclass
class _Division:
    program: Program
    ranks: tuple[int, ...]
    writes: list[Step]
    #: what replaces a step; nothing where it is left out
    instead: dict[Step, list[Step]] = field(default_factory=dict)
    #: bytes each rank writes alone
    load: dict[int, int] = field(default_factory=dict)

    def run(self) -> Program:
        self.load = dict.fromkeys(self.ranks, 0)
        made = {item for step in self.writes for item in step.outputs}
        if self.program.known.rereads:
            return self._by_one(made)
        arguments = [argument.item for argument in self.program.arguments]
        self.windows = windows(self.program.steps, [*self.program.reads.values(), *arguments], {})
        flat = [step for step in self.writes if _is_flat(step)]
        scattered = self._scatter(flat)
        for step in self.writes:
            if step in flat:
                self.instead[step] = self._piece(step, scattered)
            elif self._owner(step) != self.program.rank:
                self.instead[step] = []
        steps = [new for step in self.program.steps for new in self.instead.get(step, [step])]
        schedule = list(self.program.schedule)
        for piece in scattered.values():
            schedule[piece.order] = replace(schedule[piece.order], what="reduce_scatter")
        return replace(self.program, steps=tuple(steps), schedule=tuple(schedule))

    def _owner(self, step: Step) -> int:
        rank = min(self.ranks, key=lambda r: (self.load[r], r))
        self.load[rank] += sum(item.type.nbytes for item in step.outputs)
        return rank

    def _by_one(self, made: set[Item]) -> Program:
        """The first rank writes everything; what others would make of it is left out, unless they need it."""
        if self.program.rank == self.ranks[0]:
            return self.program
        gone, kept = set(made), []
        for step in self.program.steps:
            if step in self.writes:
                continue
            if any(item in gone for item in step.inputs):
                if not isinstance(step.action, Op) or step.action.alias:
                    raise PlanError(
                        f"{step.name} at {step.where} reads what an update of this run has made of a variable that the ranks share, and another "
                        f"variable or rank depends on it; set config.share_variables(False)"
                    )
                gone.update(step.outputs)
                continue
            kept.append(step)
        return replace(self.program, steps=tuple(kept), fetches=tuple((i, item) for i, item in self.program.fetches if item not in gone))

    # ---------------------------------------------------------------- sums of which a rank needs a piece

    def _scatter(self, flat: Sequence[Step]) -> dict[Item, _Scattered]:
        """By the result of an all_reduce, what takes its place; views of the result go."""
        views = views_of(self.program.steps, {s.outputs[0] for s in self.program.steps if self._is_sum(s)})
        readers: dict[Item, list[Step]] = {}
        for step in self.program.steps:
            for item in step.inputs:
                if item in views and not (isinstance(step.action, ViewOp) and step.outputs[0] in views):
                    readers.setdefault(views[item], []).append(step)
        found: dict[Item, _Scattered] = {}
        for step in filter(self._is_sum, self.program.steps):
            (total,) = step.outputs
            if total in self.program.known.for_updates and all(r in flat and self._inside(r, total) for r in readers.get(total, ())):
                found[total] = self._scattered(step)
        for step in self.program.steps:
            if isinstance(step.action, ViewOp) and views.get(step.outputs[0]) in found:
                self.instead[step] = []
        return found

    def _is_sum(self, step: Step) -> bool:
        action = step.action
        return isinstance(action, Collect) and action.kind == "all_reduce" and action.reduce is SUM and action.ranks == self.ranks

    def _inside(self, step: Step, total: Item) -> bool:
        """True if the only tensor that the update reads of `total` is a dense stretch of it."""
        assert isinstance(step.action, Updated)
        tensors = step.inputs[step.action.count : step.action.count + step.action.like]
        scalars = step.inputs[step.action.count + step.action.like :]
        alone = len(tensors) == 1 and all(self.windows[item].root is not total for item in scalars)
        return alone and is_dense(tensors[0].type, self.windows[tensors[0]])

    def _scattered(self, step: Step) -> _Scattered:
        collect, (source,), (total,) = step.action, step.inputs, step.outputs
        assert isinstance(collect, Collect)
        spans = pieces(total.type, len(self.ranks))
        mine = spans[self.ranks.index(self.program.rank)]
        counts = tuple(stop - start for start, stop in spans)
        out = Item(total.type.with_shape((mine[1] - mine[0],)), f"{total.name}:piece")
        self.instead[step] = [replace(step, action=replace(collect, kind="reduce_scatter", counts=counts), inputs=(source,), outputs=(out,))]
        return _Scattered(out, mine, collect.order)

    # ---------------------------------------------------------------- updates

    def _piece(self, step: Step, scattered: dict[Item, _Scattered]) -> list[Step]:
        """The update on this rank's piece; nothing if that is empty."""
        op = step.action
        assert isinstance(op, Updated)
        tensors = step.inputs[op.count : op.count + op.like]
        begin, stop = self._mine(step, tensors, scattered)
        if begin >= stop:
            return []
        build = Builder(self.program.rank, name=step.name, where=step.where, phase=step.phase)
        variables = tuple(_part(item, begin, stop) for item in step.inputs[: op.count])
        parts = tuple(self._part_of(build, item, begin, stop, scattered) for item in tensors)
        build.computes(op, (*variables, *parts, *step.inputs[op.count + op.like :]), step.name, tuple(item.type for item in variables))
        return build.steps

    def _mine(self, step: Step, tensors: Sequence[Item], scattered: dict[Item, _Scattered]) -> Span:
        """Which elements of the update are this rank's: where a sum is scattered, those it receives."""
        size = step.inputs[0].type.size
        for item in tensors:
            if (here := scattered.get(self.windows[item].root)) is not None:
                start = self.windows[item].offset // item.type.dtype.itemsize
                return max(here.span[0] - start, 0), min(here.span[1] - start, size)
        return pieces(step.inputs[0].type, len(self.ranks))[self.ranks.index(self.program.rank)]

    def _part_of(self, build: Builder, item: Item, begin: int, stop: int, scattered: dict[Item, _Scattered]) -> Item:
        here = scattered.get(self.windows[item].root)
        if here is None:
            return build.compute(SliceBox((begin,), (stop,)), build.flatten(item), name=f"{item.name}:piece")
        start = self.windows[item].offset // item.type.dtype.itemsize - here.span[0]
        return build.compute(SliceBox((start + begin,), (start + stop,)), here.item, name=f"{item.name}:piece")


@dataclass(frozen=True)
class _Scattered:
    """This rank's piece of a sum: elements `span` of it."""

    item: Item
    span: Span
    order: int


def _is_flat(step: Step) -> bool:
    op = step.action
    return isinstance(op, Updated) and op.flat and all(_is_common(item) for item in step.inputs[: op.count])


def pieces(type: TensorType, n: int) -> list[Span]:
    """The elements of a flat tensor in n pieces that begin on cache lines, so that no two ranks write to one."""
    line = ALIGNMENT // type.dtype.itemsize
    return [(min(start * line, type.size), min(stop * line, type.size)) for start, stop in cut(-(-type.size // line), n)]


def _part(item: Item, begin: int, stop: int) -> Item:
    slot = item.slot
    assert slot is not None
    type, itemsize = slot.type.with_shape((stop - begin,)), slot.type.dtype.itemsize
    return Item(type, f"{item.name}:piece", slot=Slot(slot.buffer, slot.offset + begin * itemsize, type, contiguous_strides(type.shape, itemsize)))
