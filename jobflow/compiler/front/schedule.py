"""Pipeline schedules: the order in which each stage processes its microbatches.

A pipeline has stages, and one group of ranks runs each.  A task is the forward or backward pass of one microbatch through one stage.
A schedule is a function from the form of a pipeline to rows; a row is the order of tasks of one group.  This module only validates,
simulates and prints rows; `pipeline` orders the nodes of a graph by them.

* ``gpipe``: all forward passes, then all backward passes.  Every stage stores the activations of all m microbatches.
* ``1f1b``: a stage starts a new microbatch only while fewer than (stages - stage) are in flight, and prefers backward passes.
  With p stages, the bubble is the same, (p-1)/(m+p-1) of the time, but a stage stores at most p activations.  1F1B is the default.
* ``interleaved``: each of the p groups has v stages, p apart; a microbatch passes every group v times.  Stages are shorter, so
  the bubble falls to (p-1)/(v m + p - 1), for v times the communication.

Example, 1f1b with two stages and three microbatches (time runs to the right, a backward pass takes as long as a forward pass)

    stage 0  F0 F1 B0 F2 B1 .. B2
    stage 1  .. F0 B0 F1 B1 F2 B2
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import PlanError

Pass = Literal["forward", "backward"]


@dataclass(frozen=True, slots=True)
class Task:
    """The forward or backward pass of one microbatch through one stage."""

    direction: Pass
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.direction} of microbatch {self.microbatch} in stage {self.stage}"


#: The tasks of one group, in order.
Row: TypeAlias = tuple[Task, ...]
#: The time that a task takes, in any unit.
Cost: TypeAlias = Callable[[Task], float]
#: The tasks that must precede a task.
Needs: TypeAlias = Callable[[Task], Iterable[Task]]


@dataclass(frozen=True)
class Form:
    """The form of a pipeline: the group of ranks of each stage, the number of microbatches, and the presence of backward passes."""

    groups: tuple[int, ...]
    microbatches: int
    trains: bool = True

    @property
    def stages(self) -> int:
        return len(self.groups)

    @property
    def size(self) -> int:
        """The number of groups."""
        return max(self.groups) + 1

    def tasks(self) -> list[Task]:
        directions: tuple[Pass, ...] = ("forward", "backward") if self.trains else ("forward",)
        return [Task(direction, stage, i) for direction in directions for stage in range(self.stages) for i in range(self.microbatches)]

    def needs(self, task: Task) -> list[Task]:
        """Return the tasks that must finish before a task; a microbatch passes the stages in order, and back in reverse order."""
        s, i = task.stage, task.microbatch
        if task.direction == "forward":
            return [Task("forward", s - 1, i)] if s else []
        return [Task("forward", s, i), *([Task("backward", s + 1, i)] if s + 1 < self.stages else [])]


# -------------------------------------------------------------------- schedules


def gpipe(form: Form) -> tuple[Row, ...]:
    """Return one row per group: all forward passes, stage by stage, then all backward passes."""
    batch = range(form.microbatches)
    rows: list[Row] = []
    for group in range(form.size):
        stages = [s for s in range(form.stages) if form.groups[s] == group]
        forward = [Task("forward", s, i) for s in stages for i in batch]
        backward = [Task("backward", s, i) for s in reversed(stages) for i in batch]
        rows.append((*forward, *(backward if form.trains else ())))
    return tuple(rows)


def one_forward_one_backward(form: Form) -> tuple[Row, ...]:
    """Return one row per group; each group starts its earliest ready task, and prefers backward passes and later forward stages.

    With one stage per group, the result is 1F1B.  Stage s of p first runs p - 1 - s forward passes, then alternates forward and backward
    passes.
    """
    done: dict[Task, float] = {}
    rows: list[list[Task]] = [[] for _ in range(form.size)]
    free = [0.0] * form.size
    following = {(task.direction, task.stage): task for task in form.tasks() if task.microbatch == 0}
    while following:
        ready = [task for task in following.values() if _may_begin(task, form, done)]
        begin = {task: max([free[form.groups[task.stage]], *(done[need] for need in form.needs(task))]) for task in ready}
        task = min(ready, key=lambda task: (begin[task], _urgency(task)))
        group = form.groups[task.stage]
        rows[group].append(task)
        done[task] = free[group] = begin[task] + 1.0
        following[task.direction, task.stage] = replace(task, microbatch=task.microbatch + 1)
        if task.microbatch + 1 == form.microbatches:
            del following[task.direction, task.stage]
    return tuple(map(tuple, rows))


def _urgency(task: Task) -> tuple[bool, int]:
    backward = task.direction == "backward"
    return (not backward, task.stage if backward else -task.stage)


def _may_begin(task: Task, form: Form, done: Mapping[Task, float]) -> bool:
    """Return True if the prerequisites of a task are done and its stage has room for a new microbatch."""
    oldest = task.microbatch - (form.stages - task.stage)
    has_room = task.direction == "backward" or not form.trains or oldest < 0 or Task("backward", task.stage, oldest) in done
    return has_room and all(need in done for need in form.needs(task))


def interleaved(form: Form) -> tuple[Row, ...]:
    """Return one row per group; on p groups, rounds of p microbatches pass through the stages of a group in order.

    Once the pipeline is full, forward and backward passes alternate, as in 1F1B.
    A form without backward passes, or with stages of a group that are not p apart, gets the rows of 1F1B.
    """
    p = form.size
    if not _is_interleaved(form):
        return one_forward_one_backward(form)
    rounds = _rounds(form.microbatches, p)
    rows: list[Row] = []
    for group in range(p):
        own = range(group, form.stages, p)
        forward = [Task("forward", s, i) for round in rounds for s in own for i in round]
        backward = [Task("backward", s, i) for round in rounds for s in reversed(own) for i in round]
        rows.append(_alternating(forward, backward, _warm_up(form, group)))
    return tuple(rows)


def _is_interleaved(form: Form) -> bool:
    return (
        form.stages > form.size and form.stages % form.size == 0 and form.groups == tuple(s % form.size for s in range(form.stages)) and form.trains
    )


def _warm_up(form: Form, group: int) -> int:
    """Return the number of forward passes before a group's first backward pass."""
    first, p, v = len(_rounds(form.microbatches, form.size)[0]), form.size, form.stages // form.size
    return min(2 * (p - 1 - group) + (v - 1) * first, v * form.microbatches)


