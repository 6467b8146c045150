"""Verification of plans before they run.

Within a rank, no instruction reads memory that another value has overwritten or that was never written.  Memory of a communication in progress
contains a separate value: until the completion, no other instruction writes the input, or reads or writes the output.  Across ranks, all plans
follow one communication schedule: each rank executes exactly the entries in which it participates, in this order.  Every byte of a shared
variable is written by exactly one rank, or no byte is written.

Only epilogues write variables, and ranks begin them together, so a variable is written after all ranks have read it.  No epilogue reads bytes of
common memory that another rank's epilogue writes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import PlanError
from jobflow.plan.plan import Announced, Collective, Completion, Compute, Plan, Slot, Transfer, Wait
from jobflow.plan.storage import is_common


@dataclass(frozen=True, slots=True)
class Access:
    """The slots that one instruction reads and writes, each with a number that identifies the value in it."""

    name: str
    reads: tuple[tuple[int, Slot], ...]
    writes: tuple[tuple[int, Slot], ...]


class _Memory:
    """The last writer of each interval of a buffer: disjoint intervals in order, searched by bisection."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.stops: list[int] = []
        self.keys: list[int] = []

    def touching(self, start: int, stop: int) -> slice:
        """Return the slice of the intervals that overlap the bytes from `start` up to `stop`."""
        return slice(bisect_right(self.stops, start), bisect_left(self.starts, stop))

    def take(self, start: int, stop: int, key: int) -> None:
        """Record that the value with number `key` has been written to the bytes from `start` up to `stop`."""
        if start >= stop:
            return
        at = self.touching(start, stop)
        pieces = [(start, stop, key)]
        if at.start < at.stop:
            first, last = at.start, at.stop - 1
            pieces = [(self.starts[first], start, self.keys[first]), *pieces, (stop, self.stops[last], self.keys[last])]
        left = [piece for piece in pieces if piece[0] < piece[1]]
        for column, known in enumerate((self.starts, self.stops, self.keys)):
            known[at] = [piece[column] for piece in left]


def verify_memory(accesses: Iterable[Access]) -> None:
    """Raise PlanError at the first instruction that reads overwritten or uninitialised memory."""
    buffers: dict[str, _Memory] = {}
    for access in accesses:
        for key, slot in access.reads:
            _check_read(buffers.setdefault(slot.buffer, _Memory()), key, slot, access.name)
        for key, slot in access.writes:
            buffers.setdefault(slot.buffer, _Memory()).take(slot.offset, slot.stop, key)


def _check_read(memory: _Memory, key: int, slot: Slot, name: str) -> None:
    start, stop = slot.offset, slot.stop
    if start == stop:
        return
    keys = memory.keys[memory.touching(start, stop)]
    if not keys:
        raise PlanError(f"{name} reads {slot}, which no instruction has written")
    if any(other != key for other in keys):
        raise PlanError(f"{name} reads {slot}, but another value has overwritten it")


def verify_order(plan: Plan) -> None:
    """Raise PlanError unless this rank executes exactly its scheduled communications, in an order without deadlocks.

    A rank blocks in collectives and in waits for transfers.  Collectives and receives follow the order of the schedule.  A send is posted before
    any later communication, and awaited only after all earlier communications.
    Under these conditions, the earliest of all blocking communications can always complete.

    Concurrent collectives block in their completion.  All of them run on one stream, and they start in the order of the schedule.  So a rank that
    waits for a completion has started all earlier collectives, and the earliest one can complete.
    """
    sends = {i.order: i for i in plan.instructions if isinstance(i, Transfer) and i.sends}
    _verify_meetings(plan, set(sends))
    _verify_transfers(plan, sends)
    _verify_completions(plan)


