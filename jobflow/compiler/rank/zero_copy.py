"""RankProgram -> the same with arguments that are read where the client puts them.

A rank's part of an argument may come in memory that the plan is given, as variables are, so that nothing need be copied.  It stays
a copy where the argument is wanted in another memory order than the client's.
"""

from __future__ import annotations

from dataclasses import replace

from jobflow.compiler.rank.format import format_items
from jobflow.compiler.rank.local import Item, RankProgram
from jobflow.plan.storage import RankMemory


def zero_copy_feeds(program: RankProgram, memory: RankMemory) -> RankProgram:
    """Give every argument that is read as it comes its place."""
    given = {**memory.places, **memory.own}
    orders = format_items(program) if given else {}
    now = {
        argument.item: Item(argument.item.type, argument.item.name, slot=given[argument.key])
        for argument in program.arguments
        if argument.key in given and argument.item.slot is None and argument.item not in orders and argument.item.type.ndim
    }
    if not now:
        return program
    steps = tuple(replace(step, inputs=tuple(now.get(item, item) for item in step.inputs)) for step in program.steps)
    arguments = tuple(replace(argument, item=now.get(argument.item, argument.item)) for argument in program.arguments)
    fetches = tuple((position, now.get(item, item)) for position, item in program.fetches)
    results = tuple(now.get(item, item) for item in program.results)
    return replace(program, steps=steps, arguments=arguments, fetches=fetches, results=results)
