"""What is checked about plans before anything runs.

Within a rank: nobody reads memory that another value has overwritten, or that nothing has written.  Across ranks: all follow
one schedule of communication, and each takes part exactly in what concerns it, in that order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jobflow.errors import PlanError
from jobflow.plan.plan import Collective, Plan, Slot, Transfer


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
    if not any(o.key == key for o in touching):
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
    """PlanError unless this rank's communication follows the global schedule."""
    last = -1
    for instruction in plan.instructions:
        if isinstance(instruction, Collective | Transfer):
            if instruction.order <= last:
                raise PlanError(f"rank {plan.rank}: {instruction.name} (number {instruction.order}) comes after number {last} of the schedule")
            last = instruction.order
            if last >= len(plan.schedule):
                raise PlanError(f"rank {plan.rank}: {instruction.name} (number {last}) is not in the schedule of {len(plan.schedule)}")


def schedule_hash(schedule: Sequence[str]) -> str:
    """What ranks compare before the first run."""
    return hashlib.sha256("\n".join(schedule).encode()).hexdigest()


def compare_schedules(job: str, schedules: Sequence[Sequence[str]]) -> None:
    """PlanError naming two ranks and the first communication at which they disagree."""
    for rank, schedule in enumerate(schedules):
        for number in range(max(len(schedules[0]), len(schedule))):
            a, b = (lines[number] if number < len(lines) else "nothing" for lines in (schedules[0], schedule))
            if a != b:
                raise PlanError(f"job {job}: ranks 0 and {rank} disagree at communication {number}: {a} versus {b}")
