"""What is checked about plans before anything runs.

Within a rank: nobody reads memory that another value has overwritten, or that nothing has written.  Across ranks: all follow
one schedule of communication, and each takes part exactly in what concerns it, in that order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jobflow.errors import PlanError
from jobflow.plan.plan import Announced, Collective, Plan, Slot, Transfer


@dataclass(frozen=True, slots=True)
class Access:
    """The memory one instruction touches; a key names the value that is meant."""

    name: str
    reads: tuple[tuple[int, Slot], ...]
    writes: tuple[tuple[int, Slot], ...]


@dataclass
class _Owned:
    start: int
    stop: int
    key: int


def verify_memory(accesses: Iterable[Access]) -> None:
    """PlanError at the first instruction that reads memory in which another value lies by then, or none at all."""
    owners: dict[str, list[_Owned]] = {}
    for access in accesses:
        for key, slot in access.reads:
            _check_read(owners.get(slot.buffer, []), key, slot, access.name)
        for key, slot in access.writes:
            _take(owners.setdefault(slot.buffer, []), key, slot)


def _check_read(owners: list[_Owned], key: int, slot: Slot, name: str) -> None:
    if slot.stop == slot.offset:
        return
    touching = [o for o in owners if o.start < slot.stop and slot.offset < o.stop]
    if not touching:
        raise PlanError(f"{name} reads {slot}, which nothing has written")
    if any(o.key != key for o in touching):
        raise PlanError(f"{name} reads {slot}, over which another value has been written")


def _take(owners: list[_Owned], key: int, slot: Slot) -> None:
    kept: list[_Owned] = []
    for o in owners:
        if o.stop <= slot.offset or slot.stop <= o.start:
            kept.append(o)
            continue
        if o.start < slot.offset:
            kept.append(_Owned(o.start, slot.offset, o.key))
        if slot.stop < o.stop:
            kept.append(_Owned(slot.stop, o.stop, o.key))
    kept.append(_Owned(slot.offset, slot.stop, key))
    owners[:] = kept


def verify_order(plan: Plan) -> None:
    """PlanError unless this rank takes part in each communication that concerns it, in the order of the schedule, and in no other."""
    done = [i for i in plan.instructions if isinstance(i, Collective | Transfer)]
    due = [number for number, announced in enumerate(plan.schedule) if plan.rank in announced.ranks]
    for i in range(max(len(done), len(due))):
        number = due[i] if i < len(due) else None
        instruction = done[i] if i < len(done) else None
        if instruction is None or instruction.order != number:
            ours = "nothing" if instruction is None else f"{instruction.name} (number {instruction.order})"
            theirs = "nothing more" if number is None else f"{plan.schedule[number]} (number {number})"
            raise PlanError(f"job {plan.job}, rank {plan.rank}: its communication {i} is {ours}, but the schedule has {theirs} for it")


def compare_schedules(job: str, schedules: Sequence[Sequence[Announced]]) -> None:
    """PlanError naming two ranks and the first communication at which they disagree."""
    first = schedules[0]
    for rank, schedule in enumerate(schedules):
        for number in range(max(len(first), len(schedule))):
            a, b = (lines[number] if number < len(lines) else "nothing" for lines in (first, schedule))
            if a != b:
                raise PlanError(f"job {job}: ranks 0 and {rank} disagree at communication {number}: {a} versus {b}")
