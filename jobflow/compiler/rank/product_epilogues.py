"""RankProgram -> a program in which products include the operations after them, if the target's library computes both in one call.

A product absorbs readers of its result, one after the other: a bias, an activation or its derivative, a conversion to float32, a residual.
The sum of a factor's rows, which is the gradient of a bias, becomes an output of the product with that factor.

The tables of the target list these operations (`kernels/patterns.py`).  Products are not merged with instructions of other microbatches, with
updates, or with instructions that depend on updates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jobflow.compiler.rank.local import LocalInstruction, LocalValue, RankProgram
from jobflow.core.types import DType
from jobflow.kernels.patterns import Epilogues
from jobflow.ops.op import Op
from jobflow.ops.scalar import Cast

#: index of the first input with the element type of the result
FIRST_ADDED = 2
#: marks the result, in place of the index of a factor
RESULT = -1


def merge_epilogues(program: RankProgram) -> RankProgram:
    """Merge products with the operations around them."""
    epilogues = program.target.patterns.epilogues
    return program if epilogues is None else _EpilogueMerge(program, epilogues).run()


class _EpilogueMerge:
    def __init__(self, program: RankProgram, epilogues: Epilogues) -> None:
        self.program, self.epilogues = program, epilogues
        self.steps: list[LocalInstruction | None] = list(program.steps)
        self.hits = list(program.hits)
        self.maker: dict[LocalValue, int] = {}
        self.readers: dict[LocalValue, set[int]] = {}
        #: values that are visible outside of the program
        self.outside = {value for _, value in program.fetches} | set(program.results) | set(program.updates.values())
        #: positions of updates, and of instructions that depend on updates
        self.late: set[int] = set()
        late: set[LocalValue] = set()
        for at, step in enumerate(program.steps):
            if (isinstance(step.action, Op) and step.action.alias) or not late.isdisjoint(step.inputs):
                self.late.add(at)
                late.update(step.outputs)
            self._enter(at, step)

    def run(self) -> RankProgram:
        for merge in (self._absorb_reader, self._absorb_result_sum, self._absorb_factor_sum, self._absorb_wide_sum):
            for first in range(len(self.steps)):
                at: int | None = first
                while at is not None:
                    at = merge(at)
        return replace(self.program, steps=tuple(step for step in self.steps if step is not None), hits=tuple(self.hits))

    # ---------------------------------------------------------------- readers of the result

    def _absorb_reader(self, at: int) -> int | None:
        """Merge the instruction with a reader of its first output; return the position of the merged instruction, or None."""
        step = self.steps[at]
        if step is None or not isinstance(step.action, Op) or not step.outputs or len(step.outputs) > 1:
            return None
        (result,) = step.outputs
        for position in sorted(self.readers.get(result, ())):
            reader = self.steps[position]
            if reader is None or not self._together(at, position) or not isinstance(reader.action, Op) or len(reader.outputs) != 1:
                continue
            merged = self._with_reader(step, reader, result, keeps=len(self.readers[result]) > 1 or result in self.outside)
            target = None if merged is None else self._position(at, position, merged)
            if merged is not None and target is not None:
                self._replace((at, position), target, merged, type(reader.action).__name__)
                return target
        return None

    def _with_reader(self, step: LocalInstruction, reader: LocalInstruction, result: LocalValue, keeps: bool) -> LocalInstruction | None:
        assert isinstance(step.action, Op) and isinstance(reader.action, Op)
        if reader.inputs.count(result) != 1:
            return None
        index = reader.inputs.index(result)
        op = self.epilogues.after(step.action, reader.action, index, [value.type for value in reader.inputs], keeps)
        if op is None:
            return None
        added = (*step.inputs[FIRST_ADDED:], *reader.inputs[:index], *reader.inputs[index + 1 :])
        typed = [self._in_type(value, reader.outputs[0].type.dtype) for value in added]
        if any(value is None for value in typed):
            return None
        inputs = (*step.inputs[:FIRST_ADDED], *(value for value in typed if value is not None))
        return replace(reader, action=op, inputs=inputs, outputs=(*reader.outputs, *((result,) if keeps else ())))

    def _in_type(self, value: LocalValue, dtype: DType) -> LocalValue | None:
        """Return the value in this element type: the value itself, or the value of which it is a rounded copy; None if there is none."""
        if value.type.dtype is dtype:
            return value
        before = self._before_cast(value)
        return before if before is not None and before.type.dtype is dtype else None

    def _before_cast(self, value: LocalValue) -> LocalValue | None:
        """Return the value that a cast converted to `value`; None if no cast made it."""
        maker = self.steps[self.maker[value]] if value in self.maker else None
        return maker.inputs[0] if maker is not None and isinstance(maker.action, Cast) else None

    # ---------------------------------------------------------------- sums of factors

    def _absorb_result_sum(self, at: int) -> int | None:
        """Merge the instruction with a sum of its result, unless that sum is converted to a wider type."""
        step = self.steps[at]
        return None if step is None else self._absorb_sum(at, [(RESULT, value) for value in step.outputs[:1]], widened=False)

    def _absorb_factor_sum(self, at: int) -> int | None:
        """Merge the instruction with a sum of one of its factors, or of the value that was rounded to the factor."""
        step = self.steps[at]
        factors = [] if step is None else list(enumerate(step.inputs[:FIRST_ADDED]))
        for index, value in tuple(factors):
            before = self._before_cast(value)
            if before is not None and before.type.dtype.is_float and value.type.dtype.is_half:
                factors.append((index, before))
        return self._absorb_sum(at, factors)

    def _absorb_wide_sum(self, at: int) -> int | None:
        """Merge the instruction with any sum of its result."""
        step = self.steps[at]
        return None if step is None else self._absorb_sum(at, [(RESULT, value) for value in step.outputs[:1]])

    def _absorb_sum(self, at: int, summed: Sequence[tuple[int, LocalValue]], widened: bool = True) -> int | None:
        """Merge the instruction with a sum of one of the values, given with the indices of the factors; return the position of the merged one."""
        step = self.steps[at]
        if step is None or not isinstance(step.action, Op) or len(step.outputs) != 1:
            return None
        for index, value in summed:
            for position in sorted(self.readers.get(value, set()) - {at}):
                reader = self.steps[position]
                if reader is None or not self._together(at, position) or not isinstance(reader.action, Op) or len(reader.outputs) != 1:
                    continue
                op = self.epilogues.sums(step.action, index, reader.action, value.type)
                total = None if op is None else self._total(reader, step.outputs[0].type.dtype)
                if op is None or total is None or not (widened or self._is_final(reader.outputs[0])):
                    continue
                output, cast = total
                merged = replace(step, action=op, outputs=(*step.outputs, output))
                target = self._position(at, position, merged)
                if target is not None:
                    self._replace((at, position, *cast), target, merged, type(reader.action).__name__)
                    return target
        return None

    def _is_final(self, output: LocalValue) -> bool:
        """Return False for a value that is only converted to another type."""
        readers = [self.steps[at] for at in self.readers.get(output, ())]
        return len(readers) != 1 or readers[0] is None or not isinstance(readers[0].action, Cast)

    def _total(self, reader: LocalInstruction, dtype: DType) -> tuple[LocalValue, tuple[int, ...]] | None:
        """Return the sum in this element type, and the position of the cast that made it; None if no instruction makes it."""
        (output,) = reader.outputs
        if output.type.dtype is dtype:
            return output, ()
        readers = self.readers.get(output, set())
        cast = self.steps[next(iter(readers))] if len(readers) == 1 and output not in self.outside else None
        if cast is None or not isinstance(cast.action, Cast) or cast.outputs[0].type.dtype is not dtype or not dtype.is_float:
            return None
        return cast.outputs[0], tuple(readers)

    # ---------------------------------------------------------------- positions

    def _together(self, first: int, second: int) -> bool:
        """Return True if two instructions belong to one microbatch, and neither depends on updates."""
        a, b = self.steps[first], self.steps[second]
        assert a is not None and b is not None
        return a.microbatch == b.microbatch and self.late.isdisjoint((first, second))

    def _position(self, first: int, second: int, merged: LocalInstruction) -> int | None:
        """Return the position of an old instruction that is after the inputs of the merged one, and before its readers; None if neither is."""
        latest = max((self.maker[value] for value in merged.inputs if value in self.maker), default=-1)
        earliest = min((at for value in merged.outputs for at in self.readers.get(value, set()) - {first, second}), default=len(self.steps))
        return next((at for at in (second, first) if latest < at < earliest), None)

    def _replace(self, old: Sequence[int], target: int, merged: LocalInstruction, what: str) -> None:
        """Replace the old instructions by the merged one at position `target`, and drop casts that no instruction reads any more."""
        removed = [step for at in old if (step := self._remove(at)) is not None]
        self.steps[target] = merged
        self._enter(target, merged)
        self.hits.append(f"{what} into product")
        for value in dict.fromkeys(value for step in removed for value in step.inputs):
            at = self.maker.get(value)
            step = None if at is None else self.steps[at]
            if at is not None and step is not None and isinstance(step.action, Cast) and not self.readers.get(value) and value not in self.outside:
                self._remove(at)

    def _enter(self, at: int, step: LocalInstruction) -> None:
        for value in step.inputs:
            self.readers.setdefault(value, set()).add(at)
        for value in step.outputs:
            self.maker[value] = at

    def _remove(self, at: int) -> LocalInstruction | None:
        step, self.steps[at] = self.steps[at], None
        for value in () if step is None else step.inputs:
            self.readers[value].discard(at)
        return step
