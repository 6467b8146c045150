"""RankProgram -> the same program, reading arguments in place from the client's memory.

An argument is read without a copy if the plan contains the address of this rank's part, as for variables.  The argument is copied if its memory
order must differ from the client's.
"""

from __future__ import annotations

from dataclasses import replace

from jobflow.compiler.rank.format import memory_orders
from jobflow.compiler.rank.local import LocalValue, RankProgram
from jobflow.plan.storage import RankMemory


def zero_copy_feeds(program: RankProgram, memory: RankMemory) -> RankProgram:
    """Set the slot of every argument that is read in the client's memory order."""
    slots = {**memory.places, **memory.own}
    orders = memory_orders(program) if slots else {}
    now = {
        argument.value: LocalValue(argument.value.type, argument.value.name, slot=slots[argument.key])
        for argument in program.arguments
        if argument.key in slots and argument.value.slot is None and argument.value not in orders and argument.value.type.ndim
    }
    if not now:
        return program
    steps = tuple(replace(step, inputs=tuple(now.get(value, value) for value in step.inputs)) for step in program.steps)
    arguments = tuple(replace(argument, value=now.get(argument.value, argument.value)) for argument in program.arguments)
    fetches = tuple((position, now.get(value, value)) for position, value in program.fetches)
    results = tuple(now.get(value, value) for value in program.results)
    return replace(program, steps=steps, arguments=arguments, fetches=fetches, results=results)
