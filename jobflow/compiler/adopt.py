"""Program -> the same with arguments that are read where the client puts them.

A rank's part of an argument may come in memory that the plan is given, as variables are, so that nothing need be copied.  It stays
a copy where the argument is wanted in another memory order than the client's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jobflow.compiler.format import format_items
from jobflow.compiler.local import Item, Program
from jobflow.layout import Box
from jobflow.plan.plan import Slot
from jobflow.types import contiguous_strides


def adopt(program: Program, places: Mapping[str, Slot]) -> Program:
    """Give every argument that is read as it comes its place, by key."""
    orders = format_items(program) if places else {}
    now = {
        argument.item: Item(argument.item.type, argument.item.name, slot=places[argument.key])
        for argument in program.arguments
        if argument.key in places and argument.item not in orders and argument.item.type.ndim
    }
    if not now:
        return program
    steps = tuple(replace(step, inputs=tuple(now.get(item, item) for item in step.inputs)) for step in program.steps)
    arguments = tuple(replace(argument, item=now.get(argument.item, argument.item)) for argument in program.arguments)
    fetches = tuple((position, now.get(item, item)) for position, item in program.fetches)
    results = tuple(now.get(item, item) for item in program.results)
    together = {a.item: slot for a in arguments if a.item.slot is not None and (slot := _together(a.item.slot, a.box)) is not None}
    return replace(program, steps=steps, arguments=arguments, fetches=fetches, results=results, together=together)


def _together(mine: Slot, box: Box) -> Slot | None:
    """Where the parts of all ranks lie, if they are stretches of the first axis."""
    if mine.type.shape != box.shape or box.shape[1:] != box.whole[1:] or not box.shape[0]:
        return None
    whole = mine.type.with_shape(box.whole)
    return Slot(mine.buffer, mine.offset - box.start[0] * mine.strides[0], whole, contiguous_strides(box.whole, mine.type.dtype.itemsize))
