"""Ordered program -> the same program with collectives that run concurrently with the computation, on targets with a communication stream.

GPUs run collectives on one stream, in the order of the schedule, and kernels on another one.  A collective then has two instructions:
its start, and a wait for its completion right before the first instruction that reads the result.

* An all_reduce whose input has no other readers writes its result in place.  Its memory is the gradient's, so an early reduction needs
  no additional memory.
* The wait for any other collective precedes the second collective after it, so its input is freed early.
* A gather of a stored variable starts at the position of the communication before it.  The gather for one layer therefore runs
  beside the computation of the layer before.  At most two gathered variables more are in memory.
* Updates are ordered by their last reduction.  So the first updates run beside the last reductions.

Between start and wait, no instruction writes the input or accesses the output.  `plan.plan_checks` verifies this, as well as the order.

Example: B2 start(g2) B1 start(g1) | wait(g2) update(w2) wait(g1) update(w1)
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from jobflow.compiler.rank.format import memory_orders
from jobflow.compiler.rank.local import Collect, LocalInstruction, LocalValue, Receive, Send, WaitFor
from jobflow.compiler.rank.order import Ordered, dependencies, reads_of_memory
from jobflow.compiler.rank.views import StridedWindow, windows
from jobflow.kernels.target import Target
from jobflow.ops.op import Op, ViewOp
from jobflow.ops.scalar import Cast


def has_communication_stream(target: Target) -> bool:
    """Return True if collectives run beside the computation.

    A search for NaN before the updates reads the sums at the end of the body, so it needs them complete.
    """
    return target.kind == "cuda" and not target.checks.anomalies


def reduce_in_place(ordered: Ordered) -> Ordered:
    """Let all_reduces write to the memory of their inputs, if no other instruction reads this memory later."""
    if not _is_concurrent(ordered):
        return ordered
    steps, program = (*ordered.body, *ordered.epilogue), ordered.program
    needed = {value for _, value in program.fetches} | {argument.value for argument in program.arguments}

    def in_place(at: int, step: LocalInstruction) -> LocalInstruction:
        if not isinstance(step.action, Collect) or step.action.kind != "all_reduce":
            return step
        reads, values = reads_of_memory(at, steps)
        free = max(reads) == at and needed.isdisjoint(values) and all(value.slot is None for value in values)
        return replace(step, action=replace(step.action, in_place=True)) if free else step

    return replace(ordered, body=tuple([in_place(at, step) for at, step in enumerate(ordered.body)]))


def run_concurrently(ordered: Ordered) -> Ordered:
    """Split collectives into starts and waits, and move both and the updates."""
    if not _is_concurrent(ordered):
        return ordered
    body = _prefetched(ordered.body)
    return _Splitting(replace(ordered, body=body, epilogue=_by_last_reduction(body, ordered))).split()


def _is_concurrent(ordered: Ordered) -> bool:
    return has_communication_stream(ordered.program.target) and any(isinstance(step.action, Collect) for step in ordered.body)


def _windows(ordered: Ordered) -> dict[LocalValue, StridedWindow]:
    program, steps = ordered.program, (*ordered.body, *ordered.epilogue)
    stored = [value for step in steps for value in step.inputs if value.slot is not None]
    roots = [*program.reads.values(), *stored, *(argument.value for argument in program.arguments)]
    return windows(steps, roots, memory_orders(program))


def _communicates(step: LocalInstruction) -> bool:
    return isinstance(step.action, Collect | Send | Receive | WaitFor)


# -------------------------------------------------------------------- starts


def _prefetched(body: Sequence[LocalInstruction]) -> tuple[LocalInstruction, ...]:
    """Move gathers of variables, with the instructions that pack their inputs, behind the communication before them."""
    makers = {value: at for at, step in enumerate(body) for value in step.outputs}
    readers: dict[LocalValue, int] = defaultdict(int)
    for step in body:
        for value in step.inputs:
            readers[value] += 1
    behind: dict[int, list[LocalInstruction]] = defaultdict(list)
    moved: set[int] = set()
    before = -1
    for at, step in enumerate(body):
        if isinstance(step.action, Collect) and step.action.kind == "all_gather":
            chain = _packing(at, body, makers, readers)
            if chain and before < chain[0] - 1:
                behind[before].extend(body[index] for index in chain)
                moved.update(chain)
        if _communicates(step):
            before = at
    result = list(behind[-1])
    for at, step in enumerate(body):
        if at not in moved:
            result.append(step)
        result.extend(behind[at])
    return tuple(result)


def _packing(at: int, body: Sequence[LocalInstruction], makers: Mapping[LocalValue, int], readers: Mapping[LocalValue, int]) -> list[int]:
    """Return the indices of a gather and of the instructions between a variable and the gather; [] if the input is computed in this run."""
    chain = [at]
    while True:
        (value,) = body[chain[0]].inputs
        if value.slot is not None:
            return chain
        maker = makers.get(value)
        if maker is None or readers[value] > 1 or len(body[maker].inputs) != 1 or not isinstance(body[maker].action, Op):
            return []
        chain.insert(0, maker)


# -------------------------------------------------------------------- updates


def _by_last_reduction(body: Sequence[LocalInstruction], ordered: Ordered) -> tuple[LocalInstruction, ...]:
    """Order the epilogue by the last collective on which each instruction depends; among equals, instructions keep their order."""
    needs: dict[LocalValue, int] = {}
    for step in body:
        order = max((needs[value] for value in step.inputs if value in needs), default=-1)
        order = max(order, step.action.order) if isinstance(step.action, Collect) else order
        if order >= 0:
            needs.update(dict.fromkeys(step.outputs, order))
    steps = ordered.epilogue
    before = dependencies(steps, ordered.program)
    after: dict[int, list[int]] = defaultdict(list)
    for i, required in before.items():
        for j in required:
            after[j].append(i)
    waiting = {i: len(required) for i, required in before.items()}
    keys = {i: max((needs[value] for value in steps[i].inputs if value in needs), default=-1) for i in before}
    ready = [(keys[i], i) for i, count in waiting.items() if not count]
    heapq.heapify(ready)
    result: list[LocalInstruction] = []
    while ready:
        key, i = heapq.heappop(ready)
        result.append(steps[i])
        for j in after[i]:
            waiting[j] -= 1
            keys[j] = max(keys[j], key)
            if not waiting[j]:
                heapq.heappush(ready, (keys[j], j))
    return tuple(result)


# -------------------------------------------------------------------- waits


class _Splitting:
    """The split of each collective into a start and a wait."""

    def __init__(self, ordered: Ordered) -> None:
        self.ordered = ordered
        self.steps = (*ordered.body, *ordered.epilogue)
        self.window_of = _windows(ordered)
        #: the views of a value without copies, and the other readers, by position
        self.readers: dict[LocalValue, list[int]] = defaultdict(list)
        for at, step in enumerate(self.steps):
            for value in dict.fromkeys(step.inputs):
                self.readers[value].append(at)

    def split(self) -> Ordered:
        starts = [at for at, step in enumerate(self.steps) if isinstance(step.action, Collect)]
        started: dict[int, LocalInstruction] = {}
        before: dict[int, list[LocalInstruction]] = defaultdict(list)
        moved: set[int] = set()
        for number, at in enumerate(starts):
            step = self.steps[at]
            assert isinstance(step.action, Collect)
            views, reader = self._views_and_reader(step.outputs[0])
            release = len(self.steps) if step.action.in_place or number + 2 >= len(starts) else starts[number + 2]
            collect = replace(step.action, concurrent=True)
            partial = LocalValue(step.outputs[0].type, f"{step.outputs[0].name}:started")
            started[at] = replace(step, action=collect, outputs=(partial,))
            wait = replace(step, action=WaitFor(collect), inputs=(step.inputs[0], partial))
            before[min(reader, release)].extend([wait, *(self.steps[view] for view in views)])
            moved.update(views)
        new: list[list[LocalInstruction]] = [[], []]
        body = len(self.ordered.body)
        for at in range(len(self.steps) + 1):
            part = new[at >= body and bool(self.ordered.epilogue)]
            part.extend(before[at])
            if at < len(self.steps) and at not in moved:
                part.append(started.get(at, self.steps[at]))
        return replace(self.ordered, body=tuple(new[0]), epilogue=tuple(new[1]))

    def _views_and_reader(self, value: LocalValue) -> tuple[list[int], int]:
        """Return the positions of the views and casts of a collective's output, in order, and of the first other reader; the end without readers."""
        views: list[int] = []
        reader, values = len(self.steps), [value]
        while values:
            for at in self.readers[values.pop()]:
                step = self.steps[at]
                if self._follows(step):
                    views.append(at)
                    values.extend(step.outputs)
                else:
                    reader = min(reader, at)
        return sorted(views), reader

    def _follows(self, step: LocalInstruction) -> bool:
        """Return True for views without copies, and for casts of sums to the type of the gradients; both can run later."""
        if isinstance(step.action, Cast):
            return True
        is_view = isinstance(step.action, ViewOp) and len(step.inputs) == 1
        return is_view and self.window_of[step.outputs[0]].root is self.window_of[step.inputs[0]].root
