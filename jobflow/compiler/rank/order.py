"""The order in which a rank works: a body that only computes, then an epilogue that writes variables.

Policy: the order of the graph, which is that of the user's program followed by its gradients in reverse, except that

* everything that writes a variable, and what depends on it, goes to the epilogue, so a run that fails in its body leaves
  every variable as it was;
* in the epilogue, whoever reads the old value of a variable comes before whoever overwrites it.

Communication keeps its global order: the epilogue has none, because the order of steps within the body is kept.

Example: `Adam(w, m, v, g, lr, step)` reads the step counter that `Increment(step)` overwrites, so it comes first.
"""

from __future__ import annotations

import heapq

from jobflow.compiler.rank.local import Collect, Item, RankProgram, Receive, Send, Step
from jobflow.compiler.rank.views import views_of, written_over
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import PlanError
from jobflow.ops.op import Op


@dataclass(frozen=True)
class Apart:
    """Why a step was not taken into a region; `region` is the first step of that, "" if it was for none."""

    step: str
    region: str
    why: str


@dataclass(frozen=True)
class Again:
    """A value that a region computes again rather than reads; both by the name of their first step."""

    value: str
    region: str
    why: str


@dataclass(frozen=True)
class Ordered:
    """A program whose steps have their final order."""

    program: RankProgram
    body: tuple[Step, ...]
    epilogue: tuple[Step, ...]
    #: what has not become part of a region
    apart: tuple[Apart, ...] = ()
    again: tuple[Again, ...] = ()


def order(program: RankProgram) -> Ordered:
    """Split the program into body and epilogue."""
    late: set[Item] = set()
    body: list[Step] = []
    epilogue: list[Step] = []
    for step in program.steps:
        writes = isinstance(step.action, Op) and bool(step.action.alias)
        if writes or any(item in late for item in step.inputs):
            if isinstance(step.action, Collect | Send | Receive):
                raise PlanError(f"{step.name} at {step.where}: communication of a value that exists only after variables are written")
            late.update(step.outputs)
            epilogue.append(step)
        else:
            body.append(step)
    return Ordered(program, tuple(body), _readers_first(tuple(epilogue), program))


def _readers_first(steps: tuple[Step, ...], program: RankProgram) -> tuple[Step, ...]:
    before = dependencies(steps, program)
    waiting = {i: len(before[i]) for i in range(len(steps))}
    after: dict[int, list[int]] = {i: [] for i in range(len(steps))}
    for i, needs in before.items():
        for j in needs:
            after[j].append(i)
    ready = [i for i, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    result: list[Step] = []
    while ready:
        i = heapq.heappop(ready)
        result.append(steps[i])
        for j in after[i]:
            waiting[j] -= 1
            if waiting[j] == 0:
                heapq.heappush(ready, j)
    if len(result) != len(steps):
        stuck = ", ".join(step.name for i, step in enumerate(steps) if waiting[i] > 0)
        raise PlanError(f"job {program.job}: variables are updated from each other in a cycle ({stuck}); update one of them from a copy")
    return tuple(result)


def dependencies(steps: tuple[Step, ...], program: RankProgram) -> dict[int, set[int]]:
    """For each step, the steps that must come before it."""
    roots = {item for step in program.steps for item in step.inputs if item.slot is not None}
    roots.update(written_over(steps).values())  # a variable that is stored split is gathered before it is updated whole
    memory = views_of(program.steps, roots)
    producer = {item: i for i, step in enumerate(steps) for item in step.outputs}
    before: dict[int, set[int]] = {i: {producer[item] for item in step.inputs if item in producer} for i, step in enumerate(steps)}
    readers: dict[object, list[tuple[int, Item]]] = {}
    for i, step in enumerate(steps):
        for root in (memory[item] for item in step.inputs if item in memory):
            readers.setdefault(_buffer(root), []).append((i, root))
    for output, root in written_over(steps).items():
        writer = producer[output]
        before[writer].update(i for i, other in readers.get(_buffer(root), ()) if i != writer and _overlap(root, other))
    return before


def _buffer(root: Item) -> object:
    return root if root.slot is None else root.slot.buffer


def _overlap(a: Item, b: Item) -> bool:
    """True if two roots share bytes: a joined update writes several variables at once."""
    if a.slot is None or b.slot is None:
        return a is b
    return a.slot.offset < b.slot.stop and b.slot.offset < a.slot.stop
