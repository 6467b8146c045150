"""The order of a rank's instructions: a body that only computes, then an epilogue that writes variables.

Instructions keep the order of the graph (the user's program, followed by its gradients in reverse), except that

* every write of a variable, with its dependents, goes to the epilogue, so a run that fails in its body leaves
  all variables unchanged;
* in the epilogue, readers of the old value of a variable precede its writer.

Communication keeps its global order: the epilogue has none, and the body keeps the order of its instructions.

Example: `Adam(w, m, v, g, lr, step)` reads the step counter that `Increment(step)` overwrites, so Adam comes first.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from jobflow.compiler.rank.local import Collect, Join, LocalInstruction, LocalValue, RankProgram, Receive, Send
from jobflow.compiler.rank.views import views_of, written_over
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import PlanError
from jobflow.ops.op import Op, ViewOp


@dataclass(frozen=True)
class NotFused:
    """The reason why an instruction is not in a region.

    `region` names the first instruction of the region; "" means any region.
    """

    step: str
    region: str
    why: str


@dataclass(frozen=True)
class Rematerialized:
    """A value that a region recomputes instead of reading it; `region` names the first instruction of the region."""

    value: str
    region: str
    why: str


@dataclass(frozen=True)
class Ordered:
    """A program whose instructions are in final order."""

    program: RankProgram
    body: tuple[LocalInstruction, ...]
    epilogue: tuple[LocalInstruction, ...]
    #: instructions that are in no region
    not_fused: tuple[NotFused, ...] = ()
    rematerialized: tuple[Rematerialized, ...] = ()


def order(program: RankProgram) -> Ordered:
    """Split the program into body and epilogue.

    Raises: PlanError if a communicated value depends on an updated variable, or if updates form a cycle.
    """
    late: set[LocalValue] = set()
    body: list[LocalInstruction] = []
    epilogue: list[LocalInstruction] = []
    for step in program.steps:
        writes = isinstance(step.action, Op) and bool(step.action.alias)
        if writes or any(value in late for value in step.inputs):
            if isinstance(step.action, Collect | Send | Receive):
                raise PlanError(
                    f"{step.name} at {step.where}: the communicated value depends on a variable that was updated in place; update a copy instead"
                )
            late.update(step.outputs)
            epilogue.append(step)
        else:
            body.append(step)
    return Ordered(program, tuple(body), _readers_first(tuple(epilogue), program))


def _readers_first(steps: tuple[LocalInstruction, ...], program: RankProgram) -> tuple[LocalInstruction, ...]:
    before = dependencies(steps, program)
    waiting = {i: len(before[i]) for i in range(len(steps))}
    after: dict[int, list[int]] = {i: [] for i in range(len(steps))}
    for i, needs in before.items():
        for j in needs:
            after[j].append(i)
    ready = [i for i, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    result: list[LocalInstruction] = []
    while ready:
        i = heapq.heappop(ready)
        result.append(steps[i])
        for j in after[i]:
            waiting[j] -= 1
            if waiting[j] == 0:
                heapq.heappush(ready, j)
    if len(result) != len(steps):
        stuck = ", ".join(step.name for i, step in enumerate(steps) if waiting[i] > 0)
        raise PlanError(
            f"job {program.job}: the updates {stuck} form a cycle, because each reads a variable that another overwrites; "
            f"read one of the variables from a copy"
        )
    return tuple(result)


def dependencies(steps: tuple[LocalInstruction, ...], program: RankProgram) -> dict[int, set[int]]:
    """Return, for each instruction, the instructions that must precede it."""
    roots = {value for step in program.steps for value in step.inputs if value.slot is not None}
    roots.update(written_over(steps).values())  # a variable stored split is gathered before a whole update
    memory = views_of(program.steps, roots)
    producer = {value: i for i, step in enumerate(steps) for value in step.outputs}
    before: dict[int, set[int]] = {i: {producer[value] for value in step.inputs if value in producer} for i, step in enumerate(steps)}
    readers: dict[object, list[tuple[int, LocalValue]]] = {}
    for i, step in enumerate(steps):
        for root in (memory[value] for value in step.inputs if value in memory):
            readers.setdefault(_buffer(root), []).append((i, root))
    for output, root in written_over(steps).items():
        writer = producer[output]
        before[writer].update(i for i, other in readers.get(_buffer(root), ()) if i != writer and _overlap(root, other))
    for i, step in enumerate(steps):
        if isinstance(step.action, Collect) and step.action.in_place:
            before[i].update(reads_of_memory(i, steps)[0] - {i})
    return before


def reads_of_memory(at: int, steps: Sequence[LocalInstruction]) -> tuple[set[int], set[LocalValue]]:
    """Return the positions of all reads of memory that may contain the input of a collective, and the values in this memory.

    These are the input, the parts that a join combines to it, and all views of them.
    """
    producer = {value: step for step in steps for value in step.outputs}
    stack, values = list(steps[at].inputs), set(steps[at].inputs)
    while stack:
        step = producer.get(stack.pop())
        if step is not None and isinstance(step.action, Join | ViewOp):
            stack.extend(value for value in step.inputs if value not in values)
            values.update(step.inputs)
    reads: set[int] = set()
    for i, step in enumerate(steps):
        if not values.isdisjoint(step.inputs):
            reads.add(i)
            if isinstance(step.action, ViewOp):
                values.update(step.outputs)
    return reads, values


def _buffer(root: LocalValue) -> object:
    return root if root.slot is None else root.slot.buffer


def _overlap(a: LocalValue, b: LocalValue) -> bool:
    """Return True if two roots share bytes, as after a joined update, which writes several variables."""
    if a.slot is None or b.slot is None:
        return a is b
    return a.slot.offset < b.slot.stop and b.slot.offset < a.slot.stop