def _verify_completions(plan: Plan) -> None:
    """Raise PlanError unless each concurrent collective is followed by one completion with the same slots, and all others have none."""
    open_starts: dict[int, Collective] = {}
    for instruction in plan.instructions:
        match instruction:
            case Collective(order=order, concurrent=True):
                open_starts[order] = instruction
            case Completion(source, target, order):
                start = open_starts.pop(order, None)
                if start is None or (start.input, start.output) != (source, target):
                    why = "precedes the collective, is repeated, or has other slots"
                    raise PlanError(f"job {plan.job}, rank {plan.rank}: the wait for {instruction.name} (number {order}) {why}")
    for order, start in open_starts.items():
        raise PlanError(f"job {plan.job}, rank {plan.rank}: the collective {start.name} (number {order}) has no wait for its completion")


def _verify_transfers(plan: Plan, sends: dict[int, Transfer]) -> None:
    """Raise PlanError for a post that is unscheduled, repeated or too late, and for a wait that is missing, repeated or too early."""
    due = {number for number, announced in enumerate(plan.schedule) if plan.rank in announced.ranks}
    meetings = sorted(due - set(sends))
    posted: dict[int, Transfer] = {}
    last: dict[tuple[int, bool], int] = {}
    waited: set[int] = set()
    met = -1

    def wrong(instruction: Transfer | Wait, why: str) -> PlanError:
        what = "send" if instruction.sends else "receive"
        return PlanError(f"job {plan.job}, rank {plan.rank}: the {what} {instruction.name} (number {instruction.order}) {why}")

    for instruction in plan.instructions:
        match instruction:
            case Collective():
                met = instruction.order
            case Transfer(peer, is_send, _, order):
                if order in posted or order not in due or order <= last.get((peer, is_send), -1):
                    raise wrong(instruction, f"is posted twice, belongs to another rank, or is posted after a later transfer with rank {peer}")
                if is_send and met > order:
                    raise wrong(instruction, f"is posted after the wait for number {met}")
                posted[order], last[peer, is_send] = instruction, order
            case Wait(_, is_send, slot, order):
                if order not in posted or order in waited or posted[order].slot != slot:
                    raise wrong(instruction, "has a wait before its post, two waits, or a wait on another slot")
                if is_send and any(met < number < order for number in meetings):
                    raise wrong(instruction, f"has a wait before earlier communication; the last completed one is number {met}")
                waited.add(order)
                met = met if is_send else order
    for order, transfer in posted.items():
        if order not in waited:
            raise wrong(transfer, "has no wait")


def _verify_meetings(plan: Plan, sends: set[int]) -> None:
    """Raise PlanError unless collectives and waits for receives match the schedule, in order."""
    done = [i for i in plan.instructions if isinstance(i, Collective) or (isinstance(i, Wait) and not i.sends)]
    due = [number for number, announced in enumerate(plan.schedule) if plan.rank in announced.ranks and number not in sends]
    for i in range(max(len(done), len(due))):
        number = due[i] if i < len(due) else None
        instruction = done[i] if i < len(done) else None
        if instruction is None or instruction.order != number:
            ours = "nothing" if instruction is None else f"{instruction.name} (number {instruction.order})"
            theirs = "nothing more" if number is None else f"{plan.schedule[number]} (number {number})"
            raise PlanError(f"job {plan.job}, rank {plan.rank}: communication {i} is {ours}, but the schedule requires {theirs}")


@dataclass(frozen=True)
class PlanSummary:
    """The fields of a rank's plan that are compared across ranks.

    Ranks number their buffers independently, so a shared buffer is named after its first variable.
    """

    schedule: tuple[Announced, ...]
    #: shared variables: name, buffer, first byte, last byte + 1
    stored: tuple[tuple[str, str, int, int], ...]
    #: intervals of shared variables that this rank writes: buffer, first byte, last byte + 1, name of the step
    writes: tuple[tuple[str, int, int, str], ...]
    #: intervals that this rank reads while other ranks may write: buffer, first byte, last byte + 1, name of the step
    reads: tuple[tuple[str, int, int, str], ...]