def _rounds(microbatches: int, p: int) -> list[range]:
    """Divide the microbatches into rounds of p; the first round also contains the remainder."""
    first = microbatches - (max(microbatches // p, 1) - 1) * p
    return [range(first), *(range(start, start + p) for start in range(first, microbatches, p))]


def _alternating(forward: Sequence[Task], backward: Sequence[Task], warm_up: int) -> Row:
    row = list(forward[:warm_up])
    for i, task in enumerate(forward[warm_up:]):
        row += [task, backward[i]]
    return (*row, *backward[len(forward) - warm_up :])


def _all_of_them(form: Form, group: int) -> int:
    return form.microbatches * form.groups.count(group)


def _distance_to_the_end(form: Form, group: int) -> int:
    return sum(min(form.stages - s, form.microbatches) for s in range(form.stages) if form.groups[s] == group)


def _after_warming_up(form: Form, group: int) -> int:
    return min(_warm_up(form, group) + 1, _all_of_them(form, group)) if _is_interleaved(form) else _distance_to_the_end(form, group)


@dataclass(frozen=True)
class PipelineSchedule:
    """A schedule: `rows` returns the rows of a form, and `limit` the largest number of activations that a group may store.

    An activation belongs to one microbatch and one stage.
    """

    rows: Callable[[Form], tuple[Row, ...]]
    limit: Callable[[Form, int], int]


SCHEDULES: Mapping[str, PipelineSchedule] = {
    "1f1b": PipelineSchedule(one_forward_one_backward, _distance_to_the_end),
    "gpipe": PipelineSchedule(gpipe, _all_of_them),
    "interleaved": PipelineSchedule(interleaved, _after_warming_up),
}


def rows_of(form: Form, name: str) -> tuple[Row, ...]:
    """Return the validated rows of the schedule of this name."""
    schedule = SCHEDULES[name]
    rows = schedule.rows(form)
    validate(form, rows, schedule.limit)
    return rows


# -------------------------------------------------------------------- simulation and validation


@dataclass(frozen=True)
class Simulation:
    """The start and end time of each task if every group starts its tasks as early as possible."""

    begin: dict[Task, float]
    end: dict[Task, float]
    groups: int

    @property
    def length(self) -> float:
        """The time from the first start to the last end."""
        return max(self.end.values(), default=0.0)

    @property
    def bubble(self) -> float:
        """The fraction of time in which groups are idle."""
        busy = sum(self.end[task] - self.begin[task] for task in self.begin)
        return 1.0 - busy / (self.groups * self.length) if self.length else 0.0


def unit(task: Task) -> float:
    """Return 1.0, the default cost of every task."""
    return 1.0


def simulate(rows: Sequence[Row], needs: Needs, cost: Cost = unit) -> Simulation:
    """Return the times of all tasks; raise PlanError with the blocked tasks if the rows deadlock."""
    begin: dict[Task, float] = {}
    end: dict[Task, float] = {}
    free = [0.0] * len(rows)
    at = [0] * len(rows)
    moved = True
    while moved:
        moved = False
        for group, row in enumerate(rows):
            while at[group] < len(row) and all(need in end for need in needs(row[at[group]])):
                task = row[at[group]]
                begin[task] = max([free[group], *(end[need] for need in needs(task))])
                end[task] = free[group] = begin[task] + cost(task)
                at[group] += 1
                moved = True
    stuck = [str(row[i]) for row, i in zip(rows, at, strict=True) if i < len(row)]
    if stuck:
        raise PlanError(f"the pipeline schedule deadlocks: no group can begin {' or '.join(stuck)}; correct the order of its rows")
    return Simulation(begin, end, len(rows))


def in_flight(row: Row) -> int:
    """Return the largest number of activations that a group stores at any time while it runs the tasks of its row."""
    now = most = 0
    for task in row:
        now += 1 if task.direction == "forward" else -1
        most = max(most, now)
    return most


def validate(form: Form, rows: Sequence[Row], limit: Callable[[Form, int], int] = _all_of_them) -> None:
    """Raise PlanError unless each group runs every task of its stages once, without a deadlock and within its limit of activations."""
    for group, row in enumerate(rows):
        required = Counter(task for task in form.tasks() if form.groups[task.stage] == group)
        counts = Counter(row)
        for task in (*required, *counts):
            if counts[task] != required[task]:
                raise PlanError(
                    f"the pipeline schedule of group {group}: the number of entries for the {task} is {counts[task]}; it must be {required[task]}"
                )
        if form.trains and in_flight(row) > limit(form, group):
            raise PlanError(
                f"the pipeline schedule makes group {group} store {in_flight(row)} activations, but the limit is {limit(form, group)}; "
                f"begin its backward passes earlier"
            )
    simulate(rows, form.needs)


def diagram(rows: Sequence[Row], simulation: Simulation, names: Sequence[str] = ()) -> str:
    """Return a text diagram of the rows over time.

    A cell is one unit of time: F or B (forward or backward pass) and the number of the microbatch.
    A letter after the number identifies the stage if a group has several.
    """
    shortest = min((simulation.end[t] - simulation.begin[t] for row in rows for t in row), default=1.0) or 1.0
    labels = [names[i] if names else f"group {i}" for i in range(len(rows))]
    width = max([len(_mark(task, row)) for row in rows for task in row], default=2) + 1
    margin = max(map(len, labels), default=0) + 2
    lines = []
    for label, row in zip(labels, rows, strict=True):
        cells = [".".ljust(width)] * round(simulation.length / shortest)
        for task in row:
            first, last = (round(time[task] / shortest) for time in (simulation.begin, simulation.end))
            cells[first:last] = [_mark(task, row).ljust(width), *["-".ljust(width)] * (last - first - 1)]
        lines.append((label.ljust(margin) + "".join(cells)).rstrip())
    return "\n".join([*lines, f"bubble {100 * simulation.bubble:.1f} %"])


def _mark(task: Task, row: Row) -> str:
    stages = sorted({other.stage for other in row})
    chunk = chr(ord("a") + stages.index(task.stage) % 26) if len(stages) > 1 else ""
    return f"{'F' if task.direction == 'forward' else 'B'}{task.microbatch}{chunk}"
