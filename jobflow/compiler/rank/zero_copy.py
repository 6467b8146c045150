"""Program -> the same with arguments that are read where the client puts them.

A rank's part of an argument may come in memory that the plan is given, as variables are, so that nothing need be copied.  It stays
a copy where the argument is wanted in another memory order than the client's.  Where the parts of all ranks lie one after another,
none need be gathered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jobflow.compiler.rank.format import format_items
from jobflow.compiler.rank.local import Collect, Item, Program, Send, Step
from jobflow.compiler.rank.views import whole_in_io_buffers, windows
from jobflow.compiler.renumber import renumbered
from jobflow.core.layout import Box
from jobflow.core.types import contiguous_strides
from jobflow.ops.op import ViewOp
from jobflow.plan.plan import Announced, Slot
from jobflow.plan.storage import RankMemory


def zero_copy_feeds(program: Program, memory: RankMemory, ranks: tuple[int, ...]) -> Program:
    """Give every argument that is read as it comes its place; `ranks` are those that have all memory in common."""
    given = {**memory.places, **memory.own}
    orders = format_items(program) if given else {}
    now = {
        argument.item: Item(argument.item.type, argument.item.name, slot=given[argument.key])
        for argument in program.arguments
        if argument.key in given and argument.item not in orders and argument.item.type.ndim
    }
    if not now:
        return program
    steps = tuple(_reading(step, now) for step in program.steps)
    arguments = tuple(replace(argument, item=now.get(argument.item, argument.item)) for argument in program.arguments)
    fetches = tuple((position, now.get(item, item)) for position, item in program.fetches)
    results = tuple(now.get(item, item) for item in program.results)
    # a rank may want images in another memory order, and its neighbours may not, unless they are alike, or nothing but views reads them
    used = {item for step in steps if not isinstance(step.action, ViewOp | Collect | Send) for item in step.inputs}
    common = [a for a in arguments if a.key in memory.places]
    plain = [a for a in common if a.item.slot is not None and (program.known.alike or a.item.type.ndim <= 2 or a.item not in used)]
    together = {a.item: slot for a in plain if a.item.slot is not None and (slot := _together(a.item.slot, a.box)) is not None}
    return _ungathered(replace(program, steps=steps, arguments=arguments, fetches=fetches, results=results, together=together), ranks)


def _ungathered(program: Program, ranks: tuple[int, ...]) -> Program:
    """Leave out that `ranks`, which are all there are, gather what lies together."""
    gathers = [step for step in program.steps if isinstance(step.action, Collect) and (step.action.kind, step.action.ranks) == ("all_gather", ranks)]
    if not gathers or not program.together:
        return program
    found = windows(program.steps, [*program.reads.values(), *(argument.item for argument in program.arguments)], {})
    lines: dict[int, list[Announced]] = {}
    instead: dict[Step, list[Step]] = {}
    now: dict[Item, Item] = {}
    for step in gathers:
        assert isinstance(step.action, Collect)
        slot = whole_in_io_buffers(step.inputs[0], step.outputs[0].type, found, program.together)
        if slot is not None:
            lines[step.action.order], instead[step] = [], []
            now[step.outputs[0]] = Item(slot.type, step.outputs[0].name, slot=slot)
    reading = {step: instead.get(step, [_reading(step, now)]) for step in program.steps}
    return renumbered(program, reading, lines, {}) if lines else program


def _reading(step: Step, now: Mapping[Item, Item]) -> Step:
    return replace(step, inputs=tuple(now.get(item, item) for item in step.inputs))


def _together(mine: Slot, box: Box) -> Slot | None:
    """Where the parts of all ranks lie, if they are stretches of the first axis."""
    if mine.type.shape != box.shape or box.shape[1:] != box.whole[1:]:
        return None
    whole = mine.type.with_shape(box.whole)
    return Slot(mine.buffer, mine.offset - box.start[0] * mine.strides[0], whole, contiguous_strides(box.whole, mine.type.dtype.itemsize))
