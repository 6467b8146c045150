"""The global order of communication after some of it has given way to other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from jobflow.compiler.rank.local import Collect, Program, Receive, Send, Step, WaitFor
from jobflow.plan.plan import Announced


def renumbered(
    program: Program, instead: Mapping[Step, Sequence[Step]], lines: Mapping[int, Sequence[Announced]], place: Mapping[Step, int]
) -> Program:
    """The program with steps replaced, and all communication numbered as the new schedule has it.

    `lines` says what the schedule has in place of one of its lines, by number.  A new step bears the number of that line, and
    `place` says which of its successors it is.
    """
    schedule: list[Announced] = []
    begins: list[int] = []
    for number, line in enumerate(program.schedule):
        begins.append(len(schedule))
        schedule += lines.get(number, [line])
    steps = [new for step in program.steps for new in instead.get(step, [step])]

    def order(action: Collect | Send | Receive, after: int = 0) -> Collect | Send | Receive:
        return replace(action, order=begins[action.order] + after)

    def numbered(step: Step) -> Step:
        action = step.action
        if isinstance(action, Collect | Send | Receive):
            return replace(step, action=order(action, place.get(step, 0)))
        if isinstance(action, WaitFor):
            return replace(step, action=WaitFor(order(action.post)))  # type: ignore[arg-type]
        return step

    return replace(program, steps=tuple(map(numbered, steps)), schedule=tuple(schedule))
