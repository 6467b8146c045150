"""An executor that overwrites memory after its last use: a value that is read too late becomes NaN."""

from __future__ import annotations

from typing import Any

import numpy as np

from jobflow.plan.plan import Collective, Compute, Instruction, Plan, Slot
from jobflow.runtime.executor import Executor

Marks = dict[str, Any]  # buffer -> one bool per byte


def slots(instruction: Instruction) -> tuple[tuple[Slot, ...], tuple[Slot, ...]]:
    """Return the slots that an instruction reads and writes."""
    match instruction:
        case Compute(_, inputs, outputs):
            return inputs, outputs
        case Collective():
            return (instruction.input,), (instruction.output,)
    return ((instruction.slot,), ()) if instruction.sends else ((), (instruction.slot,))


def bytes_of(marks: Marks, slot: Slot) -> Any:
    """Return a view of the marks of all bytes that a slot contains."""
    if 0 in slot.type.shape:
        return np.zeros(0, bool)
    return np.ndarray((*slot.type.shape, slot.type.dtype.itemsize), bool, marks[slot.buffer], slot.offset, (*slot.strides, 1))


def deaths(plan: Plan) -> list[Marks]:
    """Return, per instruction, the bytes that it uses and that are not read again before their next write."""
    live = {name: np.zeros(size, bool) for name, size in plan.buffers.items()}
    for _, slot in plan.fetches:
        if slot.buffer in live:
            bytes_of(live, slot)[...] = True
    marks_by_instruction: list[Marks] = []
    for instruction in reversed(plan.instructions):
        reads, writes = ([slot for slot in side if slot.buffer in live] for side in slots(instruction))
        dead = {name: np.zeros(size, bool) for name, size in plan.buffers.items()}
        for slot in (*reads, *writes):
            bytes_of(dead, slot)[...] = True
        marks_by_instruction.append({name: mark & ~live[name] for name, mark in dead.items()})
        for slot in writes:
            bytes_of(live, slot)[...] = False
        for slot in reads:
            bytes_of(live, slot)[...] = True
    return marks_by_instruction[::-1]


class SpoilingExecutor(Executor):
    """An executor that fills memory with ones (NaNs and huge numbers) after its last reader."""

    def __init__(self, plan: Plan, *arguments: Any) -> None:
        super().__init__(plan, *arguments)
        dead = {id(i): marks for i, marks in zip(plan.instructions, deaths(plan), strict=True)}
        instructions, calls = self.call_instructions, [*self.body, *self.epilogue]
        mixed, spoiled = [], []
        for at, call in enumerate(calls):
            mixed.append((instructions[at], call))
            if at + 1 == len(calls) or instructions[at + 1] is not instructions[at]:
                for name, mark in dead[id(instructions[at])].items():
                    where = np.flatnonzero(mark)
                    if where.size:
                        mixed.append((instructions[at], (np.put, (self.buffers[name], where, 255))))
                        spoiled.append(where.size)
        body = {id(i) for i in plan.body}
        self.call_instructions = [i for i, _ in mixed]
        self.body = [call for i, call in mixed if id(i) in body]
        self.epilogue = [call for i, call in mixed if id(i) not in body]
        self.spoiled = sum(spoiled)
