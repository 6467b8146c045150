"""RankProgram -> the same with every write of a variable as a step, and with outputs that no write can change.

A new value that an update op has put over the old one is there already; any other is assigned.  What is, or is a view of, a
variable as it was before the run is copied first where it is returned or assigned: the caller gets the value from before the
update, and two variables may be exchanged.
"""

from __future__ import annotations

from dataclasses import replace

from jobflow.compiler.rank.local import Item, RankProgram, Step
from jobflow.compiler.rank.views import views_of, written_over
from jobflow.ops.layout_ops import Copy
from jobflow.ops.update import Assign


def write(program: RankProgram) -> RankProgram:
    """Make writes explicit; `updates` is empty afterwards."""
    over = written_over(program.steps)
    stored = views_of(program.steps, set(program.reads.values()))
    steps = list(program.steps)

    def kept(item: Item, why: str) -> Item:
        copy = Item(item.type, f"{item.name}:{why}")
        steps.append(Step(Copy(), (item,), (copy,), item.name))
        return copy

    for name, value in program.updates.items():
        old = program.reads[name]
        if over.get(value) is not old:
            new = kept(value, "before") if value in stored else value
            steps.append(Step(Assign(), (old, new), (Item(old.type, f"{name}:new"),), name, phase="update"))
    fetches = tuple((position, kept(item, "returned") if item in stored or item in over else item) for position, item in program.fetches)
    return replace(program, steps=tuple(steps), fetches=fetches, updates={})
