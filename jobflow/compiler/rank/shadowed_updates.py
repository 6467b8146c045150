"""RankProgram -> the same program without casts of variables to half precision, on GPUs.

A step in mixed precision reads float32 variables by casts.  An update of such a variable also writes the cast of the new value, its shadow, and
the next run reads the shadow.  Shadows outlive runs, as variables do.

    before      h = Cast(w)   y = matmul(x, h)   ...   w' = AdamUpdate(w, m, v, g)
    after       y = matmul(x, shadow)            ...   w', shadow' = ShadowUpdate(AdamUpdate)(w, m, v, shadow, g)

A shadow is out of date after any other write of its variable.  The plan names its shadows.  Before a run, `runtime.variable_shadows` casts
those that are out of date.

A cast remains if its result is communicated, joined, returned or overwritten, because it then needs memory in the arena.  It also
remains for variables in memory that ranks share, for variables with several writers, and for updates without a formula.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace

from jobflow.compiler.rank.joined_space import fits_in_loop
from jobflow.compiler.rank.local import LocalInstruction, LocalValue, RankProgram
from jobflow.compiler.rank.views import StridedWindow, views_of, windows
from jobflow.core.dataclass import dataclass
from jobflow.core.types import DType, bfloat16, float16, float32
from jobflow.ops.op import Op
from jobflow.ops.pointwise import Pointwise
from jobflow.ops.scalar import Cast
from jobflow.ops.shadow_update import ShadowUpdate
from jobflow.ops.update import Updated
from jobflow.plan.plan import Slot
from jobflow.plan.storage import is_common, shadow_slot

#: the element types of shadows
HALVES = (float16, bfloat16)


def add_shadows(program: RankProgram) -> RankProgram:
    """Replace casts of updated variables by shadows that the updates write."""
    if program.target.kind != "cuda" or program.target.fusion is None:
        return program
    casts = [step for step in program.steps if isinstance(step.action, Cast) and step.action.dtype in HALVES]
    return _Shadows(program, casts).run() if casts and any(_is_update(step) for step in program.steps) else program


def _is_update(step: LocalInstruction) -> bool:
    return isinstance(step.action, Updated)


@dataclass
class _Shadows:
    program: RankProgram
    casts: Sequence[LocalInstruction]
    #: position of an update -> the index of its variable with a shadow, and the type of the shadow
    chosen: dict[int, tuple[int, DType]] = field(default_factory=dict)
    #: shadow by variable name
    slots: dict[str, Slot] = field(default_factory=dict)
    #: result of a removed cast -> shadow
    instead: dict[LocalValue, LocalValue] = field(default_factory=dict)

    def run(self) -> RankProgram:
        program = self.program
        window_of = windows(program.steps, [*program.reads.values(), *(argument.value for argument in program.arguments)], {})
        name_of = {value: name for name, value in program.reads.items()}
        writes = self._writes(window_of)
        needed = self._needs_memory()
        values: dict[Slot, LocalValue] = {}
        for step in self.casts:
            (value,), (half,) = step.inputs, step.outputs
            window, dtype = window_of[value], half.type.dtype
            name = name_of.get(window.root)
            if name is not None and half not in needed and self._choose(_slot(window.root), dtype, writes):
                self.slots[name] = shadow_slot(_slot(window.root), dtype)
                base = _slot(window.root)
                shadow = shadow_slot(Slot(base.buffer, base.offset + window.offset, value.type, window.strides), dtype)
                self.instead[half] = values.setdefault(shadow, LocalValue(half.type, half.name, slot=shadow))
        steps = [self._rewritten(i, step) for i, step in enumerate(program.steps) if self.instead.keys().isdisjoint(step.outputs)]
        return replace(program, steps=tuple(steps), shadows=self.slots)

    def _writes(self, window_of: dict[LocalValue, StridedWindow]) -> list[tuple[int, int, Slot]]:
        """Return the position of each write of a variable, the index of the variable among the inputs, and its memory."""
        return [
            (i, source, root.slot)
            for i, step in enumerate(self.program.steps)
            if isinstance(step.action, Op)
            for source in step.action.alias.values()
            if (root := window_of[step.inputs[source]].root).slot is not None
        ]

    def _needs_memory(self) -> set[LocalValue]:
        """Return the results of casts that instructions other than operations read, that the program returns, or that updates overwrite."""
        program = self.program
        cast_of = views_of(program.steps, {step.outputs[0] for step in self.casts})
        read = [value for step in program.steps if not isinstance(step.action, Op) for value in step.inputs]
        over = [step.inputs[i] for step in program.steps if isinstance(step.action, Op) for i in step.action.alias.values()]
        shown = [*(value for _, value in program.fetches), *program.results, *program.updates.values()]
        return {cast_of[value] for value in (*read, *over, *shown) if value in cast_of}

    def _choose(self, variable: Slot, half: DType, writes: Sequence[tuple[int, int, Slot]]) -> bool:
        """Return True if exactly one update writes the variable, and can write its shadow in the type `half` as well; note the update."""
        if variable.type.dtype is not float32 or is_common(variable.buffer):
            return False
        of_variable = [
            (i, index, slot)
            for i, index, slot in writes
            if slot.buffer == variable.buffer and slot.offset < variable.stop and variable.offset < slot.stop
        ]
        if len(of_variable) != 1:
            return False
        ((i, index, slot),) = of_variable
        step = self.program.steps[i]
        able = step.inputs[index].slot == slot and isinstance(step.action, Updated) and isinstance(step.action, Pointwise)
        if i not in self.chosen and able and fits_in_loop(self._with_shadow(step, index, half), self.program.target.kind):
            self.chosen[i] = index, half
        return self.chosen.get(i) == (index, half)

    def _rewritten(self, i: int, step: LocalInstruction) -> LocalInstruction:
        if i in self.chosen:
            step = self._with_shadow(step, *self.chosen[i])
        if self.instead.keys().isdisjoint(step.inputs):
            return step
        return replace(step, inputs=tuple(self.instead.get(value, value) for value in step.inputs))

    @staticmethod
    def _with_shadow(step: LocalInstruction, index: int, half: DType) -> LocalInstruction:
        op, variable = step.action, step.inputs[index]
        assert isinstance(op, Updated)
        n, slot = op.count, shadow_slot(_slot(variable), half)
        old, new = (LocalValue(slot.type, f"{variable.name}:{name}", slot=at) for name, at in (("shadow", slot), ("new shadow", None)))
        return replace(
            step,
            action=ShadowUpdate(op, index),
            inputs=(*step.inputs[:n], old, *step.inputs[n:]),
            outputs=(*step.outputs, new),
        )


def _slot(value: LocalValue) -> Slot:
    assert value.slot is not None
    return value.slot
