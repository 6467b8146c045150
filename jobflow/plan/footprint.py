"""The memory of a rank by category, and its peak, before the program runs.

A byte of the arena is in use from the instruction that writes it to the last instruction that reads it.  The writer determines the category:
the forward pass (activations), the backward pass (gradients), the update (temporaries), or a communication (received data).  Variables are
always in use.

`footprint` covers only memory in the plan.  `program.allocation` adds memory that is allocated when the plan is bound: staging buffers of
collectives and scratch of kernels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import NOWHERE
from jobflow.core.tables import TextTable
from jobflow.core.types import TensorType
from jobflow.plan.plan import Collective, Completion, Compute, Instruction, Plan, Slot, Transfer, Wait

#: The kinds of memory use, in the order of the table.
CATEGORIES = ("variables", "optimizer state", "activations", "gradients", "communication", "update", "staging", "scratch")
_OF_PHASE = {"forward": "activations", "backward": "gradients", "update": "update"}


@dataclass(frozen=True)
class Footprint:
    """The memory of one rank: bytes by category at the peak, the instruction at the peak, and the allocated bytes."""

    #: bytes in use at the peak, by category
    at_peak: dict[str, int]
    #: the instruction at the peak
    peak: str
    #: bytes in use at the peak in buffers that are reused
    needed: int
    #: bytes allocated for these buffers
    allocated: int

    @property
    def total(self) -> int:
        """The number of bytes that the rank allocates for the plan."""
        return self.allocated + self.at_peak["variables"] + self.at_peak["optimizer state"]


@dataclass(frozen=True)
class _Touch:
    """A read or write of the bytes of a slot by an instruction."""

    time: int
    slot: Slot
    category: str | None  # None: a read


class LiveValue(NamedTuple):
    """A value in use at the peak of a plan: its bytes, its type, and the instruction that writes it with the user's line."""

    nbytes: int
    type: TensorType
    writer: str


def footprint(plan: Plan) -> Footprint:
    """Return the memory of a rank by category, and its peak."""
    instructions = plan.instructions
    in_use = np.zeros((len(CATEGORIES), len(instructions) + 2), np.int64)
    for touches in _by_buffer(plan):
        _add_lives(touches, in_use)
    total = in_use.sum(axis=0)
    fullest = int(total.argmax())
    at_peak = {category: int(in_use[i, fullest]) for i, category in enumerate(CATEGORIES)}
    for slot in plan.variables.values():
        kind = "variables" if slot.buffer.endswith((":parameter", ":scalar")) else "optimizer state"
        at_peak[kind] += slot.type.nbytes
    at_peak["variables"] += sum(slot.type.nbytes for slot in plan.shadows.values())
    return Footprint(at_peak, _describe(instructions, fullest), int(total[fullest]), sum(plan.buffers.values()))


def largest_values(plan: Plan, count: int) -> list[LiveValue]:
    """Return the largest values in use at the peak of a plan, at most `count`, the largest first; variables are not included."""
    instructions = plan.instructions
    buffers = _by_buffer(plan)
    in_use = np.zeros((len(CATEGORIES), len(instructions) + 2), np.int64)
    for touches in buffers:
        _add_lives(touches, in_use)
    time = int(in_use.sum(axis=0).argmax())
    live = [
        LiveValue(nbytes, touch.slot.type, _describe(instructions, touch.time)) for touches in buffers for touch, nbytes in _live_at(touches, time)
    ]
    return sorted(live, key=lambda value: -value.nbytes)[:count]


def _by_buffer(plan: Plan) -> list[list[_Touch]]:
    """Return the reads and writes of each buffer of the plan, in order of time."""
    touches = [touch for touch in _ordered_accesses(plan, plan.instructions) if touch.slot.buffer in plan.buffers]
    return [[touch for touch in touches if touch.slot.buffer == buffer] for buffer in sorted({touch.slot.buffer for touch in touches})]


