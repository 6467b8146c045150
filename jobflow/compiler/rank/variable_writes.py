"""RankProgram -> the same program with every write of a variable as an instruction, and with outputs that no write can change.

An in-place update has written its new value already; any other value is assigned.  If an output or an assigned value is a
variable's old value or a view of it, it is copied first.  The caller then gets the value from before the
update, and two variables can be exchanged.
"""

from __future__ import annotations

from dataclasses import replace

from jobflow.compiler.rank.local import LocalInstruction, LocalValue, RankProgram
from jobflow.compiler.rank.views import views_of, written_over
from jobflow.ops.layout_ops import Copy
from jobflow.ops.update import Assign


def write(program: RankProgram) -> RankProgram:
    """Return the program with an instruction for every write of a variable; its `updates` are empty."""
    over = written_over(program.steps)
    stored = views_of(program.steps, set(program.reads.values()))
    steps = list(program.steps)

    def copied(value: LocalValue, why: str) -> LocalValue:
        copy = LocalValue(value.type, f"{value.name}:{why}")
        steps.append(LocalInstruction(Copy(), (value,), (copy,), value.name))
        return copy

    for name, value in program.updates.items():
        old = program.reads[name]
        if over.get(value) is not old:
            new = copied(value, "before") if value in stored else value
            steps.append(LocalInstruction(Assign(), (old, new), (LocalValue(old.type, f"{name}:new"),), name, phase="update"))
    fetches = tuple((position, copied(value, "returned") if value in stored or value in over else value) for position, value in program.fetches)
    return replace(program, steps=tuple(steps), fetches=fetches, updates={})
