"""Ordered program -> the same program with each transfer split into a post and a wait, so that ranks compute in between.

Before this pass, a transfer is placed at its first reader, on both sides.

* A send is posted as soon as its value is computed, even if the reader is much later.  Its wait is placed where the transfer is probably
  complete: after the next row of the pipeline (the next microbatch's forward or backward), or after a message from the same peer.
  The wait never precedes the rank's own last read of the value, which needs the memory anyway.
* The wait for a receive is placed right before its first reader, and its post at the beginning of the previous row.

Sent values therefore stay in memory for about one more row, and received values are allocated one row earlier.  Between two
ranks, the posts of each direction keep their order, and the waits of a rank keep the global order.  `plan.plan_checks` verifies that
no wait can block forever.

Example, two stages, 1f1b, stage 0:  F0 post-send(0) F1 post-send(1) post-receive(0) ... wait-send(0) ... wait-receive(0) B0
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from jobflow.compiler.rank.local import Collect, LocalInstruction, LocalValue, Receive, Send, WaitFor
from jobflow.compiler.rank.order import Ordered
from jobflow.core.dataclass import dataclass
from jobflow.ops.op import Op, ViewOp


def overlap(ordered: Ordered) -> Ordered:
    """Split transfers into posts and waits."""
    if not any(isinstance(step.action, Send | Receive) for step in ordered.body):
        return ordered
    return replace(ordered, body=_with_waits(_posted_early(ordered.body)))


# -------------------------------------------------------------------- sends


def _posted_early(steps: Sequence[LocalInstruction]) -> list[LocalInstruction]:
    """Move each send, with the views that prepare it, directly after the producer; put a wait at the old position of the send."""
    makers = {value: at for at, step in enumerate(steps) for value in step.outputs}
    moved: dict[int, int] = {}
    earliest: dict[int, int] = defaultdict(lambda: -1)
    for at, step in enumerate(steps):
        if not isinstance(step.action, Send):
            continue
        chain = _views_for(at, steps, makers)
        base = max([earliest[step.action.peer], *(makers.get(value, -1) for value in steps[chain[0]].inputs)])
        earliest[step.action.peer] = base
        moved.update({index: min(base, moved.get(index, base)) for index in chain if index > base})
    behind: dict[int, list[int]] = defaultdict(list)
    for index, base in sorted(moved.items()):
        behind[base].append(index)
    result = [steps[index] for index in behind[-1]]
    for at, step in enumerate(steps):
        if isinstance(step.action, Send):
            result.append(replace(step, action=WaitFor(step.action)))
        elif at not in moved:
            result.append(step)
        result.extend(steps[index] for index in behind[at])
    return result


def _views_for(at: int, steps: Sequence[LocalInstruction], makers: Mapping[LocalValue, int]) -> list[int]:
    """Return the indices of a send and of the views between the producer and the send, in order."""
    chain = [at]
    while True:
        (value,) = steps[chain[0]].inputs
        maker = makers.get(value)
        if maker is None or not isinstance(steps[maker].action, ViewOp) or len(steps[maker].inputs) != 1:
            return chain
        chain.insert(0, maker)


# -------------------------------------------------------------------- waits


@dataclass(frozen=True)
class _Rows:
    """The rows of a rank's pipeline: runs of instructions for one microbatch in one direction."""

    #: first and last position of each
    spans: tuple[tuple[int, int], ...]

    def after(self, at: int) -> int | None:
        """Return the index of the first row that begins after a position; None if no row does."""
        return next((row for row, (first, _) in enumerate(self.spans) if first > at), None)

    def of_reader(self, at: int) -> int | None:
        """Return the index of the row that contains a position, or else of the next row; None after the last row."""
        return next((row for row, (_, last) in enumerate(self.spans) if last > at), None)


def _rows(steps: Sequence[LocalInstruction]) -> _Rows:
    spans: list[tuple[int, int]] = []
    before: tuple[str, int] | None = None
    for at, step in enumerate(steps):
        if isinstance(step.action, Op) and step.microbatch is not None:
            if (step.phase, step.microbatch) != before:
                spans.append((at, at))
            before = step.phase, step.microbatch
            spans[-1] = spans[-1][0], at
    return _Rows(tuple(spans))


def _with_waits(steps: Sequence[LocalInstruction]) -> tuple[LocalInstruction, ...]:
    """Delay waits for sends until the transfer is probably complete, and post receives one row earlier."""
    rows, last_reads = _rows(steps), _last_reads(steps)
    before: dict[int, list[LocalInstruction]] = defaultdict(list)
    behind: dict[int, list[LocalInstruction]] = defaultdict(list)
    for at, step in enumerate(steps):
        if isinstance(step.action, WaitFor) and isinstance(step.action.transfer, Send):
            behind[max(_likely_over(at, step.action.transfer.peer, steps, rows), last_reads[at])].append(step)
        elif isinstance(step.action, Receive):
            row = rows.of_reader(at)
            before[at if row is None else min(at, rows.spans[max(row - 1, 0)][0])].append(step)
    result: list[LocalInstruction] = []
    for at, step in enumerate(steps):
        result.extend(before[at])
        if isinstance(step.action, Receive):
            result.append(replace(step, action=WaitFor(step.action), inputs=step.outputs, outputs=()))
        elif not isinstance(step.action, WaitFor):
            result.append(step)
        result.extend(behind[at])
    return tuple(result)


def _likely_over(at: int, peer: int, steps: Sequence[LocalInstruction], rows: _Rows) -> int:
    """Return the position after which the send whose wait is at position `at` is probably complete."""
    row = rows.after(at)
    end = len(steps) - 1 if row is None else rows.spans[row][1]
    return next((i for i in range(at + 1, end) if _heard_from(peer, steps[i])), end)


def _heard_from(peer: int, step: LocalInstruction) -> bool:
    return (isinstance(step.action, Receive) and step.action.peer == peer) or (isinstance(step.action, Collect) and peer in step.action.ranks)


def _last_reads(steps: Sequence[LocalInstruction]) -> dict[int, int]:
    """Return, for each wait for a send, the position of the last read of its memory, including reads through views."""
    roots: dict[LocalValue, LocalValue] = {}
    last: dict[LocalValue, int] = {}
    for at, step in enumerate(steps):
        for value in () if isinstance(step.action, Send) else step.inputs:
            last[roots.get(value, value)] = at
        if isinstance(step.action, ViewOp) and step.inputs:
            roots[step.outputs[0]] = roots.get(step.inputs[0], step.inputs[0])
    return {at: last[roots.get(step.inputs[0], step.inputs[0])] for at, step in enumerate(steps) if isinstance(step.action, WaitFor)}