def _live_at(touches: Sequence[_Touch], time: int) -> list[tuple[_Touch, int]]:
    """Return the writes whose bytes are in use at a time, with the number of these bytes."""
    edges = np.unique([edge for touch in touches for edge in (touch.slot.offset, touch.slot.stop)])
    writer, decided, live = np.full(len(edges) - 1, -1), np.zeros(len(edges) - 1, bool), np.zeros(len(edges) - 1, bool)
    for number, touch in enumerate(touches):
        part = slice(*np.searchsorted(edges, (touch.slot.offset, touch.slot.stop)))
        if touch.category is not None and touch.time <= time:
            writer[part] = number
            decided[part] = live[part] = touch.time == time  # bytes that are written and never read are in use once
        elif touch.time >= time:
            live[part] |= ~decided[part] & (touch.category is None)
            decided[part] = True
    nbytes = np.bincount(writer[live & (writer >= 0)], np.diff(edges)[live & (writer >= 0)], len(touches))
    return [(touch, int(n)) for touch, n in zip(touches, nbytes, strict=True) if n]


def _ordered_accesses(plan: Plan, instructions: tuple[Instruction, ...]) -> Iterator[_Touch]:
    """Yield the reads and writes in order of time; within an instruction, reads come before writes."""
    for feed in plan.feeds:
        yield _Touch(0, feed.slot, "activations")
    for time, instruction in enumerate(instructions, 1):
        reads, writes, category = _accesses(instruction)
        yield from (_Touch(time, slot, None) for slot in reads)
        yield from (_Touch(time, slot, category) for slot in writes)
    for _, slot in plan.fetches:
        yield _Touch(len(instructions) + 1, slot, None)


def _accesses(instruction: Instruction) -> tuple[tuple[Slot, ...], tuple[Slot, ...], str]:
    match instruction:
        case Compute(_, inputs, outputs):
            return inputs, outputs, _OF_PHASE[instruction.phase]
        case Collective():
            return (instruction.input,), (instruction.output,), "communication"
        case Completion():
            return (instruction.input, instruction.output), (), "communication"
        case Transfer(_, sends, slot):
            return ((slot,), (), "communication") if sends else ((), (slot,), "communication")
        case Wait(_, _, slot):
            return (slot,), (), "communication"


def _add_lives(touches: list[_Touch], in_use: np.ndarray[tuple[int, int], np.dtype[np.int64]]) -> None:
    """Add the live ranges of one buffer to `in_use`: from each write to the last read before the next write."""
    edges = np.unique([edge for touch in touches for edge in (touch.slot.offset, touch.slot.stop)])
    sizes = np.diff(edges)
    written = np.full(len(sizes), -1)
    read = np.full(len(sizes), -1)
    kind = np.zeros(len(sizes), np.int64)
    change = np.zeros((in_use.shape[0], in_use.shape[1] + 1), np.int64)

    def end(parts: Iterable[int]) -> None:
        for part in parts:
            if written[part] >= 0:
                change[kind[part], written[part]] += sizes[part]
                change[kind[part], max(read[part], written[part]) + 1] -= sizes[part]

    for touch in touches:
        parts = range(*np.searchsorted(edges, (touch.slot.offset, touch.slot.stop)))
        if touch.category is None:
            read[parts.start : parts.stop] = touch.time
            continue
        again = [part for part in parts if read[part] != touch.time]  # bytes that the instruction reads and overwrites stay live
        end(again)
        written[again] = touch.time
        read[again] = -1
        kind[again] = CATEGORIES.index(touch.category)
    end(range(len(sizes)))
    in_use += np.cumsum(change, axis=1)[:, :-1]


def _describe(instructions: tuple[Instruction, ...], time: int) -> str:
    if not 1 <= time <= len(instructions):
        return "arguments" if time == 0 else "results"
    instruction = instructions[time - 1]
    return instruction.name if instruction.where == NOWHERE else f"{instruction.name} at {instruction.where}"


def footprint_text(footprints: dict[int, Footprint]) -> str:
    """Return a table of the footprints in MiB, with one line per rank."""
    rows = [(rank, *(f"{f.at_peak[c] / 2**20:.2f}" for c in CATEGORIES), f"{f.total / 2**20:.2f}", f.peak) for rank, f in footprints.items()]
    table = TextTable(["rank", *CATEGORIES, "allocated", "fullest at"], rows, right=range(len(CATEGORIES) + 2))
    return f"{table}\nMiB in use at the peak of each rank; allocated is the size of all buffers"
