"""Ordered program -> the same program in which each transfer is a post and a wait, so that ranks compute in between.

Until here a transfer stands where its first reader wants it, on both sides.

* A send is posted as soon as its value is made, even if the reader is far away.  It is waited for when it is likely to be over:
  after the next row of the pipeline (the next microbatch's way there or back), or once something has come from the same peer; but
  not before the rank itself has read the value for the last time, since until then its memory is needed anyway.
* A receive is waited for where it stood, right before its first reader, and posted at the beginning of the row before.

So what is sent stays in memory for about one row more than without, and what is received begins a row earlier.  Between two
ranks the posts of each direction keep their order, and what a rank waits for keeps the global order: `plan.plan_checks` holds that
nobody waits for ever.

Example, two stages, 1f1b, stage 0:  F0 post-send(0) F1 post-send(1) post-receive(0) ... wait-send(0) ... wait-receive(0) B0
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from jobflow.compiler.rank.local import Collect, Item, Receive, Send, Step, WaitFor
from jobflow.compiler.rank.order import Ordered
from jobflow.core.dataclass import dataclass
from jobflow.ops.op import Op, ViewOp


def overlap(ordered: Ordered) -> Ordered:
    """Take transfers apart."""
    if not any(isinstance(step.action, Send | Receive) for step in ordered.body):
        return ordered
    return replace(ordered, body=_with_waits(_posted_early(ordered.body)))


# -------------------------------------------------------------------- sends


def _posted_early(steps: Sequence[Step]) -> list[Step]:
    """Sends, and the views that are made for them, right behind the steps that make their values; where each stood, the wait for it."""
    makers = {item: at for at, step in enumerate(steps) for item in step.outputs}
    place: dict[int, int] = {}
    earliest: dict[int, int] = defaultdict(lambda: -1)
    for at, step in enumerate(steps):
        if not isinstance(step.action, Send):
            continue
        chain = _views_for(at, steps, makers)
        base = max([earliest[step.action.peer], *(makers.get(item, -1) for item in steps[chain[0]].inputs)])
        earliest[step.action.peer] = base
        place.update({index: min(base, place.get(index, base)) for index in chain if index > base})
    behind: dict[int, list[int]] = defaultdict(list)
    for index, base in sorted(place.items()):
        behind[base].append(index)
    found = [steps[index] for index in behind[-1]]
    for at, step in enumerate(steps):
        if isinstance(step.action, Send):
            found.append(replace(step, action=WaitFor(step.action)))
        elif at not in place:
            found.append(step)
        found.extend(steps[index] for index in behind[at])
    return found


def _views_for(at: int, steps: Sequence[Step], makers: Mapping[Item, int]) -> list[int]:
    """A send and the views before it that lead from what is made to what is sent, in order."""
    chain = [at]
    while True:
        (item,) = steps[chain[0]].inputs
        maker = makers.get(item)
        if maker is None or not isinstance(steps[maker].action, ViewOp) or len(steps[maker].inputs) != 1:
            return chain
        chain.insert(0, maker)


# -------------------------------------------------------------------- waits


@dataclass(frozen=True)
class _Rows:
    """The rows of a pipeline that a rank works through: runs of steps for one microbatch in one direction."""

    #: first and last step of each
    spans: tuple[tuple[int, int], ...]

    def after(self, at: int) -> int | None:
        """The first row that begins behind a step; None if there is none."""
        return next((row for row, (first, _) in enumerate(self.spans) if first > at), None)

    def of_reader(self, at: int) -> int | None:
        """The row in which a step is, or that begins behind it; None if there is none."""
        return next((row for row, (_, last) in enumerate(self.spans) if last > at), None)


def _rows(steps: Sequence[Step]) -> _Rows:
    spans: list[tuple[int, int]] = []
    before: tuple[str, int] | None = None
    for at, step in enumerate(steps):
        if isinstance(step.action, Op) and step.microbatch is not None:
            if (step.phase, step.microbatch) != before:
                spans.append((at, at))
            before = step.phase, step.microbatch
            spans[-1] = spans[-1][0], at
    return _Rows(tuple(spans))


def _with_waits(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Waits for sends go from where these stood to where they are likely to be over, and receives are posted a row before."""
    rows, last_reads = _rows(steps), _last_reads(steps)
    before: dict[int, list[Step]] = defaultdict(list)
    behind: dict[int, list[Step]] = defaultdict(list)
    for at, step in enumerate(steps):
        if isinstance(step.action, WaitFor):
            behind[max(_likely_over(at, step.action.post.peer, steps, rows), last_reads[at])].append(step)
        elif isinstance(step.action, Receive):
            row = rows.of_reader(at)
            before[at if row is None else min(at, rows.spans[max(row - 1, 0)][0])].append(step)
    found: list[Step] = []
    for at, step in enumerate(steps):
        found.extend(before[at])
        if isinstance(step.action, Receive):
            found.append(replace(step, action=WaitFor(step.action), inputs=step.outputs, outputs=()))
        elif not isinstance(step.action, WaitFor):
            found.append(step)
        found.extend(behind[at])
    return tuple(found)


def _likely_over(at: int, peer: int, steps: Sequence[Step], rows: _Rows) -> int:
    """The step behind which a send that stood at `at` is likely to have been taken."""
    row = rows.after(at)
    end = len(steps) - 1 if row is None else rows.spans[row][1]
    return next((i for i in range(at + 1, end) if _heard_from(peer, steps[i])), end)


def _heard_from(peer: int, step: Step) -> bool:
    return (isinstance(step.action, Receive) and step.action.peer == peer) or (isinstance(step.action, Collect) and peer in step.action.ranks)


def _last_reads(steps: Sequence[Step]) -> dict[int, int]:
    """For each mark of a send, the last step that reads the memory of what is sent, through whatever view."""
    roots: dict[Item, Item] = {}
    last: dict[Item, int] = {}
    for at, step in enumerate(steps):
        for item in () if isinstance(step.action, Send) else step.inputs:
            last[roots.get(item, item)] = at
        if isinstance(step.action, ViewOp) and step.inputs:
            roots[step.outputs[0]] = roots.get(step.inputs[0], step.inputs[0])
    return {at: last[roots.get(step.inputs[0], step.inputs[0])] for at, step in enumerate(steps) if isinstance(step.action, WaitFor)}