def summary(plan: Plan) -> PlanSummary:
    common = {name: slot for name, slot in plan.variables.items() if is_common(slot.buffer)}
    called: dict[str, str] = {}
    for name, slot in common.items():
        called.setdefault(slot.buffer, name)
    stored = tuple((name, called[slot.buffer], slot.offset, slot.stop) for name, slot in common.items())
    late = [i for i in plan.epilogue if isinstance(i, Compute)]

    def stretches(slots: Iterable[tuple[Slot, str]]) -> tuple[tuple[str, int, int, str], ...]:
        return tuple((called[slot.buffer], slot.offset, slot.stop, name) for slot, name in slots if slot.buffer in called and slot.type.size)

    writes, reads = ((slot, i.name) for i in late for slot in i.outputs), ((slot, i.name) for i in late for slot in i.inputs)
    return PlanSummary(plan.schedule, stored, stretches(writes), stretches(reads))


def verify_writes(plan: Plan) -> None:
    """Raise PlanError if a body writes a variable: other ranks, or a restart after an error, may still need the old value."""
    stored = {slot.buffer for slot in (*plan.variables.values(), *plan.shadows.values())}
    for instruction in plan.body:
        outputs = instruction.outputs if isinstance(instruction, Compute) else (instruction.output,) if isinstance(instruction, Collective) else ()
        if any(slot.buffer in stored for slot in outputs):
            raise PlanError(
                f"job {plan.job}, rank {plan.rank}: {instruction.name} at {instruction.where} writes a variable in the body instead of the epilogue"
            )


def compare_plans(job: str, plans: Sequence[PlanSummary]) -> None:
    """Raise PlanError unless the plans of all ranks are compatible."""
    compare_schedules(job, [plan.schedule for plan in plans])
    _compare_reads(job, plans, _compare_writes(job, plans))


def _compare_writes(job: str, plans: Sequence[PlanSummary]) -> Mapping[str, _Memory]:
    """Return the writing ranks by buffer; raise PlanError if two ranks write one byte, or if a written variable has unwritten bytes."""
    writes = sorted((*write, rank) for rank, plan in enumerate(plans) for write in plan.writes)
    last = ("", 0, 0, "", 0)
    covered: dict[str, _Memory] = {}
    for write in writes:
        buffer, start, stop, name, rank = write
        if buffer == last[0] and start < last[2] and rank != last[4]:
            raise PlanError(f"job {job}: {last[3]} on rank {last[4]} and {name} on rank {rank} both write byte {start} of the buffer of {buffer}")
        if buffer != last[0] or stop > last[2]:
            last = write
        covered.setdefault(buffer, _Memory()).take(start, stop, rank)
    for variable, buffer, begin, end in plans[0].stored:
        memory = covered.get(buffer, _Memory())
        inside = memory.touching(begin, end)
        reached = begin
        for start, stop in [*zip(memory.starts[inside], memory.stops[inside], strict=True), (end, end)]:
            if inside.start < inside.stop and start > reached:
                raise PlanError(f"job {job}: {variable} is updated, but no rank writes bytes {reached} to {start} of the buffer of {buffer}")
            reached = max(reached, stop)
    return covered


def _compare_reads(job: str, plans: Sequence[PlanSummary], written: Mapping[str, _Memory]) -> None:
    """Raise PlanError if an epilogue reads bytes that another rank writes; `written` has the writing ranks by buffer."""
    for rank, plan in enumerate(plans):
        for buffer, start, stop, name in plan.reads:
            memory = written.get(buffer, _Memory())
            others = [other for other in memory.keys[memory.touching(start, stop)] if other != rank]
            if others:
                raise PlanError(
                    f"job {job}: {name} on rank {rank} reads bytes of the buffer of {buffer} that rank {others[0]} writes at the same time"
                )


def compare_schedules(job: str, schedules: Sequence[Sequence[Announced]]) -> None:
    """Raise PlanError if the schedule of a rank differs from the schedule of rank 0; the message shows the first difference."""
    first = schedules[0]
    for rank, schedule in enumerate(schedules):
        for number in range(max(len(first), len(schedule))):
            a, b = (lines[number] if number < len(lines) else "nothing" for lines in (first, schedule))
            if a != b:
                raise PlanError(f"job {job}: the schedules of ranks 0 and {rank} differ at communication {number}: {a} and {b}")
