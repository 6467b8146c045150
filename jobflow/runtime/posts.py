"""The order in which a rank starts communication, if it must be the order of the schedule.

A plan may post a receive before a send that is earlier in the schedule, so that both overlap with computation.  On one communication stream, such
a receive would delay the send, and the ranks could wait for each other without end.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from jobflow.core.errors import PlanError
from jobflow.ops.op import Call
from jobflow.plan.plan import Collective, Compute, Instruction, Transfer
from jobflow.runtime.comm.communicator import Communicator


def in_schedule_order(instructions: Sequence[Instruction]) -> list[Instruction]:
    """Move each start of a communication behind the starts that precede it in the schedule; other instructions keep their order.

    Starts only move to later positions.  Their waits follow, because waits are in the order of the schedule.

    Raises: PlanError if a wait, or a collective without a wait, precedes an earlier communication.
    """
    starts = {i.order: at for at, i in enumerate(instructions) if isinstance(i, Collective | Transfer)}
    behind: dict[int, list[Instruction]] = {}
    waits = {i.order: at for at, i in enumerate(instructions) if not isinstance(i, Compute | Collective | Transfer)}
    latest = -1
    for order in sorted(starts):
        latest = max(latest, starts[order])
        start = instructions[starts[order]]
        alone = isinstance(start, Collective) and not start.concurrent
        if latest > (starts[order] if alone else waits.get(order, latest)):
            raise PlanError(f"communication: {start.name} (number {order}) ends before an earlier one starts")
        behind.setdefault(latest, []).append(instructions[starts[order]])
    result: list[Instruction] = []
    for at, instruction in enumerate(instructions):
        if not isinstance(instruction, Collective | Transfer):
            result.append(instruction)
        result.extend(behind.get(at, ()))
    return result


def together(bound: Sequence[tuple[Instruction, list[Call]]], comm: Communicator) -> list[tuple[Instruction, list[Call]]]:
    """Combine consecutive starts of transfers, which then run at the same time; the first one stands for all in messages."""
    result: list[tuple[Instruction, list[Call]]] = []
    for transfers, group in groupby(bound, lambda each: isinstance(each[0], Transfer)):
        run = list(group)
        result += [(run[0][0], comm.together([call for _, calls in run for call in calls]))] if transfers else run
    return result
